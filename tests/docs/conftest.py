"""A PostgreSQL for the pages that need one."""

from tests.postgres import postgres_server

__all__ = ["postgres_server"]
