"""The contract on real processes and on fakes."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import FakeWorld, RealWorld
from tests.executors.executor_contract import ExecutorContract


class TestRealProcesses(ExecutorContract):
    @pytest.fixture
    def world(self, real_world: RealWorld) -> RealWorld:
        return real_world


class TestFakeProcesses(ExecutorContract):
    @pytest.fixture
    def world(self, fake_world: FakeWorld) -> FakeWorld:
        return fake_world
