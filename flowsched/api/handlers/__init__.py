"""Handlers of routes, by what they are about. Each is one question to the service."""
