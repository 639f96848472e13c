"""Settings that operators change while the service runs: queues and drains.

Few and rarely changed: small transactions beside the group writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs
from sqlalchemy import Connection, delete, func, insert, select, text

from flowsched.engine.state.cluster import DrainOrder
from flowsched.errors import Conflict, NotFound
from flowsched.store import tables
from flowsched.store.bulk import encode
from flowsched.store.database import Database
from flowsched.store.dialects import insert_into
from flowsched.store.rows import QueueRow
from flowsched.store.workflows import decode

_q = tables.queues.c
_COLUMNS = tuple(_q[name] for name in QueueRow._fields)
#: How many workflows and queues a refusal names.
_NAMED: Final = 5


class Queues:
    """Create, read, change and remove queues."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[QueueRow]:
        """All queues by name."""
        rows = await self._database.rows(select(*_COLUMNS).order_by(_q.name))
        return [QueueRow._make((*row[:4], decode(row.guarantee), decode(row.cap), *row[6:])) for row in rows]

    async def get(self, name: str) -> QueueRow:
        """One queue.

        Raises:
            NotFound: There is none of this name.
        """
        for queue in await self.list():
            if queue.name == name:
                return queue
        raise NotFound(f"there is no queue {name!r}")

    async def put(self, queue: QueueRow) -> None:
        """Create a queue, or replace its configuration.

        Raises:
            Conflict: Its parent is missing, or is the queue itself or below it.
        """
        known = {other.name: other.parent for other in await self.list()} | {queue.name: queue.parent}
        above, steps = queue.parent, 0
        while above is not None:
            if above not in known:
                raise Conflict(f"queue {queue.name}: there is no queue {above} to be its parent")
            if above == queue.name or steps > len(known):
                raise Conflict(f"queue {queue.name} would be its own parent")
            above, steps = known[above], steps + 1
        values = queue._asdict() | {"guarantee": encode(queue.guarantee), "cap": encode(queue.cap)}
        statement = insert_into(tables.queues, self._database.kind).values(values)
        changed = {name: value for name, value in values.items() if name != "name"}
        replacing = statement.on_conflict_do_update(index_elements=[_q.name], set_=changed)
        await self._database.write(lambda connection: connection.execute(replacing))

    async def delete(self, name: str) -> None:
        """Remove a queue.

        Raises:
            NotFound: There is none of this name.
            Conflict: It has queues below it, or workflows that have not ended; the message names the first of them.
        """
        w = tables.workflows.c
        living = (w.queue == name, text(tables.LIVE))

        def work(connection: Connection) -> None:
            below = connection.execute(select(_q.name).where(_q.parent == name).order_by(_q.name))
            if children := list(below.scalars()):
                raise Conflict(
                    f"queue {name!r} has queues below it: {_first(children, len(children))}. Remove them first, or give them "
                    "another parent"
                )
            number = connection.execute(select(func.count(w.id)).where(*living))
            if workflows := number.scalar_one():
                ids = connection.execute(select(w.id).where(*living).order_by(w.seq).limit(_NAMED))
                raise Conflict(
                    f"queue {name!r} has {workflows} workflow{'s' * (workflows != 1)} that {'have' if workflows != 1 else 'has'} "
                    f"not ended: {_first(list(ids.scalars()), workflows)}. Cancel them, or remove the queue when they have ended"
                )
            if (connection.execute(delete(tables.queues).where(_q.name == name))).rowcount == 0:
                raise NotFound(f"there is no queue {name!r} with settings of its own")

        await self._database.write(work)


def _first(names: Sequence[str], number: int) -> str:
    """The first few of so many."""
    return ", ".join(names[:_NAMED]) + (f" and {number - _NAMED} more" if number > _NAMED else "")


# ---- drains: nodes that take no new pods, now or from a later moment on ----


_d = tables.drains.c
#: In `until_ms`: pods run to their end.
_NO_DEADLINE: Final = -1


class Drains:
    """Read, note and take back drains."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> dict[str, DrainOrder]:
        """The orders in force, by node."""
        rows = await self._database.rows(select(*tables.drains.c).order_by(_d.node))
        return {
            row.node: DrainOrder(
                from_ms=row.from_ms,
                until_ms=None if row.until_ms == _NO_DEADLINE else row.until_ms,
                reason=row.reason,
                author=row.author,
                at_ms=row.at_ms,
            )
            for row in rows
        }

    async def put(self, node: str, order: DrainOrder | None) -> None:
        """Replace the order of a node; None = it is used again."""

        def work(connection: Connection) -> None:
            connection.execute(delete(tables.drains).where(_d.node == node))
            if order is not None:
                values = structs.asdict(order) | {"node": node}
                values["until_ms"] = _NO_DEADLINE if order.until_ms is None else order.until_ms
                connection.execute(insert(tables.drains).values(values))

        await self._database.write(work)
