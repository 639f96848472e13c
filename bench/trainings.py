"""Training jobs on a virtual clock: what the benches of the pains have in common.

A job is a gang of parameter servers and workers. It gets nowhere until all of them run (`bench/virtual/gathering.py`). The engine,
its cycle and its profiles are those of the service; only time and pods are not real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from bench.virtual.drive import Fate
from bench.virtual.gathering import GatheringDrive, Held
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow

GIB = 1 << 30
MINUTE = 60_000
HOUR = 60 * MINUTE
#: 2 parameter servers of 1 core and 4 workers of 1.5 cores: 8 cores.
GANG_CORES = 8

KUBE = PROFILES["kube-like"]
FLOWSCHED = PROFILES["flowsched"]
#: Pod by pod, but all pods of a gang before those of the next.
KUBE_IN_TURN = replace(KUBE, name="kube-like, gang by gang", interleave=False)
#: Gangs without promises: whatever fits goes.
VOLCANO = PROFILES["volcano-like"]


@dataclass(frozen=True, slots=True)
class Job:
    """A workflow of one stage that arrives, and how long it will really run (nothing that decides is told)."""

    name: str
    stage: dict[str, Any]
    runtime_ms: int
    at_ms: int = 0
    queue: str = "default"


@dataclass(slots=True)
class Outcome:
    """How a set of jobs went.

    Attributes:
        started: Job -> when all its members ran together.
        ended: Job -> when it was done.
        finished_ms: When the last one was; None = some never will be, or were not by the horizon.
        stuck: Nothing could ever happen any more although not all was done.
        order: Members in the order in which they got their nodes, as "job/role-index".
        waited_core_ms: Cores × ms that members held while they waited for others.
        held_core_ms: Cores × ms that anybody held.
        promised_ms: Job -> the first start that it was promised.
        reasons: Job -> why it was waiting at the end.
        restarts: Attempts that came to nothing.
        stuck_cores: Cores that are held at the end by members who wait for others.
    """

    jobs: int
    started: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    finished_ms: int | None = None
    stuck: bool = False
    order: list[str] = field(default_factory=list)
    waited_core_ms: int = 0
    held_core_ms: int = 0
    promised_ms: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    stuck_cores: float = 0.0

    @property
    def verdict(self) -> str:
        """In a few words. A deadlock: some hold cores, wait for others, and nothing can ever happen any more."""
        if len(self.ended) == self.jobs:
            return "all done"
        if self.stuck and self.stuck_cores:
            return "DEADLOCK"
        return f"{self.jobs - len(self.ended)} never ran" if self.stuck else f"{len(self.ended)} done"


def training(
    name: str,
    runtime_ms: int,
    at_ms: int = 0,
    *,
    workers: int = 4,
    servers: int = 2,
    worker_cpu: str = "1500m",
    estimate_ms: int | None = None,
    attempts: int = 1,
) -> Job:
    """A job of `servers` ps of a core and `workers` workers; it says what it expects to take, right or wrong."""
    roles = {
        "ps": {"replicas": servers, "resources": {"cpu": 1, "memory": "1Gi"}},
        "worker": {"replicas": workers, "resources": {"cpu": worker_cpu, "memory": "1Gi"}},
    }
    for role in roles.values():
        role["command"] = ["true"]
    stage = {
        "name": "train",
        "gang": True,
        "roles": {key: role for key, role in roles.items() if role["replicas"]},
        "estimate": {"runtime": f"{(estimate_ms or runtime_ms) // 1000}s"},
        "retry": {"attempts": attempts},
    }
    return Job(name, stage, runtime_ms, at_ms)


def single(
    name: str, runtime_ms: int, at_ms: int = 0, *, cpu: str = "1", count: int = 1, queue: str = "default"
) -> Job:
    """Plain tasks that need nobody."""
    stage: dict[str, Any] = {
        "name": "run",
        "command": ["true"],
        "resources": {"cpu": cpu, "memory": "1Gi"},
        "estimate": {"runtime": f"{runtime_ms // 1000}s"},
    }
    if count > 1:
        stage["scatter"] = {"count": count}
    return Job(name, stage, runtime_ms, at_ms, queue)


def machines(count: int, cores: int) -> list[NodeInfo]:
    """Nodes of so many cores each."""
    return [NodeInfo(f"node-{number}", cores * 1000, 64 * GIB) for number in range(count)]


def simulate(
    jobs: Iterable[Job],
    nodes: Sequence[NodeInfo],
    profile: Profile,
    *,
    patience_ms: Callable[[Pod], int] | None = None,
    until_ms: int | None = None,
    prepare: Callable[[GatheringDrive], None] | None = None,
) -> Outcome:
    """Let jobs arrive and see how they go."""
    waiting = sorted(jobs, key=lambda job: job.at_ms)
    truth = {job.name: job.runtime_ms for job in waiting}
    drive = GatheringDrive(
        EngineState(policy=PolicyState(profile=profile, secret=b"bench")),
        nodes,
        fate=lambda pod: Fate(truth[pod.workflow]),
        patience_ms=patience_ms,
    )
    result = Outcome(jobs=len(waiting))
    pod_by_pod = profile.interleave and not profile.gang

    def watch(state: EngineState, step: Any, events: Any, now: int) -> None:
        for reservation in state.round.reservations:
            key = state.work.groups[reservation.group]
            result.promised_ms.setdefault(key[0], reservation.start_ms)
        result.order.extend(by_turns(step.launches) if pod_by_pod else map(member, step.launches))
        for ident in step.ended:
            if state.work.runs[ident].state.name == "SUCCEEDED":
                result.ended[ident] = now

    drive.observe = watch
    if prepare is not None:
        prepare(drive)
    for job in waiting:
        drive.submit(job.name, check_workflow(document(job)), job.at_ms)
    drive.run(until=until_ms)
    return _told(drive, result, until_ms)


def document(job: Job) -> dict[str, Any]:
    """As a user would submit it."""
    return {"name": job.name, "queue": job.queue, "stages": [job.stage]}


def _told(drive: GatheringDrive, result: Outcome, until_ms: int | None) -> Outcome:
    end = drive.now if until_ms is None else max(drive.now, until_ms)
    if len(result.ended) == result.jobs:
        result.finished_ms = max(result.ended.values())
    else:
        result.stuck = drive.idle
    held: list[Held] = drive.all_held(end)
    result.waited_core_ms = sum(one.waited_ms * one.cpu_millicores for one in held) // 1000
    result.held_core_ms = sum((one.end_ms - one.start_ms) * one.cpu_millicores for one in held) // 1000
    for one in held:
        if one.start_ms + one.waited_ms < one.end_ms:
            met = one.start_ms + one.waited_ms
            result.started[one.workflow] = min(met, result.started.get(one.workflow, met))
    result.stuck_cores = sum(pod.cpu_millicores for pod in drive.waiting()) / 1000
    result.restarts = drive.given_up
    for number, reason in drive.state.round.reasons.items():
        result.reasons[drive.state.work.groups[number][0]] = f"{reason.code}: {reason.message}"
    return result


def by_turns(pods: Sequence[Pod]) -> list[str]:
    """Pods of one step in the order in which they were chosen pod by pod: one of each job, again and again."""
    jobs: dict[str, list[str]] = {}
    for pod in pods:
        jobs.setdefault(pod.workflow, []).append(member(pod))
    return [name for turn in zip_longest(*jobs.values()) for name in turn if name is not None]


def member(pod: Pod) -> str:
    """As people call it."""
    return f"{pod.workflow}/{pod.gang.role}-{pod.gang.role_index}" if pod.gang else pod.workflow


def minutes(milliseconds: int | None) -> str:
    """In words."""
    return "never" if milliseconds is None else f"{milliseconds / MINUTE:.1f} min"
