"""A small world on the real API server or on the fake, and the mutants that these tests must catch (see `mutants`)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes import executor
from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.pods import controller
from flowsched.control.leading import recover
from tests.kubernetes.fake import FakeApi
from tests.kubernetes.faults import mutants
from tests.kubernetes.faults.world import World


@pytest.fixture(autouse=True, scope="session")
def mutant() -> str:
    """The seeded fault of this run, if there is one."""
    name = os.environ.get(mutants.ENVIRONMENT, "")
    if name:
        mutants.ALL[name].seed()
    return name


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tidied each five seconds is so each third of one: these tests wait for it."""
    monkeypatch.setattr(recover, "RECONCILE_PERIOD_S", 0.3)
    monkeypatch.setattr(executor, "SWEEP_S", 0.3)
    monkeypatch.setattr(controller, "GANGS_S", 0.5)


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes of four cores on the real API server."""
    async with World(api, namespace, tmp_path) as world:
        yield world


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    """An API server that misbehaves on request."""
    async with FakeApi() as fake:
        yield fake


@pytest.fixture
async def fake_world(fake: FakeApi, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes of four cores on the fake."""
    async with Client(fake.connection) as client:
        body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"work"}}'
        assert (await client.call("POST", "/api/v1/namespaces", body=body)).ok
    async with World(fake.connection, "work", tmp_path) as world:
        yield world
