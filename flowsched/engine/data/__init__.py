"""Where data are, come and go: inputs, staging, prefetch, remote reads, caches."""
