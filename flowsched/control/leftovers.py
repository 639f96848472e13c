"""After a restart: what workflows that ended before have left in caches with a limit, and which of it nobody needs.

Only the engine's memory knows which outputs of an ended workflow its own stages read, and a new leader's begins with those that
live. Until it is told, everything of the others is kept as if it were a result.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

from flowsched.control.dispatch import Dispatcher
from flowsched.engine.events import Ended
from flowsched.engine.readers import origin_of
from flowsched.errors import FlowschedError, NotFound
from flowsched.workflow.spec import WorkflowSpec

log = structlog.get_logger(__name__)

PERIOD_S: Final = 60.0
#: Documents read in one go.
_MOST: Final = 200


class CheckedSpecs(Protocol):
    """Where checked documents come from, by workflow."""

    async def spec(self, workflow: str) -> WorkflowSpec:
        """The checked document of a workflow."""
        ...


class Leftovers:
    """Tells the engine of workflows that ended in an earlier life of the service."""

    def __init__(self, dispatcher: Dispatcher, specs: CheckedSpecs) -> None:
        self._dispatcher = dispatcher
        self._specs = specs
        self._gone: set[str] = set()  #: nobody remembers them; expiry removes what they left

    async def run(self) -> None:
        """Look for ever: nodes may come later."""
        while True:
            try:
                await self.once()
            except FlowschedError as error:
                log.warning("what ended before cannot be looked up now", error=str(error))
            await asyncio.sleep(PERIOD_S)

    async def once(self) -> int:
        """Tell of some. Returns how many."""
        told: list[Ended] = []
        await self._dispatcher.rest()
        for workflow in self._unknown()[:_MOST]:
            try:
                told.append(Ended(workflow, await self._specs.spec(workflow)))
            except NotFound:
                self._gone.add(workflow)
        if told:
            self._dispatcher.tell(told)
        return len(told)

    def _unknown(self) -> list[str]:
        state = self._dispatcher.state
        shelves = state.catalogue.shelves
        found: dict[str, None] = {}
        for shelf in shelves.of.values() if shelves is not None else ():
            for dataset in shelf.there:
                origin = origin_of(state.catalogue.uris[dataset])
                if origin is not None:
                    found[origin.workflow] = None
        known = (state.runs, state.ended_reads, self._gone)
        return sorted(name for name in found if not any(name in names for names in known))
