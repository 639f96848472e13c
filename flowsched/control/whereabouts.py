"""Who leads, and where: for replicas that send on what only the leader knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flowsched.store.database import Database
from flowsched.store.lease import Lease

#: How long it is believed.
LEADER_MS: Final = 1_000
#: In the lease's holder, before the URL at which the process is reached.
AT: Final = " at "


class Whereabouts:
    """Looks the leader up in the lease, at most once a second."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._url: str | None = None
        self._looked_ms = 0

    async def url(self) -> str | None:
        """Where the leader answers, if it says so."""
        now = self._clock()
        if now - self._looked_ms > LEADER_MS:
            holding = await Lease(self._database).look()
            self._url = holding.holder.partition(AT)[2] or None
            self._looked_ms = now
        return self._url
