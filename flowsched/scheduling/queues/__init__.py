"""The order between queues: the tree, fair share, what each queue deserves."""
