"""The part of an attempt that runs beside its task, in its own process. Standard library only, little of it.

It is imported by `cluster/local/run_attempt.py` as the top-level package `runner`, so it must never import flowsched.
"""
