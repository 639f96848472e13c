"""Plans of runs as they are kept. Few and small beside workflows: transactions of their own beside the group writer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, and_, delete, insert, or_, select

from flowsched.errors import InvalidRequest, NotFound
from flowsched.store import tables
from flowsched.store.database import Database
from flowsched.store.requests import allocate_numbers
from flowsched.store.rows import Page

#: The newest plans are kept; a service lives for years, and a plan is of use while its run lives.
MOST_PLANS: Final = 5_000

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

    async def put(self, ident: str, name: str, run: str, nodes: int, body: bytes, now_ms: int) -> PlanRow:
        """Keep a plan, in place of an earlier one of the same run; the oldest of more than `MOST_PLANS` go."""

        def work(connection: Connection) -> PlanRow:
            seq = allocate_numbers(connection, "plans", 1)
            replaced = [_p.run == run] if run else []
            connection.execute(delete(tables.plans).where(or_(_p.seq <= seq - MOST_PLANS, *replaced)))
            row = PlanRow(ident, seq, now_ms, name, run, nodes)
            connection.execute(insert(tables.plans).values(**row._asdict(), body=zlib.compress(body)))
            return row

        return await self._database.write(work)

    async def get(self, ident: str) -> tuple[PlanRow, bytes]:
        """One plan and its body.

        Raises:
            NotFound: There is none.
        """
        found = await self._one(_p.id == ident)
        if found is None:
            raise NotFound(f"there is no plan {ident}")
        return found

    async def of_run(self, *runs: str) -> tuple[PlanRow, bytes] | None:
        """The plan that was made for one of these runs, if there is one."""
        return await self._one(_p.run.in_([run for run in runs if run]))

    async def _one(self, condition: object) -> tuple[PlanRow, bytes] | None:
        query = select(*_COLUMNS, _p.body).where(condition).order_by(_p.seq.desc()).limit(1)  # type: ignore[arg-type]
        rows = await self._database.rows(query)
        return (_plan_row(rows[0]), zlib.decompress(rows[0].body)) if rows else None

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
        rows = [_plan_row(row) for row in await self._database.rows(query)]
        following = str(rows[limit - 1].seq) if len(rows) > limit else None
        return Page(rows[:limit], following)

    async def delete(self, ident: str) -> None:
        """Remove a plan.

        Raises:
            NotFound: There is none.
        """
        statement = delete(tables.plans).where(_p.id == ident)
        if await self._database.write(lambda connection: connection.execute(statement).rowcount) == 0:
            raise NotFound(f"there is no plan {ident}")


def _plan_row(row: Sequence[Any]) -> PlanRow:
    return PlanRow._make(row[: len(_COLUMNS)])
