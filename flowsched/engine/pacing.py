"""Pacing: how often a scheduling round takes place, and how many pods are on their way to their nodes at a time.

With a million tasks waiting, a round costs more than most events change. So there is none while nothing has happened that
could let a task start. After a long round the next one waits a little. While many pods are on their way, no more follow: they
wait in SQL, where they cost nothing, can be cancelled, and let more important work go before them.

All of it is counted, never timed: the same events give the same decisions.
"""

from __future__ import annotations

from typing import Final

from flowsched.engine.state import EngineState
from flowsched.engine.state.work import GroupKey
from flowsched.engine.transaction import Recorder
from flowsched.scheduling.plan import Plan, ReasonCode

#: A step places at most so many pods: it takes 0.1 ms for each, and the process serves no request meanwhile.
STEP: Final = 1_000
#: So many pods of ours are on their way to a node, at most. At 1,000 a second a pod that is bound now is there in 4 s.
UNDER_WAY: Final = 4_000
#: Once there were as many, so few must be left before more follow: rounds should be worth it.
RESUME: Final = 3_000
#: A round over more groups than this is a long one ...
SHORT_ROUND: Final = 200
#: ... after which the next waits 1 ms for so many of them.
GROUPS_PER_MS: Final = 5
#: Even if no group may start, a round follows after so long and reports the reserved starts again.
QUIET_MS: Final = 10_000
#: Bytes that land for a task that still waits for others let no group start, but change forecasts and the next copies. They
#: cause a round if the last one was at least so long ago, else one at that time. Without such rounds 1000genome of 22 chromosomes
#: takes 1.02 times as long; with one for each dataset that lands, thousands of inputs cost the square of their number.
LANDED_MS: Final = 250
#: Why groups wait that no moment brings nearer to their start, but only what happens.
_TIMELESS: Final = frozenset(
    {
        ReasonCode.PAUSED,
        ReasonCode.NO_NODES,
        ReasonCode.NO_MATCHING_NODE,
        ReasonCode.LARGER_THAN_NODE,
        ReasonCode.LARGER_THAN_CLUSTER,
        ReasonCode.LARGER_THAN_QUEUE,
        ReasonCode.LARGER_THAN_QUOTA,
        ReasonCode.INSUFFICIENT,
        ReasonCode.GANG_INCOMPLETE,
        ReasonCode.RACK,
        ReasonCode.ZONES,
        ReasonCode.QUEUE_LIMIT,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.USER_LIMIT,
        ReasonCode.STORAGE_BUDGET,
    }
)
#: A pod that waits for its scheduler is on its way; a pod that waits for anything else is not, and lets others pass.
_ON_ITS_WAY: Final = ("", "Unschedulable")


def left(recorder: Recorder, name: str) -> None:
    """A pod is not on its way any more: it runs, has its node, or has ended."""
    recorder.statement.exclude(recorder.state.round.under_way, name)


def delayed(recorder: Recorder, name: str, reason: str) -> None:
    """Something keeps a pod from starting."""
    if reason not in _ON_ITS_WAY:
        left(recorder, name)


def bytes_landed(recorder: Recorder) -> None:
    """A dataset, or a piece of one, is on a node."""
    due = recorder.state.round.last_round_at + LANDED_MS
    if recorder.now >= due:
        recorder.dirty = True
    else:
        recorder.wake_at(due)


def is_full(state: EngineState) -> bool:
    """Whether enough pods of ours are on their way."""
    return len(state.round.under_way) >= UNDER_WAY


def is_due(recorder: Recorder) -> bool:
    """Whether this step schedules the backlog. If not, the recorder's wake is the next step that does."""
    state, statement, now = recorder.state, recorder.statement, recorder.now
    late = state.round.next_round_at is not None and now >= state.round.next_round_at
    late |= recorder.tape is not None  # a user asks for a snapshot of the next round
    if late or (recorder.ticked and now >= state.round.quiet_until):
        recorder.dirty = True
    if state.round.at_limit and len(state.round.under_way) <= RESUME:
        statement.assign(state.round, "at_limit", False)
        recorder.dirty = True
    if recorder.dirty and not state.round.dirty:
        statement.assign(state.round, "dirty", True)
    if state.round.dirty and now >= state.round.rest_until:
        return True
    due = now if state.round.dirty else state.round.next_round_at
    if due is not None:
        recorder.wake_at(max(due, state.round.rest_until))
    return False


def round_ended(recorder: Recorder, groups: int, next_round_at: int | None, *, full: bool = False) -> None:
    """A round has ended.

    Args:
        recorder: Of this step.
        groups: How many groups were offered.
        next_round_at: When a back-off that was met ends.
        full: As many pods were placed as a step may place: the next round follows at once.
    """
    state, statement = recorder.state, recorder.statement
    rest = groups // GROUPS_PER_MS if groups > SHORT_ROUND and not full else 0
    statement.assign(state.round, "dirty", full)
    statement.assign(state.round, "last_round_at", recorder.now)
    statement.assign(state.round, "rest_until", recorder.now + rest)
    statement.assign(state.round, "next_round_at", next_round_at)
    if full:
        recorder.wake_at(recorder.now)
    if next_round_at is not None:
        recorder.wake_at(max(next_round_at, recorder.now + rest))


def keep_quiet(recorder: Recorder, plan: Plan) -> None:
    """Note after a round whether time alone could let a group start soon.

    A group that finds no room finds none while nothing ends. Reservations, copies and places in the order change with time,
    so a group that waits for one of these may start without any event.
    """
    calm = not plan.placements and all(reason.code in _TIMELESS for reason in plan.reasons.distinct())
    recorder.statement.assign(recorder.state.round, "quiet_until", recorder.now + QUIET_MS if calm else 0)


def reserved_for_ours(state: EngineState) -> bool:
    """Whether a group of flowsched's own has a reservation. Then foreign pods are not placed in a round of their own."""
    return any(isinstance(state.work.groups.get(each.group), GroupKey) for each in state.round.reservations)
