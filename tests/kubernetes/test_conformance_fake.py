"""Our fake API server behaves as the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.conformance import Conformance
from tests.kubernetes.conformance_native import NativeConformance
from tests.kubernetes.fake import FakeApi


class TestFake(Conformance):
    """As it is served by default."""

    @pytest.fixture
    async def api(self) -> AsyncIterator[Connection]:
        """A fake of the test's own."""
        async with FakeApi() as fake:
            yield fake.connection


class TestFakeWithNativePodGroups(NativeConformance):
    """With the feature gates on."""

    @pytest.fixture
    async def api(self) -> AsyncIterator[Connection]:
        """A fake of the test's own."""
        async with FakeApi(native_gangs=True) as fake:
            yield fake.connection
