"""Workflows: the declared stages and the progress of a run. Pure: no I/O, no clock, no SQL, no Kubernetes."""
