"""Watches that are cut, fall silent, forget, go back or talk rubbish; an API server that is killed; pods that somebody deletes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.fake import FakeApi, when
from tests.kubernetes.faults.world import ENDLESS, World, attempts, bag, document, gang
from tests.kubernetes.hollow.binaries import ETCD
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.service_world import Running

PODS = "/api/v1/pods"


async def running_tasks(world: World, count: int) -> list[str]:
    """Names of the pods that run, once there are so many."""

    def found() -> list[str]:
        names = [life.pod.metadata.name for life in world.witness.tasks() if life.runs]
        return names if len(names) == count else []

    names: list[str] = await world.witness.until(found)
    return names


async def known(running: Running, workflow: str, count: int) -> None:
    """Wait until the service itself knows that so many run."""

    async def so() -> bool:
        return (await running.service.workflow(workflow)).counts.get("RUNNING") == count

    await running.until(so)


@pytest.mark.kubernetes
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_fault_22_all_connections_are_cut(world: World, reset: bool) -> None:
    """Whatever was under way is asked again or looked at: nothing is lost, nothing is doubled. Real API server, through a proxy."""
    async with Proxy(world.connection) as proxy, world.serving(proxy.connection) as running:
        made = await running.service.submit(document(gang(3), bag(6)))
        for _ in range(6):
            await asyncio.sleep(0.25)
            proxy.cut(reset=reset)
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await world.nothing_left(running)


@pytest.mark.kubernetes
async def test_fault_21_a_watch_that_falls_silent(world: World) -> None:
    """Half-open connections say nothing: after the idle time they are given up, the collection is read anew, and the end that was
    missed is seen. Real API server, through a proxy; the idle time is 2 s instead of 75.
    """
    world.fates["bag"] = ENDLESS
    async with Proxy(world.connection) as proxy, world.serving(proxy.connection, idle_s=2.0) as running:
        running.cluster.client.timeout_s = 2.0
        made = await running.service.submit(document(bag(2)))
        names = await running_tasks(world, 2)
        await known(running, made.id, 2)
        assert proxy.silence() >= 6
        world.fates.clear()
        for name in names:
            await world.talk.delete(f"{world.talk.pods}/{name}", gracePeriodSeconds="0")
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id)) == [(0, "PodDeleted")] * 2 + [(1, "")] * 2
        await world.nothing_left(running)


@pytest.mark.kubernetes
async def test_fault_21_a_silent_network_while_pods_are_made(world: World) -> None:
    """Creates and binds into half-open connections get no answer; what becomes of them is looked up, not guessed. Real API server,
    through a proxy.
    """
    async with Proxy(world.connection) as proxy:

        async def silent(point: str) -> None:
            if point == "kube.created" and proxy.accepted < 1000:
                proxy.accepted = 1000
                proxy.silence()

        async with world.serving(proxy.connection, idle_s=2.0, failpoint=silent) as running:
            running.cluster.client.timeout_s = 2.0
            made = await running.service.submit(document(gang(3), bag(2)))
            assert (await running.ended(made.id)).state == "SUCCEEDED"
            assert set(await attempts(running, made.id)) == {(0, "")}
            await world.nothing_left(running)


@pytest.mark.kubernetes
async def test_a_pod_deleted_before_it_is_bound_is_never_made_again_under_its_name(world: World) -> None:
    """Deleted between create and bind, or while the answer to its create was on its way, a name is used up all the same. Real API
    server.
    """
    points: list[str] = []

    async def snatch(point: str) -> None:
        points.append(point)
        if point == "kube.created" and points.count(point) == 1:
            while not world.witness.tasks():  # its watch may be late
                await asyncio.sleep(0.01)
            (life,) = world.witness.tasks()
            await world.talk.delete(f"{world.talk.pods}/{life.pod.metadata.name}", gracePeriodSeconds="0")

    async with world.serving(failpoint=snatch) as running:
        made = await running.service.submit(document(bag(1)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id)) == [(0, "PodDeleted"), (1, "")]
        await world.nothing_left(running)


@pytest.fixture
async def doomed(own_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose API server may be killed."""
    connection = own_control_plane.connection()
    async with Client(connection) as client:
        body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"work"}}'
        assert (await client.call("POST", "/api/v1/namespaces", body=body)).ok
    async with World(connection, "work", tmp_path) as world:
        yield world


@pytest.mark.kubernetes
async def test_fault_20_an_api_server_that_is_killed_and_forgets(
    own_control_plane: ControlPlane, doomed: World
) -> None:
    """Killed in the middle of a run and started again it has forgotten its past: our watches are told 410, read everything anew,
    and miss no deletion; what was to be made meanwhile is made then, once. Real API server, killed.
    """
    world = doomed
    world.fates["stay"] = ENDLESS
    async with Proxy(world.connection) as proxy, world.serving(proxy.connection) as running:
        made = await running.service.submit(document(bag(2, name="stay"), gang(2), bag(4)))
        await world.witness.until(
            lambda: len([life for life in world.witness.tasks("stay") if life.runs]) == 2
        )
        own_control_plane.kill()
        await proxy.refuse()
        later = await running.service.submit(document(gang(3), bag(2)))
        await own_control_plane.restart_apiserver()
        (first, _) = [life.pod.metadata.name for life in world.witness.tasks("stay")]
        world.fates.clear()
        await world.talk.delete(f"{world.talk.pods}/{first}", gracePeriodSeconds="0")
        await compact(own_control_plane, int(await world.talk.version(PODS)))
        await own_control_plane.restart_apiserver()
        await proxy.accept()
        await running.until(lambda: _relisted(running))
        assert (await running.ended(later.id)).state == "SUCCEEDED"
        assert set(await attempts(running, later.id)) == {(0, "")}
        await running.service.command(made.id, "cancel")
        await running.ended(made.id)
        told = sorted(await attempts(running, made.id, stage="stay"))
        assert (0, "PodDeleted") in told
        await world.nothing_left(running)


async def compact(plane: ControlPlane, version: int) -> None:
    """Have etcd forget what was before a version."""
    flag = next(each for each in plane.programs[ETCD].command if each.startswith("--listen-client-urls="))
    url = f"{flag.partition('=')[2]}/v3/kv/compaction"
    order = {"revision": str(version), "physical": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=order) as answer:
        assert answer.status == 200, await answer.text()


async def _relisted(running: Running) -> bool:
    return bool(running.cluster._watches._reflectors[PODS].counts.relists)


async def test_fault_32_a_binding_that_comes_late(fake_world: World, fake: FakeApi) -> None:
    """A binding gets no answer in time and is still on its way when the room is wanted by somebody more important: it is fenced
    before its room is given away, so it cannot take place any more. The fake, which carries out what it has begun.
    """
    gate = fake.faults.hold(when("create", "pods/binding", "late"))
    talk = fake_world.talk
    for node in fake_world.nodes[1:]:
        await fake_world.hollow.cordon(node)
    async with fake_world.serving() as running:
        running.cluster.client.timeout_s = 1.0
        await talk.post(talk.pods, _foreign(fake_world, "late", 3, 0))
        await running.until(lambda: _asked_to_bind(fake))
        await talk.post(talk.pods, _foreign(fake_world, "soon", 3, 1000))
        await fake_world.witness.until(lambda: _on_node(fake_world, "soon"))
        gate.open.set()
        await gate.passed.wait()
        await asyncio.sleep(1.0)
        fake_world.witness.judge()
        assert not _on_node(fake_world, "late")


async def test_fault_32_a_binding_that_is_not_seen(fake_world: World, fake: FakeApi) -> None:
    """Accepted, and for long not shown by the watch: its room is held until it is seen, so nobody else gets it (P6). The fake,
    whose watches can be made silent alone.
    """
    talk = fake_world.talk
    for node in fake_world.nodes[1:]:
        await fake_world.hollow.cordon(node)
    for name in ("one", "two"):
        await talk.post(talk.pods, _foreign(fake_world, name, 3, 0))

    async def silent(point: str) -> None:
        if point == "bind.before":
            fake.silence()

    async with fake_world.serving(idle_s=600.0, failpoint=silent) as running:
        await running.until(lambda: _asked_to_bind(fake))
        await asyncio.sleep(4.0)
        assert fake.counts["create", "pods/binding"] == 1
        fake.speak()
        await fake_world.witness.until(lambda: _on_node(fake_world, "one") or _on_node(fake_world, "two"))
        await asyncio.sleep(0.5)
        fake_world.witness.judge()
    assert fake.counts["create", "pods/binding"] == 1


async def _asked_to_bind(fake: FakeApi) -> bool:
    return fake.counts["create", "pods/binding"] > 0


def _foreign(world: World, name: str, cpu: int, priority: int) -> dict[str, object]:
    """A pod that somebody else made and leaves to us to place; it runs for ever."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": world.namespace,
            "priority": priority,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": str(cpu)}}}],
        },
    }


def _on_node(world: World, name: str) -> bool:
    return any(
        life.pod.metadata.name == name and life.pod.spec.node_name for life in world.witness.lives.values()
    )
