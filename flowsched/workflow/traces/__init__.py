"""Recorded and synthetic traces as workflows."""
