"""Databases and the nursery of services."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.crash.harness import Nursery, impatient_clients
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401

#: How often a service is killed on each database; `make crash-test` says 100.
KILLS = int(os.environ.get("FLOWSCHED_KILLS", "20"))
SEED = int(os.environ.get("FLOWSCHED_CRASH_SEED", "1"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    with impatient_clients():
        yield made
    made.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request: pytest.FixtureRequest) -> str | None:
    """None for SQLite in the root, or a fresh PostgreSQL database."""
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("fresh_postgres")())
