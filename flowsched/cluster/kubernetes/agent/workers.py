"""Threads that carry one long piece of work at a time, and that a closing agent does not wait for.

The threads of a ThreadPoolExecutor would: the interpreter joins them at its end, although each may be waiting a minute for
an origin that has gone silent. What these leave half done is removed at the next start. They live as long as the agent,
since fsspec keeps its sessions by thread.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """A few threads.

    Args:
        count: How many; so much work is under way at a time.
    """

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"transfer-{number}", daemon=True).start()

    async def do(self, act: Callable[..., T], *arguments: Any) -> T:
        """Do something in the first thread that is free."""
        done: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                result = act(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                self._answer(done, None, error)
            else:
                self._answer(done, result, None)

        self._work.put(work)
        return await done

    def close(self) -> None:
        """Take on nothing more."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _answer(self, done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        def tell() -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(tell)
