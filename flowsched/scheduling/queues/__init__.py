"""Whose turn it is."""
