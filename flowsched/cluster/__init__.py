"""Where pods really run: this machine (`local`), or Kubernetes. Knows nothing of SQL, queues or workflows."""
