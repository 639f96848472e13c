"""Workflows: what is to run and how far it has got. Pure: no I/O, no clock, no SQL, no Kubernetes."""
