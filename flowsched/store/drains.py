"""Nodes that shall be empty. Few and rarely changed: small transactions beside the group writer."""

from __future__ import annotations

from sqlalchemy import delete, insert, select

from flowsched.store import tables
from flowsched.store.database import Database, unbroken

_d = tables.drains.c


class Drains:
    """Read, note and take back drains."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def all(self) -> dict[str, int]:
        """By node, when it shall be empty (wall-clock ms)."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(_d.node, _d.until_ms).order_by(_d.node))).all()
        return {row.node: row.until_ms for row in rows}

    @unbroken
    async def put(self, node: str, until_ms: int | None) -> None:
        """A node shall be empty by then; None = it is used again."""
        async with self._database.writing() as connection:
            await connection.execute(delete(tables.drains).where(_d.node == node))
            if until_ms is not None:
                await connection.execute(insert(tables.drains).values(node=node, until_ms=until_ms))
