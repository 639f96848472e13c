"""Cancel wins (P8), whatever is under way: the database decides, not what arrives first (row 38)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flowsched.errors import Conflict
from tests.kubernetes.faults.world import ENDLESS, World, bag, document, gang
from tests.kubernetes.service_world import Running

pytestmark = pytest.mark.kubernetes


class Gate:
    """A failpoint at which the service waits until it is let on."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, point: str) -> None:
        if point == self._point:
            self.reached.set()
            await self.open.wait()


async def cancelled(running: Running, world: World, workflow: str) -> None:
    """Cancel; afterwards no pod of it begins to run, and in the end nothing is left."""
    await running.service.command(workflow, "cancel")
    started = sum(life.started for life in world.witness.tasks())
    assert (await running.ended(workflow)).state == "CANCELLED"
    await world.nothing_left(running)
    assert sum(life.started for life in world.witness.tasks()) == started


@pytest.mark.parametrize("point", ["commit.after", "launch.before", "kube.created", "kube.bound"])
async def test_fault_38_cancelled_while_it_is_made_and_bound(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel is durable while the launch stands still at one point; whatever the launch does then, no task runs on. Real API
    server.
    """
    monkeypatch.setattr(
        "flowsched.control.service.CARRIED_OUT_S", 0.2
    )  # the leader cannot carry anything out yet
    world.fates |= {"bag": ENDLESS, "train": ENDLESS}
    gate = Gate(point)
    async with world.serving(failpoint=gate) as running:
        made = await running.service.submit(document(gang(2), bag(2)))
        await gate.reached.wait()
        await running.service.command(made.id, "cancel")
        before = len(world.witness.tasks())
        gate.open.set()
        assert (await running.ended(made.id)).state == "CANCELLED"
        await world.nothing_left(running)
        assert not [life for life in world.witness.tasks() if life.runs]
        if point == "kube.created":  # nothing was bound yet, and nothing is
            assert not [life for life in world.witness.tasks() if life.started]
        assert len(world.witness.tasks()) >= before


async def _bound(running: Running, world: World, workflow: str) -> bool:
    return len([life for life in world.witness.tasks() if life.runs]) == 4


async def _queued(running: Running, world: World, workflow: str) -> bool:
    return (await running.service.workflow(workflow)).counts.get("QUEUED", 0) == 4


STATES: dict[str, tuple[str, Callable[[Running, World, str], Awaitable[bool]]]] = {
    "queued": ("64", _queued),
    "running": ("1", _bound),
}


@pytest.mark.parametrize("state", STATES)
async def test_fault_38_cancelled_while_it_waits_or_runs(world: World, state: str) -> None:
    """At rest in a state, a cancel is carried out at once; a second one changes nothing; one after another end is refused. Real API
    server.
    """
    cpu, there = STATES[state]
    world.fates |= {"bag": ENDLESS, "train": ENDLESS}
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2, cpu=int(cpu)), bag(2, cpu=int(cpu))))
        await running.until(lambda: there(running, world, made.id))
        await asyncio.gather(*(running.service.command(made.id, "cancel") for _ in range(2)))
        assert (await running.ended(made.id)).state == "CANCELLED"
        assert (await running.service.command(made.id, "cancel")).state == "CANCELLED"
        await world.nothing_left(running)
        assert not [life for life in world.witness.tasks() if life.runs]

        world.fates.clear()
        other = await running.service.submit(document(bag(1)))
        assert (await running.ended(other.id)).state == "SUCCEEDED"
        with pytest.raises(Conflict):
            await running.service.command(other.id, "cancel")


async def test_fault_38_cancelled_while_nobody_leads(world: World) -> None:
    """The next leader finds the cancel in the database, and what is there in the cluster: it takes it away. Real API server."""
    world.fates |= {"bag": ENDLESS, "train": ENDLESS}
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2), bag(2)))
        await running.until(lambda: _bound(running, world, made.id))
        await running.service.command(made.id, "pause")
    async with world.serving() as running:
        await cancelled(running, world, made.id)
