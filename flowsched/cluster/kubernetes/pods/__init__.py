"""flowsched's own pods: manifests, lives, results."""
