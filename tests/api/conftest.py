"""The real API over a service in memory, on a real socket."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

sys.path.insert(0, str(Path(__file__).parent))

from fake_service import FakeService

from flowsched.api.routes import Limits
from flowsched.api.server import build_api

LIMITS = Limits(
    body_bytes=10 << 20, small_body_bytes=4096, streams=20, keep_alive_seconds=0.05, stall_seconds=0.3,
    follow_seconds=0.01, body_seconds=0.5,
)  # fmt: skip


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def api(service: FakeService) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(build_api(service, limits=LIMITS))) as client:
        yield client
