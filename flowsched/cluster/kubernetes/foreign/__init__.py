"""Pods that are not flowsched's: their groups, binding, eviction and conditions."""
