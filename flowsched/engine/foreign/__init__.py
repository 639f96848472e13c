"""Pods that are not flowsched's in a step: which are bound, offered, and preempted."""
