"""Forecasts: when tasks that wait will start, worked out beside the event loop for all who ask, and compared with what came."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.aside import LARGE_BYTES, aside
from flowsched.background import BackgroundTasks
from flowsched.engine.forecast import Margins, forecast_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import GroupKey
from flowsched.log_lines import get_logger
from flowsched.scheduling.explain.forecast import Start, Starts
from flowsched.workflow.run.moves import BOUND
from flowsched.workflow.run.run import StageRun

log = get_logger(__name__)

#: Lists and polls are answered from a forecast of up to this age, or of so many times the time that it took, so that it takes at
#: most a tenth of a thread. A `flowsched run` asks on and on: at 2 s, forecasts took 5 % of the CPU of 500 short tasks.
_AGE_MS: Final = 5_000
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
        self._state: EngineState | None = None  #: that the forecast is of
        self._reasons: object = None  #: of the cycle that the forecast was made after
        self._begun = 0  #: forecasts
        self._task: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks("forecasts")
        self._made_ms, self._stale_ms = 0, 0
        self._told: dict[int, _Told] = {}
        self._margins = Margins()

    async def fresh(self) -> Mapping[int, Starts]:
        """The starts as of now. One is worked out at a time: a forecast that begins while a request waits answers it too."""
        await self._renew()
        return self._found

    def known(self) -> Mapping[int, Starts]:
        """The last starts that were worked out. Where those are old, a task works out new ones, and the caller does not wait."""
        self._follow(self._memory())
        if (
            self._clock() >= self._stale_ms
            and not self._turn.locked()
            and (not self._task or self._task.done())
        ):
            self._task = self._tasks.begin(self._renew())
        return self._found

    def _follow(self, state: EngineState | None) -> None:
        """Forget what belongs to another state: each term as leader has its own, with its own numbers of groups.

        A task that starts at once needs no forecast: the first one comes `_AGE_MS` later, so a `flowsched run` of a few tasks
        makes none.
        """
        if state is not None and state is not self._state:
            self._state, self._reasons, self._found = state, None, {}
            self._stale_ms = self._clock() + _AGE_MS
            self._told.clear()

    async def _renew(self) -> None:
        asked = self._begun
        async with self._turn:
            await self._rest()
            state, now = self._memory(), self._clock()
            self._follow(state)
            if state is None or self._begun > asked:
                return
            if state.round.reasons is self._reasons and now - self._made_ms < _AGE_MS:
                return
            self._begun += 1
            reasons: object = state.round.reasons
            begin = perf_counter()
            try:
                found, stages = await self._worked_out(state, now)
            except Exception:  # lists show all else
                log.exception("a forecast failed")
                found, stages, reasons = {}, {}, None
            if state is self._state:
                self._found, self._reasons, self._made_ms = found, reasons, now
                for group in found.keys() & (stages.keys() - self._told.keys()):
                    if len(self._told) < _TOLD:
                        self._told[group] = _Told(*stages[group], now, found[group].first)
                self._stale_ms = self._clock() + max(_AGE_MS, _TIMES * int(1000 * (perf_counter() - begin)))

    async def _worked_out(
        self, state: EngineState, now: int
    ) -> tuple[Mapping[int, Starts], Mapping[int, tuple[StageRun, int]]]:
        """The starts, and the stage and shard of each group of a stage."""
        self._compare(state)
        forecast = forecast_of(state, now)
        if forecast is None:
            return {}, {}
        keys = [(group.key, state.work.groups.get(group.key)) for group in forecast.waiting]
        stages = {
            group: (state.work.runs[key.workflow].stages[key.stage], key.shard)
            for group, key in keys
            if isinstance(key, GroupKey)
        }
        return await aside(LARGE_BYTES + 1, forecast.starts, None, self._margins), stages

    @property
    def hit_rate(self) -> str:
        """How many forecasts held, as text: `81 % of 120`; "" until enough are known."""
        whole = self._outcomes.total()
        return "" if whole < _ENOUGH else f"{100 * self._outcomes[HELD] // whole} % of {whole}"

    def _compare(self, state: EngineState) -> None:
        """Count the forecasts whose groups have been placed since, and drop those of groups that are gone without a start."""
        for group, told in list(self._told.items()):
            stage, start = told.stage, told.start
            since: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of the tasks that waited
            if stage.uniform is None:
                times = stage.times[:, BOUND]
                if told.shard >= 0:
                    times = times[stage.indices_of(told.shard)]
                since = times[times > told.asked_ms]
            if len(since):
                began = int(since.min())
                outcome = EARLY if began < start.low_ms else LATE if began > start.high_ms else HELD
                self._outcomes[outcome] += 1
                self._margins = self._margins.after(start, began)
            if len(since) or stage.state.terminal or group not in state.work.groups:
                del self._told[group]
