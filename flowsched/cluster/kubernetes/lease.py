"""Whether this process may write to the cluster: the leadership that it holds, by its own clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """The leadership of this process.

    A process that was paused may lead again, so a write waits (`Client`). A process that lost its lease is ended soon, and its
    successor goes on.

    Args:
        clock: Wall-clock ms.
        failpoint: Called with a name where a crash would be interesting.
        may_act: Whether this process still leads. The client asks right before every write. The service sets it once there is a
            leader.
    """

    clock: Callable[[], int]
    failpoint: Callable[[str], Awaitable[None]]
    may_act: Callable[[], bool] = lambda: True
