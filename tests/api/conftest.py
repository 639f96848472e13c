"""The real API over a service in memory, on a real socket."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

sys.path.insert(0, str(Path(__file__).parent))

from fake_service import LIMITS, FakeService

from flowsched.api.server import build_api


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def api(service: FakeService) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(build_api(service, limits=LIMITS))) as client:
        yield client
