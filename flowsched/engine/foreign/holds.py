"""Holds: reserved room that pods of other schedulers have taken while the group waited, to be kept from them by the executor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.state import EngineState
from flowsched.executor.foreign import Hold
from flowsched.executor.nodes import ALIGNED
from flowsched.scheduling.state.snapshot import AXES, PODS
from flowsched.workflow.spec import Resources


def holds(state: EngineState) -> tuple[Hold, ...]:
    """The room of the groups with a reservation, on nodes where another scheduler has placed a pod since the group waits.

    Where no other scheduler takes room, a reservation needs no hold. Where a quota counts pods, none is held: it would count, too.
    """
    snapshot = state.cluster.snapshot
    ledger = snapshot.ledger
    amounts: dict[int, NDArray[np.int64]] = {}
    if not state.round.reservations or snapshot.quotas or "" not in ledger.queues:
        return ()
    strange = ledger.queue == ledger.queues.index("")
    for reservation in state.round.reservations:
        group = state.round.refused.get(reservation.group)
        if group is None:
            continue
        there = np.isin(ledger.node, np.concatenate(reservation.nodes))
        if not (strange & (ledger.since >= group.ready_ms) & there).any():
            continue
        for role, nodes in zip(group.roles, reservation.nodes, strict=True):
            for node in nodes.tolist():
                row = amounts.setdefault(node, np.zeros(len(snapshot.axes), dtype=np.int64))
                row[: len(role.shape.requests)] += role.shape.requests
    return tuple(
        Hold(snapshot.names[node], _resources(snapshot.axes, row.tolist()))
        for node, row in sorted(amounts.items())
    )


def _resources(axes: tuple[str, ...], row: list[int]) -> Resources:
    cpu, memory, disk, gpu = row[:4]
    rest = dict(zip(axes, row, strict=True))
    extended = {name: rest[name] for name in axes[len(AXES) :] if name not in (PODS, ALIGNED) and rest[name]}
    return Resources(cpu, memory, disk, gpu, extended)
