"""A black-box run: the service as a stranger meets it, under faults at random, and a judge of what became of the work.

docs/blackbox.md says how to run it and what it checks.
"""
