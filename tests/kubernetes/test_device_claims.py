"""GPUs by dynamic resource allocation, on a real API server: its own validation accepts every write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes import executor
from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims
from flowsched.cluster.kubernetes.dra.inventory import FINALIZER
from flowsched.cluster.kubernetes.executor import KubernetesCluster
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.executor.protocol import NodeChanged
from flowsched.values import replace
from tests.executors.executor_contract import shell
from tests.kubernetes import device_world as gpus
from tests.kubernetes.device_world import CONFIG, Gpus, given, reserved, until, workflow
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes


@pytest.fixture(autouse=True)
def _sweep_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is swept each five seconds is so each third of one: these tests wait for it."""
    monkeypatch.setattr(executor, "SWEEP_S", 0.3)


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[Gpus]:
    nodes = [NodeTemplate(f"{namespace}-n", cpu="16", extended={"nvidia.com/gpu": "7"})]
    release = {"gpu": GpuSettings(fractions="dra", driver=f"{namespace}.gpu.test")}
    async with Gpus(api, namespace, tmp_path, nodes, agents=False, agent_port=0, **release) as world:
        yield world


@pytest.fixture
async def running(world: Gpus, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        yield running


async def test_four_halves_share_two_devices(running: Running, world: Gpus) -> None:
    """Two pods a device, through one claim each; who lives is reserved, nobody else; afterwards there is no claim."""
    submitted = await running.service.submit(workflow(world.until_told("end"), 0.5, 4))

    async def all_run() -> bool:
        live = await world.pods()
        return [each["status"]["phase"] for each in live.values()] == ["Running"] * 4

    await until(all_run)
    live, found = await world.pods(), await world.claims()
    assert set(found) == {world.claim(0), world.claim(1)}
    assert {given(each) for each in found.values()} == {"gpu-a", "gpu-b"}
    assert [len(reserved(each)) for each in found.values()] == [2, 2]
    assert set().union(*map(reserved, found.values())) == set(live)
    for number in (0, 1):
        check(found[world.claim(number)], world, number)
    for pod in live.values():
        [named] = pod["spec"]["resourceClaims"]
        [task] = [each for each in pod["spec"]["containers"] if each["name"] == "task"]
        assert task["resources"]["claims"] == [{"name": named["name"]}]
        assert pod["metadata"]["uid"] in reserved(found[named["resourceClaimName"]])
        assert "gpu" not in json.dumps(task["resources"]["limits"])
    world.tell("end")
    assert (await running.ended(submitted.id)).state == "SUCCEEDED"

    async def nothing() -> bool:
        return not await world.claims()

    await until(nothing)


def check(claim: dict[str, Any], world: Gpus, number: int) -> None:
    """A claim of ours as it is stored."""
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "flowsched"
    assert claim["metadata"]["labels"]["app.kubernetes.io/instance"] == world.namespace
    [request] = claim["spec"]["devices"]["requests"]
    exactly = {"deviceClassName": world.driver, "allocationMode": "ExactCount", "count": 1}
    assert request == {"name": "gpu", "exactly": exactly}
    allocation = claim["status"]["allocation"]
    result = {"request": "gpu", "driver": world.driver, "pool": world.node, "device": f"gpu-{'ab'[number]}"}
    assert allocation["devices"]["results"] == [result]
    opaque = {"driver": world.driver, "parameters": CONFIG}
    assert allocation["devices"]["config"] == [{"source": "FromClass", "requests": ["gpu"], "opaque": opaque}]
    field = {"key": "metadata.name", "operator": "In", "values": [world.node]}
    assert allocation["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}
    assert {each["resource"] for each in claim["status"]["reservedFor"]} == {"pods"}


async def test_a_whole_device_beside_one_that_somebody_else_has(running: Running, world: Gpus) -> None:
    """What others' claims have is not ours to give: one task after the other gets the device that is left."""
    await gpus.stranger(world.client, world.namespace, "theirs", world.driver, world.node, "gpu-a")

    async def seen() -> bool:
        return running.cluster._view.nodes[world.node].gpu_millis == 1000

    await until(seen)
    submitted = await running.service.submit(workflow(world.until_told("end"), 1, 2))

    async def one_runs() -> bool:
        return any(each["status"]["phase"] == "Running" for each in (await world.pods()).values())

    await until(one_runs)
    live, found = await world.pods(), await world.claims()
    assert set(found) == {"theirs", world.claim(0)}
    assert (given(found[world.claim(0)]), len(live)) == ("gpu-b", 1)
    assert reserved(found[world.claim(0)]) == set(live)
    world.tell("end")
    assert (await running.ended(submitted.id)).state == "SUCCEEDED"

    async def only_theirs() -> bool:
        return set(await world.claims()) == {"theirs"}

    await until(only_theirs)
    assert given((await world.claims())["theirs"]) == "gpu-a"


async def test_a_device_is_shared_although_others_have_taken_those_before_it(
    running: Running, world: Gpus
) -> None:
    """A number in use keeps its device; a number that is nobody's any more is not given away."""
    space, driver = world.namespace, world.driver
    whole = await running.service.submit(workflow(world.until_told("whole"), 1))

    async def runs(count: int) -> bool:
        phases = [each["status"]["phase"] for each in (await world.pods()).values()]
        return phases.count("Running") == count

    await until(lambda: runs(1))
    first = await running.service.submit(workflow(world.until_told("halves"), 0.5))
    await until(lambda: runs(2))
    assert {name: given(each) for name, each in (await world.claims()).items()} == {
        world.claim(0): "gpu-a",
        world.claim(1): "gpu-b",
    }
    world.tell("whole")
    await running.ended(whole.id)

    async def only_b() -> bool:
        return set(await world.claims()) == {world.claim(1)}

    await until(only_b)
    await gpus.stranger(world.client, space, "theirs", driver, world.node, "gpu-a")
    await until(lambda: told_gap(running, world))
    second = await running.service.submit(workflow(world.until_told("halves"), 0.5))
    await until(lambda: runs(2))
    found = await world.claims()
    assert set(found) == {"theirs", world.claim(1)}
    assert len(reserved(found[world.claim(1)])) == 2
    third = await running.service.submit(workflow(["true"], 0.5))
    await asyncio.sleep(1)
    assert len(await world.pods()) == 2
    world.tell("halves")
    for submitted in (first, second, third):
        assert (await running.ended(submitted.id)).state == "SUCCEEDED"
    told = [(await running.service.tasks(each.id)).tasks[0].attempt for each in (first, second, third)]
    assert told == [0, 0, 0]  # nobody's binding was refused


async def told_gap(running: Running, world: Gpus) -> bool:
    """Whether the number that somebody else's claim has made useless is known as such."""
    return world.node in running.cluster._view._gaps


async def test_the_node_has_as_many_gpus_as_its_driver_says(world: Gpus) -> None:
    """Not as its kubelet says; and it is told when that changes."""
    cluster, ear, [node] = await world.open()
    assert (node.gpu_millis, node.extended["nvidia.com/gpu"]) == (2000, 7)
    devices = [
        "gpu-a",
        gpus.device("gpu-b", taints=[{"key": "test/broken", "effect": "NoSchedule"}]),
        "gpu-c",
        "gpu-d",
    ]
    world.slices.append(await gpus.publish(world.client, world.driver, world.node, devices, generation=2))

    def told() -> int:
        return [each.node.gpu_millis for each in ear.heard if isinstance(each, NodeChanged)][-1]

    async def three() -> bool:
        return any(isinstance(each, NodeChanged) for each in ear.heard) and told() == 3000

    await until(three)
    assert cluster._view.nodes[world.node].gpu_millis == 3000


def half(world: Gpus, name: str, number: int = 0, end: str = "") -> Any:
    """A pod with half a GPU, that runs until it is told to end."""
    script = world.until_told(end or name)[2]
    return shell(name, script, node=world.node, gpu_millis=500, gpu_ids=(number,))


async def test_a_restart_adopts_what_is_there(world: Gpus) -> None:
    """While nobody looked, one of two ended and a third was made: its claim goes on with those that live."""
    cluster, ear, _ = await world.open()
    first, second = half(world, "fs-wf-s-0-1"), half(world, "fs-wf-s-1-1")
    await cluster.launch([first, second])
    for pod in (first, second):
        await ear.started(pod.name)
    [claim] = (await world.claims()).values()
    assert len(reserved(claim)) == 2
    await world.drop()
    world.tell(first.name)
    cluster, ear = await opened(world, [first, second])
    assert (await ear.ended(first.name)).exit_code == 0

    async def one_is_left() -> bool:
        return len(reserved((await world.claims())[world.claim(0)])) == 1

    await until(one_is_left)
    third = half(world, "fs-wf-s-2-1")
    await cluster.launch([third])
    await ear.started(third.name)
    [again] = (await world.claims()).values()
    assert (again["metadata"]["uid"], len(reserved(again))) == (claim["metadata"]["uid"], 2)
    for pod in (second, third):
        world.tell(pod.name)
        assert (await ear.ended(pod.name)).exit_code == 0

    async def nothing() -> bool:
        return not await world.claims()

    await until(nothing)


async def opened(world: Gpus, pods: list[Any]) -> tuple[KubernetesCluster, Any]:
    """An executor that takes pods over and leads."""
    cluster, ear, _ = await world.open()
    await cluster.adopt(pods)
    await cluster.view()
    return cluster, ear


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_leader_dies_around_the_reservation(
    world: Gpus, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The pod is made and not bound; the next leader finds what there is, and goes on from there."""
    reserve, reached = DeviceClaims.reserve, asyncio.Event()

    async def dying(self: DeviceClaims, *told: Any) -> str:
        if moment == "after":
            assert await reserve(self, *told) == ""
        reached.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(DeviceClaims, "reserve", dying)
    cluster, _, _ = await world.open()
    pod = half(world, "fs-wf-s-0-1")
    await cluster.launch([pod])
    await reached.wait()
    assert len(await world.claims()) == (1 if moment == "after" else 0)
    await world.drop()
    monkeypatch.undo()
    _, ear = await opened(world, [pod])
    await ear.started(pod.name)
    [claim] = (await world.claims()).values()
    assert reserved(claim) == set(await world.pods())
    world.tell(pod.name)
    assert (await ear.ended(pod.name)).exit_code == 0

    async def nothing() -> bool:
        return not await world.claims()

    await until(nothing)


async def test_a_claim_of_the_same_name_that_is_not_ours_is_never_changed(world: Gpus) -> None:
    """The pod is not bound; it goes, and its task is placed anew."""
    cluster, ear, _ = await world.open()
    name = world.claim(0)
    await gpus.stranger(world.client, world.namespace, name, world.driver, world.node, "gpu-b")
    before = (await world.claims())[name]
    await cluster.launch([half(world, "fs-wf-s-0-1")])
    gone = await ear.gone("fs-wf-s-0-1")
    assert gone.reason == "BindRefused"
    assert (await world.claims())[name] == before


@pytest.mark.parametrize("given_to", ["gone", "theirs"])
async def test_a_device_that_is_not_to_be_had_refuses_the_binding(world: Gpus, given_to: str) -> None:
    """It is not there any more, or somebody else's claim has it."""
    cluster, ear, _ = await world.open()
    if given_to == "gone":
        await world.client.call("DELETE", f"{gpus.API}/resourceslices/{world.slices[0]}")
    else:
        for each in ("gpu-a", "gpu-b"):
            await gpus.stranger(
                world.client, world.namespace, f"theirs-{each}", world.driver, world.node, each
            )

    async def known() -> bool:
        return cluster._view.nodes[world.node].gpu_millis == 0

    await until(known)
    await cluster.launch([half(world, "fs-wf-s-0-1")])
    assert (await ear.gone("fs-wf-s-0-1")).reason == "BindRefused"

    async def swept() -> bool:
        return world.claim(0) not in await world.claims()

    await until(swept)


async def test_a_released_pod_and_one_that_vanishes_give_back_their_devices(world: Gpus) -> None:
    """Ended by us, or deleted by somebody."""
    cluster, ear, _ = await world.open()
    names = ["fs-wf-s-0-1", "fs-wf-s-1-1"]
    await cluster.launch([half(world, name) for name in names])
    for name in names:
        await ear.started(name)
    await cluster.release(names[:1], 1000)
    path = f"/api/v1/namespaces/{world.namespace}/pods/{names[1]}"
    await world.client.call("DELETE", path, params={"gracePeriodSeconds": "0"})
    for name in names:
        await ear.final(name)
    await cluster.settle(names)

    async def nothing() -> bool:
        return not await world.claims()

    await until(nothing)


async def test_the_sweep_removes_what_nobody_uses(world: Gpus) -> None:
    """A claim that was made and never used, users that are no more; one that a stranger's pod uses stays."""
    cluster, _, _ = await world.open()
    book = cluster._devices
    assert isinstance(book, DeviceClaims)
    here = f"/api/v1/namespaces/{world.namespace}/pods"
    container = {"name": "main", "image": "x", "command": ["sleep", "600"]}
    document = {"metadata": {"name": "alive"}, "spec": {"schedulerName": "nobody", "containers": [container]}}
    answer = await world.client.call("POST", here, body=json.dumps(document).encode())
    alive = {"resource": "pods", "name": "alive", "uid": json.loads(answer.body)["metadata"]["uid"]}
    for number in (0, 1):
        order = half(world, f"fs-wf-s-{number}-1", number)
        assert await book.reserve(order, f"uid-{number}", lambda *_: None) == ""
    ghost = (await world.claims())[world.claim(1)]["status"]["reservedFor"]
    await world.patch(world.claim(1), {"status": {"reservedFor": [*ghost, alive]}}, "/status")
    await world.patch(world.claim(0), {"status": {"reservedFor": None}}, "/status")

    async def swept() -> bool:
        found = await world.claims()
        return set(found) == {world.claim(1)} and reserved(found[world.claim(1)]) == {alive["uid"]}

    await until(swept)
    await asyncio.sleep(0.5)
    assert await swept()


async def test_who_comes_too_late_reads_and_decides_anew(world: Gpus) -> None:
    """Somebody else has changed the claim, taken its protection and its allocation away, or deleted it."""
    settings = world.settings().release
    claims = DeviceClaims(world.client, settings)
    inventory: Callable[[], list[Any]] = lambda: claims._inventory.of(world.node)  # noqa: E731
    await listed(claims, world.client)
    assert len(inventory()) == 2
    quiet: Callable[[str, str], None] = lambda *_: None  # noqa: E731
    name = world.claim(0)
    for number in range(4):
        if number == 1:
            await world.patch(name, {"metadata": {"labels": {"somebody": "was-here"}}})
        if number == 2:  # as the API server's own controller does it
            await world.patch(name, {"status": {"reservedFor": None, "allocation": None}}, "/status")
            await world.patch(name, {"metadata": {"finalizers": None}})
        if number == 3:
            await world.patch(name, {"status": {"reservedFor": None, "allocation": None}}, "/status")
            await world.patch(name, {"metadata": {"finalizers": None}})
            path = f"{gpus.API}/namespaces/{world.namespace}/resourceclaims/{name}"
            assert (await world.client.call("DELETE", path)).ok
        assert await claims.reserve(half(world, f"fs-wf-s-{number}-1"), f"uid-{number}", quiet) == ""
        found = (await world.claims())[name]
        assert f"uid-{number}" in reserved(found)
        assert found["metadata"]["finalizers"] == [FINALIZER]
        assert given(found) == "gpu-a"
    # Twice is once; and one that is being deleted takes nobody in until it is gone.
    before = (await world.claims())[name]
    assert await claims.reserve(half(world, "fs-wf-s-3-1"), "uid-3", quiet) == ""
    assert (await world.claims())[name] == before
    await world.client.call("DELETE", f"{gpus.API}/namespaces/{world.namespace}/resourceclaims/{name}")
    problem = await claims.reserve(half(world, "fs-wf-s-4-1"), "uid-4", quiet)
    assert problem == f"the claim {name!r} is being deleted, and still in use"
    await claims._free(name, {"uid-3"})
    assert await world.claims() == {}
    await claims.close()


async def listed(claims: DeviceClaims, client: Client) -> None:
    """Show it what there is, once: from now on it sees nothing but its own answers."""
    from flowsched.cluster.kubernetes.api.watch import Batch

    for path, kind, handler in claims.watched():
        found, _ = await client.list(path, kind)
        handler(Batch(replaced=found))


async def test_no_class_is_said_clearly(world: Gpus) -> None:
    """A pod is not bound to a device of a class that there is not."""
    release = world.settings().release
    settings = replace(release, gpu=replace(release.gpu, device_class="no-such-class"))
    claims = DeviceClaims(world.client, settings)
    await listed(claims, world.client)
    problem = await claims.reserve(half(world, "fs-wf-s-0-1"), "uid", lambda *_: None)
    assert problem == "there is no DeviceClass 'no-such-class'"
    assert claims.gpus(world.node) == (2000, 0)
    await claims.close()


async def test_without_the_mode_nobody_looks_at_devices(
    api: Connection, namespace: str, tmp_path: Path
) -> None:
    """No watch, no call; a pod with a part of a device is told its number."""
    nodes = [NodeTemplate(f"{namespace}-n", cpu="4", extended={"nvidia.com/gpu": "2"})]
    async with KubeWorld(api, namespace, tmp_path, nodes, agents=False, agent_port=0) as world:
        cluster, ear, [node] = await world.open()
        assert node.gpu_millis == 2000
        await cluster.launch([shell("fs-wf-s-0-1", "true", node=node.name, gpu_millis=500, gpu_ids=(1,))])
        assert (await ear.ended("fs-wf-s-0-1")).exit_code == 0
        assert [call for call in cluster.client.calls if "resource.k8s.io" in call[1]] == []
        assert cluster._devices is None
