"""An event loop on a virtual clock that waits for real SQLite.

Time stands still while a statement, or anything else, is being executed in a thread, and jumps to the next timer when nothing
else is left to do.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Wall-clock ms at the loop's zero.
EPOCH_MS = 1_700_000_000_000


class _Selector(selectors.DefaultSelector):
    """Asks for real events, and lets the loop's time pass instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.loop.busy:
            return super().select(None if timeout is None else 0.05)
        ready = super().select(0.0005)  # what other threads do uncounted (closing a connection)
        if ready or self.loop.busy:
            return ready
        self.loop.passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.busy = 0  #: statements and calls in other threads
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.passed

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """What threads do takes no virtual time, however long it takes."""
        self.busy += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._freed)
        return future

    def _freed(self, _: asyncio.Future[Any]) -> None:
        self.busy -= 1

    def clock_ms(self) -> int:
        """Wall-clock ms."""
        return EPOCH_MS + round(self.passed * 1000)


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """A loop. Time stands still while SQLite works in its threads."""
    loop = VirtualLoop()
    try:
        yield loop
    finally:
        loop.close()
