"""How runs of Cromwell have ended, as Cromwell says: it asks the servers that may be asked, once no task of a run lives.

flowsched sees tasks only. A run may go on for minutes after its last one, and may fail by Cromwell's own judgement: a return code
that is not declared, an output that is not there. The leader alone asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flowsched.control.planning.plans import UUID, Cromwell
from flowsched.engine.state import EngineState
from flowsched.errors import FlowschedError, Unavailable
from flowsched.log_lines import get_logger
from flowsched.store.database import Database
from flowsched.store.runs import Runs

log = get_logger(__name__)

#: How often the leader looks for runs to ask for, and the wait after an answer that says no end; each next is longer by half.
POLL_S: Final = 5.0
LONGEST_S: Final = 600.0
#: Of more runs without an end, the newest.
_MOST: Final = 1_000


class EngineEnds:
    """See the module.

    Args:
        database: Where runs are.
        cromwell: The servers that may be asked.
        memory: The leader's memory; None in a process that does not lead.
        ended: Called when a run has ended.
    """

    def __init__(
        self,
        database: Database,
        cromwell: Cromwell,
        *,
        memory: Callable[[], EngineState | None],
        ended: Callable[[], None],
    ) -> None:
        self._runs = Runs(database)
        self._cromwell = cromwell
        self._memory = memory
        self._ended = ended
        self._due: dict[str, tuple[float, float]] = {}  #: run -> when to ask next, and the wait after that

    def asks(self, run: str, source: str) -> bool:
        """Whether the engine of a run is asked for its end."""
        return source == "cromwell" and bool(self._cromwell.allowed) and UUID.search(run) is not None

    async def run(self) -> None:
        """Look for ever."""
        while self._cromwell.allowed:
            try:
                await self.poll()
            except Unavailable as away:
                log.debug("ends of runs are asked for when the database is back", error=str(away))
            await asyncio.sleep(POLL_S)

    async def poll(self, *, every: bool = False) -> None:
        """Ask for the runs that are due, or for every one that rests."""
        state, now = self._memory(), asyncio.get_running_loop().time()
        if state is None:
            return
        calls = (each.spec.call for each in state.work.runs.values() if not each.state.terminal)
        live = {call.run for call in calls if call is not None}
        resting = [run for run in await self._runs.open("cromwell", _MOST) if run not in live]
        self._due = {run: self._due.get(run, (now, POLL_S)) for run in resting}
        for run, (due, wait) in list(self._due.items()):
            if (every or due <= now) and self.asks(run, "cromwell"):
                await self._ask(run)
                self._due[run] = now + wait, min(1.5 * wait, LONGEST_S)

    async def _ask(self, run: str) -> None:
        try:
            found = await self._cromwell.end_of(UUID.findall(run)[0])
        except FlowschedError as error:
            log.debug("the end of a run is not known", run=run, error=str(error))
            return
        if found is not None:
            await self._runs.end(run, *found)
            self._ended()
            log.info("a run has ended, as Cromwell says", run=run, state=found[0], reason=found[1])
