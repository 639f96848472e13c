"""Why pods and groups wait, as it is written on them: of those that still do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.foreign.conditions import Conditions
from flowsched.cluster.kubernetes.foreign.groups import GroupBook
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.executor.foreign import ForeignPod, PodTemplate, PodWaits, Verdict
from flowsched.workflow.spec import Resources
from tests.kubernetes import written
from tests.kubernetes.fake import FakeApi
from tests.kubernetes.talk import pod

PODS = "/api/v1/namespaces/default/pods"


class World:
    """Two pods of one group that wait, on a fake API server."""

    def __init__(self, api: FakeApi, client: Client) -> None:
        self.api, self.client = api, client
        self.waiting: dict[str, PodWaits] = {}
        self.groups = GroupBook(written.SETTINGS, lambda _: None, Form.NATIVE_BETA)
        self.conditions = Conditions(client, self.waiting.get, self.groups, lambda: 0)
        self.key = ""

    async def make(self, name: str) -> str:
        """Create a pod that waits. Returns its uid."""
        document = pod(name)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
        document["metadata"]["ownerReferences"] = [owner]
        answer = await self.client.call("POST", PODS, body=json.dumps(document).encode())
        made = await self.client.get(f"{PODS}/{name}", Pod)
        assert answer.ok
        assert made is not None
        uid = made.metadata.uid
        self.key, _ = self.groups.place_of(made)
        self.groups.observe(made, self.key)
        told = ForeignPod(
            uid,
            "default",
            name,
            made.metadata.resource_version,
            self.key,
            "",
            PodTemplate(Resources(1_000, 0)),
        )
        self.waiting[uid] = PodWaits(told)
        return uid

    async def said(self, name: str) -> str:
        """What stands on a pod."""
        found = await self.client.get(f"{PODS}/{name}", dict[str, Any])
        assert found is not None
        return "".join(each.get("message", "") for each in found["status"].get("conditions", ()))

    def events(self) -> int:
        """How many were written."""
        return self.api.counts["create", "events.events.k8s.io"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """See there."""
    async with FakeApi() as api, Client(api.connection) as client:
        yield World(api, client)


async def test_a_pod_that_is_being_bound_is_not_written_on(world: World) -> None:
    """The write would change its version, and the binding carries the one that was seen."""
    first, second = await world.make("a"), await world.make("b")
    world.conditions.publish([Verdict(world.key, (first, second), "Insufficient", "no room")])
    world.conditions.publish([Verdict(world.key, (second,), "Insufficient", "no room")])
    await world.conditions.once()
    assert (await world.said("a"), await world.said("b")) == ("", "Insufficient: no room")
    assert world.events() == 1


async def test_a_group_whose_reason_was_not_written_is_told_it_when_it_waits_again(world: World) -> None:
    """Once."""
    uid = await world.make("a")
    verdict = Verdict(world.key, (uid,), "Insufficient", "no room")
    world.conditions.publish([verdict])
    world.conditions.publish([])
    await world.conditions.once()
    assert (world.events(), await world.said("a")) == (0, "")
    world.conditions.publish([verdict])
    await world.conditions.once()
    world.conditions.publish([verdict])
    await world.conditions.once()
    assert (world.events(), await world.said("a")) == (1, "Insufficient: no room")
