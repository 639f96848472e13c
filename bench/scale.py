"""What the engine and the scheduler cost when everything is large: 10,000 nodes, a million tasks in 1,000 queues.

    python bench/scale.py [PART ...] [--json FILE] [--quick]

Parts (all of them, where none is named):

    memory    bytes of a task that is resident: its arrays by name; all that Python allocated (`traced`: runs, specs, offers
              too); what the process grew by (`rss`: and what it freed and has not given back)
    idle      a step when a million tasks wait and nobody may start: a heartbeat, a start that was seen
    ordering  one cycle that releases 2,000 pods of 1,000 queues: what ordering takes of it, and the rest by phase
    distinct  tasks of which no two are alike, against pod by pod (`bench/kubelike.py`), in the same process by turns
    wake      one new task in a cluster that does nothing else: the whole step, and the cycle inside it
    simulated end to end on a virtual clock: pods/s of CPU time, every decision made by `engine.step`, launch orders and rows
              included; beside it what the bare pod-by-pod loop makes, which does nothing but choose nodes
    ways      gangs, and single pods, on 10,000 half-full nodes: what the second ways of placement give (docs/architecture.md)
    latency   1,000 ready tasks with inputs of their own on 64 nodes (G12): each decision, p50 and p99

CPU time is `time.process_time`: what this process really computed, whoever else was busy. Figures are medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from kubelike import Inlined, Node, Plugins, PodSpec
from placement import build

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.virtual.drive import Drive  # noqa: E402
from flowsched.engine import admission as placing_module  # noqa: E402
from flowsched.engine.events import Accepted, Tick  # noqa: E402
from flowsched.engine.state import EngineState  # noqa: E402
from flowsched.engine.step import Step, step  # noqa: E402
from flowsched.executor.nodes import NodeInfo  # noqa: E402
from flowsched.executor.protocol import NodeChanged, PodStarted, ReplicaSeen  # noqa: E402
from flowsched.scheduling.cycle import _Cycle, cycle  # noqa: E402
from flowsched.scheduling.cycle_state import CycleState  # noqa: E402
from flowsched.scheduling.plan import Plan  # noqa: E402
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape  # noqa: E402
from flowsched.scheduling.policy.framework import PROFILES  # noqa: E402
from flowsched.scheduling.queues.ordering import WaitingOrder  # noqa: E402
from flowsched.scheduling.queues.tree import Queue, QueueTree  # noqa: E402
from flowsched.scheduling.state.claims import Claim, ClaimKind  # noqa: E402
from flowsched.scheduling.state.data import Catalogue  # noqa: E402
from flowsched.scheduling.state.snapshot import Snapshot  # noqa: E402
from flowsched.statement import Statement  # noqa: E402
from flowsched.workflow.document.decode import check_workflow  # noqa: E402
from flowsched.workflow.graph import StageGraph  # noqa: E402
from flowsched.workflow.run.run import StageRun, WorkflowRun  # noqa: E402

T = TypeVar("T")
Row = dict[str, Any]
GIB = 1 << 30
CORES = 32


def timed(action: Callable[[], T]) -> tuple[float, float, T]:
    """(wall ms, CPU ms, result) of one call, the collector held off."""
    gc.collect()
    gc.disable()
    try:
        cpu, start = time.process_time(), time.perf_counter()
        result = action()
        return (time.perf_counter() - start) * 1000, (time.process_time() - cpu) * 1000, result
    finally:
        gc.enable()


def cpu_ms(action: Callable[[], object]) -> float:
    """CPU ms of one call, as it is among others: `timed` collects first, which leaves little of it in the processor's caches."""
    gc.disable()
    try:
        start = time.process_time()
        action()
        return (time.process_time() - start) * 1000
    finally:
        gc.enable()


def resident_bytes() -> int:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def some_nodes(count: int, cores: int = CORES) -> list[NodeInfo]:
    """`count` equal nodes in racks of 40."""
    return [
        NodeInfo(f"n{at}", cores * 1000, cores * 4 * GIB, disk_bytes=1000 * GIB, rack=f"r{at // 40}")
        for at in range(count)
    ]


def wide(name: str, width: int, **more: Any) -> WorkflowRun:
    """A workflow of one stage of `width` tasks of one core, in a queue of its own."""
    stage = {
        "name": "s",
        "command": ["x"],
        "scatter": {"count": width},
        "resources": {"cpu": 1, "memory": "2Gi"},
        "estimate": {"runtime": "60s"},
        **more,
    }
    spec = check_workflow({"name": name, "queue": f"q-{name}", "stages": [stage]})
    return WorkflowRun(name, spec, StageGraph(spec), int(name[1:]))


def waiting(tasks: int, queues: int, nodes: list[NodeInfo]) -> EngineState:
    """An engine in which all tasks are QUEUED; nodes are not ready, so that nothing has started."""
    state = EngineState()
    runs = [Accepted(wide(f"w{at}", tasks // queues)) for at in range(queues)]
    step(state, [NodeChanged(node) for node in nodes], 1_000).keep()
    step(state, runs, 1_000).keep()
    return state


def array_bytes(stages: list[StageRun]) -> dict[str, int]:
    """Bytes of the arrays of tasks, by name; what is shared by all tasks of a stage (stride 0) is as small as it is."""
    sums: dict[str, int] = {}
    for stage in stages:
        for name in stage.__slots__:
            column = getattr(stage, name, None)
            parts = getattr(column, "columns", (column,))
            for part in parts:
                if isinstance(part, np.ndarray):
                    held = part.nbytes if part.base is None and any(part.strides) else part.itemsize
                    sums[name] = sums.get(name, 0) + held
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def memory(quick: bool) -> Row:
    """A million tasks in a thousand queues: while all wait, and when all have run."""
    tasks, queues = (100_000, 100) if quick else (1_000_000, 1_000)
    gc.collect()
    before = resident_bytes()
    state = waiting(tasks, queues, [])
    gc.collect()
    grown = resident_bytes() - before
    del state
    gc.collect()
    tracemalloc.start(1)
    state = waiting(tasks, queues, [])
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    stages = [run.stages[0] for run in state.work.runs.values()]
    row: Row = {"tasks": tasks, "queues": queues, "waiting_rss_per_task": round(grown / tasks, 1)}
    row["waiting_traced_per_task"] = round(traced / tasks, 1)
    row["waiting_arrays"] = {name: round(size / tasks, 2) for name, size in array_bytes(stages).items()}
    row["waiting_per_task"] = round(sum(row["waiting_arrays"].values()), 1)
    run_all = Drive(EngineState(), some_nodes(100, 1000), lambda pod: FATE)
    run_all.submit("w0", wide("w0", 20_000).spec)
    run = run_all.run() and run_all.ended["w0"]
    ended = array_bytes([run.stages[0]]) if isinstance(run, WorkflowRun) else {}
    row["ended_arrays"] = {name: round(size / 20_000, 2) for name, size in ended.items()}
    row["ended_per_task"] = round(sum(row["ended_arrays"].values()), 1)
    return row


def filled(state: EngineState, now: int) -> int:
    """Let steps follow until nobody may start any more; returns the moment."""
    for _ in range(10_000):
        result = step(state, [Tick()], now)
        result.keep()
        events = [PodStarted(pod.name, now) for pod in result.launches]
        if events:
            step(state, events, now).keep()
        if not result.launches and (result.wake_ms is None or result.wake_ms > now):
            return now
        now = max(now, result.wake_ms or now)
    raise SystemExit("the cluster never filled up")


def idle(quick: bool) -> Row:
    """Steps that cannot start anybody, a million tasks waiting on a full cluster."""
    tasks, queues, nodes = (100_000, 100, 100) if quick else (1_000_000, 1_000, 1_000)
    state = waiting(tasks, queues, some_nodes(nodes, 4))
    now = filled(state, 1_000) + 1_000
    now = filled(state, now) + 1_000
    name = next(iter(state.work.pods))
    row: Row = {"tasks": tasks, "queues": queues, "nodes": nodes, "running": len(state.work.pods)}
    for kind, events in {"tick": [Tick()], "start_seen": [PodStarted(name, 1_000)]}.items():
        walls = []
        gc.disable()
        for _ in range(200):
            now += 10
            start = time.perf_counter()
            result = step(state, events, now)
            walls.append((time.perf_counter() - start) * 1000)
            assert not result.launches
            result.keep()
        gc.enable()
        row[f"{kind}_p50_ms"] = round(statistics.median(walls), 4)
        row[f"{kind}_p99_ms"] = round(float(np.percentile(walls, 99)), 4)
    looks = []
    for _ in range(5):  # something has happened, and nobody may start all the same
        now += 1_000
        _, cpu, result = timed(lambda now=now: step(state, [NodeChanged(NEW_NODE[now & 1])], now))
        assert not result.launches
        result.keep()
        looks.append(cpu)
    row["look_cpu_ms"] = round(statistics.median(looks), 2)
    return row


#: A node on which nobody may run changes its labels.
NEW_NODE = [NodeInfo("other", 1_000, GIB, labels={"x": x}, ready=False) for x in "ab"]


class Phases:
    """What parts of a cycle take: functions of modules and methods of classes, watched for a while."""

    def __init__(self, *places: tuple[Any, tuple[str, ...]]) -> None:
        self._inside = 0
        watched = [(place, name) for place, names in places for name in names]
        self.spent: dict[str, float] = {name: 0.0 for _, name in watched}
        self._kept = [(place, name, getattr(place, name)) for place, name in watched]

    def __enter__(self) -> Phases:
        for place, name, action in self._kept:
            setattr(place, name, self._watched(name, action))
        return self

    def __exit__(self, *_: object) -> None:
        for place, name, action in self._kept:
            setattr(place, name, action)

    def _watched(self, name: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if self._inside:  # counted already
                return action(*args, **more)
            self._inside = 1
            start = time.process_time()
            try:
                return action(*args, **more)
            finally:
                self.spent[name] += (time.process_time() - start) * 1000
                self._inside = 0

        return call


def ordering(quick: bool) -> Row:
    """One cycle over a million waiting tasks: 2,000 pods are released, two for each queue, or as turns will have it."""
    queues = 100 if quick else 1_000
    some = [f"q{at}" for at in range(queues)]
    departments = [Queue(f"d{at}", weight=1 + at % 3) for at in range(queues // 50)]
    below = [Queue(name, parent=f"d{at % len(departments)}") for at, name in enumerate(some)]
    trees = {
        "flat": QueueTree(),
        "weighted": QueueTree(Queue(name, weight=1 + at % 5) for at, name in enumerate(some)),
        "departments": QueueTree(departments + below),
    }
    return {"rows": [{"tree": name, **ordering_row(tree, queues)} for name, tree in trees.items()]}


def ordering_row(tree: QueueTree, queues: int) -> Row:
    """What ordering takes in one tree of queues."""
    nodes = 10 * queues
    pods = 2 * queues
    snapshot = Snapshot()
    for node in some_nodes(nodes):
        snapshot.put_node(node)
    shape = Shape((1000, 2 * GIB, 0, 0, 0))
    backlog = [
        PodGroup(at, f"g{at}", f"q{at}", f"w{at}", 0, at * 1_000, 0, False, bag(shape, 1_000), (), 60_000)
        for at in range(queues)
    ]
    profile, catalogue = PROFILES["flowsched"], Catalogue()

    def once() -> Plan:
        return cycle(snapshot, catalogue, tree, backlog, profile, 1_000, pods)

    released = sum(len(nodes) for each in once().placements for nodes in each.nodes)
    walls, cpus, sums = [], [], []
    for _ in range(7):
        wall, cpu, _ = timed(once)
        walls.append(wall)
        cpus.append(cpu)
        with Phases(
            (WaitingOrder, ("bring",)),
            (_Cycle, ("place", "batch_size", "barred", "skip")),
            (CycleState, ("commit",)),
        ) as phases:
            total = timed(once)[1]
        placing = sum(phases.spent.get(name, 0.0) for name in ("place", "commit", "skip"))
        sums.append({**phases.spent, "ordering": total - placing})
    row: Row = {"nodes": nodes, "queues": queues, "waiting": 1_000 * queues, "released": released}
    row["cycle_ms"] = round(statistics.median(walls), 2)
    row["cycle_cpu_ms"] = round(statistics.median(cpus), 2)
    row |= {f"{name}_ms": round(statistics.median(each[name] for each in sums), 2) for name in sums[0]}
    return row


def bag(shape: Shape, count: int) -> tuple[RoleRequest, ...]:
    """The one role of a bag."""
    return (RoleRequest("w", shape, count, 1),)


def half_full(nodes: int, reserved: bool) -> tuple[Snapshot, Catalogue, int]:
    """A half-full cluster of five sizes of node, a tenth tainted; and a dataset with replicas."""
    rng = np.random.default_rng(nodes)
    snapshot, catalogue, statement = Snapshot(), Catalogue(), Statement()
    taint = (("dedicated", "others", "NoSchedule"),)
    for at in range(nodes):
        cores, size = ((16, 64), (32, 128), (64, 256), (96, 384), (128, 512))[int(rng.integers(5))]
        taints = taint if rng.random() < 0.1 else ()
        snapshot.put_node(
            NodeInfo(f"n{at}", cores * 1000, size * GIB, 1000 * GIB, taints=taints, rack=f"r{at // 40}")
        )
        used = int(rng.integers(0, cores + 1))
        amount = (used * 1000, used * int(rng.integers(2, 5)) * GIB)
        snapshot.claim(Claim(f"p{at}", at, amount, ClaimKind.RUNNING, "others", 0, 60_000), statement)
    return snapshot, catalogue, int(reserved)


def unlike(count: int) -> list[PodGroup]:
    """`count` tasks of which no two ask for the same."""
    return [
        PodGroup(
            at + 2, f"g{at}", "default", f"w{at}", 0, at, 0, False,
            bag(Shape((1000 + 7 * at, (2 * GIB) + (at << 20), 0, 0, 0)), 1), (), 30_000 + at,
        )
        for at in range(count)
    ]  # fmt: skip


def too_big(snapshot: Snapshot) -> PodGroup:
    """A gang that has to wait, before all others: room is reserved for it, and the rest is backfilled."""
    shape = Shape((100_000, 300 * GIB, 0, 0, 0))
    count = int((snapshot.allocatable[:, 0] >= 128_000).sum() * 3 // 4)
    roles = (RoleRequest("w", shape, count, count),)
    return PodGroup(1, "big", "default", "big", 9, 0, 0, True, roles, (), 60_000)


def distinct_row(nodes: int, count: int, reserved: bool, repeats: int) -> Row:
    """One line: `count` unlike tasks, each its own group, against each of them pod by pod; by turns, and cold: after a collection
    of all garbage, when the processor's caches know nothing of either.
    """
    snapshot, catalogue, _ = half_full(nodes, reserved)
    backlog = unlike(count)
    if reserved:
        backlog.append(too_big(snapshot))
    cpu, size = snapshot.allocatable[:, 0].tolist(), snapshot.allocatable[:, 1].tolist()
    used_cpu, used_size = snapshot.used[:, 0].tolist(), snapshot.used[:, 1].tolist()
    inlined = Inlined(cpu, size, used_cpu, used_size)
    rows = zip(cpu, size, used_cpu, used_size, strict=True)
    plugins = Plugins([Node(*row, True, {}, snapshot.taints[at]) for at, row in enumerate(rows)])
    allowed = [not taints for taints in snapshot.taints]
    asked = [each.roles[0].shape.requests[:2] for each in backlog if each.key > 1]

    def pod_by_pod(place: Callable[[int, int], int | None], back: Callable[[int, int, int], None]) -> int:
        found = [(place(*each), *each) for each in asked]
        for node, milli, mem in found:
            if node is not None:
                back(node, milli, mem)
        return sum(node is not None for node, _, _ in found)

    def ours() -> Plan:
        return cycle(snapshot, catalogue, QueueTree(), backlog, PROFILES["flowsched"], 0)

    plan = ours()

    def by_plugins() -> int:
        return pod_by_pod(
            lambda c, m: plugins.place(PodSpec(c, m)), lambda n, c, m: plugins.give_back([n], PodSpec(c, m))
        )

    def by_inlined() -> int:
        return pod_by_pod(
            lambda c, m: inlined.place(c, m, allowed), lambda n, c, m: inlined.give_back([n], c, m)
        )

    contenders: dict[str, Callable[[], Any]] = {"cycle": ours, "plugins": by_plugins, "inlined": by_inlined}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    cold: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            cold[name].append(timed(contender)[1])
        for _ in range(3):  # nothing else between them but the others
            for name, contender in contenders.items():
                times[name].append(cpu_ms(contender))
    ms = {name: statistics.median(each) for name, each in times.items()}
    first = {name: statistics.median(each) for name, each in cold.items()}
    return {
        "nodes": nodes,
        "tasks": count,
        "reserved": bool(plan.reservations),
        "placed": len(plan.placements),
        "kube_like_placed": by_plugins(),
        **{f"{name}_cpu_ms": round(value, 3) for name, value in ms.items()},
        "ratio_plugins": round(ms["plugins"] / ms["cycle"], 1),
        "ratio_inlined": round(ms["inlined"] / ms["cycle"], 1),
        "cold_cycle_cpu_ms": round(first["cycle"], 3),
        "cold_ratio_plugins": round(first["plugins"] / first["cycle"], 1),
    }


def distinct(quick: bool) -> Row:
    """The table of unlike tasks, without and with a reservation."""
    rows = [
        distinct_row(nodes, count, reserved, 3 if quick else 5)
        for nodes in ((100, 1_000) if quick else (100, 1_000, 10_000))
        for count in (1, 8, 64, 512)
        for reserved in (False, True)
        if not reserved or count >= 64
    ]
    return {"rows": rows}


def _fate() -> Any:
    from bench.virtual.drive import Fate

    return Fate(60_000)


FATE = _fate()


def wake(quick: bool) -> Row:
    """One task is accepted where nothing else waits: what the step takes until it is launched, and the cycle of it."""
    return {"rows": [wake_row(nodes, 20 if quick else 60) for nodes in (100, 1_000, 10_000)]}


def wake_row(nodes: int, repeats: int) -> Row:
    """One line; by turns with little between, and cold: after a collection of all garbage."""
    state, now = EngineState(), 1_000
    step(state, [NodeChanged(node) for node in some_nodes(nodes)], now).keep()
    row: Row = {"nodes": nodes}
    for kind in ("warm", "cold"):
        steps, cycles = [], []
        for at in range(repeats):
            now += 1_000
            events = [Accepted(wide(f"w{now + at}", 1))]
            if kind == "cold":
                gc.collect()
            with Phases((placing_module, ("cycle",))) as phases:
                steps.append(cpu_ms(lambda events=events, now=now: step(state, events, now).keep()))
            cycles.append(phases.spent["cycle"])
        row |= {f"{kind}_step_cpu_ms": round(statistics.median(steps[5:]), 3)}
        row |= {f"{kind}_cycle_cpu_ms": round(statistics.median(cycles[5:]), 3)}
    return row


def simulated(quick: bool) -> Row:
    """A wave of pods through the engine on a virtual clock, without a network: bags of many queues, then unlike tasks."""
    nodes, queues = (1_000, 100) if quick else (10_000, 1_000)
    pods = 10_000 if quick else 40_000
    row: Row = {"nodes": nodes, "queues": queues, "pods": pods}
    allowed = [True] * nodes
    loop = Inlined([CORES * 1000] * nodes, [CORES * 4 * GIB] * nodes, [0] * nodes, [0] * nodes)
    _, cpu, _ = timed(lambda: [loop.place(1000, 2 * GIB, allowed) for _ in range(2_000)])
    row["inlined_loop_pods_per_cpu_s"] = round(2_000 / cpu * 1000)
    for kind, count, width in (("bags", 20, pods // 20), ("queues", queues, pods // queues)):
        drive = Drive(EngineState(), some_nodes(nodes), lambda pod: FATE)
        drive.run(0)
        for at in range(count):
            drive.submit(f"w{at}", wide(f"w{at}", width).spec)
        wall, cpu, _ = timed(drive.run)
        ended = sum(int(run.stages[0].counts.sum()) for run in drive.ended.values())
        assert ended == pods, (ended, pods)
        row[f"{kind}_pods_per_cpu_s"] = round(pods / cpu * 1000)
        row[f"{kind}_pods_per_wall_s"] = round(pods / wall * 1000)
    return row


def latency(quick: bool) -> Row:
    """G12: tasks with inputs of their own, which are on two nodes each, or nowhere yet; every step's CPU time."""
    return {"rows": [latency_row(quick, replicas) for replicas in (2, 0)]}


def latency_row(quick: bool, replicas: int) -> Row:
    """One line: each input is on so many nodes; where it is on none, it is copied from outside."""
    nodes, tasks = 64, 250 if quick else 1_000
    state = EngineState()
    rng = np.random.default_rng(5)
    step(state, [NodeChanged(node) for node in some_nodes(nodes, 16)], 1_000).keep()
    inputs = [{"name": "x", "uri": "s3://lab/x-{index}", "size": 200_000_000}]
    run = wide("w0", tasks, inputs=inputs)
    seen = [
        ReplicaSeen(f"s3://lab/x-{at}", f"n{node}", 200_000_000, True)
        for at in range(tasks)
        for node in rng.choice(nodes, replicas, replace=False).tolist()
    ]
    step(state, seen, 1_000).keep()
    bursts, steps, launched, moved = [], [], 0, 0
    now = 1_000
    events: list[Any] = [Accepted(run)]
    for at in range(4 if quick else 40):
        _, cpu, result = timed(lambda events=events, now=now: step(state, events, now))
        if at == 0:  # the same decision many times
            for _ in range(5 if quick else 100):
                result.drop()
                _, cpu, result = timed(lambda events=events, now=now: step(state, events, now))
                bursts.append(cpu)
        else:
            steps.append(cpu)
        launched, moved = launched + len(result.launches), moved + len(result.transfers)
        result.keep()
        events, now = _next_events(result, now), now + 1_000
    row: Row = {
        "nodes": nodes,
        "tasks": tasks,
        "replicas": replicas,
        "launched": launched,
        "transfers": moved,
    }
    for kind, cpus in (("burst", bursts), ("later_steps", steps)):
        row[f"{kind}_p50_cpu_ms"] = round(float(np.percentile(cpus, 50)), 2)
        row[f"{kind}_p99_cpu_ms"] = round(float(np.percentile(cpus, 99)), 2)
    return row


def _next_events(result: Step, now: int) -> list[Any]:
    from flowsched.executor.protocol import PodEnded, TransferDone

    events: list[Any] = [PodStarted(pod.name, now) for pod in result.launches]
    events += [PodEnded(pod.name, now + 900, 0) for pod in result.launches[::3]]
    events += [
        TransferDone(order.uri, order.dest, now + 900, order.size_bytes, order.source, order.size_bytes)
        for order in result.transfers
    ]
    return events or [Tick()]


def ways(quick: bool) -> Row:
    """One cycle over 20 gangs of 512 pods, or 2,000 single pods, on half-full nodes of five sizes: CPU time."""
    nodes, repeats = (1_000, 3) if quick else (10_000, 7)
    snapshot, catalogue, _ = build(nodes, seed=1)
    row: Row = {"nodes": nodes}
    for name, count, groups, milli, packing in (
        ("spread_gangs", 512, 20, 2_000, "spread"),
        ("binpack_gangs_of_small_pods", 512, 20, 100, "binpack"),
        ("single_pods", 1, 2_000, 1_000, "binpack"),
    ):
        shape = Shape((milli, milli * 4 * GIB // 1000, 0, 0, 0))
        roles = (RoleRequest("worker", shape, count, count),)
        backlog = [
            PodGroup(key, f"g{key}", "default", "w", 0, 0, 0, True, roles, (), 60_000)
            for key in range(1, groups + 1)
        ]
        profile = replace(PROFILES["flowsched"], packing=packing)
        times = []
        for _ in range(repeats):
            _, cpu, plan = timed(lambda: cycle(snapshot, catalogue, QueueTree(), backlog, profile, 0))  # noqa: B023
            times.append(cpu)
        row[f"{name}_placed"] = len(plan.placements)
        row[f"{name}_cpu_ms"] = round(statistics.median(times), 1)
    return row


PARTS: dict[str, Callable[[bool], Row]] = {
    "memory": memory,
    "idle": idle,
    "ordering": ordering,
    "distinct": distinct,
    "wake": wake,
    "simulated": simulated,
    "ways": ways,
    "latency": latency,
}


def show(name: str, row: Row) -> None:
    """One part for people."""
    print(f"\n{name}: {(PARTS[name].__doc__ or '').strip().splitlines()[0]}")
    for line in row.get("rows", [row]):
        print(
            "  " + "  ".join(f"{key} {value}" for key, value in line.items() if not isinstance(value, dict))
        )
    for key, value in row.items():
        if isinstance(value, dict):
            print(f"  {key}: " + ", ".join(f"{what} {size}" for what, size in value.items() if size))


def main() -> None:
    """Run the parts and print their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of: {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, few repeats")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    figures = {}
    for name in options.parts or PARTS:
        figures[name] = PARTS[name](options.quick)
        show(name, figures[name])
        sys.stdout.flush()
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
