"""Tasks in containers on one machine."""
