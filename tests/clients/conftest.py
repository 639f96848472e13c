"""The nursery of services, databases, and the real clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.environments import environment, versions
from tests.crash.harness import Nursery
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def py_tes_1(tell: Callable[[str], None]) -> Path:
    """The environment of py-tes 1.1."""
    folder = environment("py-tes-1.1")
    tell(versions(folder))
    return folder


@pytest.fixture
def pydantic_tes(tell: Callable[[str], None]) -> Path:
    """The environment of pydantic-tes, the client of Pulsar and so of Galaxy."""
    folder = environment("pydantic-tes-0.4")
    tell(versions(folder))
    return folder


@pytest.fixture
def snakemake_9(tell: Callable[[str], None]) -> Path:
    """The environment of Snakemake 9, with py-tes 0.4."""
    folder = environment("snakemake-9")
    tell(versions(folder))
    return folder


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def database(request: pytest.FixtureRequest) -> str | None:
    """None for SQLite in the root, or a fresh PostgreSQL database."""
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("fresh_postgres")())
