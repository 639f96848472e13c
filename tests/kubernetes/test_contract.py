"""What every executor promises, on Kubernetes: a real API server (and the stand-in), hollow nodes that really run commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.client import Connection
from tests.cluster.contract import ExecutorContract
from tests.kubernetes.exec_world import KubeWorld


@pytest.mark.kubernetes
class TestOnTheRealServer(ExecutorContract):
    @pytest.fixture
    async def world(self, api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
        async with KubeWorld(api, namespace, tmp_path) as world:
            yield world
