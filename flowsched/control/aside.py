"""Long work beside the event loop: in a thread, and of large work only a little at a time.

A thread shares the interpreter with the event loop. Two threads that compute delay a request by some 10 ms, a thread for every
request would delay it by as long as all of them take. Large work therefore waits for one of two threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Bodies above this leave the loop: checking a document of so many takes up to 40 ms.
THREAD_BYTES: Final = 32 << 10
#: Bodies above this wait for one of the threads for large work. Those below take less than a second.
LARGE_BYTES: Final = 1 << 20
_LARGE: Final = ThreadPoolExecutor(2, thread_name_prefix="large")


async def aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that takes long if `size` (bytes) is large."""
    if size <= THREAD_BYTES:
        return function(*args, **kwargs)
    if size <= LARGE_BYTES:
        return await asyncio.to_thread(function, *args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_LARGE, lambda: function(*args, **kwargs))
