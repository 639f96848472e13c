"""Long work beside the event loop: in a thread, and of large work only a little at a time.

A thread shares the interpreter with the event loop. Two threads that compute delay a request by some 10 ms. A thread for every
large request would delay it by as long as all of them take. Large work therefore waits for one of two threads.
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
_LARGE: Final = ThreadPoolExecutor(2, thread_name_prefix="large")


async def aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that takes long if `size` (bytes) is large."""
    if size <= THREAD_BYTES:
        return function(*args, **kwargs)
    if size <= LARGE_BYTES:
        return await asyncio.to_thread(function, *args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_LARGE, lambda: function(*args, **kwargs))
