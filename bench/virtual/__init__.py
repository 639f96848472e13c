"""Drivers of the engine on a virtual clock, for benches and tests: a cluster without SQL or processes, and what pods do there."""
