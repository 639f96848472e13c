"""Which copies a full cache does without: first what nobody needs, then what is worth least for its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Need(IntEnum):
    """How much a copy is needed, the least first."""

    NOBODY = 0  #: nobody will read it any more
    ELSEWHERE = 1  #: somebody will, and it can be fetched again
    AGAIN = 2  #: somebody will, and only its producer could make it again


class Copy(NamedTuple):
    """A copy that may be dropped. `value`: what its absence would cost for each byte, in any unit; `used_at`: ms."""

    dataset: int
    size_bytes: int
    need: Need
    value: int
    used_at: int


def choose(copies: Iterable[Copy], shortage_bytes: int) -> tuple[Copy, ...]:
    """The copies to drop so that so many bytes are freed, the least valuable first; () where all together are too few.

    Of those, the most valuable ones are spared again where the rest is enough: one large copy of little value may do for many.
    """
    chosen: list[Copy] = []
    freed = 0
    for copy in sorted(copies, key=lambda c: (c.need, c.value, c.used_at, c.dataset)):
        if freed >= shortage_bytes:
            break
        if copy.size_bytes > 0:
            chosen.append(copy)
            freed += copy.size_bytes
    if freed < shortage_bytes:
        return ()
    for copy in reversed(chosen[:]):
        if freed - copy.size_bytes >= shortage_bytes:
            freed -= copy.size_bytes
            chosen.remove(copy)
    return tuple(chosen)
