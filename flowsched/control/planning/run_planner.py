"""Plans runs of another engine: it tries each run until the run has a plan, cannot have one, or has ended.

An engine may know a run only seconds after its first call arrives (Cromwell answers 404 for its metadata meanwhile), and may be
away. The planner therefore repeats a try that says "not yet" while a call of the run lives. When a later call of an abandoned run
arrives, the planner tries the run again. It keeps the message of the last try for `explain`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from flowsched.background import task_group
from flowsched.errors import FlowschedError, NotFound, Unavailable
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: The wait after the first try; each next one is twice as long. Cromwell's metadata were 404 for 3.6 s on an idle machine.
FIRST_S: Final = 0.5
LONGEST_S: Final = 60.0
#: Tries at the same time: each may wait 30 s for a silent server.
AT_ONCE: Final = 4
#: The most runs that wait for a plan, and the most refused runs that the planner remembers.
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
        self._waiting: dict[str, str] = {}  #: root -> message of its last try
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def want(self, root: str, run: str) -> None:
        """Plan a run soon: a call of it has arrived, and it has no plan.

        Args:
            root: The run's id in its engine.
            run: Its name here.
        """
        if root in self._waiting or root in self._refused or len(self._waiting) >= _WAITING:
            return
        self._waiting[root] = "its plan is being made"
        self._new.put_nowait((root, run))

    def planned(self, root: str) -> None:
        """Note that a run has a plan now, perhaps from a client."""
        self._refused.pop(root, None)

    def why_not(self, root: str) -> str | None:
        """Why a run has no plan (yet), by its last try; None for a run that no caller wants."""
        return self._refused.get(root) or self._waiting.get(root)

    async def run(self) -> None:
        """Plan the wanted runs, for ever."""
        async with task_group() as group:
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
                    log.info("a run ended before it could be planned", run=root, error=self._waiting[root])
                    return
        finally:
            del self._waiting[root]

    async def _again(self, root: str) -> bool:
        """Try once; returns whether another try follows."""
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
