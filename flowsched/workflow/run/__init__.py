"""A run as arrays of task states, and what moves them."""
