"""Placement: the nodes of one group."""
