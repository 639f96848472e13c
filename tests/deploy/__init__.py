"""deploy/: what it renders to, and what a real API server says to it."""
