"""When what waits is expected to start, from what was learned of runtimes. Asked for by people, not part of a step."""

from __future__ import annotations

from collections.abc import Collection

from flowsched.engine.backlog import collect
from flowsched.engine.foreign_offers import collect_foreign
from flowsched.engine.state import EngineState
from flowsched.scheduling.forecast import GUESSED, LEVELS, Spread, Start, guessed, starts
from flowsched.workflow.estimates import RUNTIME, SAID
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.trend import ENOUGH


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
        size = sum(state.catalogue.sizes[dataset] for dataset in candidate.group.inputs)
        spread = spread_of(state, candidate.run, candidate.stage, size)
        if spread is not None:
            of_groups[key] = spread
    return starts(
        state.snapshot, state.catalogue, waiting, sorted(wanted), spreads, of_groups, state.profile, now
    )


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
