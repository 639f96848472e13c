"""When what waits is expected to start, from what was learned of runtimes. Asked for by people, not part of a step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from flowsched.engine.backlog import collect, expected
from flowsched.engine.demand import demand_text
from flowsched.engine.foreign_offers import collect_foreign
from flowsched.engine.inputs import MissingInput, dataset_ids
from flowsched.engine.state import EngineState
from flowsched.scheduling.forecast import GUESSED, LEVELS, Spread, Start, guessed, starts
from flowsched.scheduling.framework import Profile
from flowsched.workflow.estimates import RUNTIME, SAID
from flowsched.workflow.resources import format_duration
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.trend import ENOUGH

#: In tenths: how much of the wait at least there is, and how far towards the promised moment it goes.
_EARLIER: Final = 6
_LATER: Final = 9
#: Where everybody who waits has a plan, and plans of others move too: so much of the wait at least, and so much longer at most.
_EARLIER_AMONG_PLANS: Final = 2
_LATER_AMONG_PLANS: Final = 2


def expected_starts(state: EngineState, wanted: Collection[int], now: int) -> dict[int, Start]:
    """The starts of groups that were refused in the last cycle, by key; who cannot be told is left out.

    They are planned in the order in which the last cycle looked at them. Does not change what is decided.
    """
    groups = {key: each.group for key, each in collect(state, now).candidates.items()}
    groups |= {key: each.group for key, each in collect_foreign(state).candidates.items()}
    waiting = [groups[key] for key in state.reasons if key in groups]
    spreads: dict[str, Spread] = {}
    known: dict[tuple[str, str, int | None, int], Spread | None] = {}
    for name, pod in state.pods.items():
        run = state.runs[pod.workflow]
        stage = run.stages[pod.stage]
        size = int(stage.local[pod.task] + stage.moved[pod.task])
        kind = (run.spec.name, stage.spec.name, stage.spec.estimate.runtime_ms, size)
        if kind not in known:
            known[kind] = spread_of(state, run, stage, size)
        spread = known[kind]
        if spread is not None:
            spreads[name] = spread
    of_groups = {}
    for key, candidate in collect(state, now).candidates.items():
        size = sum(state.catalogue.sizes[dataset] for dataset in candidate.group.reads)
        spread = spread_of(state, candidate.run, candidate.stage, size)
        if spread is not None:
            of_groups[key] = spread
    found = starts(
        state.snapshot, state.catalogue, waiting, sorted(wanted), spreads, of_groups, state.profile, now
    )
    promised = {each.group: each.start_ms for each in state.reservations}
    return {key: _with_backfill(start, promised.get(key), state.profile, now) for key, start in found.items()}


def _with_backfill(start: Start, promised_ms: int | None, profile: Profile, now: int) -> Start:
    """What scenarios leave out: until the promised moment others may be let onto its room, and it may be let in before its turn.

    How far both go was measured (`bench/predictions.py`, seeds 1 to 12; its figures are of others).
    """
    among_plans = profile.backfill == "conservative"
    earlier, later = (_EARLIER_AMONG_PLANS, _LATER_AMONG_PLANS) if among_plans else (_EARLIER, 0)
    low = now + (start.low_ms - now) * earlier // 10
    late = start.high_ms if promised_ms is None else max(start.high_ms, promised_ms)
    high = start.high_ms + (late - start.high_ms) * _LATER // 10
    return Start(low, start.start_ms, high + (start.high_ms - now) * later // 10)


def estimate_text(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> str:
    """How long a task is taken to run, for people: whose word that is, and what the like took. And what it is taken to use of a
    disk, where that was learned.
    """
    said = stage.spec.estimate.runtime_ms
    try:
        inputs = dataset_ids(state, run, stage, task // stage.members)
    except MissingInput:
        return ""
    expected_ms, _ = expected(state, run, stage, inputs)
    disk = demand_text(state, run, stage, inputs)
    if expected_ms is None:
        return f"runtime unknown, taken for {format_duration(state.profile.default_runtime_ms)}{disk}"
    size = sum(state.catalogue.sizes[dataset] for dataset in inputs)
    samples = state.estimates.samples(run.spec.name, stage.spec.name)
    whose = "as its document says" if said is not None else f"learned from {samples}"
    spread = spread_of(state, run, stage, size) if samples else None
    if spread is None:
        return f"runs for {format_duration(expected_ms)}, {whose}{disk}"
    low, high = (format_duration(spread[LEVELS.index(level)]) for level in (100, 900))
    return f"runs for {format_duration(expected_ms)}, {whose}; eight of ten between {low} and {high}{disk}"


def spread_of(state: EngineState, run: WorkflowRun, stage: StageRun, input_bytes: int) -> Spread | None:
    """How long a task may take, at `LEVELS`; None where nothing is known of it.

    Around the user's word, as far as such words were right of this kind; else as learned; from few samples, as a guess around
    their middle.
    """
    said = stage.spec.estimate.runtime_ms
    column, size = (RUNTIME, input_bytes) if said is None else (SAID, said)
    trend = state.estimates.trend(run.spec.name, stage.spec.name, column)
    if trend is None:
        return None if said is None else guessed(said)
    if trend.samples < ENOUGH:
        return guessed(said or trend.at(size))
    # Beyond the first and the last sample as far again as the guess goes: nobody has seen the longest yet.
    edge = 1_000 // (trend.samples + 1)
    low, high = trend.quantile(size, edge), trend.quantile(size, 1_000 - edge)
    return tuple(
        low * GUESSED[at] // GUESSED[1]
        if level < edge
        else high * GUESSED[at] // GUESSED[-2]
        if level > 1_000 - edge
        else trend.quantile(size, level)
        for at, level in enumerate(LEVELS)
    )
