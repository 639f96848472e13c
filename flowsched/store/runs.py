"""Reading runs: engines keep their DAG themselves, and each of their calls is a workflow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, Select, and_, func, or_, select

from flowsched.store import tables
from flowsched.store.database import Database, unbroken
from flowsched.store.workflows import RETURNED, decode

_r, _w, _s = tables.runs.c, tables.workflows.c, tables.stages.c
#: Which try of a task of a run is the last.
_TURN: Final = func.row_number().over(
    partition_by=(_w.run, _w.node, func.coalesce(_w.shard, -1)),
    order_by=(_w.call_attempt.desc(), _w.seq.desc()),
)


class RunRow(NamedTuple):
    """A run. `seq` is that of its first call."""

    id: str
    seq: int
    name: str
    source: str
    queue: str
    labels: Mapping[str, str]
    created_ms: int


class CallRow(NamedTuple):
    """One try of one task of a run: a workflow of one stage, with what that stage's tasks do."""

    workflow: str
    seq: int
    node: str
    shard: int | None
    attempt: int
    after: Sequence[str]
    state: str  #: RunState of the workflow
    reason: str
    priority: int
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    cancel_requested: bool
    paused: bool
    stage: str
    counts: Mapping[str, int]
    totals: Mapping[str, int]


class Tally(NamedTuple):
    """The tasks of a run that have their last try in one state: how many, when the first began, when the last ended."""

    run: str
    state: str
    tasks: int
    started_ms: int | None
    ended_ms: int | None


_CALL_COLUMNS: Final = (
    _w.id,
    _w.seq,
    _w.node,
    _w.shard,
    _w.call_attempt,
    _w.after,
    _w.state,
    _w.reason,
    _w.priority,
    _w.created_ms,
    _w.started_ms,
    _w.ended_ms,
    _w.cancel_requested,
    _w.paused,
    _s.name,
    _s.counts,
    _s.totals,
)


class Runs:
    """The reads over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self,
        *,
        name: str | None,
        queue: str | None,
        before: int | None,
        limit: int,
        ref: str | None = None,
    ) -> Sequence[RunRow]:
        """Runs, newest first.

        Args:
            name: Only of this name.
            queue: Only of this queue.
            before: Only those with a smaller `seq`.
            limit: At most so many.
            ref: The beginning of an id, or a name.
        """
        conditions = [
            *([_r.name == name] if name is not None else []),
            *([_r.queue == queue] if queue is not None else []),
            *([_r.seq < before] if before is not None else []),
            *([or_(_r.name == ref, _r.id.startswith(ref, autoescape=True))] if ref else []),
        ]
        query = select(*(_r[field] for field in RunRow._fields)).where(and_(True, *conditions))
        return [_run_row(row) for row in await self._rows(query.order_by(_r.seq.desc()).limit(limit))]

    async def find(self, run: str) -> RunRow | None:
        """One run."""
        query = select(*(_r[field] for field in RunRow._fields)).where(_r.id == run)
        rows = await self._rows(query)
        return _run_row(rows[0]) if rows else None

    async def tallies(self, runs: Sequence[str]) -> Sequence[Tally]:
        """How the tasks of runs stand, by state."""
        if not runs:
            return []
        last = select(
            _w.run, _w.state, _w.node, _w.started_ms, _w.ended_ms, _TURN.label("turn")
        ).where(_w.run.in_(runs)).subquery()  # fmt: skip
        c = last.c
        query = (
            select(
                c.run, c.state, func.count(), func.min(c.started_ms),
                func.max(c.ended_ms),
            ).where(c.turn == 1).group_by(c.run, c.state)
        )  # fmt: skip
        return [Tally._make(row) for row in await self._rows(query)]

    async def returned(self, runs: Sequence[str]) -> Sequence[tuple[str, Mapping[str, int]]]:
        """(run, totals of its stage) of each last try of a task that succeeded with another exit code than 0."""
        if not runs:
            return []
        last = select(_w.id, _w.run, _TURN.label("turn")).where(_w.run.in_(runs)).subquery()
        joined = last.join(tables.stages, _s.workflow_id == last.c.id)
        query = select(last.c.run, _s.totals).select_from(joined)
        some = query.where(last.c.turn == 1, RETURNED)
        return [(row.run, decode(row.totals)) for row in await self._rows(some)]

    async def nodes(self, runs: Sequence[str]) -> dict[str, int]:
        """How many different calls runs have had so far."""
        query = select(_w.run, func.count(_w.node.distinct())).where(_w.run.in_(runs)).group_by(_w.run)
        return dict(tuple(row) for row in await self._rows(query)) if runs else {}

    async def calls(self, run: str) -> Sequence[CallRow]:
        """All calls of a run, all tries of them, in order of submission."""
        joined = tables.workflows.join(tables.stages, _s.workflow_id == _w.id)
        query = select(*_CALL_COLUMNS).select_from(joined).where(_w.run == run, _s.stage == 0)
        return [_call_row(row) for row in await self._rows(query.order_by(_w.seq))]

    @unbroken
    async def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        async with self._database.reading() as connection:
            rows: Sequence[Row[Any]] = (await connection.execute(query)).all()
        return rows


def _call_row(row: Sequence[Any]) -> CallRow:
    return CallRow._make((*row[:5], decode(row[5]), *row[6:15], decode(row[15]), decode(row[16])))


def _run_row(row: Sequence[Any]) -> RunRow:
    return RunRow._make((*row[:5], decode(row[5]), row[6]))
