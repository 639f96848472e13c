"""Beside the stock scheduler: promised room is kept from it by placeholders (FAULTS.md row 36)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.conftest import require
from tests.kubernetes.conftest import running as started
from tests.kubernetes.fake import FakeApi
from tests.kubernetes.faults.world import World, attempts, bag, document, gang
from tests.kubernetes.hollow.controlplane import SCHEDULER, ControlPlane
from tests.kubernetes.hollow.simulated import Fate

HELD = "flowsched.io/hold"


async def make(world: World, name: str, cpu: str, **spec: Any) -> None:
    """A pod of others, in the namespace of ours."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    own = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container], **spec}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": own}
    assert (await world.talk.post(world.talk.pods, body))[0] == 201


async def placeholders(world: World) -> list[tuple[str, str]]:
    """(nominated node, CPU) of each."""
    found = (await world.talk.get(world.talk.pods, labelSelector=HELD))[1]["items"]
    return [
        (
            each["status"].get("nominatedNodeName", ""),
            each["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        )
        for each in found
    ]


async def test_promised_room_that_others_take_is_held(fake_world: World, fake: FakeApi) -> None:
    """No placeholder where a gang only waits. Once another scheduler has placed a pod on its nodes, each has one that asks for what
    is promised there, and when the others have left and the gang is bound, none is left. A restart holds the room anew.
    """
    fake_world.witness.tolerated.update(fake_world.nodes)
    for node in fake_world.nodes:
        await make(fake_world, f"first-{node}", "3", nodeName=node)
    async with fake_world.serving() as running:
        made = await running.service.submit(document(gang(4, cpu=2)))
        await running.until(lambda: _waits(running, made.id))
        await asyncio.sleep(0.5)
        assert await placeholders(fake_world) == []
        await asyncio.sleep(1.1)  # pods say in whole seconds since when they are
        for node in fake_world.nodes:
            await make(fake_world, f"second-{node}", "1", nodeName=node)
        wanted = [(node, "4") for node in fake_world.nodes]
        await running.until(lambda: _are(fake_world, wanted))
    assert await placeholders(fake_world) == []
    async with fake_world.serving() as running:
        await make(fake_world, f"third-{fake_world.nodes[0]}", "100m", nodeName=fake_world.nodes[0])
        await running.until(lambda: _are(fake_world, wanted))
        for node in fake_world.nodes:
            for which in ("first", "second"):
                await fake_world.talk.delete(f"{fake_world.talk.pods}/{which}-{node}", gracePeriodSeconds="0")
        await fake_world.talk.delete(
            f"{fake_world.talk.pods}/third-{fake_world.nodes[0]}", gracePeriodSeconds="0"
        )
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        await running.until(lambda: _are(fake_world, []))
        await fake_world.nothing_left(running)


async def _waits(running: Any, workflow: str) -> bool:
    return any(each.state == "QUEUED" for each in await running.service.explain(workflow))


async def _are(world: World, wanted: list[tuple[str, str]]) -> bool:
    return sorted(await placeholders(world)) == sorted(wanted)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of its own: its kube-scheduler would place other tests' pods."""
    require(SCHEDULER)
    made = started(ControlPlane())
    yield made
    made.stop()


@pytest.fixture
async def neighbours(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes of four cores in a namespace of the test's own, and the stock scheduler."""
    await plane.scheduler()
    name = f"work-{secrets.token_hex(3)}"
    async with Client(plane.connection()) as client:
        body = f'{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}'
        assert (await client.call("POST", "/api/v1/namespaces", body=body.encode())).ok
    async with World(plane.connection(), name, tmp_path, nodes=("4", "4", "4")) as world:
        world.witness.tolerated.update(world.nodes)
        yield world


@pytest.mark.kubernetes
async def test_what_keeps_room_from_the_stock_scheduler(neighbours: World) -> None:
    """A nominated pod that is gated does, if it names that scheduler. One of another scheduler's name does not, gated or not."""
    world, gate = neighbours, {"schedulingGates": [{"name": HELD}]}
    selector = {"nodeSelector": {"kubernetes.io/hostname": world.nodes[0]}}
    kept = {}
    for name, spec in {
        "other": {"schedulerName": "other"},
        "other-gated": {"schedulerName": "other", **gate},
        "stock-gated": {"schedulerName": "default-scheduler", **gate},
    }.items():
        await make(world, name, "3", **spec)
        body = {"status": {"nominatedNodeName": world.nodes[0]}}
        assert (await world.talk.merge(f"{world.talk.pods}/{name}/status", body))[0] == 200
        await make(world, f"after-{name}", "2", schedulerName="default-scheduler", **selector)
        kept[name] = await _refused(world, f"after-{name}")
        for each in (name, f"after-{name}"):
            await world.talk.delete(f"{world.talk.pods}/{each}", gracePeriodSeconds="0")
    assert kept == {"other": False, "other-gated": False, "stock-gated": True}


async def _refused(world: World, name: str) -> bool:
    """Whether the stock scheduler has found no node for a pod; it says so either way."""
    while True:
        found = (await world.talk.get(f"{world.talk.pods}/{name}"))[1]
        if found["spec"].get("nodeName"):
            return False
        if any(each["reason"] == "Unschedulable" for each in found["status"].get("conditions", ())):
            return True
        await asyncio.sleep(0.05)


@pytest.mark.kubernetes
async def test_fault_36_tasks_and_a_gang_beside_a_backlog_of_the_stock_scheduler(neighbours: World) -> None:
    """All end while others' pods still wait, and kubelets refuse no more than a pod for each task. Without holds 128 pods were
    refused for 12 tasks that ended, and the gang began after the backlog's end.
    """
    world = neighbours
    world.fates[""] = Fate(runtime_s=4.0)
    for number in range(400):
        await make(world, f"stock-{number}", "1", schedulerName="default-scheduler")
    async with world.serving() as running:
        tasks = await running.service.submit(document(bag(24)))
        whole = await running.service.submit(document(gang(6)))
        for each in (tasks, whole):
            assert (await running.ended(each.id)).state == "SUCCEEDED"
        pods = (await world.talk.get(world.talk.pods))[1]["items"]
        waiting = [pod for pod in pods if pod["status"]["phase"] == "Pending"]
        assert any(pod["metadata"]["name"].startswith("stock-") for pod in waiting)
        told = [reason for each in (tasks, whole) for _, reason in await attempts(running, each.id)]
        assert told.count("OutOfcpu") <= 30
        await world.nothing_left(running)
        await running.until(lambda: _are(world, []))
