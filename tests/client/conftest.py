"""A server with the real API over a service in memory, on a real socket."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from fake_service import FakeService

import flowsched
from flowsched.api.routes import Limits
from flowsched.api.server import build_api
from flowsched.client import session, streams


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait milliseconds."""
    monkeypatch.setattr(session, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(session, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(streams, "STOOD_S", 0.2)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def server(service: FakeService) -> AsyncIterator[TestServer]:
    limits = Limits(follow_seconds=0.01, keep_alive_seconds=0.05)
    async with TestServer(build_api(service, limits=limits)) as running:
        yield running


@pytest.fixture
async def client(server: TestServer) -> AsyncIterator[flowsched.Client]:
    async with flowsched.Client(str(server.make_url("/")), timeout=60, start_timeout=0) as made:
        yield made
