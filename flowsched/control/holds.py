"""Room that only our engine knows to be taken or promised: nobody else can see it on the nodes. For `extender`.

Read from a leader's memory, which it does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.backlog import memory_steps, shape_of
from flowsched.engine.foreign_offers import collect_foreign
from flowsched.engine.pods import pod_name
from flowsched.engine.state import EngineState, GroupKey
from flowsched.scheduling.ledger import EMPTY
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.reservation import expected_ends
from flowsched.scheduling.snapshot import ClaimKind, Snapshot
from flowsched.workflow.states import TaskState

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Holds:
    """All arrays are (N, R), in the units of the snapshot's axes.

    Args:
        nominated: Freed or held for pods that are still to come (`min_resources`).
        binding: Of pods whose binding has been decided and has not been seen yet.
        promised: Of the gang that waits with a reservation, where it shall start.
        freed: What will have been given back there by then.
        deadline_ms: Whatever runs beyond this would delay it; None = nobody has a reservation.
    """

    nominated: Ints
    binding: Ints
    promised: Ints
    freed: Ints
    deadline_ms: int | None

    def delayed_by(self, runtime_ms: int | None, now: int) -> bool:
        """Whether a pod that started now could delay the gang that has the reservation. Nobody knows when an unknown one ends."""
        if self.deadline_ms is None:
            return False
        return runtime_ms is None or now + runtime_ms > self.deadline_ms

    def later(self, axis: int) -> Ints:
        """(N,) what is to be added to what is free now for what will be free beside the promise."""
        return self.freed[:, axis] - self.promised[:, axis]


def holds_of(state: EngineState, now: int) -> Holds:
    """What is held now."""
    snapshot = state.snapshot
    nominated, binding, promised, freed = (
        np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64) for _ in range(4)
    )
    ledger = snapshot.ledger
    rows = np.flatnonzero(ledger.kind == ClaimKind.NOMINATED)
    np.add.at(nominated, ledger.node[rows], ledger.amount[rows])
    for owner in _unseen(state):
        claim = snapshot.claims.get(owner)
        if claim is not None and claim.kind is ClaimKind.RUNNING:
            binding[claim.node] += snapshot.ledger.amount_of(owner)
    deadline = _promise(state, now, promised, freed)
    return Holds(nominated, binding, promised, freed, deadline)


def _unseen(state: EngineState) -> list[str]:
    """Owners of claims that stand for a pod which the cluster has not shown on its node yet."""
    found = list(state.assumed)
    claims = state.snapshot.claims
    for run in state.runs.values():
        for stage in run.stages:
            if not stage.counts[TaskState.BINDING]:
                continue
            for task in np.flatnonzero(stage.task_state == TaskState.BINDING).tolist():
                name = pod_name(run.id, stage.spec.name, task, int(stage.attempt[task]))
                claim = claims.get(name)
                if claim is not None and claim.rules is None:  # a watch that shows the pod brings its rules
                    found.append(name)
    return found


def _promise(state: EngineState, now: int, promised: Ints, freed: Ints) -> int | None:
    """Fill in what the reservation is about; the moment from which its room is needed.

    There is one at most (EASY backfill).
    """
    if not state.reservations:
        return None
    reservation = state.reservations[0]
    snapshot = state.snapshot
    for shape, nodes in zip(_shapes(state, reservation.group), reservation.nodes, strict=False):
        needs = np.zeros((len(nodes), len(snapshot.axes)), dtype=np.int64)
        needs[:, : len(shape.requests)] = shape.requests
        np.add.at(promised, nodes, needs)
    there: NDArray[np.bool_] = np.logical_or.reduce(promised > 0, axis=1)
    _give_back(snapshot, there, reservation.start_ms, state.profile.default_runtime_ms, now, freed)
    return min(reservation.start_ms, state.promises.get(reservation.group, reservation.start_ms))


def _give_back(
    snapshot: Snapshot, there: NDArray[np.bool_], start_ms: int, default_ms: int, now: int, freed: Ints
) -> None:
    """Add what claims on these nodes are expected to give back by the reservation's start."""
    ledger = snapshot.ledger
    held = (ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING)
    rows = np.flatnonzero(held & there[ledger.node])
    ended = rows[expected_ends(snapshot, rows, default_ms, now) <= start_ms]
    np.add.at(freed, ledger.node[ended], ledger.amount[ended])


def _shapes(state: EngineState, number: int) -> Sequence[Shape]:
    """The shapes of a waiting group's roles, in its order; none if it does not wait any more."""
    key = state.groups.get(number)
    if not isinstance(key, GroupKey):
        candidate = collect_foreign(state).candidates.get(number)
        return () if candidate is None else [role.shape for role in candidate.group.roles]
    run = state.runs.get(key.workflow)
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
        shape_of(state, run, stage, role, memory_steps(stage, tasks)) for role, tasks in enumerate(of_role)
    ]
