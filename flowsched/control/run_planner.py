"""Runs of another engine that are to be planned: each is tried until it has a plan, cannot have one, or has ended.

An engine may know a run only seconds after its first call has come (Cromwell's metadata answer 404 meanwhile), and may be away. So
a try that says "not yet" is repeated while a call of the run lives. A run that is no longer tried is tried again when its next
call comes. What the last try said is kept for `explain`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from flowsched.errors import FlowschedError, NotFound, Unavailable

log = structlog.get_logger(__name__)

#: The wait after the first try; each next one is twice as long. Cromwell's metadata were 404 for 3.6 s on an idle machine.
FIRST_S: Final = 0.5
LONGEST_S: Final = 60.0
#: Tries at the same time: each may wait 30 s for a server that is silent.
AT_ONCE: Final = 4
#: Runs that wait for a plan, and runs that are remembered as refused.
_WAITING: Final = 10_000
_REFUSED: Final = 10_000


class RunPlanner:
    """See the module.

    Args:
        plan: Plans the run with this id and keeps the plan. Raises `NotFound` and `Unavailable` for "not yet", any other
            `FlowschedError` where no try will give a plan.
        lives: Whether a call of the run with this name lives.
    """

    def __init__(
        self, plan: Callable[[str], Awaitable[None]], lives: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._plan = plan
        self._lives = lives
        self._new: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._waiting: dict[str, str] = {}  #: root -> what its last try said
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def want(self, root: str, run: str) -> None:
        """A call of a run has come that has no plan.

        Args:
            root: The run's id in its engine.
            run: Its name here.
        """
        if root in self._waiting or root in self._refused or len(self._waiting) >= _WAITING:
            return
        self._waiting[root] = "its plan is being made"
        self._new.put_nowait((root, run))

    def planned(self, root: str) -> None:
        """A run has a plan now, from a client perhaps."""
        self._refused.pop(root, None)

    def why_not(self, root: str) -> str | None:
        """Why a run has no plan (yet), as far as its last try knows; None for a run that is not wanted."""
        return self._refused.get(root) or self._waiting.get(root)

    async def run(self) -> None:
        """Plan what is wanted, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                root, run = await self._new.get()
                group.create_task(self._until_planned(root, run), name=f"plan-{root}")

    async def _until_planned(self, root: str, run: str) -> None:
        wait = FIRST_S
        try:
            while await self._again(root):
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_S)
                if not await self._alive(run):
                    log.info("a run ended before it could be planned", run=root, said=self._waiting[root])
                    return
        finally:
            del self._waiting[root]

    async def _again(self, root: str) -> bool:
        """Try once; whether there is to be another try."""
        try:
            async with self._slots:
                await self._plan(root)
        except (NotFound, Unavailable, OSError) as error:  # OSError: no process can be started now
            self._waiting[root] = str(error)
            return True
        except FlowschedError as error:
            log.warning("a run cannot be planned", run=root, error=str(error))
            self._refused[root] = str(error)
            if len(self._refused) > _REFUSED:
                self._refused.popitem(last=False)
        return False

    async def _alive(self, run: str) -> bool:
        try:
            return await self._lives(run)
        except FlowschedError:
            return True  # the database does not answer: the next try finds out
