"""What is kept of TES tasks when their workflows expire: clients may ask for weeks what became of an id."""

from __future__ import annotations

from typing import Final

import msgspec

from flowsched.control.tes import logs_of, state_of
from flowsched.store.database import Database
from flowsched.store.tes import TesTasks

#: Ids of TES tasks stay answerable for at least so long after they were made.
KEEP_MS: Final = 30 * 86_400_000
_AT_ONCE: Final = 500


async def keep_ends(database: Database, before_ms: int) -> int:
    """Write down how the tasks ended whose workflows ended before a time: these may be removed then. How many it were."""
    reads = TesTasks(database)
    kept = 0
    while rows := await reads.expiring(before_ms, _AT_ONCE):
        tries = await reads.attempts([row.id for row in rows])
        finals = []
        for row in rows:
            state = state_of(row, tries[row.id])
            logs = logs_of(row, tries[row.id], state)
            finals.append((row.id, state, msgspec.json.encode(logs).decode()))
        await reads.keep(finals)
        kept += len(finals)
    return kept


async def forget_ends(database: Database, before_ms: int, now_ms: int) -> int:
    """Forget tasks that were made before a time, and more than 30 days ago, and whose workflows are gone. How many it were."""
    reads = TesTasks(database)
    gone = 0
    while count := await reads.forget(min(before_ms, now_ms - KEEP_MS)):
        gone += count
    return gone
