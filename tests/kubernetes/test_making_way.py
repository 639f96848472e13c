"""Others' gangs make way: on a real API server with nodes that end pods as kubelets do; where it misbehaves, on the fake.

The test plays the operator: it tracks its pods by a finalizer, as the Job controller does, notes why each one goes, and makes
it anew.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.api.watch import Reflector
from flowsched.cluster.kubernetes.objects.metadata import condition_of
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.engine.foreign import preemption as making_way
from flowsched.scheduling import preemption
from tests.kubernetes.definitions import apply_crds
from tests.kubernetes.fake import FakeApi, answering, status_body, when
from tests.kubernetes.faults.world import World
from tests.kubernetes.service_world import Running

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

GROUPS = "scheduling.x-k8s.io/v1alpha1"
FINALIZER = "example.com/tracking"


class Operator:
    """Keeps so many pods of each of its groups alive.

    Attributes:
        generations: Name -> how often a pod of it was made.
        why: uid -> reasons of its `DisruptionTarget`, as they were seen, and its status then.
        keep: Whether pods are made anew.
    """

    def __init__(self, world: World) -> None:
        self.talk, self.namespace = world.talk, world.namespace
        self.generations: dict[str, int] = defaultdict(int)
        self.why: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.here: dict[str, Pod] = {}
        self.keep = True
        self._specs: dict[str, dict[str, Any]] = {}
        self._late: list[asyncio.Task[None]] = []

    async def gang(self, name: str, size: int, level: str = "", cpu: str = "2", **annotations: str) -> None:
        """A group of so many pods, of which all must run."""
        path = f"/apis/{GROUPS}/namespaces/{self.namespace}/podgroups"
        meta = {"name": name, "annotations": annotations}
        document = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": meta, "spec": {"minMember": size}}
        assert (await self.talk.post(path, document))[0] == 201
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        owner = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "name": name,
            "uid": name,
            "controller": True,
        }
        for number in range(size):
            pod = f"{name}-{number}"
            self._specs[pod] = {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": pod, "labels": {"scheduling.x-k8s.io/pod-group": name, "app": name},
                    "ownerReferences": [owner], "finalizers": [FINALIZER],
                },
                "spec": {
                    "schedulerName": self.namespace, "restartPolicy": "Never", "containers": [container],
                    **({"priorityClassName": f"{self.namespace}-{level}"} if level else {}),
                },
            }  # fmt: skip
            await self._make(pod)

    async def end(self, name: str) -> None:
        """A group is over: its pods go, and are not made anew."""
        for pod in [pod for pod in self._specs if pod.rsplit("-", 1)[0] == name]:
            del self._specs[pod]
            await self.talk.delete(f"{self.talk.pods}/{pod}")

    async def follow(self, client: Client) -> None:
        """What an operator does, for ever."""
        reflector = Reflector(client, self.talk.pods, Pod)
        async with aclosing(reflector.changes()) as batches:
            async for batch in batches:
                for change, pod in (*(("ADDED", each) for each in batch.replaced or ()), *batch.changed):
                    await self._saw(change, pod)

    async def _saw(self, change: str, pod: Pod) -> None:
        name, uid = pod.metadata.name, pod.metadata.uid
        if change == "DELETED":
            self.here.pop(name, None)
            if self.keep and name in self._specs:
                await self._make(name)
            return
        self.here[name] = pod
        condition = condition_of(pod.status.conditions, "DisruptionTarget")
        said = (condition.status, condition.reason) if condition is not None else ("", "")
        if condition is not None and self.why[uid][-1:] != [said]:
            self.why[uid].append(said)
        leaves = pod.metadata.deletion_timestamp is not None
        if leaves and (name not in self._specs or said == ("True", "PreemptionByScheduler")):
            await self.let_go(name)
        elif leaves:  # whoever was to write the reason again may have died
            asyncio.get_running_loop().call_later(
                2, lambda: self._late.append(asyncio.create_task(self.let_go(name)))
            )

    async def let_go(self, name: str) -> None:
        """It has noted why."""
        await self.talk.merge(f"{self.talk.pods}/{name}", {"metadata": {"finalizers": None}})

    async def _make(self, name: str) -> None:
        self.generations[name] += 1
        assert (await self.talk.post(self.talk.pods, self._specs[name]))[0] == 201

    def running(self, group: str) -> int:
        """How many of a group run, and are not leaving."""
        return sum(
            pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
            for name, pod in self.here.items()
            if name.rsplit("-", 1)[0] == group
        )

    def waiting(self, group: str) -> int:
        """How many of a group have no node."""
        return sum(
            not pod.spec.node_name for name, pod in self.here.items() if name.rsplit("-", 1)[0] == group
        )

    async def until(self, running: Running, **groups: int) -> None:
        """Wait until so many of each group run."""

        async def holds() -> bool:
            return all(self.running(name) == count for name, count in groups.items())

        try:
            await running.until(holds, patience_s=30)
        except TimeoutError:
            seen = {name: (pod.status.phase, pod.spec.node_name) for name, pod in self.here.items()}
            raise AssertionError(f"expected {groups} to run, found {seen}") from None


@asynccontextmanager
async def operating(world: World) -> AsyncIterator[Operator]:
    """An operator, and two priority classes of its own."""
    for level, value in (("low", -10), ("high", 100)):
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value}
        assert (await world.talk.post(path, {**body, "metadata": {"name": f"{world.namespace}-{level}"}}))[
            0
        ] == 201
    operator = Operator(world)
    following = asyncio.create_task(operator.follow(world.client))
    try:
        yield operator
    finally:
        operator.keep = False
        for name in list(operator.here):
            await operator.let_go(name)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture(params=["real", "fake"])
def server(request: pytest.FixtureRequest) -> Connection | None:
    """The shared API server, or None for a fake."""
    if request.param == "fake":
        return None
    connection: Connection = request.getfixturevalue("control_plane").connection()
    return connection


@pytest.fixture
async def world(server: Connection | None, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes of four cores, on either API server."""
    async with AsyncExitStack() as stack:
        connection = server or (await stack.enter_async_context(FakeApi())).connection
        namespace = f"way-{secrets.token_hex(3)}"
        async with Client(connection) as client:
            await _prepared(client, namespace)
        yield await stack.enter_async_context(World(connection, namespace, tmp_path))


async def _prepared(client: Client, name: str) -> None:
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    assert (await client.call("POST", "/api/v1/namespaces", body=json.dumps(document).encode())).ok
    await apply_crds(client)


@pytest.fixture
async def fake_world(tmp_path: Path) -> AsyncIterator[tuple[World, FakeApi]]:
    """The same, and the fake to be told how to misbehave."""
    async with FakeApi() as fake:
        async with Client(fake.connection) as client:
            await _prepared(client, "work")
        async with World(fake.connection, "work", tmp_path) as world:
            yield world, fake


async def budget(world: World, app: str, allowed: int) -> None:
    """A disruption budget over a group; the test plays its controller too."""
    path = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets"
    spec = {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}}
    document = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": spec,
    }
    assert (await world.talk.post(path, document))[0] == 201
    await allow(world, app, allowed)


async def allow(world: World, app: str, allowed: int) -> None:
    """Its controller says how many may go."""
    path = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets/{app}/status"
    counts = {"currentHealthy": 4, "desiredHealthy": 4 - allowed, "expectedPods": 4, "disruptedPods": None}
    status = {"observedGeneration": 1, "disruptionsAllowed": allowed, **counts}
    answer = await world.talk.merge(path, {"status": status})
    assert answer[0] == 200, answer


async def why_it_waits(world: World, name: str) -> str:
    """What a waiting pod's condition says."""
    conditions = (await world.talk.pod(name))["status"].get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == "PodScheduled"), "")


async def test_a_low_gang_goes_as_a_whole_for_a_high_one_and_comes_again_after_it(world: World) -> None:
    """All four say why; four new ones wait while the three run, also where a core is free; then the four run."""
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        first = {pod.metadata.uid for pod in operator.here.values()}
        await operator.gang("high", 3, "high")
        await operator.until(running, low=0, high=3)

        async def made_anew() -> bool:
            return operator.waiting("low") == 4

        await running.until(made_anew)
        assert {uid: operator.why[uid][-1] for uid in first} == dict.fromkeys(
            first, ("True", "PreemptionByScheduler")
        )
        assert set(operator.generations.values()) == {1, 2}
        assert {n: g for n, g in operator.generations.items() if g == 2} == {f"low-{n}": 2 for n in range(4)}
        await asyncio.sleep(1)
        assert (operator.waiting("low"), operator.running("high")) == (4, 3)
        _, told = await world.talk.get(f"/apis/events.k8s.io/v1/namespaces/{world.namespace}/events")
        preempted = [each for each in told["items"] if each["reason"] == "Preempted"]
        assert {each["regarding"]["uid"] for each in preempted} == first
        await operator.end("high")
        await operator.until(running, low=4, high=0)
    world.witness.judge()


async def test_a_workflow_of_ours_gets_the_room_of_a_low_gang(world: World) -> None:
    """It runs to its end, and the gang comes again."""
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        stage = {"name": "s", "command": ["true"], "resources": {"cpu": 3}}
        submitted = await running.service.submit(json.dumps({"name": "w", "stages": [stage]}).encode())
        assert (await running.ended(submitted.id)).state == "SUCCEEDED"
        await operator.until(running, low=4)
        assert set(operator.generations.values()) == {2}


async def test_what_a_budget_protects_stays_until_it_allows_all_of_the_gang_to_go(world: World) -> None:
    """Three of four are not enough, and nobody goes for nothing; the taker says what it waits for."""
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        await budget(world, "low", 0)
        await operator.gang("high", 3, "high")

        async def told() -> bool:
            return (await why_it_waits(world, "high-0")).startswith("Insufficient")

        await running.until(told)
        await allow(world, "low", 3)
        await asyncio.sleep(1)
        assert (operator.running("low"), operator.waiting("high"), dict(operator.why)) == (4, 3, {})
        await allow(world, "low", 4)
        await operator.until(running, low=0, high=3)


async def test_a_gang_whose_group_says_no_stays_and_another_one_goes(world: World) -> None:
    """The annotation is on the PodGroup; the one without it is the more important one, and goes."""
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("kept", 2, "low", **{"flowsched.io/preemptible": "false"})
        await operator.gang("free", 2)
        await operator.until(running, kept=2, free=2)
        await operator.gang("high", 2, "high")
        await operator.until(running, kept=2, free=0, high=2)
        await operator.gang("more", 2, "high")

        async def told() -> bool:
            return (await why_it_waits(world, "more-0")).startswith("Insufficient")

        await running.until(told)
        assert operator.running("kept") == 2


async def test_a_budget_that_is_spent_in_the_same_moment_keeps_the_whole_gang(
    fake_world: tuple[World, FakeApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first eviction is answered by 429: the marks are taken back, nobody goes; a while later all of it goes."""
    monkeypatch.setattr(making_way, "SPARE_MS", 2_000)
    monkeypatch.setattr(preemption, "RETAKE_MS", 2_000)
    world, fake = fake_world
    body = status_body(429, "Cannot evict pod as it would violate the pod's disruption budget.")
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        no = answering(when("create", "pods/eviction"), 429, body, {"Retry-After": "10"})
        fake.faults.refuse(no, times=1)
        first = {pod.metadata.uid for pod in operator.here.values()}
        await operator.gang("high", 3, "high")
        await operator.until(running, low=0, high=3)
        assert {tuple(operator.why[uid][:3]) for uid in first} == {
            (
                ("True", "PreemptionByScheduler"),
                ("False", "PreemptionByScheduler"),
                ("True", "PreemptionByScheduler"),
            )
        }


async def test_half_a_gang_that_is_gone_is_followed_by_the_rest_whatever_a_budget_says(
    fake_world: tuple[World, FakeApi],
) -> None:
    """The third of four is answered by 429 a few times: it is asked again until it goes."""
    world, fake = fake_world
    body = status_body(429, "Cannot evict pod as it would violate the pod's disruption budget.")
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        no = answering(when("create", "pods/eviction", "low-2"), 429, body, {"Retry-After": "10"})
        fake.faults.refuse(no, times=4)
        await operator.gang("high", 3, "high")
        await operator.until(running, low=0, high=3)


async def test_evictions_whose_answers_are_lost_are_not_counted_twice(
    fake_world: tuple[World, FakeApi],
) -> None:
    """Of marks and of evictions; the pods go once."""
    world, fake = fake_world
    async with world.serving() as running, operating(world) as operator:
        await operator.gang("low", 4, "low")
        await operator.until(running, low=4)
        fake.faults.lose(when("create", "pods/eviction"), times=2)
        fake.faults.lose(when("patch", "pods/status", "low-1"), times=1)
        await operator.gang("high", 3, "high")
        await operator.until(running, low=0, high=3)
        assert {n: g for n, g in operator.generations.items() if g > 1} == {f"low-{n}": 2 for n in range(4)}


@pytest.mark.parametrize(
    ("point", "goes"), [("evict.before", False), ("evict.marked", True), ("evict.first", True)]
)
async def test_a_leader_that_dies_on_the_way_leaves_no_half_gang(
    fake_world: tuple[World, FakeApi], point: str, goes: bool
) -> None:
    """The taker is withdrawn meanwhile. Before any mark nobody goes; once all are marked, the next leader sees it through."""
    world, _ = fake_world
    reached = asyncio.Event()

    async def failpoint(name: str) -> None:
        if name == point:
            reached.set()
            await asyncio.Event().wait()  # nothing more is done by this one

    async with operating(world) as operator:
        async with world.serving(failpoint=failpoint) as running:
            await operator.gang("low", 4, "low")
            await operator.until(running, low=4)
            await operator.gang("high", 3, "high")
            await asyncio.wait_for(reached.wait(), 60)
        await operator.end("high")
        async with world.serving() as running:
            await operator.until(running, low=4)

            async def over() -> bool:
                return {operator.generations[f"low-{n}"] for n in range(4)} == {2 if goes else 1}

            await running.until(over)
            await operator.until(running, low=4)
            await asyncio.sleep(0.5)
            assert await over()
