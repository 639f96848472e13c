"""Executors: this machine (`local`) and Kubernetes. They know nothing of SQL, queues or workflows."""
