"""The contract of executors on one machine, each pod in a container of a real podman, and of a real Docker."""

from __future__ import annotations

import pytest

from tests.containers.conftest import ContainerWorld
from tests.executors.executor_contract import ExecutorContract


class TestInContainers(ExecutorContract):
    @pytest.fixture
    def world(self, container_world: ContainerWorld) -> ContainerWorld:
        return container_world
