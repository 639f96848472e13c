"""Forecast: when the groups of a live state will start: what the scenarios depend on, and the margins of their intervals."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from flowsched.engine.data.inputs import read_bytes
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import GroupKey
from flowsched.scheduling.explain.forecast import (
    GUESSED,
    LEVELS,
    MOST_GROUPS,
    Spread,
    Start,
    Starts,
    guessed,
    starts,
)
from flowsched.scheduling.plan import ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.workflow.estimates import DECLARED, ENOUGH, RUNTIME, Trend
from flowsched.workflow.run.run import StageRun, WorkflowRun

#: The margins adapt to what comes by this rate; doubled, the intervals of the bench hold 79 % instead of 80 %.
_RATE: Final = 0.1
#: Of the margins that one measured, the smallest and the largest part that they become.
_LEAST, _MOST = 0.2, 5.0
#: Sizes of inputs that agree in so many binary digits count as one: a spread is worked out for each.
_DIGITS: Final = 4
#: Of ten starts one comes before the interval, and one after it.
_OUTSIDE: Final = 0.1


class Margins(msgspec.Struct, frozen=True):
    """How much earlier, and later, groups start than the scenarios say, as parts of the expected wait.

    Scenarios leave out that other groups are let in before their turn, and that new ones come. The margins were measured
    (`bench/predictions.py`, seeds 1 to 8; its figures are of other seeds), and adapt to the cluster's own starts.

    Source: Gibbs & Candès 2021 (adaptive conformal inference).
    """

    early: float = 0.5
    late: float = 0.5

    def widened(self, start: Start, now: int, *, leads: bool) -> Start:
        """The interval with margins. `leads`: of the first start of all, of a bag: no group can go before it."""
        wait = start.start_ms - now
        early, late = (0.0, 0.6 * self.late) if leads else (self.early, self.late)
        return Start(
            max(now, start.low_ms - round(wait * early)), start.start_ms, start.high_ms + round(wait * late)
        )

    def after(self, told: Start, began_ms: int) -> Margins:
        """The margins after a start that was foretold with them: a little less where it held, much more where it did not."""
        whole = Margins()
        return Margins(
            _adapted(self.early, whole.early, began_ms < told.low_ms),
            _adapted(self.late, whole.late, began_ms > told.high_ms),
        )


def _adapted(margin: float, measured: float, missed: bool) -> float:
    """It rests where `_OUTSIDE` of the starts miss it."""
    step = 1 + _RATE * ((1 - _OUTSIDE) if missed else -_OUTSIDE)
    return min(max(margin * step, measured * _LEAST), measured * _MOST)


#: Groups with these reasons start when others end: those that wait for anything else have no start that can be forecast.
_IN_TURN: Final = frozenset(
    {
        ReasonCode.INSUFFICIENT,
        ReasonCode.GANG_INCOMPLETE,
        ReasonCode.RACK,
        ReasonCode.IO_BUDGET,
        ReasonCode.RESERVED,
        ReasonCode.QUEUE_ORDER,
        ReasonCode.BACKLOG_WINDOW,
    }
)


class Known(msgspec.Struct, frozen=True, eq=False):
    """The runtime of a task as far as it is known: the user's word, and the samples of its kind."""

    declared_ms: int | None
    trend: Trend | None

    def spread(self, input_bytes: int) -> Spread | None:
        """How long it may take, at `LEVELS`; None where nothing is known.

        Around the user's word, as far as such words were right of this kind; else as learned; from few samples, as a guess around
        their middle.
        """
        declared_ms, trend = self.declared_ms, self.trend
        size = input_bytes if declared_ms is None else declared_ms
        if trend is None:
            return None if declared_ms is None else guessed(declared_ms)
        if trend.samples < ENOUGH:
            return guessed(declared_ms or trend.at(size))
        # Beyond the first and the last sample the spread continues like the guess: the longest runtime may not have occurred yet.
        edge = 1_000 // (trend.samples + 1)
        low, high = trend.quantile(size, edge), trend.quantile(size, 1_000 - edge)
        inner = [at for at, level in enumerate(LEVELS) if edge <= level <= 1_000 - edge]
        first, last = inner[0], inner[-1]
        return tuple(
            low * GUESSED[at] // GUESSED[first]
            if at < first
            else high * GUESSED[at] // GUESSED[last]
            if at > last
            else trend.quantile(size, level)
            for at, level in enumerate(LEVELS)
        )


class Forecast(msgspec.Struct, frozen=True, eq=False):
    """All that decides when groups that wait will start, on private copies that may leave this thread.

    Args:
        snapshot: Nodes and claims.
        catalogue: Datasets.
        waiting: The first groups that wait for their turn, in the order in which the last cycle looked at them.
        running: Pods, the knowledge of their runtimes, and the bytes that they read.
        spreads: Group that waits -> how long it may run; None = nothing is known.
        profile: The policy.
        now: The moment, wall-clock ms.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    waiting: Sequence[PodGroup]
    running: Sequence[tuple[str, Known, int]]
    spreads: Mapping[int, Spread | None]
    profile: Profile
    now: int

    def starts(
        self,
        wanted: Collection[int] | None = None,
        margins: Margins = Margins(),  # noqa: B008  # frozen
    ) -> dict[int, Starts]:
        """The starts of groups, by key; None = of all. A group without a predictable start is left out."""
        keys = frozenset(self.spreads if wanted is None else wanted)
        found = starts(
            self.snapshot,
            self.catalogue,
            self.waiting,
            keys,
            self._spreads(),
            lambda group: self.spreads[group.key],
            self.profile,
            self.now,
        )
        first = self.waiting[0]
        leader = None if first.gang else first.key
        return {
            key: _in_order(
                margins.widened(each.first, self.now, leads=key == leader),
                margins.widened(each.last, self.now, leads=False),
            )
            for key, each in found.items()
        }

    def _spreads(self) -> dict[str, Spread]:
        """Pod -> how long it may run in all. Pods of a kind with nearly the same input share a spread."""
        found: dict[str, Spread] = {}
        seen: dict[tuple[Known, int], Spread | None] = {}
        for pod, known, size in self.running:
            drop = max(0, size.bit_length() - _DIGITS)
            kind = (
                known,
                (size >> drop << drop) + (1 << drop >> 1),
            )  # the middle of the sizes with these digits
            if kind not in seen:
                seen[kind] = known.spread(kind[1])
            spread = seen[kind]
            if spread is not None:
                found[pod] = spread
        return found


def _in_order(first: Start, last: Start) -> Starts:
    """No last task starts before the first, which has smaller margins where no group can go before it."""
    return Starts(
        first,
        Start(
            max(first.low_ms, last.low_ms),
            max(first.start_ms, last.start_ms),
            max(first.high_ms, last.high_ms),
        ),
    )


def forecast_of(state: EngineState, now: int) -> Forecast | None:
    """Copy all that decides when groups that wait for their turn will start; None where none waits. `state`: not modified."""
    reasons, refused = state.round.reasons, state.round.refused
    turn = (key for key, reason in reasons.items() if reason.code in _IN_TURN and key in refused)
    waiting = [refused[key] for key in islice(turn, MOST_GROUPS)]
    if not waiting:
        return None
    running: list[tuple[str, Known, int]] = []
    kinds: dict[tuple[str, str, int | None], Known] = {}
    for name, pod in state.work.pods.items():
        run = state.work.runs[pod.workflow]
        stage = run.stages[pod.stage]
        declared_ms = stage.spec.estimate.runtime_ms
        kind = (*run.spec.kind_of(stage.spec), declared_ms)
        known = kinds.get(kind)
        if known is None:
            known = kinds[kind] = _known_of(state, run, stage)
        size = int(stage.local[pod.task] + stage.moved[pod.task]) if declared_ms is None else 0
        running.append((name, known, size))
    return Forecast(
        state.cluster.snapshot.copy(),
        state.cluster.catalogue.copy({dataset for group in waiting for dataset in group.reads}),
        waiting,
        running,
        {group.key: _spread_of_group(state, group) for group in waiting},
        state.policy.profile,
        now,
    )


def _spread_of_group(state: EngineState, group: PodGroup) -> Spread | None:
    key = state.work.groups.get(group.key)
    if not isinstance(key, GroupKey):
        return None
    run = state.work.runs[key.workflow]
    stage = run.stages[key.stage]
    return spread_of(state, run, stage, read_bytes(state.cluster.catalogue, run, stage, group.reads))


def expected_starts(
    state: EngineState,
    wanted: Collection[int],
    now: int,
    margins: Margins = Margins(),  # noqa: B008  # frozen
) -> dict[int, Starts]:
    """The starts of groups that wait for their turn, by key. It takes long: see `Forecast`."""
    forecast = forecast_of(state, now) if wanted else None
    return {} if forecast is None else forecast.starts(wanted, margins)


def spread_of(state: EngineState, run: WorkflowRun, stage: StageRun, input_bytes: int) -> Spread | None:
    """How long a task may take, at `LEVELS`; None where nothing is known of it."""
    return _known_of(state, run, stage).spread(input_bytes)


def _known_of(state: EngineState, run: WorkflowRun, stage: StageRun) -> Known:
    declared_ms = stage.spec.estimate.runtime_ms
    column = RUNTIME if declared_ms is None else DECLARED
    return Known(declared_ms, state.work.estimates.trend(*run.spec.kind_of(stage.spec), column))
