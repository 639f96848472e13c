"""Answers to a stock kube-scheduler that asks about its own pods: where not (filter), and where best (prioritize).

It speaks only of what kube-scheduler cannot see: room that our engine holds for other pods, disk bandwidth, and where data lie.
Whether a pod fits beside the pods that both can see is left to kube-scheduler: its view of those is fresher than ours.

It reads a leader's memory and does not change it: no SQL, no waiting, work in proportion to nodes and claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.cluster.kubernetes.objects.labels import ENGINE_NAME
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_requests import Hints, hints_of, image_of, requests_of
from flowsched.engine.backlog import memory_steps, shape_of
from flowsched.engine.data.inputs import MissingInput, dataset_ids
from flowsched.engine.foreign.backlog import collect_foreign
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import GroupKey, pod_name
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import IMAGE
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.reservations import expected_ends
from flowsched.scheduling.state.claims import EMPTY, Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import AXES, IO, Snapshot
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import Resources

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Holds:
    """All arrays are (N, R), in the units of the snapshot's axes.

    Args:
        nominated: Freed or held for pods that are still to come (`min_resources`).
        binding: Of pods that have a decided binding, which has not been observed yet.
        reserved: Of the gang that waits with a reservation, where it shall start.
        freed: Room that pods there will have given back by then.
        deadline_ms: A pod that runs beyond this would delay the gang; None = no gang has a reservation.
    """

    nominated: Ints
    binding: Ints
    reserved: Ints
    freed: Ints
    deadline_ms: int | None

    def delayed_by(self, runtime_ms: int | None, now: int) -> bool:
        """Whether a pod that started now could delay the gang that has the reservation. One of unknown runtime could."""
        if self.deadline_ms is None:
            return False
        return runtime_ms is None or now + runtime_ms > self.deadline_ms

    def later(self, axis: int) -> Ints:
        """(N,) what is to be added to what is free now for what will be free beside the reservation."""
        return self.freed[:, axis] - self.reserved[:, axis]


def holds_of(state: EngineState, now: int) -> Holds:
    """The room that the engine keeps now from other schedulers."""
    snapshot = state.cluster.snapshot
    nominated, binding, reserved, freed = (
        np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64) for _ in range(4)
    )
    ledger = snapshot.ledger
    rows = np.flatnonzero(ledger.kind == ClaimKind.NOMINATED)
    np.add.at(nominated, ledger.node[rows], ledger.amount[rows])
    for owner in _unseen(state):
        claim = snapshot.claims.get(owner)
        if claim is not None and claim.kind is ClaimKind.RUNNING:
            binding[claim.node] += snapshot.ledger.amount_of(owner)
    deadline = _reservation(state, now, reserved, freed)
    return Holds(nominated, binding, reserved, freed, deadline)


def _unseen(state: EngineState) -> list[str]:
    """Owners of claims that stand for a pod which the cluster has not shown on its node yet."""
    found = list(state.foreign.assumed)
    claims = state.cluster.snapshot.claims
    for run in state.work.runs.values():
        for stage in run.stages:
            if not stage.counts[TaskState.BINDING]:
                continue
            for task in np.flatnonzero(stage.task_state == TaskState.BINDING).tolist():
                name = pod_name(run.id, stage.spec.name, task, int(stage.attempt[task]))
                claim = claims.get(name)
                if claim is not None and claim.rules is None:  # a watch that shows the pod brings its rules
                    found.append(name)
    return found


def _reservation(state: EngineState, now: int, reserved: Ints, freed: Ints) -> int | None:
    """Fill in what the reservation is about; the moment from which its room is needed.

    There is one at most (EASY backfill).
    """
    if not state.round.reservations:
        return None
    reservation = state.round.reservations[0]
    snapshot = state.cluster.snapshot
    for shape, nodes in zip(_shapes(state, reservation.group, now), reservation.nodes, strict=False):
        needs = np.zeros((len(nodes), len(snapshot.axes)), dtype=np.int64)
        needs[:, : len(shape.requests)] = shape.requests
        np.add.at(reserved, nodes, needs)
    there: NDArray[np.bool_] = np.logical_or.reduce(reserved > 0, axis=1)
    _give_back(snapshot, there, reservation.start_ms, state.policy.profile.default_runtime_ms, now, freed)
    return min(reservation.start_ms, state.round.reserved_starts.get(reservation.group, reservation.start_ms))


def _give_back(
    snapshot: Snapshot, there: NDArray[np.bool_], start_ms: int, default_ms: int, now: int, freed: Ints
) -> None:
    """Add what claims on these nodes are expected to give back by the reservation's start."""
    ledger = snapshot.ledger
    claimed = (ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING)
    rows = np.flatnonzero(claimed & there[ledger.node])
    ended = rows[expected_ends(snapshot, rows, default_ms, now, late=True) <= start_ms]
    np.add.at(freed, ledger.node[ended], ledger.amount[ended])


def _shapes(state: EngineState, number: int, now: int) -> Sequence[Shape]:
    """The shapes of a waiting group's roles, in its order; none if it does not wait any more."""
    key = state.work.groups.get(number)
    if not isinstance(key, GroupKey):
        candidate = collect_foreign(state, now).candidates.get(number)
        return () if candidate is None else [role.shape for role in candidate.group.roles]
    run = state.work.runs.get(key.workflow)
    if run is None:
        return ()
    stage = run.stages[key.stage]
    if not stage.spec.gang:
        return [shape_of(state, run, stage, 0, key.memory_steps)]
    members = stage.indices_of(key.shard)
    members = members[stage.task_state[members] == TaskState.QUEUED]
    of_role = [
        members[stage.role_of[members % stage.members] == role] for role in range(len(stage.spec.roles))
    ]
    return [
        shape_of(state, run, stage, role, memory_steps(stage, tasks))
        for role, tasks in enumerate(of_role)
        if key.role in (-1, role)
    ]


# ---- the extender ----


#: The reasons for which a node may be refused. Few fixed sentences: kube-scheduler counts nodes by them ("3 flowsched holds …").
TO_COME: Final = "flowsched holds its free room for pods of a group that are still to come"
BINDING: Final = "flowsched is binding pods to its free room"
PROMISED: Final = "flowsched has promised its room to a gang that waits"
DISK: Final = "its disk bandwidth is spoken for"
REASONS: Final = ("", TO_COME, BINDING, PROMISED, DISK)

#: `MaxExtenderPriority` of k8s.io/kube-scheduler/extender/v1.
HIGHEST: Final = 10
#: Differences below this do not get the whole scale: a second is worth a point at most.
SCALE_MS: Final = 10_000
#: `system-cluster-critical`: the cluster itself needs such pods, so nothing is held against them.
CRITICAL: Final = 2_000_000_000
#: Beyond any honest cost; ten times as much still fits 64 bits.
_DEAREST_MS: Final = 1 << 52

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod that kube-scheduler asks about.

    Args:
        pod: The pod.
        resources: Its requests, as kube-scheduler adds them up.
        hints: Values of its annotations.
        claim: The room our engine holds for this very pod: it is ours, and was handed over.
    """

    pod: Pod
    resources: Resources
    hints: Hints
    claim: Claim | None


class Extender:
    """Keeps what is held from one question to the next, while nothing changes."""

    def __init__(self) -> None:
        self._holds: Holds | None = None
        self._of: tuple[EngineState, int, int] | None = None

    def refused(self, state: EngineState, steps: int, raw: bytes, now: int) -> dict[str, str]:
        """The nodes a pod may not have now, and why. `steps`: how many the engine has made.

        Raises:
            InvalidRequest: It is no pod.
        """
        asked = ask(state, raw)
        key = (state, steps, state.cluster.snapshot.generation)
        if self._holds is None or self._of != key:
            self._holds, self._of = holds_of(state, now), key
        return refused(state, self._holds, asked, now)


def ask(state: EngineState, raw: bytes) -> Asked:
    """Read a pod.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        pod = msgspec.json.decode(raw, type=Pod)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the pod cannot be read: {error}") from error
    claims = state.cluster.snapshot.claims
    name = pod.metadata.annotations.get(ENGINE_NAME, "")
    claim = claims.get(name) if name in state.work.pods else None
    return Asked(pod, requests_of(pod), hints_of(pod), claim)


# ------------------------------------------------------------------------------------------------------ filter


def refused(state: EngineState, holds: Holds, asked: Asked, now: int) -> dict[str, str]:
    """The nodes a pod may not have now, and why.

    A node is refused where the pod would take room of an axis on which our engine holds some there, and only if what is left
    beside that is too little. Pods of DaemonSets (our own agents are such) and pods critical to the cluster are let pass.
    """
    if _exempt(asked.pod):
        return {}
    snapshot, need = state.cluster.snapshot, _demand(state, asked)
    late = holds.delayed_by(asked.hints.runtime_ms, now)
    why = np.zeros(len(snapshot), dtype=np.int8)
    for axis in np.flatnonzero(need).tolist():
        for reason, where in _verdicts(snapshot, holds, asked.claim, axis, need[axis], late):
            why[where & (why == 0)] = REASONS.index(reason)
    return {snapshot.names[at]: REASONS[why[at]] for at in np.flatnonzero(why).tolist()}


def _verdicts(
    snapshot: Snapshot, holds: Holds, own: Claim | None, axis: int, need: int, late: bool
) -> Iterator[tuple[str, Mask]]:
    """For each reason, (N,) where it speaks against so much of one axis."""
    free = snapshot.allocatable[:, axis] - snapshot.used[:, axis]
    binding = holds.binding[:, axis].copy()
    if own is not None and axis < len(own.amount):
        free[own.node] += own.amount[axis]
        binding[own.node] -= own.amount[axis]
    wants = np.full(len(free), need)
    if axis == IO:  # more than a node's disk carries means all it carries: such a pod runs alone there
        np.minimum(wants, snapshot.allocatable[:, IO], out=wants)
    short = wants > free
    if axis == IO:
        yield DISK, short
    yield TO_COME, short & (holds.nominated[:, axis] > 0)
    yield BINDING, short & (binding > 0)
    if late:
        yield PROMISED, (holds.reserved[:, axis] > 0) & (wants > free + holds.later(axis))


def _exempt(pod: Pod) -> bool:
    daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
    return daemon or (pod.spec.priority or 0) >= CRITICAL


def _demand(state: EngineState, asked: Asked) -> Ints:
    """(R,) what the pod takes. Resources that no node of ours has told of are left out: we hold nothing of them."""
    has = asked.resources
    io = asked.hints.io_rate if state.policy.profile.contention else 0
    known = (has.cpu_millicores, has.memory_bytes, has.disk_bytes, has.gpu_millis, io)
    more = (has.extended.get(name, 0) for name in state.cluster.snapshot.axes[len(AXES) :])
    return np.array([*known, *more], dtype=np.int64)


# -------------------------------------------------------------------------------------------------- prioritize


def scores(state: EngineState, raw: bytes, nodes: Sequence[str]) -> list[int]:
    """How much each node is liked, 0 to 10: the cheapest gets 10; all get 0 where they cost the same.

    Raises:
        InvalidRequest: It is no pod.
    """
    index = state.cluster.snapshot.index
    at = [index.get(name, -1) for name in nodes]
    known = np.array([place for place in at if place >= 0], dtype=np.int64)
    points = dict(zip(known.tolist(), _points(costs(state, ask(state, raw))[known]), strict=True))
    return [points.get(place, 0) for place in at]


def _points(cost: Ints) -> list[int]:
    """From ms to points: fewer for whatever is dearer, in proportion."""
    if not len(cost):
        return []
    above = cost - cost.min()
    dearest = int(above.max())
    if dearest == 0:
        return [0] * len(cost)
    lost = -(-HIGHEST * above // max(dearest, SCALE_MS))
    return [HIGHEST - int(points) for points in lost]


def costs(state: EngineState, asked: Asked) -> Ints:
    """(N,) ms a pod costs on each node as our own scheduler sees it: its data and image brought there, its disk shared."""
    snapshot, profile = state.cluster.snapshot, state.policy.profile
    catalogue, inputs = _inputs(state, asked)
    shape = Shape(
        tuple(_demand(state, asked).tolist()), io_bytes=asked.hints.io_bytes, image=image_of(asked.pod)
    )
    role = RoleRequest("pod", shape, 1, 1)
    meta = asked.pod.metadata
    group = PodGroup(
        key=0,
        name=f"{meta.namespace}/{meta.name}",
        queue="default",
        workflow="",
        priority=asked.pod.spec.priority or 0,
        rank_ms=0,
        ready_ms=0,
        gang=False,
        roles=(role,),
        inputs=inputs,
        runtime_ms=asked.hints.runtime_ms,
    )
    total = np.zeros(len(snapshot), dtype=np.int64)
    for cost in (*profile.all_first_costs(), *profile.all_costs()):
        more = cost(snapshot, catalogue, group, role)
        if more is not None:
            total += np.clip(more, 0, _DEAREST_MS)
    return np.minimum(total, _DEAREST_MS)


def _inputs(state: EngineState, asked: Asked) -> tuple[Catalogue, tuple[int, ...]]:
    """The datasets that the pod reads, and the catalogue that numbers them.

    Datasets that the engine does not know are numbered in a catalogue of their own: requests must not fill the engine's.
    """
    wanted = asked.hints.inputs
    if not wanted:
        return state.cluster.catalogue, _engines_inputs(state, asked)
    found = [_known(state.cluster.catalogue, uri) for uri, _ in wanted]
    if all(dataset is not None and state.cluster.catalogue.sizes[dataset] for dataset in found):
        return state.cluster.catalogue, tuple(dataset for dataset in found if dataset is not None)
    beside = Catalogue()
    numbers = tuple(_copy(state.cluster.catalogue, beside, uri, size) for uri, size in wanted)
    image = f"{IMAGE}{image_of(asked.pod)}"
    if state.cluster.catalogue.find(image) is not None:
        _copy(state.cluster.catalogue, beside, image, 0)
    return beside, numbers


def _known(catalogue: Catalogue, uri: str) -> int | None:
    """The dataset that a pod means: of one from outside the version that was looked at last."""
    return catalogue.newest.get(uri, catalogue.find(uri))


def _copy(catalogue: Catalogue, beside: Catalogue, uri: str, size: int) -> int:
    known = _known(catalogue, uri)
    if known is None:
        return beside.intern(uri, size)
    number = beside.intern(uri, catalogue.sizes[known] or size)
    for node in catalogue.nodes_of(known):
        beside.add_replica(number, node)
    beside.expect(number, tuple(catalogue.expected_on(known)))
    return number


def _engines_inputs(state: EngineState, asked: Asked) -> tuple[int, ...]:
    """The datasets that one of our own pods reads, which was handed over."""
    if asked.claim is None:
        return ()
    ref = state.work.pods[asked.claim.owner]
    run = state.work.runs.get(ref.workflow)
    if run is None:
        return ()
    stage = run.stages[ref.stage]
    try:
        return dataset_ids(state, run, stage, ref.task // stage.members)
    except MissingInput:
        return ()
