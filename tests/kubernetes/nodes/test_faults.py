"""What docs promise, on real nodes: power cuts, killed programs, pressure, drains, cut networks, a database that stops.

A workflow runs while the fault happens, and ends well: no task fails, and none has ended twice. Its tasks tell the origin when
they begin and end, and ask it whether they may end: a fault finds all of them running, however busy the machine is. The faults hit
node-0; a replica of the service on node-1 is asked. Each test mends what it broke.
`make kube-faults` runs the long ones, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flowsched.client import Client, Run
from flowsched.errors import Unavailable
from flowsched.workflow.views import TaskView, WorkflowView
from tests.images import image
from tests.kubernetes.nodes.cluster import PATIENCE_S, RealCluster
from tests.kubernetes.nodes.installed import SYSTEM, TENANT, Installation
from tests.kubernetes.nodes.machine import CONTAINERD, KUBELET, PROXY
from tests.soak import SOAK

TASKS = 6
#: What a deletion gives the pods of tasks, in place of their own 30 s.
GRACE_S = 5
_NUMBERS = itertools.count()
LONG = pytest.mark.skipif(not SOAK, reason="takes minutes: make kube-faults")
SAY = """
get() { exec 3<>"/dev/tcp/$HOST/$PORT"; printf 'GET /%s HTTP/1.0\\r\\n\\r\\n' "$1" >&3; cat <&3; }
say() { get "$1/$FLOWSCHED_ITEM" >/dev/null; }
"""


class Load:
    """One workflow of equal tasks that a fault hits.

    Args:
        installed: Where it runs.
        tasks: How many.
        seconds: How long each runs; None = until `let_end`.
        gang: They start together.
    """

    def __init__(
        self, installed: Installation, tasks: int = TASKS, seconds: int | None = None, *, gang: bool = False
    ) -> None:
        self.installed = installed
        self.name = f"load-{next(_NUMBERS)}"
        may_end = f"(get end-{self.name}) | grep -q ' 200 '"
        work = f"until {may_end}; do sleep 1; done" if seconds is None else f"sleep {seconds}"
        self.items = [f"{self.name}-{number}" for number in range(tasks)]
        host, _, port = installed.origin.removeprefix("http://").partition(":")
        self.document = {
            "name": self.name,
            "stages": [
                {
                    "name": "work",
                    "gang": gang,
                    "container": {"image": image("debian").name},
                    "scatter": {"items": self.items},
                    "command": ["bash", "-ec", f"{SAY}say began; {work}; say ended"],
                    "env": {"HOST": host, "PORT": port},
                    "resources": {"cpu": "100m", "memory": "64Mi"},
                    "retry": {"attempts": 1},
                }
            ],
        }

    def count(self, what: str) -> Counter[str]:
        """How often each task told that it `began`, or `ended`."""
        paths = [path.split("/") for path in self.installed.requests()]
        return Counter(parts[2] for parts in paths if parts[1] == what and parts[2] in self.items)

    async def submitted(self, client: Client) -> Run:
        self.installed.cluster.load("debian")
        return await client.submit(self.document)

    async def running(self, times: int = 1) -> None:
        """Wait until every task has begun so often."""
        async with asyncio.timeout(PATIENCE_S):
            while any(self.count("began")[item] < times for item in self.items):
                await asyncio.sleep(0.2)

    def let_end(self) -> None:
        """Let the tasks end that run until then: now, and those that begin later at once."""
        (self.installed.origin_folder / f"end-{self.name}").touch()

    async def ended(self, ident: str) -> tuple[WorkflowView, list[TaskView]]:
        """The workflow's end, and its tasks, by whichever replica answers: the fault may have hit the one that was asked before."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Unavailable):
                    async with self.installed.client() as client:
                        view = await client.wait(ident)
                        return view, [task async for task in client.tasks(ident)]
                await asyncio.sleep(1)

    async def succeeded(self, run: Run) -> list[TaskView]:
        """Wait for its end; what its tasks have become."""
        view, stage = await self.ended(run.id)
        assert view.state == "SUCCEEDED", [(task.index, task.state, task.reason, task.node) for task in stage]
        assert self.count("ended") == dict.fromkeys(self.items, 1)
        return stage


async def survives(work: Load, fault: Callable[[], None], begins: int = 1) -> None:
    """Let a fault hit a workflow all of whose tasks run, and let them end once all have begun so often; it succeeds."""
    async with work.installed.client() as client:
        run = await work.submitted(client)
        await work.running()
        fault()
        await work.running(begins)
        work.let_end()
        await work.succeeded(run)


def ready(cluster: RealCluster) -> None:
    """Wait until both nodes are, and what runs on them."""
    cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", f"--timeout={PATIENCE_S}s")


# ---- in every run ----


async def test_a_power_cut(installed: Installation) -> None:
    """The tasks of the node begin anew, and use up no attempt (each has one only); those of the other node go on."""
    node = installed.cluster.machines[0]

    def fault() -> None:
        node.power_cut()
        node.boot()

    work = Load(installed)
    await survives(work, fault)
    ready(installed.cluster)
    installed.ready()
    assert sum(work.count("began").values()) > TASKS


async def test_the_programs_of_nodes_are_killed(installed: Installation) -> None:
    """Containers run on under their shims without kubelet and containerd, agent, kube-proxy and CoreDNS: no task begins twice, and
    its end finds all of them again. containerd forgets the exit code of a container that ends before containerd is back: such a
    task would begin again.
    """
    cluster = installed.cluster
    node = cluster.machines[0]

    def fault() -> None:
        for name in (KUBELET, CONTAINERD):
            node.signal_program(name)
        now = ("delete", "pod", "--grace-period=0", "--force", "-l")
        cluster.kubectl("-n", SYSTEM, *now, "app.kubernetes.io/component=node-agent")
        cluster.kubectl("-n", "kube-system", *now, "k8s-app=kube-dns")
        for each in cluster.machines:
            each.signal_program(PROXY)
            each.run_program(PROXY)
        time.sleep(2)
        for name in (CONTAINERD, KUBELET):
            node.run_program(name)

    work = Load(installed)
    await survives(work, fault)
    ready(cluster)
    installed.ready()
    assert work.count("began") == dict.fromkeys(work.items, 1)


async def test_pods_are_deleted_and_a_node_is_drained(installed: Installation) -> None:
    """`kubectl drain` of a node, `kubectl delete pod` on the other: the first process of each ignores SIGTERM, and is killed after
    its grace. All tasks begin anew, on the other node.
    """
    cluster = installed.cluster

    def fault() -> None:
        grace = f"--grace-period={GRACE_S}"
        there = ("--field-selector=spec.nodeName=node-1", "--wait=false", grace)
        cluster.kubectl("cordon", "node-0")
        cluster.kubectl("-n", TENANT, "delete", "pods", *there)
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s", grace)
        cluster.kubectl("drain", "node-0", *options, timeout_s=150)

    try:
        work = Load(installed)
        await survives(work, fault, begins=2)
        assert work.count("began") == dict.fromkeys(work.items, 2)
    finally:
        cluster.kubectl("uncordon", "node-0")
    installed.ready()


async def test_postgresql_stops_for_longer_than_a_lease(installed: Installation) -> None:
    """Nothing is lost, no pod of the service is killed for it, and work that ends meanwhile is reported afterwards."""
    await _database_stops(installed, 15)


async def test_a_rolling_upgrade_and_a_rollback(installed: Installation) -> None:
    """`helm upgrade`, `helm rollback`, while gangs and tasks are submitted of which a quota lets three run: each is accepted, and
    ends well, none twice, and nothing of them is left.
    """
    loads: list[tuple[Load, str]] = []
    stop = asyncio.Event()
    kubectl = installed.cluster.kubectl

    async def submit() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            load = Load(installed, tasks=2, seconds=1, gang=number % 2 == 0)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        async with installed.client() as client:
                            loads.append(
                                (load, (await client.submit(load.document, idempotency_key=load.name)).id)
                            )
                        break
                    except Exception:  # noqa: BLE001 - the pod that was asked has gone: ask the next one
                        await asyncio.sleep(0.5)
            await asyncio.sleep(4)

    installed.cluster.load("debian")
    kubectl("-n", TENANT, "create", "quota", "three", "--hard=pods=3")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(submit())
            changed = installed.values(**{"podAnnotations.round": "two"})
            await asyncio.to_thread(
                installed.helm, "upgrade", "flowsched", "deploy/helm/flowsched", "--wait", *changed
            )
            await asyncio.to_thread(installed.helm, "rollback", "flowsched", "--wait")
            stop.set()
        async with installed.client() as client:
            for load, ident in loads:
                view = await client.wait(ident, PATIENCE_S)
                assert view.state == "SUCCEEDED"
                assert load.count("ended") == load.count("began") == dict.fromkeys(load.items, 1)
        assert len(loads) >= 3
        await nothing_left(installed)
    finally:
        kubectl("-n", TENANT, "delete", "quota", "three")


async def nothing_left(installed: Installation) -> None:
    """Wait until there is no object of a task in the tenant's namespace."""
    ends = time.monotonic() + PATIENCE_S
    ours = ("-l", "app.kubernetes.io/managed-by=flowsched", "-o", "name")
    while left := installed.cluster.kubectl("-n", TENANT, "get", "pods,services,secrets", *ours):
        assert time.monotonic() < ends, left
        await asyncio.sleep(1)


def leader(installed: Installation) -> dict[str, Any]:
    """The pod of the replica that leads."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        for pod in installed.pods("service"):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://{pod['status']['podIP']}:8470/readyz", timeout=5) as answer,
            ):
                if answer.read().strip() == b"ok":
                    return pod
        time.sleep(0.5)
    raise AssertionError("no replica leads")


@pytest.mark.parametrize("target", ["DROP", pytest.param("REJECT", marks=LONG)])
async def test_the_network_between_leader_and_api_server_is_cut(installed: Installation, target: str) -> None:
    """The other replica leads: what runs goes on, what is submitted runs, and nothing begins twice. When the network is mended the
    one that led changes nothing.
    """
    cluster = installed.cluster
    before = leader(installed)
    node = next(each for each in cluster.machines if each.name == before["spec"]["nodeName"])
    server = urlsplit(cluster.plane.url)
    # After kube-proxy has put the server's own address into the packet. The database has the same address and another port.
    rule = ("FORWARD", "-s", before["status"]["podIP"], "-d", str(server.hostname), "-p", "tcp")
    rule += ("--dport", str(server.port), "-j", target)

    def iptables(action: str) -> None:
        done = node.run("iptables", action, *rule)
        assert done.returncode == 0, done.stderr

    running, later = Load(installed), Load(installed, tasks=2, seconds=1, gang=True)
    async with installed.client() as client:
        run = await running.submitted(client)
        await running.running()
    iptables("-I")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while leader(installed)["metadata"]["uid"] == before["metadata"]["uid"]:
                await asyncio.sleep(0.5)
        async with installed.client() as client:
            await later.succeeded(await later.submitted(client))
            running.let_end()
            await running.succeeded(run)
    finally:
        iptables("-D")
    installed.ready()  # the replica that was cut off has begun anew, and stands by
    for load in (running, later):
        assert load.count("began") == dict.fromkeys(load.items, 1)
    await nothing_left(installed)


# ---- make kube-faults ----


@LONG
async def test_postgresql_stops_for_a_minute(installed: Installation) -> None:
    await _database_stops(installed, 60)


@LONG
@pytest.mark.timeout(1200)
async def test_postgresql_stops_for_ten_minutes(installed: Installation) -> None:
    await _database_stops(installed, 600)


async def _database_stops(installed: Installation, seconds: int) -> None:
    before = {pod["metadata"]["name"]: restarts(pod) for pod in installed.pods("service")}
    work = Load(installed)

    def fault() -> None:
        installed.database.stop()
        try:
            work.let_end()
            time.sleep(seconds)
        finally:
            installed.database.start()

    await survives(work, fault)
    assert work.count("began") == dict.fromkeys(work.items, 1)
    assert {pod["metadata"]["name"]: restarts(pod) for pod in installed.pods("service")} == before


def restarts(pod: dict[str, Any]) -> int:
    """How often its containers were started anew."""
    return sum(status["restartCount"] for status in pod["status"]["containerStatuses"])


@LONG
async def test_a_power_cut_for_good(installed: Installation) -> None:
    """A node that stays away is replaced once it is known to be gone (`kubectl delete node`)."""
    cluster = installed.cluster
    node = cluster.machines[0]

    def fault() -> None:
        node.power_cut()
        cluster.kubectl("delete", "node", "node-0")

    try:
        await survives(Load(installed), fault)
    finally:
        node.boot()
        ready(cluster)
    installed.ready()


@LONG
async def test_a_node_is_deleted_and_comes_back(installed: Installation) -> None:
    """The kubelet stands still meanwhile, then registers anew; what it ran is ended by it, and done again."""
    cluster = installed.cluster
    node = cluster.machines[0]

    def fault() -> None:
        node.signal_program(KUBELET)
        cluster.kubectl("delete", "node", "node-0")
        time.sleep(20)
        node.run_program(KUBELET)

    # The kubelet ends them only some time after its start: they must not be told to end before.
    await survives(Load(installed, seconds=40), fault)
    ready(cluster)
    installed.ready()


@LONG
async def test_the_network_between_node_and_api_server_is_cut(installed: Installation) -> None:
    """For longer than the cluster takes to call a node lost: its pods run on, and nothing begins twice."""
    cluster = installed.cluster
    node = cluster.machines[0]

    def fault() -> None:
        node.unplug()
        time.sleep(60)
        node.plug()

    work = Load(installed)
    await survives(work, fault)
    ready(cluster)
    installed.ready()
    assert work.count("began") == dict.fromkeys(work.items, 1)


@LONG
@pytest.mark.parametrize("signal", ["memory.available", "nodefs.available"])
async def test_pressure(installed: Installation, signal: str) -> None:
    """The kubelet evicts pods one by one; they are done on the other node, or here when the pressure is over."""
    cluster = installed.cluster
    node = cluster.machines[0]
    file = node.folder / "kubelet.json"
    plain = file.read_text()

    def thresholds(text: str) -> None:
        file.write_text(text)
        node.signal_program(KUBELET)
        node.run_program(KUBELET)

    def fault() -> None:
        pressed = json.loads(plain)
        pressed["evictionHard"][signal] = "99%"
        pressed["systemReserved"] = {}  # a kubelet does not start with more reserved than there is
        pressed["evictionPressureTransitionPeriod"] = "5s"
        thresholds(json.dumps(pressed))
        time.sleep(30)
        thresholds(plain)

    await survives(Load(installed), fault)
    cluster.kubectl(
        "wait", "--for=condition=MemoryPressure=False", "node/node-0", "--timeout=360s", timeout_s=400
    )
    cluster.kubectl(
        "wait", "--for=condition=DiskPressure=False", "node/node-0", "--timeout=360s", timeout_s=400
    )
    cluster.kubectl("-n", SYSTEM, "delete", "pods", "--field-selector=status.phase=Failed")
    installed.ready()


@LONG
async def test_an_image_is_gone(installed: Installation) -> None:
    """What is said meanwhile has the registry's words; when the image is there again, the task runs."""
    cluster = installed.cluster
    for node in cluster.machines:
        assert node.ctr("images", "rm", "--sync", image("debian").name).returncode == 0
    work = Load(installed, tasks=1, seconds=1)
    async with installed.client() as client:
        run = await client.submit(work.document)
        deadline = time.monotonic() + 120
        while "ImagePull" not in (said := " ".join(each.message for each in await run.explain())):
            assert time.monotonic() < deadline, (said, cluster.kubectl("-n", TENANT, "get", "pods"))
            await asyncio.sleep(1)
        for node in cluster.machines:
            node.import_image(Path(image("debian").archive))
        await work.succeeded(run)
