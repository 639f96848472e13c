"""A black-box run: users work with the service from outside under random faults, and a judge checks every workflow.

docs/blackbox.md says how to run it and which violations it reports.
"""
