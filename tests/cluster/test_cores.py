"""A task runs on as many cores as it may have, not on all of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowsched.app import Settings, running
from flowsched.cluster.local.runner.cores import Use, choose
from flowsched.cluster.local.settings import LocalSettings

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


@pytest.mark.parametrize(
    ("in_use", "millicores", "chosen"),
    [
        ([], 1000, (0,)),
        ([((0,), 1000)], 1000, (1,)),
        ([((0,), 1000), ((1,), 500)], 2000, (2, 3)),
        ([((0,), 1000), ((2,), 1000)], 1500, (1, 3)),
        ([((0,), 500), ((1,), 1000), ((2, 3), 2000)], 500, (0,)),
        ([], 4000, ()),
        ([], 9000, ()),
        ([], 0, ()),
    ],
)
def test_the_least_used_cores_are_chosen(
    in_use: Sequence[Use], millicores: int, chosen: tuple[int, ...]
) -> None:
    """Rounded up to whole cores. Who asks for the machine, or for nothing, is not bound."""
    assert choose((0, 1, 2, 3), in_use, millicores) == chosen


async def cores_of(tmp_path: Path, cpu: int, tasks: int, asks: float, **more: object) -> list[set[int]]:
    """The cores on which tasks of `asks` CPU run, all at once, on one node of `cpu`."""
    stage = {
        "name": "a",
        "command": ["sh", "-c", "grep Cpus_allowed_list /proc/self/status | cut -f2 > n; sleep 0.5"],
        "scatter": {"count": tasks},
        "resources": {"cpu": asks, "memory": "16Mi"},
        "outputs": [{"name": "n", "path": "n", "value": True}],
        **more,
    }
    settings = Settings(
        port=0, root=tmp_path, log_level="error", local=LocalSettings(nodes=1, cpu=str(cpu), memory="1Gi")
    )
    async with running(settings) as up:
        ident = (await up.service.submit(json.dumps({"name": "w", "stages": [stage]}).encode())).id
        async for _ in up.service.events(ident, 0):
            pass
        found = [(await up.service.task(ident, "a", index)).outputs[0].value or "" for index in range(tasks)]
    return [_parsed(text) for text in found]


def _parsed(text: str) -> set[int]:
    parts = [part.split("-") for part in text.strip().split(",")]
    return {core for part in parts for core in range(int(part[0]), int(part[-1]) + 1)}


@pytest.mark.skipif(CORES < 2, reason="needs two cores, on Linux")
async def test_tasks_beside_each_other_have_cores_of_their_own(tmp_path: Path) -> None:
    """Two tasks of one core each."""
    first, second = await cores_of(tmp_path, 2, 2, 1)
    assert (len(first), len(second), first & second) == (1, 1, set())


@pytest.mark.skipif(CORES < 2, reason="needs two cores, on Linux")
async def test_a_limit_above_the_request_counts(tmp_path: Path) -> None:
    """It asks for one core, and may use all."""
    (found,) = await cores_of(tmp_path, CORES, 1, 1, limits={"cpu": CORES})
    assert found == os.sched_getaffinity(0)


@pytest.mark.skipif(CORES < 2, reason="needs two cores, on Linux")
async def test_where_nodes_promise_more_cores_than_there_are_no_task_is_bound(tmp_path: Path) -> None:
    """The kernel divides the cores among the tasks."""
    found = await cores_of(tmp_path, 8 * CORES, 2, 1)
    assert found == [os.sched_getaffinity(0)] * 2
