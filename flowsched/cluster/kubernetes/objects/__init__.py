"""Objects of the API server as values."""
