"""Pipelining: the next pods of short tasks go to their node while others of their size run there, and take over the room of those.

A core would idle between the end of a task and the start of the next one for a round trip between node and engine: longer than
the task itself, where it takes milliseconds. A pod that is sent ahead holds no room. It starts when one like it ends, whose claim
it takes over (`ClusterState.free`), so nothing runs that the engine has not counted, and a step handles many ends at once.

Nothing is overtaken: pods are sent ahead only while all that waits asks for the same room for the same user. Work that arrives
later waits some `AHEAD_MS` for the pods that were sent ahead. If tasks take longer than their kind has shown, the engine recalls
the pods behind them after `LATE_MS`. Source: the pipelined task submission of Ray (Moritz et al. 2018) and the prefilling of
HyperQueue's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.predictor import is_proven
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import Slot
from flowsched.engine.state.work import Candidate
from flowsched.engine.transaction import Recorder
from flowsched.scheduling.feasibility import allowed_nodes
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.gpus import GPU

Indices = NDArray[np.int64]

#: Tasks whose expected runtimes, also the longest, are not above this are sent ahead: for longer ones a round trip is nothing.
SHORT_MS: Final = 100
#: The pods that are sent ahead for one running pod take so long together,
AHEAD_MS: Final = 100
#: and are at most so many.
DEPTH: Final = 8
#: A pod that has run so long is not short, whatever was expected. A pod that was sent so long ago is recalled.
LATE_MS: Final = 1_000
#: So many ends must have shown the runtime.
PROOFS: Final = 8
#: While more groups wait, none is sent ahead: a round looks at each.
MOST_GROUPS: Final = 64

_SLOW: Final = "tasks before it on its node take longer than tasks of their kind have taken"

#: Binds tasks of a group to a node ahead of room: `slots` as in `Pod`.
Bind = Callable[[Candidate, Indices, int, int], None]


def send_ahead(recorder: Recorder, plan: Plan, candidates: Mapping[int, Candidate], bind: Bind) -> None:
    """Send pods ahead that this round found no room for. One task at least keeps waiting, so that the plan's reasons stay true.

    Args:
        recorder: Of this step; all claims of the round are booked.
        plan: Of the round.
        candidates: The groups of the round, by key.
        bind: Binds what is sent.
    """
    state = recorder.state
    if not state.policy.pipelines or state.cluster.snapshot.nominations:
        return
    waiting = _waiting(state, plan, candidates)
    if not waiting:
        return
    first = waiting[0][0].group
    amount = first.roles[0].shape.requests
    depth = max(1, min(DEPTH, AHEAD_MS // max(1, first.high_ms or first.runtime_ms or 1)))
    left = sum(len(tasks) for _, tasks in waiting) - 1
    for node, (pods, short) in sorted(_running(recorder, amount).items()):
        most = min(left, short * depth - len(state.cluster.pipelines.get(Slot(node, amount), ())))
        for at, (candidate, tasks) in enumerate(waiting):
            sent = tasks[: max(0, most)]
            if len(sent) and _may_run(state, candidate, node):
                bind(candidate, sent, node, pods)
                waiting[at] = candidate, tasks[len(sent) :]
                most, left = most - len(sent), left - len(sent)


def _waiting(
    state: EngineState, plan: Plan, candidates: Mapping[int, Candidate]
) -> list[tuple[Candidate, Indices]]:
    """The bags of short tasks that wait for room, in order, and the tasks of each; none where anything else waits for room."""
    placed = {each.group: len(each.nodes[0]) for each in plan.placements} if plan.reasons.parts else {}
    found: list[tuple[Candidate, Indices]] = []
    asks = set[tuple[tuple[int, ...], str, str, int]]()
    for reason in plan.reasons:
        candidate = candidates.get(reason.group)
        if reason.code is ReasonCode.PAUSED:
            continue
        if candidate is None or reason.code is not ReasonCode.INSUFFICIENT or len(found) == MOST_GROUPS:
            return []
        group = candidate.group
        asks.add((group.roles[0].shape.requests, group.queue, group.user, group.priority))
        if len(asks) > 1 or not _is_short(state, candidate):
            return []
        found.append((candidate, candidate.tasks[0][placed.get(reason.group, 0) :]))
    return found


def _is_short(state: EngineState, candidate: Candidate) -> bool:
    """Whether a bag's tasks are known to be short, and any room of their size on their node will do."""
    group, stage = candidate.group, candidate.stage
    shape, longest_ms = group.roles[0].shape, group.high_ms or group.runtime_ms
    if (
        group.gang
        or longest_ms is None
        or longest_ms > SHORT_MS
        or group.min_resources
        or stage.spec.policies
    ):
        return False
    if shape.rules or shape.direct or shape.one_per_node or shape.requests[GPU]:
        return False
    return is_proven(state, candidate.run, stage, PROOFS)


def _running(recorder: Recorder, amount: tuple[int, ...]) -> dict[int, tuple[int, int]]:
    """Node -> how many pods hold such an amount there, and how many of them are short. Pods of an earlier leader have another
    runner, which counts them.
    """
    pods, found = recorder.state.work.pods, dict[int, tuple[int, int]]()
    for owner, claim in recorder.state.cluster.snapshot.claims.items():
        if claim.amount != amount or claim.kind is not ClaimKind.RUNNING or owner not in pods:
            continue
        if not pods[owner].adopted:
            longest_ms = claim.late_ms or claim.until_ms
            is_short = longest_ms is not None and longest_ms - claim.since_ms <= SHORT_MS
            of_node, short = found.get(claim.node, (0, 0))
            short += is_short and recorder.now - claim.since_ms < LATE_MS
            found[claim.node] = of_node + 1, short
    return found


def recall(recorder: Recorder) -> None:
    """Take pods back that have waited on their node for long: their tasks wait for room anywhere."""
    state = recorder.state
    late: dict[tuple[str, int], list[int]] = {}
    for waiting in state.cluster.pipelines.values():
        due_ms = waiting[0].since_ms + LATE_MS
        if recorder.now < due_ms:
            recorder.wake_at(due_ms)
            continue
        for claim in waiting:
            ref = state.work.pods[claim.owner]
            late.setdefault((ref.workflow, ref.stage), []).append(ref.task)
    for (workflow, number), tasks in late.items():
        run = state.work.runs[workflow]
        recorder.advance(run).evict(run.stages[number], np.array(sorted(tasks)), "Recalled", _SLOW)
    if late:
        recorder.absorb()


def _may_run(state: EngineState, candidate: Candidate, node: int) -> bool:
    """Whether a bag's pods may run on a node, which has all that they read."""
    group, shape = candidate.group, candidate.group.roles[0].shape
    if (
        node in group.shut
        or not allowed_nodes(state.cluster.snapshot, shape, state.policy.profile.all_filters()).mask[node]
    ):
        return False
    return not group.reads or node in state.cluster.catalogue.nodes_with_all(group.reads)
