"""Traces replayed by a real service with synthetic work: real files and real CPU time, scaled, and no programs."""
