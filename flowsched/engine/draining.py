"""Nodes that shall be empty: nothing new comes, and what has not ended by a moment is taken away and runs elsewhere.

A drain is a row in SQL, told to the engine by its event: again after a restart. What the cluster says of the node meanwhile is
remembered, for when the node is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from flowsched.engine.changes import Recorder
from flowsched.engine.state import EngineState
from flowsched.executor.foreign import Evict
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.snapshot import ClaimKind

#: Foreign pods that were asked to go and have not are asked again after so long.
ASK_AGAIN_MS: Final = 60_000
_MESSAGE: Final = "its node is being emptied"


@dataclass(frozen=True, slots=True)
class Drain:
    """One node that shall be empty.

    Args:
        until_ms: What has not ended by then is taken away.
        node: The node as the cluster says it is.
        asked_ms: When foreign pods there were asked to go last.
    """

    until_ms: int
    node: NodeInfo
    asked_ms: int | None = None


def change_drain(recorder: Recorder, name: str, until_ms: int | None) -> None:
    """A node shall be empty by a moment, or (None) is used again."""
    state, statement = recorder.state, recorder.statement
    known = state.drains.get(name)
    if until_ms is None:
        if known is not None:
            statement.pop(state.drains, name)
            state.snapshot.put_node(known.node, statement)
        return
    at = state.snapshot.index.get(name)
    told = NodeInfo(name, 0, 0, ready=False) if at is None else state.snapshot.info(at)
    node = told if known is None else known.node
    statement.put(state.drains, name, Drain(until_ms, node))
    if name in state.snapshot.index:
        state.snapshot.put_node(replace(node, ready=False), statement)


def as_drained(recorder: Recorder, node: NodeInfo) -> NodeInfo:
    """A node as the snapshot shall have it, now that the cluster has told of it."""
    drain = recorder.state.drains.get(node.name)
    if drain is None:
        return node
    recorder.statement.put(recorder.state.drains, node.name, replace(drain, node=node))
    return replace(node, ready=False)


def empty_nodes(recorder: Recorder) -> None:
    """Take away what has not ended in time."""
    for name, drain in list(recorder.state.drains.items()):
        at = recorder.state.snapshot.index.get(name)
        if recorder.now < drain.until_ms:
            recorder.wake_at(drain.until_ms)
        elif at is not None:
            _empty(recorder, at)
            _ask_foreign(recorder, name, drain, at)


def _empty(recorder: Recorder, at: int) -> None:
    state = recorder.state
    ledger = state.snapshot.ledger
    there = np.flatnonzero((ledger.kind == ClaimKind.RUNNING) & (ledger.node == at)).tolist()
    tasks: dict[tuple[str, int], list[int]] = {}
    for slot in there:
        ref = state.pods.get(ledger.owner[slot])
        if ref is not None:
            tasks.setdefault((ref.workflow, ref.stage), []).append(ref.task)
    for (workflow, number), of_stage in tasks.items():
        run = state.runs[workflow]
        recorder.advance(run).evict(run.stages[number], np.array(sorted(of_stage)), "Drained", _MESSAGE)
    if tasks:
        recorder.absorb()


def _ask_foreign(recorder: Recorder, name: str, drain: Drain, at: int) -> None:
    """Pods of others that we placed there, where a controller makes them again."""
    state = recorder.state
    placed = [
        (uid, each)
        for uid, key in state.foreign_pods.items()
        if (each := state.foreign[key].placed.get(uid)) is not None
        and each.node == at
        and each.owned
        and each.seen
    ]
    if not placed:
        return
    due = recorder.now if drain.asked_ms is None else drain.asked_ms + ASK_AGAIN_MS
    if recorder.now >= due:
        recorder.evictions.extend(Evict(uid, each.namespace, each.name, _MESSAGE) for uid, each in placed)
        recorder.statement.put(state.drains, name, replace(drain, asked_ms=recorder.now))
        due = recorder.now + ASK_AGAIN_MS
    recorder.wake_at(due)


def drained_until(state: EngineState, name: str) -> int | None:
    """When a node shall be empty; None if it is used."""
    drain = state.drains.get(name)
    return None if drain is None else drain.until_ms
