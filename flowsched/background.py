"""Tasks of the event loop that no caller awaits: what one raises is logged, and what waits for it is told.

`asyncio.create_task` keeps an exception until some code asks for it. So a task that is started and awaited nowhere may fail unseen,
and what waits for its effect waits for ever. Every such task is started here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: Pauses between repeated calls about one object: the first, doubled each time, and the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 20.0
#: Takes (reason, message): what keeps a call from succeeding, for the owner of the object.
Explain = Callable[[str, str], None]


class Backoff:
    """The pauses between repeated calls about one object.

    Args:
        longest_s: The longest; the first is `FIRST_PAUSE_S`, and each is twice as long as the one before.
    """

    def __init__(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._pause_s, self._longest_s = FIRST_PAUSE_S, longest_s

    async def wait(self) -> None:
        """Wait before the next call."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._longest_s, self._pause_s * 2)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:  # noqa: TID251
    """A `TaskGroup` that fails without leaving its parent a request to cancel.

    The group of Python before 3.13 leaves one. With 3.11.2 (Debian 12) the next `asyncio.timeout` of the parent that expired
    raised CancelledError in place of TimeoutError: a leader that could not reach its API server ended its loops, and lived on.
    """
    parent = asyncio.current_task()
    assert parent is not None
    before = parent.cancelling()
    try:
        async with asyncio.TaskGroup() as group:  # noqa: TID251 # the one place
            yield group
    except BaseExceptionGroup:
        if parent.cancelling() > before:
            parent.uncancel()
        raise


class BackgroundTasks:
    """Tasks that their caller does not wait for.

    Args:
        about: The object of each, for the log: "a pod".
    """

    def __init__(self, about: str) -> None:
        self._about = about
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        work: Coroutine[Any, Any, None],
        *,
        name: str | None = None,
        failed: Callable[[Exception], object] = lambda _: None,
    ) -> asyncio.Task[None]:
        """Start a task. Its exceptions are logged.

        Args:
            work: The work.
            name: For the log and for stack dumps.
            failed: Called with its exception: ends what waits for its effect. Raises nothing.
        """
        return self._started(self._guarded(work, name, failed), name)

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Run a loop until `close`, or insist on work until it is done: what it raises is logged, and it begins anew after a pause.

        Args:
            work: Makes the loop, or the work, which may be begun any number of times.
            name: For the log and for stack dumps.
        """
        return self._started(self._restarted(work, name), name)

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _started(self, work: Coroutine[Any, Any, None], name: str | None) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(
        self, work: Coroutine[Any, Any, None], name: str | None, failed: Callable[[Exception], object]
    ) -> None:
        try:
            await work
        except Exception as error:  # one object's work must not end the others'
            log.exception("work failed", on=self._about, task=name)
            failed(error)

    async def _restarted(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        clock, backoff = asyncio.get_running_loop().time, Backoff()
        while True:
            began = clock()
            try:
                return await work()
            except Exception:  # a loop that stands still is worse than one that begins anew
                log.exception("a loop failed and begins anew", on=self._about, task=name)
            if clock() - began > LONGEST_PAUSE_S:
                backoff = Backoff()
            await backoff.wait()
