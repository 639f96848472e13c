"""Two faults at once on a whole installation under load, and what became of the load.

Replicas are processes on PostgreSQL, the API server is real and counts quotas, nodes are hollow. The second fault begins while
the first lasts. A seed decides all that is random: which fault begins, which ends first, what each of them strikes, and the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import aiohttp
import yaml

from flowsched.cluster.kubernetes.api.client import Client as Kubernetes
from flowsched.errors import FlowschedError
from flowsched.workflow.views import WorkflowView
from tests.crash.harness import Nursery
from tests.kubernetes.definitions import ROOT
from tests.kubernetes.exec_world import make
from tests.kubernetes.faults.services import Service
from tests.kubernetes.faults.witness import Witness
from tests.kubernetes.faults.world import bag, document, gang
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.proxy import Proxy, through
from tests.kubernetes.talk import Talk
from tests.postgres import Server

#: Of work, after the last fault has ended: nothing takes so long on the slowest machine.
STUCK_S: Final = 300.0
#: What is there so long after the last task has ended is left: FAULTS.md P5 gives a minute, a request 65 s more.
LEFT_S: Final = 130.0
#: A replica that has not answered a request for so long is not waited for: another one is asked.
ANSWER_S: Final = 5.0
RUNTIMES_S: Final = (0.5, 2.5)
NODES, CORES = 3, 4
#: Less than the nodes have: it is the quota that decides how many pods there are.
QUOTA: Final = {"pods": "10", "requests.cpu": "10"}
#: While one of these lasts, the other replica cannot lead.
KEEP_FROM_LEADING: Final = {"killed", "stopped", "database", "rights"}
OFF_S: Final = 60
FILLER: Final = "filler"
ENVIRONMENT: Final = {"FLOWSCHED_POD_GROUPS": "scheduler-plugins"}
T = TypeVar("T")
ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_PLUGINS: Final = "/apis/scheduling.x-k8s.io/v1alpha1"


# ---- the installation ----


@dataclass(frozen=True, slots=True)
class Load:
    """So many workflows, each of two gangs of two to four members and a bag of ten tasks."""

    workflows: int

    def documents(self, rng: random.Random) -> list[bytes]:
        """Of all workflows."""
        return [
            document(
                gang(rng.choice((2, 3, 4)), name="one"),
                gang(rng.choice((2, 3, 4)), name="other"),
                bag(10),
                name=f"load-{number}",
            )
            for number in range(self.workflows)
        ]


@dataclass(slots=True)
class Replica:
    """One process of the service, with its own way to the API server and its own clock."""

    service: Service
    proxy: Proxy
    clock: Path
    down: bool = False  #: a fault keeps it from being started

    async def leads(self) -> bool:
        """Whether it says that it leads."""
        timeout = aiohttp.ClientTimeout(total=2)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self.service.url}/readyz") as answer,
            ):
                return answer.status == 200 and (await answer.text()).strip() == "ok"
        return False


@dataclass(slots=True)
class Outcome:
    """What became of the load: numbers of tasks, and of objects."""

    title: str
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    left: int = 0
    takeover_s: float | None = None
    bind_s: float | None = None
    seconds: float = 0.0
    words: list[str] = field(default_factory=list)

    HEAD = f"{'pair':22}{'lost':>6}{'doubled':>9}{'stuck':>7}{'left':>6}{'takes over':>12}{'first bind':>12}{'whole':>8}"

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return (self.lost, self.doubled, self.stuck, self.left) == (0, 0, 0, 0)

    def line(self) -> str:
        """A line of the table below `HEAD`; the times are seconds from the kill."""
        times = ("" if each is None else f"{each:.1f} s" for each in (self.takeover_s, self.bind_s))
        takeover, bind = times
        numbers = f"{self.lost:>6}{self.doubled:>9}{self.stuck:>7}{self.left:>6}"
        return f"{self.title:22}{numbers}{takeover:>12}{bind:>12}{self.seconds:>6.0f} s"


class Installation:
    """Replicas of the service, their database, nodes and a witness, in one namespace.

    Args:
        plane: The API server; its controller manager counts quotas.
        database: The replicas' server, for them alone.
        nursery: Where replicas are forked.
        folder: For their roots and logs.
        namespace: Of the tasks; it gives scheduler and nodes their names.
        rng: Of runtimes.
        short: Whether the lease is one of five seconds.
    """

    def __init__(
        self,
        plane: ControlPlane,
        database: Server,
        nursery: Nursery,
        folder: Path,
        namespace: str,
        rng: random.Random,
        *,
        short: bool,
    ) -> None:
        self.plane, self.database, self.namespace = plane, database, namespace
        self.lease_s = 5.0 if short else 12.0
        self.nodes = [f"{namespace}-{number}" for number in range(NODES)]
        self.clock_off_s = dict.fromkeys(self.nodes, 0)
        self.replicas: list[Replica] = []
        self.leading: Replica | None = None  #: the one that said so last
        self.led: list[tuple[float, Replica]] = []  #: since when each led, one after the other
        self.lasting: list[str] = []  #: the faults that have begun and not ended
        self.submitted: list[str] = []
        self.missed: list[str] = []  #: take-overs that did not come, in words
        self.words: list[str] = []
        self._begun = time.monotonic()
        self._nursery, self._folder, self._short, self._rng = nursery, folder, short, rng
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _enter(self) -> None:
        enter = self._stack.enter_async_context
        client = await enter(Kubernetes(self.plane.connection()))
        self.talk = Talk(client, self.namespace)
        await self._make_tenant(client)
        self._stack.push_async_callback(self._remove_nodes)
        templates = [NodeTemplate(name, cpu=str(CORES)) for name in self.nodes]
        self.hollow = await enter(HollowNodes(client, templates, heartbeat_s=None, fate=self._fate))
        self.witness = await enter(Witness(client, self.namespace))
        url = self.database.fresh()
        for name in ("a", "b"):
            self.replicas.append(await self._replica(name, url))
        keeping = asyncio.create_task(self._keep())
        self._stack.push_async_callback(_cancelled, keeping)

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _make_tenant(self, client: Kubernetes) -> None:
        """The namespace with its rights as `deploy/` has them, and its quota."""
        path = f"/api/v1/namespaces/{self.namespace}"
        await make(client, "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": self.namespace}})
        for each in documents("base/cluster-role.yaml"):
            await make(client, f"{_RBAC}/{each['kind'].lower()}s", each)
        role, self.binding = documents("tenant/role.yaml")
        for each in (role, self.binding):
            each["metadata"]["namespace"] = self.namespace
        await make(client, f"{_RBAC}/namespaces/{self.namespace}/roles", role)
        await self.bind_role()
        quota = {"kind": "ResourceQuota", "metadata": {"name": "tenant"}, "spec": {"hard": QUOTA}}
        await make(client, f"{path}/resourcequotas", quota)

    @property
    def bindings(self) -> str:
        """Where the binding of the tenant's role is."""
        return f"{_RBAC}/namespaces/{self.namespace}/rolebindings"

    async def bind_role(self) -> None:
        """Give the service its rights in the namespace."""
        await make(self.talk.client, self.bindings, self.binding)

    async def _replica(self, name: str, url: str) -> Replica:
        folder = self._folder / name
        folder.mkdir(parents=True)
        clock = folder / "clock"
        clock.write_text("+000")
        proxy = await self._stack.enter_async_context(Proxy(self.plane.connection()))
        config = through(self.plane.kubeconfig("scheduler"), proxy, folder / "kubeconfig")
        service = Service(
            self._nursery,
            folder,
            config,
            self.namespace,
            database=url,
            short=self._short,
            clock=clock,
            environment=ENVIRONMENT,
        )
        self._stack.push_async_callback(service.close)
        service.start()
        return Replica(service, proxy, clock)

    async def _remove_nodes(self) -> None:
        """Nodes belong to no namespace: one that is left would be the next installation's, too."""
        for name in self.nodes:
            await self.talk.delete(f"/api/v1/nodes/{name}")

    def _fate(self, pod: Pod) -> Fate:
        if pod.spec.node_name not in self.clock_off_s:
            return Fate()
        off_s = self.clock_off_s[pod.spec.node_name]
        return Fate(runtime_s=self._rng.uniform(*RUNTIMES_S), ahead_s=off_s)

    async def _keep(self) -> None:
        """Be the kubelet, which starts a replica again that has ended, and see which one leads."""
        while True:
            for replica in self.replicas:
                if replica.service.dead() and not replica.down:
                    self.note(f"replica {self.replicas.index(replica)} has ended and is started again")
                    replica.service.start()
            asked = [each for each in self.replicas if not each.down]
            answers = await asyncio.gather(*(each.leads() for each in asked))
            for replica, leads in zip(asked, answers, strict=True):
                if leads and not replica.down and replica is not self.leading:
                    self.leading = replica
                    self.led.append((time.monotonic(), replica))
                    self.note(f"replica {self.replicas.index(replica)} leads")
            await asyncio.sleep(0.1)

    def note(self, words: str) -> None:
        """Write down what happens, for the report of a pair that fails."""
        self.words.append(f"{time.monotonic() - self._begun:6.1f} s {words}")

    async def leader(self) -> Replica:
        """The one that leads; where none begins to for three leases, any that runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3 * self.lease_s):
                while self.leading is None or self.leading.down:
                    await asyncio.sleep(0.05)
                return self.leading
        return next(each for each in self.replicas if not each.down)

    async def taken_over(self, from_: Replica) -> None:
        """Wait until another replica leads, where nothing keeps it from leading."""
        try:
            async with asyncio.timeout(4 * self.lease_s):
                while self.leading is from_ and not KEEP_FROM_LEADING.intersection(self.lasting):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            name = self.replicas.index(from_)
            self.missed.append(f"no replica took over from replica {name}, which could do nothing")

    async def submit(self, document: bytes, key: str) -> None:
        """Have a workflow accepted by whichever replica answers."""
        self.submitted.append(await self._ask(lambda service: _id_of(service, document, key), STUCK_S))

    async def end_of(self, workflow: str, ends: float) -> WorkflowView | None:
        """A workflow at its end, or as it is at the moment `ends`; None: no replica answers."""
        view: WorkflowView | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                view = await self._ask(lambda service: service.client.get(workflow), 2 * ANSWER_S)
            if (view is not None and view.state in ENDED) or time.monotonic() > ends:
                return view
            await asyncio.sleep(0.3)

    async def tasks_of(self, workflow: str) -> Counter[str]:
        """How many of a workflow's tasks are in which state."""

        async def count(service: Service) -> Counter[str]:
            return Counter([row.state async for row in service.client.tasks(workflow)])

        return await self._ask(count, STUCK_S)

    async def unsubmitted(self) -> list[str]:
        """Workflows that there are beside those whose submission was answered, in words."""

        async def ids(service: Service) -> list[str]:
            return [view.id async for view in service.client.list()]

        return [
            f"{each} was accepted twice"
            for each in await self._ask(ids, STUCK_S)
            if each not in self.submitted
        ]

    async def why(self, workflow: str) -> list[str]:
        """What `explain` says of a workflow."""

        async def explain(service: Service) -> list[str]:
            found = await service.client.explain(workflow)
            return [f"{workflow} {e.state} {e.code} ({e.tasks}): {e.message}" for e in found]

        try:
            return await self._ask(explain, 2 * ANSWER_S)
        except TimeoutError:
            return [f"{workflow}: no replica explains"]

    async def _ask(self, call: Callable[[Service], Awaitable[T]], within_s: float) -> T:
        """Ask one replica after the other until one answers."""
        async with asyncio.timeout(within_s):
            while True:
                for replica in [each for each in self.replicas if not each.down]:
                    with contextlib.suppress(FlowschedError, TimeoutError):
                        async with asyncio.timeout(ANSWER_S):
                            return await call(replica.service)
                await asyncio.sleep(0.1)

    async def objects(self) -> list[str]:
        """What there is in the namespace beside others' pods."""
        found = []
        paths = {
            "pods": self.talk.pods,
            "services": f"{self.talk.here}/services",
            "secrets": f"{self.talk.here}/secrets",
            "podgroups": f"{_PLUGINS}/namespaces/{self.namespace}/podgroups",
            "resourceclaims": f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims",
        }
        for kind, path in paths.items():
            names = await self.talk.names(path, labelSelector=f"!{FILLER}")
            found += [f"{kind}/{name}" for name in names]
        return found


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a file of `deploy/kustomize`."""
    return list(yaml.safe_load_all((ROOT / "deploy" / "kustomize" / name).read_text()))


async def _id_of(service: Service, document: bytes, key: str) -> str:
    return (await service.client.submit(document, idempotency_key=key)).id


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# ---- the faults ----


class Fault(Protocol):
    """Something that goes wrong for a while. `way` says what exactly, once it has begun."""

    way: str

    async def begin(self) -> None:
        """Break it."""

    async def end(self) -> None:
        """Mend it."""


@dataclass(slots=True)
class Killed:
    """The leader is killed by SIGKILL, and started again at the end."""

    world: Installation
    rng: random.Random
    way: str = ""
    at: float = 0.0
    _hit: Replica | None = None

    async def begin(self) -> None:
        self._hit = hit = await self.world.leader()
        hit.down, self.world.leading = True, None
        self.way, self.at = f"replica {self.world.replicas.index(hit)}", time.monotonic()
        await hit.service.kill()

    async def end(self) -> None:
        assert self._hit is not None
        self._hit.service.start()
        self._hit.down = False


@dataclass(slots=True)
class Stopped:
    """The leader is stopped by SIGSTOP for longer than its lease, then goes on as if nothing had been."""

    world: Installation
    rng: random.Random
    way: str = ""
    _hit: Replica | None = None

    async def begin(self) -> None:
        self._hit = hit = await self.world.leader()
        hit.down, self.world.leading = True, None
        self.way = f"replica {self.world.replicas.index(hit)}"
        hit.service.signal(signal.SIGSTOP)

    async def end(self) -> None:
        assert self._hit is not None
        self._hit.service.signal(signal.SIGCONT)
        self._hit.down = False


@dataclass(slots=True)
class ApiServerAway:
    """The API server refuses connections, or says nothing: to the leader, or to all replicas."""

    world: Installation
    rng: random.Random
    way: str = ""
    _hit: list[Replica] = field(default_factory=list)

    async def begin(self) -> None:
        whom, how = self.rng.choice(("leader", "all")), self.rng.choice(("refuses", "says nothing"))
        self._hit = self.world.replicas if whom == "all" else [await self.world.leader()]
        self.way = f"{how} to {', '.join(f'replica {self.world.replicas.index(each)}' for each in self._hit)}"
        for each in self._hit:
            if how == "refuses":
                await each.proxy.refuse()
            else:
                each.proxy.asking = each.proxy.answering = False

    async def end(self) -> None:
        if len(self._hit) == 1:
            await self.world.taken_over(self._hit[0])
        for each in self._hit:
            if each.proxy.asking:
                await each.proxy.accept()
            else:
                each.proxy.speak()


@dataclass(slots=True)
class DatabaseAway:
    """PostgreSQL is killed, or stopped."""

    world: Installation
    rng: random.Random
    way: str = ""

    async def begin(self) -> None:
        self.way = self.rng.choice(("killed", "stopped"))
        database = self.world.database
        await asyncio.to_thread(database.kill if self.way == "killed" else database.pause)

    async def end(self) -> None:
        database = self.world.database
        await asyncio.to_thread(database.start if self.way == "killed" else database.resume)


@dataclass(slots=True)
class QuotaFull:
    """Others' pods take what is left of the namespace's quota, and what becomes free of it."""

    world: Installation
    rng: random.Random
    way: str = "others' pods"
    _full: asyncio.Event = field(default_factory=asyncio.Event)
    _filling: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._filling = asyncio.create_task(self._fill())
        await self._full.wait()

    async def _fill(self) -> None:
        number, talk = 0, self.world.talk
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        spec = {"schedulerName": "somebody", "containers": [container]}
        while True:
            metadata = {"name": f"filler-{number}", "labels": {FILLER: "true"}}
            status, _ = await talk.post(talk.pods, {"kind": "Pod", "metadata": metadata, "spec": spec})
            if status == 201:
                number += 1
            else:
                self._full.set()
                await asyncio.sleep(0.1)

    async def end(self) -> None:
        assert self._filling is not None
        await _cancelled(self._filling)
        talk = self.world.talk
        assert (await talk.delete(talk.pods, labelSelector=FILLER, gracePeriodSeconds="0"))[0] == 200


@dataclass(slots=True)
class NodeLost:
    """A node loses its power and comes back. Meanwhile its Node is gone, or not ready."""

    world: Installation
    rng: random.Random
    way: str = ""
    _node: str = ""

    async def begin(self) -> None:
        self._node = self.rng.choice(self.world.nodes)
        delete = self.rng.random() < 0.5
        self.way = f"{self._node}, {'deleted' if delete else 'not ready'}"
        await self.world.hollow.lose(self._node, delete=delete)

    async def end(self) -> None:
        await self.world.hollow.recover(self._node)


@dataclass(slots=True)
class ClockOff:
    """The wall clock of the leader's machine is wrong by a minute, that of a node by a minute to the other side."""

    world: Installation
    rng: random.Random
    way: str = ""
    _hit: Replica | None = None

    async def begin(self) -> None:
        off_s = self.rng.choice((OFF_S, -OFF_S))
        node = self.rng.choice(self.world.nodes)
        self._hit = await self.world.leader()
        self.way = f"replica {self.world.replicas.index(self._hit)} by {off_s} s, {node} by {-off_s} s"
        self._set(off_s)
        self.world.clock_off_s[node] = -off_s

    def _set(self, off_s: int) -> None:
        """In one write, and in place: the replica reads it at any moment."""
        assert self._hit is not None
        with self._hit.clock.open("r+b", buffering=0) as file:
            file.write(f"{off_s:+04d}".encode())

    async def end(self) -> None:
        self._set(0)
        self.world.clock_off_s = dict.fromkeys(self.world.nodes, 0)


@dataclass(slots=True)
class RightsRemoved:
    """The service's rights in its tenant's namespace are taken away."""

    world: Installation
    rng: random.Random
    way: str = "the RoleBinding"

    async def begin(self) -> None:
        assert (await self.world.talk.delete(f"{self.world.bindings}/flowsched"))[0] == 200

    async def end(self) -> None:
        await self.world.bind_role()


FAULTS: Final[dict[str, Callable[[Installation, random.Random], Fault]]] = {
    "killed": Killed,
    "stopped": Stopped,
    "api": ApiServerAway,
    "database": DatabaseAway,
    "quota": QuotaFull,
    "node": NodeLost,
    "clock": ClockOff,
    "rights": RightsRemoved,
}


# ---- a pair, and the audit ----


async def strike(
    world: Installation, names: tuple[str, str], load: Load, rng: random.Random, *, stuck_s: float = STUCK_S
) -> Outcome:
    """Let two faults hit an installation under load, and see what became of the load.

    Args:
        stuck_s: What has not ended so long after the last fault has ended is stuck.
    """
    begun = time.monotonic()
    outcome = Outcome("+".join(names))
    works = load.documents(rng)
    await world.leader()
    half = len(works) // 2
    await asyncio.gather(*(world.submit(work, f"first-{n}") for n, work in enumerate(works[:half])))
    await world.witness.until(lambda: any(life.runs for life in world.witness.tasks()))
    submitting = asyncio.create_task(_submit_slowly(world, works[half:], 2.5 * world.lease_s))
    faults = {name: FAULTS[name](world, rng) for name in rng.sample(names, 2)}
    both = await _overlap(world, faults, rng)
    await submitting

    ends = time.monotonic() + stuck_s
    for workflow in world.submitted:
        view = await world.end_of(workflow, ends)
        if view is None or view.state != "SUCCEEDED":
            await _count(world, workflow, view, outcome)
    outcome.stuck += len(world.missed)
    if not outcome.stuck:
        await _wait_until_tidy(world)
    left = await world.objects()
    outcome.left = len(left)
    assert any(life.bound_at > both for life in world.witness.tasks()), (
        f"nothing was left to do: {world.words}"
    )
    doubled = _doubled(world.witness) + await world.unsubmitted()
    outcome.doubled = len(doubled)
    killed = faults.get("killed")
    if isinstance(killed, Killed):
        _measure(world, killed.at, outcome)
    outcome.seconds = time.monotonic() - begun
    outcome.words = [
        *outcome.words,
        *world.missed,
        *doubled,
        *[f"left: {each}" for each in left[:20]],
        *world.words,
    ]
    return outcome


async def _submit_slowly(world: Installation, works: list[bytes], within_s: float) -> None:
    """Submit while the faults last."""
    for number, work in enumerate(works):
        await world.submit(work, f"later-{number}")
        await asyncio.sleep(within_s / len(works))


async def _overlap(world: Installation, faults: dict[str, Fault], rng: random.Random) -> float:
    """Begin one fault, and the other while it lasts; end them in either order. Both last for longer than a lease together.

    Returns:
        Since when both lasted.
    """
    lasting = world.lasting
    try:
        for name, fault in faults.items():
            await fault.begin()
            lasting.append(name)
            world.note(f"{name} begins ({fault.way})")
            await asyncio.sleep(world.lease_s * rng.uniform(0.1, 0.5))
        both = time.monotonic()
        await asyncio.sleep(world.lease_s * rng.uniform(1.1, 1.4))
        rng.shuffle(lasting)
        await _end(world, faults, lasting)
        await asyncio.sleep(world.lease_s * rng.uniform(0.1, 0.5))
    finally:
        while lasting:
            await _end(world, faults, lasting)
    return both


async def _end(world: Installation, faults: dict[str, Fault], lasting: list[str]) -> None:
    name = lasting.pop()
    await faults[name].end()
    world.note(f"{name} ends")


async def _count(world: Installation, workflow: str, view: WorkflowView | None, outcome: Outcome) -> None:
    """Count what has not succeeded: lost, if its workflow has ended or no replica knows it; else stuck."""
    states = await world.tasks_of(workflow) if view is not None else Counter({"unknown": 1})
    missing = states.total() - states["SUCCEEDED"] or 1
    if view is None or view.state in ENDED:
        outcome.lost += missing
    else:
        outcome.stuck += missing
    outcome.words.append(f"{workflow} is {view and view.state}: {dict(states)}")
    outcome.words += await world.why(workflow)


async def _wait_until_tidy(world: Installation) -> None:
    ends = time.monotonic() + LEFT_S
    while await world.objects() and time.monotonic() < ends:
        await asyncio.sleep(0.5)


def _doubled(witness: Witness) -> list[str]:
    """Attempts with two pods, attempts beside each other, and work of a bag that was done twice, in words."""
    lives = witness.tasks()
    pods = Counter(life.name for life in lives)
    found = [f"{name} had {count} pods" for name, count in pods.items() if count > 1]
    good = Counter(life.task for life in witness.tasks("bag") if life.pod.status.phase == "Succeeded")
    found += [f"{task} has succeeded {count} times" for task, count in good.items() if count > 1]
    return [*found, *witness.broken]


def _measure(world: Installation, killed_at: float, outcome: Outcome) -> None:
    """When another one led after the kill, and when it bound its first pod."""
    since = [at for at, _ in world.led if at > killed_at]
    if not since:
        return
    bound = [life.bound_at for life in world.witness.tasks() if life.bound_at > killed_at + 0.5]
    outcome.takeover_s = since[0] - killed_at
    outcome.bind_s = min(bound) - killed_at if bound else None
