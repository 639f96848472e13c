"""The order between queues: the tree, fair share, and each queue's deserved share."""
