"""The hosts keep the contract of executors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.executor.protocol import Executor, ServiceContext
from tests.executors.executor_contract import ExecutorContract, FactoryWorld
from tests.executors.hosts import open_hosts


class TestHosts(ExecutorContract):
    container_tasks = False  # it refuses them

    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[FactoryWorld]:
        async def make() -> Executor:
            service = ServiceContext(str(tmp_path), lambda: time.time_ns() // 1_000_000)
            return await open_hosts({"hosts": "node-0,node-1", "command": "sh -c"}, service)

        async with FactoryWorld(make, tmp_path) as world:
            yield world
