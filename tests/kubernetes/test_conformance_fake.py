"""Our fake API server behaves as the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowsched.cluster.kubernetes.client import Connection
from tests.kubernetes.conformance import Conformance
from tests.kubernetes.fake import FakeApi


@pytest.fixture
async def api() -> AsyncIterator[Connection]:
    """A fake of the test's own."""
    async with FakeApi() as fake:
        yield fake.connection


class TestFake(Conformance):
    """All of it."""
