"""A run as arrays of task states, and their transitions."""
