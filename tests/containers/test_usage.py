"""What a task in a container used: of all its processes, and not of the engine's client."""

from __future__ import annotations

from pathlib import Path

from flowsched.cluster.local.runner.engine import cpu_time_ms, memory_stat
from tests.containers.conftest import ContainerWorld
from tests.executors.executor_contract import shell


async def test_cpu_time_is_that_of_the_containers_processes(container_world: ContainerWorld) -> None:
    """Two processes compute for two seconds of CPU time each. Docker's are seen twice a second, and not at their very end."""
    burn = "python -c 'import time\nwhile time.process_time() < 2: pass'"
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", f"{burn} & {burn}; wait; cat /bin/sh > copy")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (0, ""), await cluster.logs("a", "stderr", 0, 1000)
    assert 3_000 <= end.usage.cpu_ms < 20_000


def test_a_container_that_docker_has_not_named_yet_has_no_control_group(tmp_path: Path) -> None:
    """Its file is there before its id is in it; without the id, the sums of all of Docker's containers would be read."""
    (tmp_path / "a.cid").write_text("")
    assert memory_stat("docker", str(tmp_path / "a.cid")) == ""


def test_cpu_time_is_read_beside_the_memory(tmp_path: Path) -> None:
    """Of version 2, in microseconds. A control group that is gone has none."""
    (tmp_path / "cpu.stat").write_text("usage_usec 2345678\nuser_usec 1\n")
    assert cpu_time_ms(f"{tmp_path}/memory.stat") == 2345
    assert cpu_time_ms(f"{tmp_path}/gone/memory.stat") == 0
    assert cpu_time_ms("") == 0
