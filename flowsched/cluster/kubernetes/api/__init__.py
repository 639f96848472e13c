"""The API server: HTTP, watches, credentials, errors."""
