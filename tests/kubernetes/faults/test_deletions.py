"""Pods and namespaces that others take away with the ordinary grace: `kubectl delete pod`, `drain`, `delete namespace`.

No task fails by it, and no attempt is charged, however its container ends in the grace. Each test runs on the fake and on
the real API server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.fake import FakeApi
from tests.kubernetes.faults.world import ENDLESS, World, attempts, bag, document, gang
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.service_world import Running

#: Its pods are never done with their init containers.
STAGING = Fate(start_s=3600.0)
#: Each task has one attempt.
ONE = {"retry": {"attempts": 1}}


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kubernetes)])
def plane(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The real control plane; None = the fake is to be had."""
    return request.getfixturevalue("control_plane") if request.param == "real" else None


@pytest.fixture
async def world(plane: ControlPlane | None, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes of four cores, in a namespace that may be deleted."""
    async with AsyncExitStack() as stack:
        if plane is None:
            connection = (await stack.enter_async_context(FakeApi())).connection
        else:
            connection = plane.connection()
        name = f"ends-{tmp_path.name.lower().replace('_', '-')}"[:40].rstrip("-")
        client = await stack.enter_async_context(Client(connection))
        assert (await client.call("POST", "/api/v1/namespaces", body=_namespace(name))).ok
        yield await stack.enter_async_context(World(connection, name, tmp_path))


def _namespace(name: str) -> bytes:
    return f'{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}'.encode()


async def there(world: World, count: int, *, runs: bool = True) -> list[str]:
    """The names of pods of tasks, once so many run, or have a node."""
    found = await world.witness.until(lambda: _lives(world, count, runs=runs))
    return [life.pod.metadata.name for life in found]


def _lives(world: World, count: int, *, runs: bool) -> list[Any]:
    lives = [life for life in world.witness.tasks() if not life.gone]
    found = [life for life in lives if (life.runs if runs else life.pod.spec.node_name)]
    return found if len(found) == count else []


async def in_state(running: Running, workflow: str, state: str, count: int) -> None:
    """Wait until so many tasks of a workflow are in a state."""
    await running.until(lambda: _counted(running, workflow, state, count))


async def _counted(running: Running, workflow: str, state: str, count: int) -> bool:
    return (await running.service.workflow(workflow)).counts.get(state, 0) == count


async def _delete(world: World, name: str) -> None:
    """`kubectl delete pod`."""
    assert (await world.talk.delete(f"{world.talk.pods}/{name}"))[0] == 200


async def _evict(world: World, name: str) -> None:
    """`kubectl drain`."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    status, told = await world.talk.post(f"{world.talk.pods}/{name}/eviction", eviction)
    assert status == 201, told


async def _taint(world: World, name: str) -> None:
    """The taint manager of the controller manager: it writes why, then deletes."""
    why = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    patch = {"status": {"conditions": [why]}}
    assert (await world.talk.strategic(f"{world.talk.pods}/{name}/status", patch))[0] == 200
    await _delete(world, name)


BY = {
    "PodDeleted": _delete,
    "EvictionByEvictionAPI": _evict,
    "DeletionByTaintManager": _taint,
}


@pytest.mark.parametrize("reason", BY)
async def test_a_running_pod_that_is_taken_away_with_its_grace(world: World, reason: str) -> None:
    """The containers end by SIGTERM, exit code 143. Of a gang one member is taken, and the gang begins anew as a whole."""
    world.fates |= {"bag": ENDLESS, "train": ENDLESS}
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2, **ONE), bag(1, **ONE)))
        names = await there(world, 3)
        await in_state(running, made.id, "RUNNING", 3)
        world.fates.clear()
        for name in names:
            if "-bag-" in name or "-train-1-" in name:
                await BY[reason](world, name)
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id, stage="bag")) == [(0, reason), (1, "")]
        told = sorted(await attempts(running, made.id, stage="train"))
        assert told == sorted([(0, "Released"), (0, reason), (1, ""), (1, "")])
        await world.nothing_left(running)


async def test_a_pod_that_is_deleted_while_its_inputs_are_staged(world: World) -> None:
    """Its init containers end; the task has never run, counts as starting all the time, and runs once."""
    world.fates["bag"] = STAGING
    async with world.serving() as running:
        made = await running.service.submit(document(bag(1, **ONE)))
        (name,) = await there(world, 1, runs=False)
        await in_state(running, made.id, "BINDING", 1)
        assert (await running.service.workflow(made.id)).state == "STARTING"
        (queue,) = await running.service.queues()
        assert (queue.starting, queue.running) == (1, 0)
        (node,) = [each for each in await running.service.nodes() if each.starting]
        assert (node.starting, node.running) == (1, 0)
        world.fates.clear()
        await _delete(world, name)
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id)) == [(0, "PodDeleted"), (1, "")]
        await world.nothing_left(running)


async def test_a_namespace_that_is_deleted_and_comes_back(world: World) -> None:
    """Its pods end, and new ones are refused: the tasks wait with the server's words, in place of failing. They run when the
    namespace is there again. The test is the namespace controller, which a controller manager has.
    """
    world.fates |= {"bag": ENDLESS, "train": ENDLESS}
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2, **ONE), bag(2, **ONE)))
        names = await there(world, 4)
        await in_state(running, made.id, "RUNNING", 4)
        assert (await world.talk.delete(world.talk.here))[0] == 200
        world.fates.clear()
        for name in names:
            await _delete(world, name)
        await running.until(lambda: _waits(running, made.id, "because it is being terminated"))
        await _finish(world)
        await running.until(lambda: _waits(running, made.id, f'namespaces "{world.namespace}" not found'))
        assert (await running.service.workflow(made.id)).state == "STARTING"
        assert (await world.client.call("POST", "/api/v1/namespaces", body=_namespace(world.namespace))).ok
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        told = set(await attempts(running, made.id))
        assert told <= {(0, "PodDeleted"), (0, "Released"), (1, "")}
        await world.nothing_left(running)


async def _waits(running: Running, workflow: str, words: str) -> bool:
    """Whether all four tasks wait with these words."""
    found = [each for each in await running.service.explain(workflow) if words in each.message]
    return sum(each.tasks for each in found) == 4


async def _finish(world: World) -> None:
    """What the namespace controller does: delete all that is in it, then take its own finalizer."""
    for path in ("pods", "services", "secrets"):
        for name in await world.talk.names(f"{world.talk.here}/{path}"):
            await world.talk.delete(f"{world.talk.here}/{path}/{name}", gracePeriodSeconds="0")
    _, namespace = await world.talk.get(world.talk.here)
    status, told = await world.talk.put(
        f"{world.talk.here}/finalize", namespace | {"spec": {"finalizers": []}}
    )
    assert status == 200, told
