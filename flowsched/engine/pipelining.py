"""Pipelining: the next pods of short tasks go to their node while others of their size run there, and take over the room of those.

A core would idle between the end of a task and the start of the next one for a round trip between node and engine: longer than
the task itself, where it takes milliseconds. A pod that is sent ahead holds no room. Its order says after how many ends in its
pipeline it starts (`Pod.after`), and in the same order the engine hands the claims of those that end over (`ClusterState.free`).
Engine and node therefore agree without a word, as long as all pods of a pipeline end by themselves. Anything else dissolves the
pipeline: the engine takes the pods back that have not started.

Nothing is overtaken: pods are sent ahead only while all that waits asks for the same room for the same user. Work that arrives
later waits some `AHEAD_MS` for the pods that were sent ahead. If tasks take longer than their kind has shown, the engine takes
the pods behind them back after `LATE_MS`. Source: the pipelined task submission of Ray (Moritz et al. 2018) and the prefilling of
HyperQueue's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.predictor import is_proven
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import Pipeline, Slot
from flowsched.engine.state.work import Candidate
from flowsched.engine.transaction import Recorder
from flowsched.scheduling.feasibility import allowed_nodes
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.state.gpus import GPU
from flowsched.workflow.run.states import TaskState

Indices = NDArray[np.int64]

#: The engine sends tasks ahead whose expected runtimes, also the longest, are not above this: for others a round trip is nothing.
SHORT_MS: Final = 100
#: The pods that are sent ahead for one running pod take so long together,
AHEAD_MS: Final = 100
#: and are at most so many.
DEPTH: Final = 8
#: A pod that was sent ahead and has not started for so long is taken back, with all of its pipeline.
LATE_MS: Final = 5_000
#: So many pods are sent ahead at once.
MOST: Final = 512
#: So many ends must have shown the runtime.
PROOFS: Final = 8
#: While more groups wait, none is sent ahead: a round looks at each.
MOST_GROUPS: Final = 64

_WHY: Final = "it waited on its node for room that it does not get soon"
#: Binds tasks of a group to a node ahead of room.
Bind = Callable[[Candidate, Indices, int], None]


def slot_of(state: EngineState, candidate: Candidate, node: int) -> Slot | None:
    """The slot of a bag's pods on a node. None if their room is handed over to no other pod: they are not known to be short, or not
    any room of their size on their node will do.
    """
    group, stage = candidate.group, candidate.stage
    shape, longest_ms = group.roles[0].shape, group.high_ms or group.runtime_ms
    if not state.policy.pipelines or longest_ms is None or longest_ms > SHORT_MS:
        return None
    if group.gang or group.min_resources or stage.spec.policies:
        return None
    if shape.rules or shape.direct or shape.one_per_node or shape.requests[GPU]:
        return None
    if not is_proven(state, candidate.run, stage, PROOFS):
        return None
    return Slot(node, shape.requests, group.queue, group.user, group.priority)


def send_ahead(recorder: Recorder, plan: Plan, candidates: Mapping[int, Candidate], bind: Bind) -> None:
    """Send pods ahead that this round found no room for. One task at least keeps waiting, so that the plan's reasons stay true.

    Args:
        recorder: Of this step; all claims of the round are booked.
        plan: Of the round.
        candidates: The groups of the round, by key.
        bind: Binds what is sent.
    """
    state = recorder.state
    waiting = _waiting(state, plan, candidates) if state.cluster.pipelines else []
    if not waiting:
        return
    first = waiting[0][0].group
    depth = max(1, min(DEPTH, AHEAD_MS // max(1, first.high_ms or first.runtime_ms or 1)))
    left = min(MOST, sum(len(tasks) for _, tasks in waiting) - 1)
    for slot, pipeline in sorted(state.cluster.pipelines.items()):
        if slot != slot_of(state, waiting[0][0], slot.node) or pipeline.is_closed:
            continue
        running = pipeline.members - len(pipeline.waiting)
        most = min(left, running * depth - len(pipeline.waiting))
        for at, (candidate, tasks) in enumerate(waiting):
            sent = tasks[: max(0, most)]
            if len(sent) and _may_run(state, candidate, slot.node):
                bind(candidate, sent, slot.node)
                waiting[at] = candidate, tasks[len(sent) :]
                most, left = most - len(sent), left - len(sent)
                recorder.wake_at(recorder.now + LATE_MS)


def _waiting(
    state: EngineState, plan: Plan, candidates: Mapping[int, Candidate]
) -> list[tuple[Candidate, Indices]]:
    """The bags of short tasks that wait for room, in order, and the tasks of each; none where anything else waits for room."""
    placed = {each.group: len(each.nodes[0]) for each in plan.placements} if plan.reasons.parts else {}
    found: list[tuple[Candidate, Indices]] = []
    slots: set[Slot | None] = set()
    for reason in plan.reasons:
        candidate = candidates.get(reason.group)
        if reason.code is ReasonCode.PAUSED:
            continue
        if candidate is None or reason.code is not ReasonCode.INSUFFICIENT or len(found) == MOST_GROUPS:
            return []
        slots.add(slot_of(state, candidate, 0))
        if len(slots) > 1 or None in slots:
            return []
        found.append((candidate, candidate.tasks[0][placed.get(reason.group, 0) :]))
    return found


def _may_run(state: EngineState, candidate: Candidate, node: int) -> bool:
    """Whether a bag's pods may run on a node, which has all that they read."""
    group, shape = candidate.group, candidate.group.roles[0].shape
    allowed = allowed_nodes(state.cluster.snapshot, shape, state.policy.profile.all_filters())
    if node in group.shut or not allowed.mask[node]:
        return False
    return not group.reads or node in state.cluster.catalogue.nodes_with_all(group.reads)


def take_back(recorder: Recorder) -> None:
    """Dissolve the pipelines that may hand no room over any more, and those that are late. The tasks of the pods that have not
    started wait for room anywhere.
    """
    state, statement, now = recorder.state, recorder.statement, recorder.now
    cluster, pods = state.cluster, state.work.pods
    if not cluster.pipelines and not cluster.sent:
        return
    late = [owner for owner, sent_ms in cluster.sent.items() if now >= sent_ms + LATE_MS]
    for owner in late:
        cluster.close(owner, statement)
    ended = [slot for slot, pipeline in cluster.pipelines.items() if _must_end(state, slot, pipeline)]
    waiting = {claim.owner: claim for slot in ended for claim in cluster.dissolve(slot, statement)}
    by_stage: dict[tuple[str, int], list[int]] = {}
    for owner in sorted(waiting.keys() | late):
        statement.pop(cluster.sent, owner)
        ref = pods[owner]
        task_state = state.work.runs[ref.workflow].stages[ref.stage].task_is(ref.task)
        if task_state is TaskState.BINDING:
            by_stage.setdefault((ref.workflow, ref.stage), []).append(ref.task)
        elif task_state is TaskState.RUNNING and owner in waiting:  # an end that this step has freed room for
            cluster.snapshot.claim(structs.replace(waiting[owner], starting=False, started_ms=now), statement)
    for (workflow, number), tasks in by_stage.items():
        run = state.work.runs[workflow]
        recorder.advance(run).evict(run.stages[number], np.array(tasks), "Recalled", _WHY)
    if by_stage:
        recorder.absorb()
    if cluster.sent:
        recorder.wake_at(min(cluster.sent.values()) + LATE_MS)


def _must_end(state: EngineState, slot: Slot, pipeline: Pipeline) -> bool:
    """Whether a pipeline may hand no room over: it is closed, or the pods that wait there may not start."""
    if pipeline.is_closed or not pipeline.waiting:
        return pipeline.is_closed
    run = state.work.runs[state.work.pods[pipeline.waiting[0].owner].workflow]
    is_held = run.paused or state.policy.queues.paused(slot.queue)
    return is_held or not state.cluster.snapshot.ready[slot.node]
