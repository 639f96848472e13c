"""How our pods are taken away: with their grace, whatever the API server's cache knows of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.pods.pod_api import PodApi
from tests.kubernetes.talk import Talk

pytestmark = pytest.mark.kubernetes


async def test_a_pod_that_was_bound_a_moment_ago_keeps_its_grace(client: Client, namespace: str) -> None:
    """A plain DELETE, tried on a cache that does not show the binding yet, ends some of so many at once. Real API server."""
    talk = Talk(client, namespace)
    calls = PodApi(client, ReleaseSettings(namespace, "flowsched", "", b"key"))

    async def one(name: str) -> Any:
        await talk.new_pod(name, terminationGracePeriodSeconds=30)
        before = await client.get(f"{talk.pods}/{name}", Pod)
        assert before is not None
        await talk.bind(name, "some-node")
        await calls.delete(before, 5)
        status, after = await talk.get(f"{talk.pods}/{name}")
        await talk.delete(f"{talk.pods}/{name}", gracePeriodSeconds="0")
        return after["metadata"]["deletionGracePeriodSeconds"] if status == 200 else 0

    for batch in range(10):
        graces = await asyncio.gather(*(one(f"p{batch}-{number}") for number in range(40)))
        assert graces == [5] * 40


async def test_a_pod_that_was_not_bound_when_it_was_read_is_not_killed_at_once(
    client: Client, namespace: str
) -> None:
    """It is to go at once, since it has no node. Meanwhile it got one, so its containers may run and have their grace. Real API
    server.
    """
    talk = Talk(client, namespace)
    calls = PodApi(client, ReleaseSettings(namespace, "flowsched", "", b"key"))
    await talk.new_pod("a", terminationGracePeriodSeconds=30)
    before = await client.get(f"{talk.pods}/a", Pod)
    assert before is not None
    await talk.bind("a", "some-node")
    assert not await calls.delete(before, 0)
    assert (await talk.pod("a"))["metadata"]["deletionGracePeriodSeconds"] == 30
    await talk.delete(f"{talk.pods}/a", gracePeriodSeconds="0")

    await talk.new_pod("b", terminationGracePeriodSeconds=30)
    unbound = await client.get(f"{talk.pods}/b", Pod)
    assert unbound is not None
    assert await calls.delete(unbound, 0)
    assert (await talk.get(f"{talk.pods}/b"))[0] == 404


async def test_a_pod_that_changes_meanwhile_is_deleted_all_the_same(client: Client, namespace: str) -> None:
    """Its kubelet writes its status at the same time; another pod of the name is left alone. Real API server."""
    talk = Talk(client, namespace)
    calls = PodApi(client, ReleaseSettings(namespace, "flowsched", "", b"key"))
    await talk.new_pod("a", terminationGracePeriodSeconds=30)
    await talk.bind("a", "some-node")
    known = await client.get(f"{talk.pods}/a", Pod)
    assert known is not None

    async def kubelet() -> None:
        for number in range(100):
            body = {"status": {"message": str(number)}}
            await talk.strategic(f"{talk.pods}/a/status", body)

    writing = asyncio.create_task(kubelet())
    await asyncio.sleep(0.02)
    await asyncio.wait_for(calls.delete(known, 5), 200)
    assert (await talk.pod("a"))["metadata"]["deletionGracePeriodSeconds"] == 5
    await writing
    await talk.delete(f"{talk.pods}/a", gracePeriodSeconds="0")
    await talk.new_pod("a")
    await calls.delete(known, 5)
    assert (await talk.get(f"{talk.pods}/a"))[0] == 200
