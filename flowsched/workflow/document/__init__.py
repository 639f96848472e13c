"""Workflow documents: reading, checking, the schema."""
