"""Nodes that go, shrink, fill up by others' doing; pods that do not start; PodGroups that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched.app import now_ms
from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.kubernetes.executor import KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.pods.controller import PodTimeouts
from tests.kubernetes.exec_world import nothing
from tests.kubernetes.faults.world import ENDLESS, World, attempts, bag, document, gang
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.hollow.templates import NodeTemplate, node_document
from tests.kubernetes.service_world import Running

pytestmark = pytest.mark.kubernetes
PLUGINS = "scheduling.x-k8s.io/v1alpha1"


def running_on(world: World, node: str) -> list[Any]:
    """Pods of tasks that run on a node."""
    return [life for life in world.witness.tasks() if life.runs and life.pod.spec.node_name == node]


async def test_fault_34_a_node_goes_in_the_middle_of_a_gang(world: World) -> None:
    """First it is not heard of: its pods are left alone, since they may run. Then it is gone: its members are lost, and the whole
    gang begins anew on what is left, no member beside its former self. Real API server.
    """
    world.fates["train"] = ENDLESS
    async with world.serving() as running:
        made = await running.service.submit(document(gang(4, cpu=2, retry={"attempts": 1})))
        await world.witness.until(lambda: len([life for life in world.witness.tasks() if life.runs]) == 4)
        for node in world.nodes:
            assert len(running_on(world, node)) == 2
        await world.hollow.lose(world.nodes[0], delete=False)
        await asyncio.sleep(2)
        assert {number for number, _ in await attempts(running, made.id)} == {0}
        told = {(e.state, e.code, e.tasks): e.message for e in await running.service.explain(made.id)}
        assert f"2 of 4 are on {world.nodes[0]}, not ready" in told["RUNNING", "NodeNotReady", 2]
        await world.hollow.add(NodeTemplate(f"{world.namespace}-new", cpu="4"))
        await world.hollow.lose(world.nodes[0])
        # `lose` left it as it was; its object goes now, and with it the hope for its pods.
        await world.talk.delete(f"/api/v1/nodes/{world.nodes[0]}")

        def again() -> bool:
            lives = [life for life in world.witness.tasks() if life.runs]
            return [life.pod.metadata.labels["flowsched.io/attempt"] for life in lives] == ["1"] * 4

        await world.witness.until(again)
        told = await attempts(running, made.id)
        assert (0, "NodeLost") in told
        await running.service.command(made.id, "cancel")
        await running.ended(made.id)
        await world.nothing_left(running)


async def test_kubectl_shows_how_far_our_own_gangs_have_got(
    world: World, crds: None, api: Connection
) -> None:
    """`kubectl get podgroups` shows phase and numbers, while the gang runs and as its members end. Real API server."""
    world.fates["train"] = ENDLESS

    async def table() -> list[list[Any]]:
        url = f"{api.url}/apis/{PLUGINS}/namespaces/{world.namespace}/podgroups"
        headers = {**await api.headers(), "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        async with aiohttp.ClientSession() as kubectl, kubectl.get(url, headers=headers, ssl=False) as answer:
            shown = await answer.json()
        names = [column["name"] for column in shown["columnDefinitions"]]
        assert names == ["Name", "Phase", "MinMember", "Running", "Succeeded", "Failed", "Age"]
        return [row["cells"][1:6] for row in shown["rows"]]

    async def shows(*row: Any) -> bool:
        return await table() == [list(row)]

    async with world.serving(pod_groups="scheduler-plugins") as running:
        made = await running.service.submit(document(gang(4, cpu=2)))
        await running.until(lambda: shows("Running", 4, 4, 0, 0))
        await running.service.command(made.id, "cancel")
        await running.ended(made.id)
        await world.nothing_left(running)


async def test_fault_34_a_node_goes_between_create_and_bind(world: World) -> None:
    """The server would bind to a node that is not there: we look, and the task is placed elsewhere. Real API server."""
    gone: list[str] = []
    lost = asyncio.Event()

    async def snatch(point: str) -> None:
        if point != "kube.created":
            return
        if not gone:
            gone.append(world.nodes[0])
            await world.hollow.cordon(world.nodes[0])
            await world.hollow.lose(world.nodes[0])
            lost.set()
        await (
            lost.wait()
        )  # its neighbour is created beside it, and would be bound while the node is still going

    await world.hollow.cordon(world.nodes[1])
    async with world.serving(failpoint=snatch) as running:
        made = await running.service.submit(document(bag(2)))
        await running.until(lambda: _gone(gone))
        await world.hollow.cordon(world.nodes[1], cordoned=False)
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        await world.nothing_left(running)
    done = [life for life in world.witness.tasks() if life.started]
    assert {life.pod.spec.node_name for life in done} == {world.nodes[1]}


async def _gone(gone: list[str]) -> bool:
    return bool(gone)


async def test_fault_34_a_node_that_went_while_nobody_led(world: World) -> None:
    """Its pods are found on a node that is no more, and their tasks have another attempt elsewhere. Real API server."""
    world.fates["bag"] = ENDLESS
    async with world.serving() as running:
        made = await running.service.submit(document(bag(2, cpu=3)))
        await world.witness.until(lambda: len([life for life in world.witness.tasks() if life.runs]) == 2)
    await world.hollow.lose(world.nodes[0])
    world.fates.clear()
    async with world.serving() as running:
        (stays,) = running_on(world, world.nodes[1])
        await running.until(lambda: _lost(running, made.id))
        await world.talk.delete(f"{world.talk.pods}/{stays.pod.metadata.name}", gracePeriodSeconds="0")
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id)) == [
            (0, "NodeLost"), (0, "PodDeleted"), (1, ""), (1, ""),
        ]  # fmt: skip
        await world.nothing_left(running)


async def test_fault_34_a_node_that_went_while_this_process_stood_by(world: World) -> None:
    """A process that stood by begins its term without the node: no task is given to it. Real API server."""

    async def leave(point: str) -> None:
        if point == "recover.before":  # what it has seen of the cluster is as old as its start
            await world.hollow.lose(world.nodes[0])
            await asyncio.sleep(1)

    async with world.serving(failpoint=leave) as running:
        made = await running.service.submit(document(bag(3, cpu=3)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert await attempts(running, made.id) == [(0, "")] * 3
        await world.nothing_left(running)


async def _lost(running: Running, workflow: str) -> bool:
    return (0, "NodeLost") in await attempts(running, workflow)


async def test_fault_09_a_pod_that_finished_and_went_while_nobody_led(world: World) -> None:
    """Its end was never heard: the attempt is lost, the task has one more, and does not run for ever. Real API server."""
    async with world.serving() as running:
        made = await running.service.submit(document(bag(1)))
        await running.until(lambda: _runs(running, made.id))
    await world.witness.until(lambda: all(life.pod.ended for life in world.witness.tasks()))
    for name in world.witness.here():
        await world.talk.delete(f"{world.talk.pods}/{name}", gracePeriodSeconds="0")
    async with world.serving() as running:
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert sorted(await attempts(running, made.id)) == [(0, "PodDeleted"), (1, "")]
        await world.nothing_left(running)


async def _runs(running: Running, workflow: str) -> bool:
    return (await running.service.workflow(workflow)).counts.get("RUNNING", 0) == 1


async def test_fault_09_a_result_waits_for_its_leader(world: World) -> None:
    """A pod that ended while nobody led is still there for the next leader, although a standby watched it for long: who does not
    lead removes nothing. Real API server.
    """
    quick = PodTimeouts(stray_s=0.2)
    world.fates |= {
        "bag": Fate(runtime_s=4.0),
        "train": Fate(runtime_s=4.0),
    }  # the leader goes before the first ends
    async with world.serving(timeouts=quick) as running:
        made = await running.service.submit(document(gang(2), bag(2)))
        await world.witness.until(lambda: len([life for life in world.witness.tasks() if life.runs]) == 4)
    await world.witness.until(lambda: all(life.pod.ended for life in world.witness.tasks()))
    lease = Lease(now_ms, nothing, may_act=lambda: False)
    standby = KubernetesCluster(world.connection, world.settings(timeouts=quick), lease)
    await standby.start()
    await asyncio.sleep(1.5)
    await standby.stop()
    assert len(world.witness.here()) == 4
    async with world.serving(timeouts=quick) as running:
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        assert set(await attempts(running, made.id)) == {(0, "")}
        await world.nothing_left(running)


async def test_fault_35_a_node_shrinks_below_what_runs_there(world: World) -> None:
    """What runs goes on, nothing new comes there, others are not affected; when it has room again, it is used again. Real API
    server.
    """
    world.fates["stay"] = ENDLESS
    small, other = world.nodes
    async with world.serving() as running:
        made = await running.service.submit(document(bag(2, cpu=3, name="stay")))
        await world.witness.until(lambda: len([life for life in world.witness.tasks() if life.runs]) == 2)
        await world.hollow.shrink(
            small, {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"}
        )
        more = await running.service.submit(document(bag(6, cpu=1)))
        assert (await running.ended(more.id)).state == "SUCCEEDED"
        assert {life.pod.spec.node_name for life in world.witness.tasks("bag")} == {other}
        assert len(running_on(world, small)) == 1
        await running.service.command(made.id, "cancel")
        await running.ended(made.id)
        last = await running.service.submit(document(bag(6, cpu=1, name="last")))
        assert (await running.ended(last.id)).state == "SUCCEEDED"
        assert small in {life.pod.spec.node_name for life in world.witness.tasks("last")}
        await world.nothing_left(running)


async def test_fault_36_strangers_take_the_room_first(world: World) -> None:
    """Somebody's pods get onto the nodes that we have chosen, just before ours: the kubelet says OutOfcpu, and ours go elsewhere
    without an attempt of their own being charged. Real API server.
    """
    world.witness.tolerated.update(world.nodes)
    raced: list[str] = []

    async def race(point: str) -> None:
        if point == "kube.created" and not raced:
            raced.append("")
            for number, node in enumerate(world.nodes):
                await _stranger(world, f"stranger-{number}", node)

    async with world.serving(failpoint=race) as running:
        made = await running.service.submit(
            document(bag(1, cpu=3, retry={"attempts": 1}), gang(2, cpu=2, retry={"attempts": 1}))
        )
        await running.until(lambda: _refused(running, made.id))
        await world.hollow.add(
            *(NodeTemplate(f"{world.namespace}-new-{number}", cpu="4") for number in range(2))
        )
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        told = await attempts(running, made.id)
        assert {reason for _, reason in told} <= {"", "OutOfcpu", "Released"}
        for number in range(2):
            await world.talk.delete(f"{world.talk.pods}/stranger-{number}", gracePeriodSeconds="0")
        await world.nothing_left(running)


async def _stranger(world: World, name: str, node: str) -> None:
    resources = {"requests": {"cpu": "3"}}
    container = {"name": "main", "image": "none", "resources": resources}
    status, told = await world.talk.post(
        world.talk.pods,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
        },
    )
    assert status == 201, told


async def _refused(running: Running, workflow: str) -> bool:
    return any(reason == "OutOfcpu" for _, reason in await attempts(running, workflow))


@pytest.fixture
async def silent_world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[World]:
    """A world whose only node has no kubelet: what happens there, the test says."""
    async with World(api, namespace, tmp_path, nodes=()) as world:
        node = node_document(NodeTemplate(f"{namespace}-mute", cpu="8"), "127.0.0.1", 0, datetime.now(UTC))
        assert (await world.talk.post("/api/v1/nodes", node))[0] == 201
        burying = asyncio.create_task(_bury(world))
        yield world
        burying.cancel()
        await asyncio.wait({burying})
        await world.talk.delete(f"/api/v1/nodes/{namespace}-mute")


async def _bury(world: World) -> None:
    """The one thing that its kubelet does: pods that are to go are gone."""
    while True:
        for life in world.witness.tasks():
            if life.pod.metadata.deletion_timestamp is not None and not life.gone:
                await world.talk.delete(f"{world.talk.pods}/{life.pod.metadata.name}", gracePeriodSeconds="0")
        await asyncio.sleep(0.1)


WAITING = {
    "pull": ("ImagePullBackOff", 'Back-off pulling image "none": manifest unknown', PodTimeouts(start_s=8.0)),
    "registry": (
        "ImagePullBackOff",
        'Back-off pulling image "none": ErrImagePull: dial tcp 127.0.0.1:5000: connect: connection refused',
        PodTimeouts(pull_s=8.0),
    ),
    "creating": ("ContainerCreating", "", PodTimeouts(bound_s=5.0)),
}


@pytest.mark.parametrize("what", WAITING)
async def test_fault_37_a_pod_that_does_not_start(silent_world: World, what: str) -> None:
    """An image that is never pulled, a registry that is never reached, a container that is always being created: the reason is
    told, and after its time the pod goes and its gang with it. Real API server, with a kubelet of the test's own; the times are
    8, 8 and 5 s instead of 5, 15 and 60 minutes.
    """
    world = silent_world
    reason, message, timeouts = WAITING[what]
    async with world.serving(timeouts=timeouts) as running:
        made = await running.service.submit(document(gang(2, retry={"attempts": 1})))
        pods = await world.witness.until(lambda: _bound(world, 2))
        await _say(world, pods[0].pod.metadata.name, reason, message)
        if what != "creating":
            await running.until(lambda: _explained(running, made.id, reason))
            view = await running.ended(made.id)
            assert view.state == "FAILED"
            assert message.rpartition(": ")[2] in view.reason
        else:
            await world.witness.until(
                lambda: len(world.witness.tasks()) >= 4
            )  # it is tried again, as a whole
            await running.service.command(made.id, "cancel")
            await running.ended(made.id)
        await world.nothing_left(running)


def _bound(world: World, count: int) -> list[Any]:
    found = [life for life in world.witness.tasks() if life.pod.spec.node_name and not life.gone]
    return found if len(found) == count else []


async def _say(world: World, name: str, reason: str, message: str) -> None:
    """What a kubelet says of a pod's task that waits."""
    waiting = {"name": "task", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "started": False,
               "state": {"waiting": {"reason": reason, "message": message}}}  # fmt: skip
    status, told = await world.talk.strategic(
        f"{world.talk.pods}/{name}/status", {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    )
    assert status == 200, told


async def _explained(running: Running, workflow: str, reason: str) -> bool:
    return any(each.code == reason for each in await running.service.explain(workflow))


async def test_fault_33_a_minimum_that_changes_while_members_arrive(world: World, crds: None) -> None:
    """Two of two wait for room; then the group wants four: two alone are not bound, whatever room there is, and four are. Then it
    wants one, and the fifth goes by itself. Real API server.
    """
    await world.hollow.cordon(world.nodes[0])
    await world.hollow.cordon(world.nodes[1])
    groups = f"/apis/{PLUGINS}/namespaces/{world.namespace}/podgroups"
    await world.talk.served(groups)
    async with world.serving() as running:
        group = {
            "apiVersion": PLUGINS,
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"minMember": 2},
        }
        assert (await world.talk.post(groups, group))[0] == 201
        for number in range(2):
            await _member(world, number)
        await running.until(lambda: _waits(running, 2))
        assert (await world.talk.merge(f"{groups}/g", {"spec": {"minMember": 4}}))[0] == 200
        await running.until(lambda: _minimum(running, 4))
        await world.hollow.cordon(world.nodes[0], cordoned=False)
        await asyncio.sleep(1.5)
        assert not _members_bound(world)
        for number in range(2, 4):
            await _member(world, number)
        await world.witness.until(lambda: len(_members_bound(world)) == 4)
        world.witness.judge()


async def _member(world: World, number: int) -> None:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"member-{number}", "labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        "spec": {"schedulerName": world.namespace, "containers": [container]},
    }  # fmt: skip
    assert (await world.talk.post(world.talk.pods, pod))[0] == 201


def _members_bound(world: World) -> list[str]:
    lives = [life for life in world.witness.lives.values() if life.pod.metadata.namespace == world.namespace]
    return [life.pod.metadata.name for life in lives if life.pod.spec.node_name]


async def _waits(running: Running, count: int) -> bool:
    works = (
        running.leader.dispatcher.state.foreign.groups.values()
        if running.leader.dispatcher is not None
        else ()
    )
    return sum(len(pods) for work in works for pods in work.waiting.values()) == count


async def _minimum(running: Running, minimum: int) -> bool:
    works = (
        running.leader.dispatcher.state.foreign.groups.values()
        if running.leader.dispatcher is not None
        else ()
    )
    return any(work.group is not None and work.group.minimum == minimum for work in works)


async def test_p6_room_is_free_when_a_pod_is_gone_not_when_it_is_deleted(silent_world: World) -> None:
    """A pod that is being deleted still has its cores: nobody else gets them before its kubelet says that it has ended. Real API
    server, with a kubelet of the test's own.
    """
    world = silent_world
    async with world.serving():
        await world.talk.post(world.talk.pods, _whole("first", world.namespace))
        await world.witness.until(lambda: _members_bound(world) == ["first"])
        await world.talk.delete(f"{world.talk.pods}/first")
        await world.talk.post(world.talk.pods, _whole("second", world.namespace))
        await asyncio.sleep(1.5)
        assert _members_bound(world) == ["first"]
        await world.talk.delete(f"{world.talk.pods}/first", gracePeriodSeconds="0")
        await world.witness.until(lambda: "second" in _members_bound(world))
        world.witness.judge()
        await world.talk.delete(f"{world.talk.pods}/second", gracePeriodSeconds="0")


def _whole(name: str, scheduler: str) -> dict[str, Any]:
    """A pod that takes a whole node."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "8"}}}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
