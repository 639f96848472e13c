"""Recorded traces of workflows."""
