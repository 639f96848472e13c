"""An event loop in a thread of its own, for programs without a loop and for notebooks, where another one runs already."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from flowsched.client.session import CLOSED
from flowsched.errors import FlowschedError

T = TypeVar("T")
#: At most so long connections are closed for.
_CLOSE_S: Final = 5.0
#: A process that was forked has no thread of the client's.
_FORKED: Final = (
    "this client was made in another process, of which this one was forked: make a client in each process"
)


class LoopThread:
    """Runs coroutines for callers that wait. The thread ends with `close`, or when its owner is collected, or with the program.

    Args:
        owner: The object that the thread works for.
    """

    def __init__(self, owner: object) -> None:
        self._closed = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flowsched-client", daemon=True)
        self._thread.start()
        self._close: list[Callable[[], Awaitable[None]]] = []
        self._end = weakref.finalize(owner, _shut, self._loop, self._thread, self._close)

    def make(self, kind: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> T:
        """Make an object in the thread. `close` closes it there before the thread ends."""

        async def made() -> T:
            return kind()

        value = self.run(made())
        self._close.append(lambda: close(value))
        return value

    def close(self) -> None:
        """End the thread. A second time does nothing."""
        self._closed = True
        self._end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the thread. Ctrl-C ends it."""
        if self._closed or os.getpid() != self._process:
            work.close()
            raise RuntimeError(CLOSED if self._closed else _FORKED)
        found = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return found.result()
        except FlowschedError as error:
            raise error.with_traceback(None) from None  # what led to it in the other thread says nothing more
        except KeyboardInterrupt as interrupt:
            found.cancel()
            raise interrupt.with_traceback(None) from None
        except BaseException:
            found.cancel()
            raise

    def each(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The values of an asynchronous iterator, each made when the caller asks for it."""
        try:
            while found := self.run(_next(source)):
                yield found[0]
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and not self._closed:
                self.run(close())


def _shut(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, closing: list[Callable[[], Awaitable[None]]]
) -> None:
    """Close the connections, and end the thread."""

    async def close() -> None:
        for each in closing:
            await each()

    if thread is threading.current_thread():  # collected there: nothing may wait for this loop
        loop.create_task(close()).add_done_callback(lambda _: loop.stop())
        return
    if thread.is_alive():
        asyncio.run_coroutine_threadsafe(close(), loop).result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    loop.close()


async def _next(source: AsyncIterator[T]) -> tuple[T, ...]:
    """The next value, or nothing at the end: a task may not end with StopAsyncIteration."""
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return ()
