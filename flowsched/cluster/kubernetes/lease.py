"""Whether this process may write to the cluster: the leadership that it holds, by its own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

_PAUSE_S: Final = 0.1


@dataclass(slots=True)
class Lease:
    """The leadership of this process, as everything that writes asks for it.

    Args:
        clock: Wall-clock ms.
        failpoint: Called with a name where a crash would be interesting.
        may_act: Whether this process still leads. Asked right before every write that starts something. The service sets it once
            there is a leader.
    """

    clock: Callable[[], int]
    failpoint: Callable[[str], Awaitable[None]]
    may_act: Callable[[], bool] = lambda: True

    async def held(self) -> None:
        """Wait until this process may act.

        A process that was paused may lead again. A process that lost its lease is ended soon, and its successor goes on.
        """
        while not self.may_act():  # noqa: ASYNC110 - a clock decides, no event is set
            await asyncio.sleep(_PAUSE_S)
