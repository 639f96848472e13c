"""Reading runs: engines keep their DAG themselves, and each of their calls is a workflow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    null,
    or_,
    select,
    text,
    union_all,
    update,
)

from flowsched.store import tables
from flowsched.store.bulk import tidy_text
from flowsched.store.database import Database
from flowsched.store.dialects import begins
from flowsched.store.rows import WorkflowRow
from flowsched.store.workflows import PAGE, RETURNED, Shape, Which, decode, listing, search_of, workflow_row
from flowsched.workflow.run.states import RunState
from flowsched.workflow.run_tasks import HEAD, item_of, numbered, shard_path

_r, _w, _s = tables.runs.c, tables.workflows.c, tables.stages.c
#: Which attempt of a task of a run is the last.
_TURN: Final = func.row_number().over(
    partition_by=(_w.run, _w.node, _w.task),
    order_by=(_w.call_attempt.desc(), _w.seq.desc()),
)
#: A run whose engine has not reported its end; a call that lives; a run that has one.
_OPEN: Final = text(f"runs.{tables.OPEN}")
_LIVES: Final = text(f"workflows.{tables.CALLS} AND workflows.{tables.LIVE}")
_HAS_LIVE: Final = exists().where(_w.run == _r.id, _LIVES)


#: A call of a run ended not long ago: its engine may send more.
_STIRS: Final = exists().where(
    _w.run == _r.id, text(f"workflows.{tables.CALLS}"), _w.ended_ms >= bindparam("stirs_ms")
)


def _last_failed() -> ColumnElement[bool]:
    """Whether the last try of a task of a run failed or was cancelled: a run without live calls has then ended."""
    its = _w.run == _r.id, text(f"workflows.{tables.CALLS}")
    last = select(_w.state, _TURN.label("turn")).where(*its).correlate(tables.runs).subquery()
    over = (RunState.FAILED.value, RunState.CANCELLED.value)
    return exists().where(last.c.turn == 1, last.c.state.in_(over))


class RunRow(NamedTuple):
    """A run. `seq` is that of its first call. `state` and `reason` are its engine's report of its end; "" = none."""

    id: str
    seq: int
    name: str
    source: str
    queue: str
    labels: Mapping[str, str]
    created_ms: int
    state: str
    reason: str


class CallRow(NamedTuple):
    """One attempt of one task of a run: a workflow of one stage, with the states of its tasks."""

    workflow: str
    seq: int
    node: str
    task: str
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
    """The tasks of a run that have their last try in one state: how many, and when the last ended."""

    run: str
    state: str
    tasks: int
    ended_ms: int | None


class Failure(NamedTuple):
    """A task of another engine's run: its last try failed."""

    run: str
    node: str
    name: str  #: its shards (`run_tasks.shard_path`), or its number
    reason: str  #: of its workflow, whose one task has the number 0


_CALL_COLUMNS: Final = (
    _w.id,
    _w.seq,
    _w.node,
    _w.task,
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


_FOUND: Final = select(*(_r[field] for field in RunRow._fields)).where(
    _r.id == bindparam("run"), ~exists().where(_w.id == bindparam("run"))
)


class Runs:
    """The reads over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, which: Which, limit: int, stirs_ms: int) -> Sequence[WorkflowRow | RunRow]:
        """Workflows that are no call of a run, and runs, together, newest first, by one query.

        Labels do not filter runs; states do, by whether a run lives and by the end that its engine has reported.
        A call of a run is there only where `ref` or `search` begins its id.

        Args:
            which: Of its fields `run` is "" and `live` is True or False.
            limit: At most so many.
            stirs_ms: A run without a call that lives or has ended since then counts as ended, even if its engine reported no end.
        """
        statement = _both(self._database.kind, which.shape)
        rows = await self._database.rows(statement, {**which.values(limit), "stirs_ms": stirs_ms})
        return [_run_of(row) if row.source is not None else workflow_row(row[:-1]) for row in rows]

    async def find(self, run: str) -> RunRow | None:
        """The run of this id; None if there is none, or a workflow has the id: a client names its runs as it likes."""
        rows = await self._database.rows(_FOUND, {"run": run})
        return _run_row(rows[0]) if rows else None

    async def open(self, source: str, limit: int) -> Sequence[str]:
        """Runs of an engine that has not reported their end, the newest first."""
        query = select(_r.id).where(_r.source == source, _OPEN).order_by(_r.seq.desc()).limit(limit)
        return [row.id for row in await self._database.rows(query)]

    async def end(self, run: str, state: str, reason: str) -> None:
        """Store the end of a run that its engine has reported."""
        query = update(tables.runs).where(_r.id == run).values(state=state, reason=tidy_text(reason))
        await self._database.write(lambda connection: connection.execute(query))

    async def tallies(self, runs: Sequence[str]) -> Sequence[Tally]:
        """How the tasks of runs stand, by state."""
        if not runs:
            return []
        last = select(
            _w.run, _w.state, _w.ended_ms, _TURN.label("turn")
        ).where(_w.run.in_(runs)).subquery()  # fmt: skip
        c = last.c
        query = (
            select(
                c.run, c.state, func.count(), func.max(c.ended_ms),
            ).where(c.turn == 1).group_by(c.run, c.state)
        )  # fmt: skip
        return [Tally._make(row) for row in await self._database.rows(query)]

    async def returned(self, runs: Sequence[str]) -> Sequence[tuple[str, Mapping[str, int]]]:
        """(run, totals of its stage) of each last try of a task that succeeded with another exit code than 0."""
        if not runs:
            return []
        last = select(_w.id, _w.run, _TURN.label("turn")).where(_w.run.in_(runs)).subquery()
        joined = last.join(tables.stages, _s.workflow_id == last.c.id)
        query = select(last.c.run, _s.totals).select_from(joined)
        some = query.where(last.c.turn == 1, RETURNED)
        return [(row.run, decode(row.totals)) for row in await self._database.rows(some)]

    async def first_failures(self, runs: Sequence[str]) -> Sequence[Failure]:
        """Of each run that has a task whose last try failed: the one of them that came first, and the head only if it is alone."""
        if not runs:
            return []
        last = select(
            _w.seq, _w.run, _w.state, _w.task, _TURN.label("turn")
        ).where(_w.run.in_(runs)).subquery()  # fmt: skip
        c = last.c
        others = func.min(case((c.task != HEAD, c.seq)))
        first = (
            select(func.coalesce(others, func.min(c.seq)))
            .where(c.turn == 1, c.state == RunState.FAILED.value)
            .group_by(c.run)
        )
        rows = await self._database.rows(
            select(_w.run, _w.node, _w.task, _w.shard, _w.id, _w.reason).where(_w.seq.in_(first))
        )
        names = await self.names([row.run for row in rows], [row.node for row in rows])
        return [
            Failure(row.run, row.node, shard_path(row.task, row.shard, number) or str(number), row.reason)
            for row in rows
            for number, _ in [names[row.id]]
        ]

    async def names(
        self, runs: Sequence[str], nodes: Sequence[str] = ()
    ) -> dict[str, tuple[int, str | None]]:
        """The number and the item of its task by the workflow of each call of these runs, or of these nodes of them."""
        query = select(_w.run, _w.node, _w.task, _w.shard, _w.id).where(
            _w.run.in_(runs), text(f"workflows.{tables.CALLS}")
        )
        if nodes:
            query = query.where(_w.node.in_(nodes))
        found: dict[str, tuple[int, str | None]] = {}
        rows = await self._database.rows(query.order_by(_w.run, _w.seq))
        for _, group in groupby(rows, key=lambda row: row.run):
            calls = list(group)
            known = numbered((row.node, row.task, row.shard) for row in calls)
            for row in calls:
                number = known[row.node, row.task]
                found[row.id] = number, item_of(row.task, row.shard, number)
        return found

    async def nodes(self, runs: Sequence[str]) -> dict[str, int]:
        """How many different calls runs have had so far."""
        query = select(_w.run, func.count(_w.node.distinct())).where(_w.run.in_(runs)).group_by(_w.run)
        return dict(tuple(row) for row in await self._database.rows(query)) if runs else {}

    async def calls(self, run: str) -> Sequence[CallRow]:
        """All calls of a run, all attempts of them, in order of submission."""
        joined = tables.workflows.join(tables.stages, _s.workflow_id == _w.id)
        query = select(*_CALL_COLUMNS).select_from(joined).where(_w.run == run, _s.stage == 0)
        return [_call_row(row) for row in await self._database.rows(query.order_by(_w.seq))]


#: The columns of a workflow that a run has, too.
_RUN_COLUMNS: Final = ("id", "seq", "name", "queue", "labels", "created_ms", "state", "reason")


@lru_cache(maxsize=256)
def _both(kind: str, shape: Shape) -> Select[Any]:
    """The statement of `Runs.page`: columns of `listing` and the source of a run, which is NULL in a workflow."""
    workflows = listing(kind, shape)
    sought = next((name for name in ("ref", "search") if name in shape.filters), None)
    if sought:  # a name means no call of a run; the beginning of an id may be that of a call
        is_call = begins(_w.id, bindparam(sought))
        without = Shape(shape.filters - {"run"}, shape.labels)
        workflows = listing(kind, without).where(or_(_w.run == bindparam("run"), is_call))
    alone = workflows.add_columns(cast(null(), Text).label("source")).subquery()
    of_runs = {
        "name": _r.name == bindparam("name"),
        "queue": _r.queue == bindparam("queue"),
        "ref": or_(_r.name == bindparam("ref"), begins(_r.id, bindparam("ref"))),
        "search": search_of(_r, kind),
        "before": _r.seq < bindparam("before"),
        "owner": exists().where(_w.run == _r.id, _w.run != "", _w.owner == bindparam("owner")),
        "since_ms": _r.created_ms >= bindparam("since_ms"),
        "until_ms": _r.created_ms < bindparam("until_ms"),
    }
    columns = [
        *(
            _r[column.name] if column.name in _RUN_COLUMNS else cast(null(), column.type).label(column.name)
            for column in alone.c
            if column.name != "source"
        ),
        _r.source,
    ]
    conditions = [condition for name, condition in of_runs.items() if name in shape.filters]
    runs = select(*columns).where(and_(True, *conditions)).order_by(_r.seq.desc()).limit(PAGE)
    if "live" in shape.filters:  # one select for each index
        with_live = runs.where(_r.id.in_(select(_w.run).where(_LIVES)))
        parts = [with_live, runs.where(_OPEN, _STIRS, ~_last_failed(), ~_HAS_LIVE)]
    else:
        ended = runs.where(~_HAS_LIVE, or_(text(f"NOT runs.{tables.OPEN}"), ~_STIRS, _last_failed()))
        in_states = or_(_OPEN, _r.state.in_(bindparam("states", expanding=True)))
        parts = [ended.where(in_states) if "states" in shape.filters else ended]
    both = union_all(select(alone), *(select(part.subquery()) for part in parts)).subquery()
    return select(*both.c).order_by(both.c.seq.desc()).limit(PAGE)


def _run_of(row: Row[Any]) -> RunRow:
    """A run among workflows."""
    return RunRow(
        row.id,
        row.seq,
        row.name,
        row.source,
        row.queue,
        decode(row.labels),
        row.created_ms,
        row.state,
        row.reason,
    )


def _call_row(row: Sequence[Any]) -> CallRow:
    return CallRow._make((*row[:6], decode(row[6]), *row[7:16], decode(row[16]), decode(row[17])))


def _run_row(row: Sequence[Any]) -> RunRow:
    return RunRow._make((*row[:5], decode(row[5]), *row[6:]))
