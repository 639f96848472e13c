"""Admission webhooks that say no, or nothing: at the creation of pods (row 25) and at their binding (row 31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kubernetes.faults.webhook import Webhook, webhook
from tests.kubernetes.faults.world import ENDLESS, World, attempts, bag, document, gang
from tests.kubernetes.hollow.controlplane import ControlPlane

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def at_create(control_plane: ControlPlane, world: World) -> AsyncIterator[Webhook]:
    """Asked about every new pod and Service."""
    async with webhook(control_plane, world.client, world.namespace, "pods", "services") as hook:
        yield hook


@pytest.fixture
async def at_bind(control_plane: ControlPlane, world: World) -> AsyncIterator[Webhook]:
    """Asked about every binding."""
    async with webhook(control_plane, world.client, world.namespace, "pods/binding") as hook:
        yield hook


@pytest.mark.parametrize("kind", ["Pod", "Service"])
async def test_fault_25_a_webhook_denies(world: World, at_create: Webhook, kind: str) -> None:
    """A policy against the pod (or against what its gang needs) is about the task: it fails, in the webhook's words. Real API
    server and webhook.
    """
    at_create.decide = lambda request: "no such work here" if request["kind"]["kind"] == kind else ""
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2, retry={"attempts": 1})))
        view = await running.ended(made.id)
        assert view.state == "FAILED"
        assert "no such work here" in view.reason
        await world.nothing_left(running)


async def test_fault_25_a_gang_ends_though_the_server_still_decides(world: World, at_create: Webhook) -> None:
    """One member is denied while the server still decides about the other. The engine withdraws that one. Real API server and
    webhook.
    """
    at_create.decide = lambda request: "no such work here" if request["kind"]["kind"] == "Pod" else ""
    at_create.slow_once = "-1-0"
    async with world.serving() as running:
        made = await running.service.submit(document(gang(2, retry={"attempts": 1})))
        view = await running.ended(made.id, 60.0)
        assert view.state == "FAILED"
        assert "no such work here" in view.reason
        await world.nothing_left(running)


async def test_fault_25_a_webhook_that_does_not_answer_is_waited_for(
    world: World, at_create: Webhook
) -> None:
    """The server fails the request after the webhook's time: the task waits, says so, and goes on when the webhook is back. Real
    API server and webhook.
    """
    at_create.slow = True
    async with world.serving() as running:
        made = await running.service.submit(document(bag(2)))

        async def told() -> str:
            found = await running.service.explain(made.id)
            return next((each.message for each in found if "failed calling webhook" in each.message), "")

        assert await running.until(told)
        assert (await running.service.workflow(made.id)).state == "STARTING"
        at_create.slow = False
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await world.nothing_left(running)


async def test_fault_31_one_binding_of_a_gang_is_refused_once(world: World, at_bind: Webhook) -> None:
    """The refused member is placed anew while the others wait for it: it alone has a second attempt. Real API server."""
    refused: list[str] = []

    def once(request: dict[str, Any]) -> str:
        if not refused or request["name"] in refused:
            refused.append(request["name"])
            return "not this one"
        return ""

    at_bind.decide = once
    world.fates["train"] = ENDLESS
    async with world.serving() as running:
        made = await running.service.submit(document(gang(3)))
        alive = await world.witness.until(lambda: _running(world, 3))
        assert sorted(life.pod.metadata.labels["flowsched.io/attempt"] for life in alive) == ["0", "0", "1"]
        world.fates.clear()
        await running.service.command(made.id, "cancel")
        await running.ended(made.id)
        await world.nothing_left(running)
    assert len(set(refused)) == 1


async def test_fault_31_a_gang_whose_bindings_are_refused_again_is_released_whole(
    world: World, at_bind: Webhook
) -> None:
    """Refused twice, the whole gang gives its room back, once: a bag that needs all of it runs meanwhile, and the gang runs when
    nobody minds any more. Real API server.
    """
    stubborn = {"on": True}

    def refuse(request: dict[str, Any]) -> str:
        return "not this one" if stubborn["on"] and "-train-2-" in request["name"] else ""

    at_bind.decide = refuse
    async with world.serving() as running:
        made = await running.service.submit(document(gang(3, retry={"attempts": 1})))
        await world.witness.until(lambda: _generations(world) >= 2)
        stubborn["on"] = False
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        told = await attempts(running, made.id)
        assert "BindRefused" in {reason for _, reason in told}
        await world.nothing_left(running)
    # a member of the first generation may have ended before the third was refused: what it did is not counted
    last = max(life.pod.metadata.labels["flowsched.io/group"] for life in world.witness.tasks())
    assert (last[-3:], _generations(world)) == ("-g1", 2)
    finished = [life for life in world.witness.tasks() if life.pod.status.phase == "Succeeded"]
    assert sum(life.pod.metadata.labels["flowsched.io/group"] == last for life in finished) == 3


def _generations(world: World) -> int:
    return len({life.pod.metadata.labels["flowsched.io/group"] for life in world.witness.tasks()})


def _running(world: World, count: int) -> list[Any]:
    found = [life for life in world.witness.tasks() if life.runs]
    return found if len(found) == count else []


async def test_fault_31_bindings_that_fail_are_tried_again(world: World, at_bind: Webhook) -> None:
    """A binding that fails for the server's own reasons is sent again, to the same node: no attempt is lost. Real API server."""
    at_bind.slow = True
    async with world.serving() as running:
        made = await running.service.submit(document(gang(3)))
        await running.until(lambda: _asked(at_bind))
        await asyncio.sleep(1.5)
        at_bind.slow = False
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await world.nothing_left(running)


async def _asked(hook: Webhook) -> bool:
    return bool(hook.asked)
