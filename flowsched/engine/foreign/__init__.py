"""Pods that are not flowsched's in a step: what is bound, offered, and preempted."""
