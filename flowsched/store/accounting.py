"""Accounting: the usage of workflows by queue, user or label, and its sums after they expire. Databases do the sums."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    case,
    cast,
    delete,
    func,
    or_,
    select,
    union_all,
)

from flowsched.errors import InvalidRequest
from flowsched.store import tables
from flowsched.store.database import Database
from flowsched.store.dialects import insert_into, text_in

_DAY_MS: Final = 86_400_000
#: Sums outlive their workflows by so many days: a year can be compared with the year before.
RETENTION_DAYS: Final = 760
#: An answer has at most so many names.
MOST_NAMES: Final = 10_000
_SUMMED: Final = (
    "core_ms",
    "gpu_ms",
    "memory_gib_ms",
    "memory_saved_gib_ms",
    "queued_ms",
    "running_ms",
    "bytes_local",
    "bytes_moved",
)

_w, _s, _p = tables.workflows.c, tables.stages.c, tables.past_usage.c


class UsageSum(NamedTuple):
    """The part of one queue, user or value of a label."""

    name: str | None  #: None: of workflows that name no user, or do not have the label
    workflows: int
    core_ms: int
    gpu_ms: int
    memory_gib_ms: int
    memory_saved_gib_ms: int
    queued_ms: int
    running_ms: int
    bytes_local: int
    bytes_moved: int


class Accounting:
    """The sums over one database. It scans all stages in question; the event loop waits for nothing of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(
        self,
        by: str,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        queue: str | None = None,
    ) -> list[UsageSum]:
        """The usage of workflows, summed by name; most core-ms first.

        Args:
            by: "queue", "user", or "label:KEY".
            since_ms: Of workflows that ended from then on, and of those that live. None = of all. Of expired workflows whole days
                (UTC) are known: the day in which it lies counts.
            until_ms: Of workflows that ended before then. None = of those that live too.
            queue: Of this queue alone.

        Raises:
            InvalidRequest: There are more names than one answer can have.
        """
        both = union_all(
            self._present(by, since_ms, until_ms, queue), self._past(by, since_ms, until_ms, queue)
        ).subquery()
        sums = [func.sum(both.c[column]).label(column) for column in ("workflows", *_SUMMED)]
        query = select(both.c.name, *sums).group_by(both.c.name)
        query = query.order_by(both.c.name).limit(MOST_NAMES + 1)
        rows = await self._database.rows(query)
        if len(rows) > MOST_NAMES:
            raise InvalidRequest(
                f"more than {MOST_NAMES} names have used something in this time: ask for a shorter time, one queue, "
                f"or by another label than {by!r}"
            )
        found = [UsageSum(name, *map(int, numbers)) for name, *numbers in map(tuple, rows)]
        return sorted(found, key=lambda one: (-one.core_ms, one.name or ""))

    def _present(self, by: str, since_ms: int | None, until_ms: int | None, queue: str | None) -> Select[Any]:
        """A row for each workflow that the database has."""
        name = self._name(tables.workflows, by).label("name")
        numbers = [
            func.coalesce(func.sum(_number(self._database.kind, column)), 0).label(column)
            for column in _SUMMED
        ]
        columns: list[ColumnElement[Any]] = [name, _counted().label("workflows"), *numbers]
        query = select(*columns).join_from(tables.workflows, tables.stages)
        if since_ms is not None:
            query = query.where(or_(_w.ended_ms >= since_ms, _w.ended_ms.is_(None)))
        if until_ms is not None:
            query = query.where(_w.ended_ms < until_ms)
        if queue is not None:
            query = query.where(_w.queue == queue)
        return query.group_by(_w.id)

    def _past(self, by: str, since_ms: int | None, until_ms: int | None, queue: str | None) -> Select[Any]:
        """Rows of workflows that have expired."""
        numbers = [_p[column] for column in ("workflows", *_SUMMED)]
        query = select(self._name(tables.past_usage, by).label("name"), *numbers)
        if since_ms is not None:
            query = query.where(_p.day >= since_ms // _DAY_MS)
        if until_ms is not None:
            query = query.where(_p.day * _DAY_MS < until_ms)
        if queue is not None:
            query = query.where(_p.queue == queue)
        return query

    def _name(self, table: FromClause, by: str) -> ColumnElement[str]:
        kind, _, key = by.partition(":")
        if kind == "queue":
            return table.c.queue
        if kind == "user":
            return func.nullif(table.c.owner, "")
        return text_in(table.c.labels, key, self._database.kind)


def _number(kind: str, column: str) -> ColumnElement[int]:
    """A number of the totals of a stage. Stages of older versions do not have all of them."""
    if kind == "sqlite":
        return func.json_extract(_s.totals, f"$.{column}")
    return cast(text_in(_s.totals, column, kind), BigInteger)


def _counted() -> ColumnElement[int]:
    """1 for a workflow; of the calls of a run of another engine, which are workflows here, 1 for the first and 0 for the others."""
    first = or_(_w.run == "", _w.seq.in_(select(tables.runs.c.seq)))
    return case((first, 1), else_=0)


def keep_sums(connection: Connection, kind: str, workflows: Sequence[str]) -> None:
    """Add the usage of workflows to the sums of the days on which they ended: the workflows are about to be removed.

    Args:
        connection: In the transaction that removes them.
        kind: "sqlite" or "postgresql".
        workflows: Ids of some that have ended.
    """
    numbers = [func.coalesce(func.sum(_number(kind, column)), 0).label(column) for column in _SUMMED]
    query = select(_w.ended_ms, _w.queue, _w.owner, _w.labels, _counted().label("workflows"), *numbers)
    query = query.join_from(tables.workflows, tables.stages).where(_w.id.in_(workflows)).group_by(_w.id)
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for row in (connection.execute(query)).mappings():
        named = (row["queue"], row["owner"], row["labels"])
        key = hashlib.sha256("\0".join(named).encode("utf-8", "surrogatepass")).hexdigest()
        day = row["ended_ms"] // _DAY_MS
        found = rows.setdefault(
            (day, key),
            {"day": day, "key": key, "workflows": 0, **dict.fromkeys(_SUMMED, 0)}
            | dict(zip(("queue", "owner", "labels"), named, strict=True)),
        )
        found["workflows"] += row["workflows"]
        for column in _SUMMED:
            found[column] += int(row[column])
    if not rows:
        return
    insert = insert_into(tables.past_usage, kind)
    more = {column: _p[column] + insert.excluded[column] for column in ("workflows", *_SUMMED)}
    add = insert.on_conflict_do_update(index_elements=[_p.day, _p.key], set_=more)
    connection.execute(add, list(rows.values()))


def forget_sums(connection: Connection, before_ms: int) -> None:
    """Remove sums of workflows that would have expired `RETENTION_DAYS` ago. `before_ms`: workflows that ended earlier expired."""
    connection.execute(delete(tables.past_usage).where(_p.day < before_ms // _DAY_MS - RETENTION_DAYS))
