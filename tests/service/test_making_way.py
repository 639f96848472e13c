"""Whole services: work that makes way for others, and nodes that are emptied, over real rows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flowsched.errors import InvalidRequest, NotFound
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from flowsched.workflow.views import TaskView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process

BAG = {"name": "many", "scatter": {"count": 8}, "command": ["x"], "resources": {"cpu": 1, "memory": "1Mi"}}
ROLE = {"replicas": 5, "command": ["x"], "resources": {"cpu": 1, "memory": "1Mi"}}
RING = {"name": "ring", "gang": True, "roles": {"worker": ROLE}}


def lives(pod: Pod) -> Outcome:
    """The gang is short; the bag's first attempts never end by themselves."""
    return Outcome(runtime_ms=100 if pod.stage == "ring" or pod.attempt else 600_000)


async def submit(made: Process, name: str, stage: object, priority: int = 0) -> str:
    document = {"name": name, "priority": priority, "stages": [stage]}
    return (await made.service.submit(json.dumps(document).encode())).id


async def tasks(made: Process, ident: str) -> list[TaskView]:
    return list((await made.service.tasks(ident)).tasks)


async def until(made: Process, ident: str, state: str, count: int) -> list[TaskView]:
    """Wait until so many tasks are in a state."""
    while True:
        found = await tasks(made, ident)
        if sum(task.state == state for task in found) >= count:
            return found
        await asyncio.sleep(0.01)


async def test_a_bag_makes_way_for_a_gang_and_runs_again(tmp_path: Path) -> None:
    """Eight cores are full; a gang of five is done, then the five tasks that left run as their second attempts."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(lives)) as one:
        one.lead()
        await one.ready()
        low = await submit(one, "low", BAG)
        await until(one, low, "RUNNING", 8)
        high = await submit(one, "high", RING, priority=5)
        await until(one, high, "SUCCEEDED", 5)
        found = await until(one, low, "SUCCEEDED", 5)
        assert sorted(task.attempt for task in found) == [0, 0, 0, 1, 1, 1, 1, 1]
        assert {task.qos for task in found} == {"Burstable"}


NOW: dict[str, Any] = {"grace_ms": 0, "start": None, "reason": "new disk", "author": "ada"}


async def test_a_drained_node_stays_so_after_a_restart(tmp_path: Path) -> None:
    """What ran there runs elsewhere; another leader places nothing there until it is used again."""
    url = url_for(tmp_path / "db")
    world = FakeProcesses(lambda _: Outcome(runtime_ms=600_000))
    async with process(url, tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = await submit(one, "w", BAG | {"scatter": {"count": 2}})
        before = await until(one, ident, "RUNNING", 2)
        view = await one.service.draining.drain(str(before[0].node), **NOW)
        assert (view.ready, view.drain and view.drain.by) == (False, "ada")
        with pytest.raises(NotFound, match="there is no node 'moon'"):
            await one.service.draining.drain("moon", **NOW)
        while {task.node for task in await until(one, ident, "RUNNING", 2)} & {before[0].node}:
            await asyncio.sleep(0.01)
    async with process(url, tmp_path, world, holder="two") as two:
        two.lead()
        await two.ready()
        (drain,) = [view.drain for view in await two.service.nodes() if view.drain is not None]
        assert (drain.reason, drain.by, drain.until_at) == ("new disk", "ada", drain.from_at)
        other = await submit(two, "more", BAG | {"scatter": {"count": 5}})
        found = await until(two, other, "RUNNING", 2)
        assert {task.node for task in found if task.node is not None}.isdisjoint({before[0].node})
        assert (await two.service.draining.uncordon(str(before[0].node))).ready
        assert before[0].node in {task.node for task in await until(two, other, "RUNNING", 5)}


async def test_states_of_nodes_have_words(tmp_path: Path) -> None:
    """A drained node is empty or not yet; one that is to be drained is ready; what the cluster says of a node goes before."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(lambda _: Outcome(600_000))) as one:
        one.lead()
        await one.ready()
        ident = await submit(one, "w", BAG | {"scatter": {"count": 1}})
        (task,) = await until(one, ident, "RUNNING", 1)
        busy = str(task.node)
        (idle,) = {view.name for view in await one.service.nodes()} - {busy}
        later = NOW | {"start": "2100-01-01T00:00Z"}
        assert (await one.service.draining.drain(idle, **later)).state == "READY"
        wait = NOW | {"grace_ms": None}
        assert (await one.service.draining.drain(idle, **wait)).state == "DRAINED"
        assert (await one.service.draining.drain(busy, **wait)).state == "DRAINING"
        with pytest.raises(InvalidRequest, match="start: '2h'; it is a time to come"):
            await one.service.draining.drain(idle, **(NOW | {"start": "2h"}))
        with pytest.raises(InvalidRequest, match="it is a time to come, such as 2026-12-04T18:00Z"):
            await one.service.draining.drain(idle, **(NOW | {"start": "1999-01-01"}))
