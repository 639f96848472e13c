"""Forecasts: when tasks that wait will start, worked out beside the event loop for all who ask, and compared with what came."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Final

import msgspec

from flowsched.aside import LARGE_BYTES, aside
from flowsched.engine.forecast import Margins, forecast_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import GroupKey
from flowsched.scheduling.explain.forecast import Start, Starts
from flowsched.workflow.run.moves import BOUND
from flowsched.workflow.run.run import StageRun

#: Lists and polls are answered from a forecast of up to this age, or of so many times the time that it took, so that it takes at
#: most a tenth of a thread.
_AGE_MS: Final = 2_000
_TIMES: Final = 10
#: So many forecasts at most wait for the start that they are compared with.
_TOLD: Final = 500
#: The share of forecasts that came true is told once so many were compared.
_ENOUGH: Final = 20
HELD, EARLY, LATE = "held", "early", "late"


class _Told(msgspec.Struct, frozen=True):
    """The first forecast of a group, and the stage and shard whose start it is compared with."""

    stage: StageRun
    shard: int  #: -1 = all
    asked_ms: int
    start: Start


class Forecasts:
    """The expected starts of the first groups that wait for their turn, by the number of a group.

    Args:
        memory: The leader's memory, if it can be looked at now.
        rest: Waits until no long step changes memory.
        outcomes: Where forecasts are counted by what came: held, early or late. It begins with the process.
        clock: Wall-clock ms.
    """

    def __init__(
        self,
        memory: Callable[[], EngineState | None],
        rest: Callable[[], Awaitable[None]],
        outcomes: Counter[str],
        clock: Callable[[], int],
    ) -> None:
        self._memory, self._rest, self._outcomes, self._clock = memory, rest, outcomes, clock
        self._turn = asyncio.Lock()
        self._found: Mapping[int, Starts] = {}
        self._reasons: object = None  #: of the cycle that the forecast was made after
        self._made_ms, self._stale_ms = 0, 0
        self._told: dict[int, _Told] = {}
        self._margins = Margins()

    async def fresh(self) -> Mapping[int, Starts]:
        """The starts as of now. One is worked out at a time: a forecast made while a request waited answers it too."""
        async with self._turn:
            await self._rest()
            state, now = self._memory(), self._clock()
            if state is None or (state.round.reasons is self._reasons and now - self._made_ms < _AGE_MS):
                return self._found
            self._compare()
            forecast, begin = forecast_of(state, now), perf_counter()
            self._reasons, self._made_ms = state.round.reasons, now
            if forecast is None:
                self._found = {}
            else:
                keys = [(group.key, state.work.groups.get(group.key)) for group in forecast.waiting]
                stages = {
                    group: (state.work.runs[key.workflow].stages[key.stage], key.shard)
                    for group, key in keys
                    if isinstance(key, GroupKey)
                }
                self._found = await aside(LARGE_BYTES + 1, forecast.starts, None, self._margins)
                for group, found in self._found.items():
                    if group in stages and group not in self._told and len(self._told) < _TOLD:
                        self._told[group] = _Told(*stages[group], now, found.first)
            self._stale_ms = self._clock() + max(_AGE_MS, _TIMES * int(1000 * (perf_counter() - begin)))
            return self._found

    async def known(self) -> Mapping[int, Starts]:
        """The last starts that were worked out, and new ones where those are old and no other request works them out."""
        if self._clock() < self._stale_ms or self._turn.locked():
            return self._found
        return await self.fresh()

    @property
    def hit_rate(self) -> str:
        """How many forecasts held, as text: `81 % of 120`; "" until enough are known."""
        whole = self._outcomes.total()
        return "" if whole < _ENOUGH else f"{100 * self._outcomes[HELD] // whole} % of {whole}"

    def _compare(self) -> None:
        """Count the forecasts whose groups have been placed since, and drop those of stages that ended without a start."""
        for group, told in list(self._told.items()):
            stage, start = told.stage, told.start
            if stage.uniform is not None:
                continue
            times = stage.times[:, BOUND]
            if told.shard >= 0:
                times = times[stage.indices_of(told.shard)]
            since = times[times > told.asked_ms]  # of the tasks that waited
            if len(since):
                began = int(since.min())
                outcome = EARLY if began < start.low_ms else LATE if began > start.high_ms else HELD
                self._outcomes[outcome] += 1
                self._margins = self._margins.after(start, began)
            if len(since) or stage.state.terminal:
                del self._told[group]
