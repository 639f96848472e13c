"""A leader that is deposed in mid-write: what it has sent arrives late, what it has not sent stays unsent (rows 1, 2, 13; P2, P7).

Two executors of one installation on the fake, which carries out each request when the test lets it. In the end the witness judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from flowsched.app import now_ms
from flowsched.cluster.kubernetes.executor import KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.executor.protocol import GangSeat, Pod, Roster
from flowsched.values import replace
from tests.executors.executor_contract import Observer
from tests.kubernetes import written as w
from tests.kubernetes.exec_world import nothing
from tests.kubernetes.fake import FakeApi, Request, answering, status_body, when
from tests.kubernetes.faults.witness import Life
from tests.kubernetes.faults.world import ENDLESS, World


@dataclass(slots=True)
class Process:
    """An executor, and whether its clock says that it leads."""

    cluster: KubernetesCluster
    leads: bool
    ear: Observer


@asynccontextmanager
async def process(
    world: World,
    *adopted: Pod,
    failpoint: Callable[[str], Awaitable[None]] = nothing,
    **settings: Any,
) -> AsyncIterator[Process]:
    """A process that begins to lead: it adopts the attempts that have no recorded end."""
    lease = Lease(now_ms, failpoint)
    cluster = KubernetesCluster(world.connection, world.settings(**settings), lease)
    await cluster.start()
    made = Process(cluster, True, Observer(cluster))
    lease.may_act = lambda: made.leads
    await cluster.adopt(adopted)
    await cluster.view()
    try:
        yield made
    finally:
        await cluster.stop()


def attempts(world: World) -> tuple[Pod, Pod]:
    """The first attempt of a task, and the second, each on a node of its own."""
    world.fates["bag"] = ENDLESS
    first = w.task("fs-w1-bag-0-0", stage="bag", attempt=0, epoch=1, node=world.nodes[0])
    return first, w.task("fs-w1-bag-0-1", stage="bag", attempt=1, epoch=2, node=world.nodes[1])


def about(verb: str, resource: str, pod: Pod) -> Callable[[Request], bool]:
    """Requests about one pod: its name is in the path, or in the body that creates it."""
    asked = when(verb, resource)
    return lambda request: asked(request) and pod.name in f"{request.path} {request.body.decode()}"


def life(world: World, pod: Pod) -> Life | None:
    """What the witness saw of a pod."""
    return next((each for each in world.witness.tasks() if each.name == pod.name), None)


async def reached(taken: Callable[[], bool]) -> None:
    """Wait until a request is on its way."""
    async with asyncio.timeout(30):
        while not taken():
            await asyncio.sleep(0.01)


async def runs(world: World, pod: Pod) -> None:
    """Wait until a pod runs."""
    await world.witness.until(lambda: (seen := life(world, pod)) is not None and seen.runs, 30)


async def is_gone(world: World, pod: Pod) -> None:
    """Wait until a pod is no more."""
    await world.witness.until(lambda: (seen := life(world, pod)) is not None and seen.gone, 30)


async def test_fault_13_a_create_that_lands_after_the_take_over_never_runs(
    fake_world: World, fake: FakeApi
) -> None:
    """The old leader's create is on its way while the next leader finds no pod and starts the next attempt. Then the pod comes into
    being, and its answer reaches a process that has no lease any more: it does not bind. The new leader sees an orphan and removes
    it. The second attempt runs all the time.
    """
    first, second = attempts(fake_world)
    gate = fake.faults.hold(about("create", "pods", first))
    async with process(fake_world) as old:
        await old.cluster.launch([first])
        await reached(lambda: gate.taken)
        old.leads = False
        async with process(fake_world, first) as new:
            gone = await new.ear.gone(first.name)
            assert (gone.reason, gone.started) == ("NotLaunched", False)
            await new.cluster.settle([first.name])
            await new.cluster.launch([second])
            await runs(fake_world, second)
            gate.open.set()
            await fake_world.witness.until(lambda: life(fake_world, first), 30)
            await asyncio.sleep(1.0)
            seen = life(fake_world, first)
            assert seen is not None
            assert not seen.pod.spec.node_name
            assert await new.cluster.orphans() == [first.name]
            await new.cluster.release([first.name], 5_000)
            await is_gone(fake_world, first)
    assert fake.counts["create", "pods/binding"] == 1
    fake_world.witness.judge()


async def test_fault_13_a_leader_that_is_paused_between_create_and_bind(
    fake_world: World, fake: FakeApi
) -> None:
    """The next leader finds the pod, and binds it to the node of its intent. The old one wakes up and binds nothing."""
    first, _ = attempts(fake_world)
    paused, awake = asyncio.Event(), asyncio.Event()

    async def pause(point: str) -> None:
        if point == "kube.created":
            paused.set()
            await awake.wait()

    async with process(fake_world, failpoint=pause) as old:
        await old.cluster.launch([first])
        await paused.wait()
        old.leads = False
        async with process(fake_world, first) as new:
            await new.ear.started(first.name)
            awake.set()
            await asyncio.sleep(1.0)
    assert fake.counts["create", "pods/binding"] == 1
    fake_world.witness.judge()


@pytest.mark.parametrize("released", [False, True], ids=["adopted", "released"])
async def test_fault_13_a_bind_that_lands_after_the_take_over(
    fake_world: World, fake: FakeApi, released: bool
) -> None:
    """The old leader's bind is on its way. The next leader finds the pod unbound and binds it to the same node: the late one is a
    Conflict. Or it ends the pod, and starts the next attempt: the late one finds no pod.
    """
    first, second = attempts(fake_world)
    gate = fake.faults.hold(about("create", "pods/binding", first))
    async with process(fake_world) as old:
        await old.cluster.launch([first])
        await reached(lambda: gate.taken)
        old.leads = False
        async with process(fake_world) as new:
            if released:
                await new.cluster.release([first.name], 5_000)
                assert (await new.ear.gone(first.name)).reason == "Released"
                await new.cluster.launch([second])
                await runs(fake_world, second)
            else:
                await new.cluster.adopt([first])
                await new.ear.started(first.name)
            gate.open.set()
            await gate.passed.wait()
            await asyncio.sleep(1.0)
            alive = [each.name for each in fake_world.witness.tasks() if each.runs]
            assert alive == [second.name if released else first.name]
    fake_world.witness.judge()


async def test_fault_13_a_pod_that_the_watch_does_not_show_yet_is_adopted(
    fake_world: World, fake: FakeApi
) -> None:
    """The new leader's watch lags behind: it asks the API server itself before it calls an attempt "not launched"."""
    first, _ = attempts(fake_world)
    async with process(fake_world) as old, process(fake_world) as new:
        new.leads = False
        fake.faults.lines = lambda request, told: told if "X-Undisturbed" in request.headers else []
        await old.cluster.launch([first])
        await runs(fake_world, first)
        old.leads, new.leads = False, True
        assert new.cluster.pods.object_of(first.name) is None
        await new.cluster.adopt([first])
        await new.ear.started(first.name)
        assert not new.ear.finals(first.name)
    fake_world.witness.judge()


async def test_fault_03_a_create_whose_answer_is_lost_and_that_is_released_never_runs(
    fake_world: World, fake: FakeApi
) -> None:
    """The leader's own create is on its way when the task is cancelled: its end is reported at once, and the late pod is an
    orphan.
    """
    first, _ = attempts(fake_world)
    gate = fake.faults.hold(about("create", "pods", first))
    async with process(fake_world) as only:
        await only.cluster.launch([first])
        await reached(lambda: gate.taken)
        await only.cluster.release([first.name], 5_000)
        assert (await only.ear.gone(first.name)).reason == "Released"
        await only.cluster.settle([first.name])
        gate.open.set()
        await fake_world.witness.until(lambda: life(fake_world, first), 30)
        await asyncio.sleep(0.5)
        assert await only.cluster.orphans() == [first.name]
    assert fake.counts["create", "pods/binding"] == 0


async def test_a_hand_over_lets_pods_run_after_all_of_a_gang_are_made(
    fake_world: World, fake: FakeApi
) -> None:
    """Another scheduler may place a pod as soon as it is there. So it is made with a gate, which the leader opens: of a gang when
    the last member is made, and not when the leader has been deposed meanwhile.
    """
    members = gang(fake_world, 2)
    release = replace(fake_world.settings().release, hand_over="default-scheduler")
    gate = fake.faults.hold(about("create", "pods", members[1]))
    async with process(fake_world, release=release) as old:
        await old.cluster.launch(members)
        await reached(lambda: gate.taken and bool(fake.objects("pods")))
        assert gates(fake) == {members[0].name: ["flowsched.io/launch"]}
        old.leads = False
        gate.open.set()
        await reached(lambda: len(fake.objects("pods")) == 2)
        await asyncio.sleep(0.5)
        assert gates(fake) == {each.name: ["flowsched.io/launch"] for each in members}
        async with process(fake_world, *members, release=release):
            await reached(lambda: gates(fake) == {each.name: [] for each in members})
    assert fake.counts["create", "pods/binding"] == 0


def gates(fake: FakeApi) -> dict[str, list[str]]:
    """The scheduling gates of each pod."""
    return {
        each["metadata"]["annotations"]["flowsched.io/pod"]: [
            gate["name"] for gate in each["spec"].get("schedulingGates") or ()
        ]
        for each in fake.objects("pods")
    }


def gang(world: World, members: int) -> list[Pod]:
    """All members of a gang."""
    roster = Roster((("worker", 0, members),))
    return [
        w.task(
            f"fs-w1-train-{n}-0", stage="train", index=n, attempt=0, epoch=1, node=world.nodes[0],
            cpu_millicores=100, gang=GangSeat("worker", n, n, n, roster, "t0ken"),
        )
        for n in range(members)
    ]  # fmt: skip


GROUP = "fs-w1-train-0-g0"
BESIDE = ("services", "secrets")


def beside(fake: FakeApi) -> list[str]:
    """What there is beside pods."""
    return [f"{kind}/{each['metadata']['name']}" for kind in BESIDE for each in fake.objects(kind)]


async def test_fault_13_a_deposed_leader_makes_nothing_beside_pods(fake_world: World, fake: FakeApi) -> None:
    """It wakes up between the Service and the Secret of a gang. The next leader has released the gang."""
    members = gang(fake_world, 2)
    gate = fake.faults.hold(when("create", "services"))
    async with process(fake_world) as old:
        await old.cluster.launch(members)
        await reached(lambda: gate.taken)
        old.leads = False
        async with process(fake_world, *members) as new:
            for each in members:
                assert (await new.ear.gone(each.name)).reason == "NotLaunched"
            await new.cluster.settle([each.name for each in members])
            gate.open.set()
            await gate.passed.wait()
            assert beside(fake) == [f"services/{GROUP}"]
            await reached(lambda: not beside(fake))  # the sweep has found the Service
            await asyncio.sleep(0.5)
    assert fake.counts["create", "secrets"] == 0
    assert fake.counts["create", "pods"] == 0


async def test_fault_15_what_a_dead_process_left_beside_pods_is_swept(
    fake_world: World, fake: FakeApi
) -> None:
    """The process died after the last pod of a gang had gone, and before the rest. Another gang lives, and keeps what it has."""
    members = gang(fake_world, 2)
    dead = [replace(each, name=each.name.replace("w1", "w0"), workflow="w0") for each in members]
    fake_world.fates["train"] = ENDLESS
    refused = answering(lambda request: request.verb == "delete" and "w0" in request.path and request.plural in BESIDE,
                        500, status_body(500, "not now"))  # fmt: skip
    async with process(fake_world) as old:
        await old.cluster.launch([*members, *dead])
        for each in (*members, *dead):
            await old.ear.started(each.name)
        fake.faults.refuse(refused)
        await old.cluster.release([each.name for each in dead], 1_000)
        for each in dead:
            await old.ear.final(each.name)
        await old.cluster.settle([each.name for each in dead])
        await reached(lambda: len(fake.objects("pods")) == 2)
    assert len(beside(fake)) == 4
    fake.faults.clear()
    async with process(fake_world, *members) as new:
        await reached(lambda: len(beside(fake)) == 2)
        await asyncio.sleep(1.0)
        assert beside(fake) == [f"services/{GROUP}", f"secrets/{GROUP}"]
        assert not new.ear.finals(members[0].name)


async def test_fault_15_a_right_that_was_taken_away_is_waited_for(
    fake_world: World, fake: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """403 to a DELETE is no removal: it is reported, and tried again when an administrator has mended the role."""
    members = gang(fake_world, 2)
    fake.faults.refuse(answering(when("delete", "secrets"), 403, status_body(403, "secrets is forbidden")))
    async with process(fake_world) as only:
        await only.cluster.launch(members)
        for each in members:
            await only.ear.ended(each.name)
        await only.cluster.settle([each.name for each in members])
        await reached(lambda: fake.counts["delete", "secrets"] >= 3)
        assert sorted(beside(fake)) == [f"secrets/{GROUP}", f"services/{GROUP}"]
        assert "secrets is forbidden" in capsys.readouterr().out
        fake.faults.clear()
        await reached(lambda: not beside(fake))
