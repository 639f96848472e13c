"""Data in a step: inputs, staging, prefetch, gather nodes, remote reads, caches."""
