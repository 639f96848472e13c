"""The book of idle room as it is kept: a row for each hour. Small transactions beside the group writer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select

from flowsched.store import tables
from flowsched.store.database import Database, unbroken

_h = tables.idle_hours.c


class IdleHours:
    """Read and replace hours. What an hour holds is plain values (whole numbers of any size, so not JSON in SQL)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def put(self, hours: Mapping[int, Mapping[str, Any]], oldest: int) -> None:
        """Replace these hours, and drop those before `oldest`."""
        rows = [
            {"hour": hour, "body": zlib.compress(json.dumps(body).encode())} for hour, body in hours.items()
        ]
        async with self._database.writing() as connection:
            await connection.execute(delete(tables.idle_hours).where(_h.hour.in_(list(hours))))
            await connection.execute(delete(tables.idle_hours).where(_h.hour < oldest))
            if rows:
                await connection.execute(insert(tables.idle_hours), rows)

    @unbroken
    async def list(self, oldest: int) -> dict[int, dict[str, Any]]:
        """The hours from `oldest` on."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(_h.hour, _h.body).where(_h.hour >= oldest))).all()
        return {row.hour: json.loads(zlib.decompress(row.body)) for row in rows}
