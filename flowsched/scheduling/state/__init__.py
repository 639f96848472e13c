"""The cluster as arrays."""
