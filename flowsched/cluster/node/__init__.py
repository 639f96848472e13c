"""The work of every node, on this machine and on Kubernetes: cache, ranges, origins, rates, meter."""
