"""Plans of runs as they are kept. Few and small beside workflows: transactions of their own beside the group writer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, delete, insert, or_, select

from flowsched.errors import InvalidRequest, NotFound
from flowsched.store import tables
from flowsched.store.database import Database, unbroken
from flowsched.store.requests import take_numbers
from flowsched.store.rows import Page

#: The newest plans are kept; a service lives for years, and a plan is of use while its run lives.
KEPT: Final = 5_000

_p = tables.plans.c


class PlanRow(NamedTuple):
    """A plan without its body. `run` is the run it was made for ("" if none), of which there is one plan at most."""

    id: str
    seq: int
    created_ms: int
    name: str
    run: str
    nodes: int


_COLUMNS: Final = tuple(_p[name] for name in PlanRow._fields)


class Plans:
    """Create, read and remove plans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @unbroken
    async def put(self, ident: str, name: str, run: str, nodes: int, body: bytes, now_ms: int) -> PlanRow:
        """Keep a plan, in place of an earlier one of the same run; the oldest of more than `KEPT` go."""
        async with self._database.writing() as connection:
            seq = await take_numbers(connection, "plans", 1)
            replaced = [_p.run == run] if run else []
            await connection.execute(delete(tables.plans).where(or_(_p.seq <= seq - KEPT, *replaced)))
            row = PlanRow(ident, seq, now_ms, name, run, nodes)
            await connection.execute(insert(tables.plans).values(**row._asdict(), body=zlib.compress(body)))
        return row

    @unbroken
    async def get(self, ident: str) -> tuple[PlanRow, bytes]:
        """One plan and its body.

        Raises:
            NotFound: There is none.
        """
        found = await self._one(_p.id == ident)
        if found is None:
            raise NotFound(f"there is no plan {ident}")
        return found

    @unbroken
    async def of_run(self, *runs: str) -> tuple[PlanRow, bytes] | None:
        """The plan that was made for one of these runs, if there is one."""
        return await self._one(_p.run.in_([run for run in runs if run]))

    async def _one(self, condition: object) -> tuple[PlanRow, bytes] | None:
        query = select(*_COLUMNS, _p.body).where(condition).order_by(_p.seq.desc()).limit(1)  # type: ignore[arg-type]
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else (_plan_row(row), zlib.decompress(row.body))

    @unbroken
    async def list(self, limit: int, token: str | None = None, run: str | None = None) -> Page[PlanRow]:
        """Plans, newest first.

        Raises:
            InvalidRequest: The token is not one of ours.
        """
        conditions = [_p.run == run] if run is not None else []
        if token is not None:
            if not (token.isascii() and token.isdigit() and len(token) < 19):
                raise InvalidRequest("the page token is not one this service gave out")
            conditions.append(_p.seq < int(token))
        query = select(*_COLUMNS).where(and_(True, *conditions)).order_by(_p.seq.desc()).limit(limit + 1)
        async with self._database.reading() as connection:
            rows = [_plan_row(row) for row in (await connection.execute(query)).all()]
        following = str(rows[limit - 1].seq) if len(rows) > limit else None
        return Page(rows[:limit], following)

    @unbroken
    async def delete(self, ident: str) -> None:
        """Remove a plan.

        Raises:
            NotFound: There is none.
        """
        async with self._database.writing() as connection:
            if (await connection.execute(delete(tables.plans).where(_p.id == ident))).rowcount == 0:
                raise NotFound(f"there is no plan {ident}")


def _plan_row(row: Sequence[Any]) -> PlanRow:
    return PlanRow._make(row[: len(_COLUMNS)])
