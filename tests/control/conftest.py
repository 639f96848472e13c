"""Databases: what is decided by what SQL says is decided on both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.postgres import fresh_postgres, postgres_server  # noqa: F401


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """None for SQLite in the root, or a fresh PostgreSQL database."""
    if request.param == "sqlite":
        return None
    made: Callable[[], str] = request.getfixturevalue("fresh_postgres")
    return made()
