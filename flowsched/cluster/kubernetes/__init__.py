"""Kubernetes: the executor for clusters, and what it needs. Objects and manifests are pure; `api` talks HTTP."""
