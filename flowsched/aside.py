"""Long work beside the event loop: in one of a few threads. Each document of a client is parsed by `aside`.

A thread shares the interpreter with the event loop: each thread that computes delays a request by some 5 ms each time the loop
goes on. Work therefore waits for one of two threads, and large work, which takes seconds, for one of two others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Larger bodies leave the loop: the check of a document of this size takes up to 40 ms.
THREAD_BYTES: Final = 32 << 10
#: Larger bodies wait for one of the threads for large work. Smaller ones take less than a second.
LARGE_BYTES: Final = 1 << 20
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="aside")
_LARGE: Final = ThreadPoolExecutor(2, thread_name_prefix="large")


async def aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that takes long if `size` (bytes) is large."""
    if size <= THREAD_BYTES:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    threads = _THREADS if size <= LARGE_BYTES else _LARGE
    return await loop.run_in_executor(threads, lambda: function(*args, **kwargs))
