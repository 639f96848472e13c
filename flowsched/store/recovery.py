"""Reads of a new leader: living workflows and samples of tasks; and the removal of finished workflows."""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    TextClause,
    and_,
    delete,
    exists,
    insert,
    select,
    text,
    tuple_,
    union_all,
)

from flowsched.engine.delta import OutputWrite, TaskWrite
from flowsched.scheduling.state.usage import UsageRow
from flowsched.store import tables
from flowsched.store.accounting import forget_sums, keep_sums
from flowsched.store.database import IDS, Database
from flowsched.store.rows import Living, Recovered, Recovery, ReplicaRow
from flowsched.store.workflows import (
    OUTPUT_COLUMNS,
    STAGE_COLUMNS,
    WORKFLOW_COLUMNS,
    decode,
    stage_row,
    workflow_row,
)
from flowsched.workflow.run.states import RunState, TaskState

_w, _s, _t = tables.workflows.c, tables.stages.c, tables.tasks.c
_a = tables.attempts.c
_r, _u = tables.replicas.c, tables.queue_usage.c
_TASK_ORDER: Final = (_t.stage, _t["index"])
#: Rows fetched at a time.
_FETCH: Final = 10_000
_LIVE: Final = text(f"workflows.{tables.LIVE}")
_LIVING: Final = tuple(_w[name] for name in Living._fields)


async def outline(database: Database) -> Recovery:
    """Read everything that a new leader needs but the workflows themselves, in one consistent view.

    Finished workflows cost nothing: a partial index leaves them out. Only the leader writes rows that depend on a workflow, so
    that each may be read back by itself later (`load`), while clients already submit and cancel.
    """
    return await database.read(_outline)


def _outline(connection: Connection) -> Recovery:
    living = connection.execute(select(*_LIVING).where(_LIVE).order_by(_w.seq))
    replicas = connection.execute(select(_r.uri, _r.node, _r.size_bytes).order_by(_r.uri, _r.node))
    bindings = connection.execute(select(tables.bindings.c.uid).order_by(tables.bindings.c.uid))
    usage = connection.execute(select(*_u).order_by(_u.queue, _u.who))
    counters = {row.name: row.value for row in (connection.execute(select(*tables.counters.c))).all()}
    shared = connection.execute(_of_workflows(tables.gang_orders.c, _LIVE))
    return Recovery(
        living=[Living._make(row) for row in living],
        pods=_open_pods(connection),
        gang_orders={tuple(row[:4]): bytes(row.pod) for row in shared},
        replicas=[ReplicaRow._make(row) for row in replicas],
        last_seq=counters.get("workflow", 0),
        last_event=counters.get("event", 0),
        bindings=[row.uid for row in bindings],
        usage=[UsageRow(row.queue, row.who, row.at_ms, row.served_ms, _amounts(row.past)) for row in usage],
    )


async def load_living(database: Database, first: int, last: int) -> dict[str, Recovered]:
    """Read back the live workflows of a range of submissions (`WorkflowRow.seq`, both ends included), in one consistent view."""
    return await _loaded(database, and_(_LIVE, _w.seq.between(first, last)))


async def load(database: Database, workflow: str) -> Recovered | None:
    """Read one workflow back, whatever its state. None: there is no such workflow."""
    return (await _loaded(database, _w.id == workflow)).get(workflow)


async def _loaded(database: Database, which: ColumnElement[bool]) -> dict[str, Recovered]:
    with _collector_paused():
        return await database.read(lambda connection: _load(connection, which))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from going through millions of new tuples again and again: half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _load(connection: Connection, which: ColumnElement[bool]) -> dict[str, Recovered]:
    """Read workflows that meet a condition, with everything that hangs on them."""
    found: dict[str, Recovered] = {}
    for rows in _streamed(connection, select(*WORKFLOW_COLUMNS, _w.spec).where(which).order_by(_w.seq)):
        for row in rows:
            found[row.id] = Recovered(workflow_row(row[:-1]), zlib.decompress(row.spec))
    stages = select(*STAGE_COLUMNS).join(tables.workflows).where(which)
    for rows in _streamed(connection, stages.order_by(_w.seq, _s.stage)):
        for row in rows:
            found[row[0]].stages.append(stage_row(row))
    for rows in _streamed(connection, _of_workflows(tables.tasks.c, which).order_by(_w.seq, *_TASK_ORDER)):
        for row in rows:
            found[row[0]].tasks.append(TaskWrite._make(row))
    for rows in _streamed(connection, _of_workflows(OUTPUT_COLUMNS, which)):
        for row in rows:
            found[row[0]].outputs.append(OutputWrite._make(row))
    return found


def _open_pods(connection: Connection) -> list[tuple[str, int, bytes]]:
    """Launch orders of the attempts of live workflows that have no recorded end, with workflow and stage."""
    query = _of_workflows([_a.workflow_id, _a.stage, _a.pod], _LIVE).where(_a.ended_ms.is_(None))
    parts = _streamed(connection, query.order_by(_w.seq, _a.stage, _a["index"]))
    return [(row.workflow_id, row.stage, bytes(row.pod)) for rows in parts for row in rows]


def _amounts(past: str) -> dict[str, int]:
    return {name: int(amount) for name, amount in decode(past).items()}


def _of_workflows(
    columns: Iterable[ColumnElement[Any]], which: ColumnElement[bool] | TextClause
) -> Select[Any]:
    """Rows of a table that hangs on workflows by their id."""
    chosen = tuple(columns)
    table = chosen[0].table
    return select(*chosen).join_from(tables.workflows, table, table.c.workflow_id == _w.id).where(which)


def _streamed(connection: Connection, query: Select[Any]) -> Iterator[Sequence[Row[Any]]]:
    """Run a query that may have a long answer, and yield its rows a part at a time."""
    yield from connection.execution_options(yield_per=_FETCH).execute(query).partitions()


class Removed(NamedTuple):
    """The numbers that one round of expiry removed. Both zero: nothing is left to remove."""

    workflows: int
    rows: int


async def remove_finished(
    database: Database, before_ms: int, *, workflows: int = 200, rows: int = 20_000
) -> Removed:
    """Remove workflows that ended before a time, with all that hangs on them. Call again until nothing is
    removed. Those of TES tasks stay until it has been written down how they ended, and those with a command
    that the leader has not carried out stay until it has (a retry makes an old workflow live again).

    Each call is one transaction of bounded size, so that writers wait milliseconds and not minutes; a
    workflow's own row goes last, so that a stop in between leaves nothing behind that a later call would not
    find.

    Args:
        database: The database to remove from.
        before_ms: Workflows that ended before this go.
        workflows: Of at most so many workflows at a time.
        rows: At most about so many rows of each kind at a time.
    """
    ended = select(_w.id).where(_w.ended_ms < before_ms, _w.state.in_(_ENDED), ~_UNKEPT, ~_ASKED)

    def work(connection: Connection) -> Removed:
        found = connection.execute(ended.order_by(_w.ended_ms).limit(workflows))
        names = [row.id for row in found]
        if not names:
            connection.execute(delete(tables.marks).where(tables.marks.c.at_ms.between(1, before_ms - 1)))
            forget_sums(connection, before_ms)
            late = tables.expired.c.at_ms < before_ms - EXPIRED_RETENTION_MS
            connection.execute(delete(tables.expired).where(late, ~_TAKEN))
            return Removed(0, 0)
        removed, more = 0, False
        for table in _TABLES:
            key = tuple_(*table.primary_key.columns)
            some = select(*table.primary_key.columns).where(table.c.workflow_id.in_(names)).limit(rows)
            count = (connection.execute(delete(table).where(key.in_(some)))).rowcount
            removed += count
            more = more or count >= rows
        if more:
            return Removed(0, removed)
        connection.execute(delete(tables.idempotency).where(tables.idempotency.c.workflow_id.in_(names)))
        of_runs = select(_w.run).where(_w.id.in_(names), _w.run != "").distinct()
        runs = [row.run for row in connection.execute(of_runs)]
        keep_sums(connection, database.kind, names)
        connection.execute(delete(tables.workflows).where(_w.id.in_(names)))  # stages, commands follow
        connection.execute(
            insert(tables.expired), [{"workflow_id": name, "at_ms": before_ms} for name in names]
        )
        if runs:
            rest = select(_w.id).where(_w.run == tables.runs.c.id).exists()
            connection.execute(delete(tables.runs).where(tables.runs.c.id.in_(runs), ~rest))
        return Removed(len(names), removed)

    return await database.write(work)


#: Whose rows hang on a workflow without a foreign key.
_TABLES: Final = (
    tables.tasks,
    tables.attempts,
    tables.gang_orders,
    tables.outputs,
    tables.events,
    tables.cache_keys,
)
#: Workflows of TES tasks of which nothing has been kept yet (`control.tes_keeping`).
_UNKEPT: Final = (
    exists().where(tables.tes_tasks.c.id == _w.id, tables.tes_tasks.c.state == "").correlate(tables.workflows)
)
#: Workflows with a command that the leader has not carried out.
_ASKED: Final = (
    exists()
    .where(tables.commands.c.workflow_id == _w.id, ~tables.commands.c.done)
    .correlate(tables.workflows)
)
_ENDED: Final = tuple(state.value for state in RunState if state.terminal)
#: Expired workflows whose results others have taken.
_TAKEN: Final = (
    exists().where(tables.cache_keys.c.source == tables.expired.c.workflow_id).correlate(tables.expired)
)
#: For so long a node that is away may come back with files of an expired workflow.
EXPIRED_RETENTION_MS: Final = 90 * 86_400_000


async def expired(database: Database, workflows: Collection[str]) -> set[str]:
    """Which of some workflows this database has removed, and no later workflow has taken results of: their files may go."""
    name = tables.expired.c.workflow_id
    query = select(name).where(name.in_(IDS), ~_TAKEN)
    return {row.workflow_id for row in await database.rows_of(query, sorted(workflows))}


# ---- samples of finished tasks: from them a new leader learns the estimates of the last one ----
#
# The newest workflows are read, and of each stage its first tasks: an estimate does not need all of them, and a
# restart shall not read a million rows for it.


_o = tables.outputs.c
#: So many ended workflows are read, and as many that live; the newest of both.
WORKFLOWS: Final = 2_000
#: So many tasks of one stage.
TASKS: Final = 64
#: So many tasks in all: a second of reading.
MOST: Final = 20_000
_PART: Final = 100


class SampleRow(NamedTuple):
    """One task that ended well. `usage` is empty where it was not measured; `outputs`: name -> bytes."""

    kind: str  #: of its workflow
    stage: str
    ended_ms: int
    runtime_ms: int
    input_bytes: int
    usage: dict[str, int]
    outputs: dict[str, int]


class CallOfKind(NamedTuple):
    """A call of a run: its node there, its kind (`WorkflowSpec.kind_of`), and the nodes whose outputs it reads."""

    run: str
    node: str
    kind: tuple[str, str]
    after: tuple[str, ...]


async def calls(database: Database) -> list[CallOfKind]:
    """The newest calls, in the order of their submission; of equal ones the first.

    The partial index of calls finds them: `+ 0` keeps a database from going through all workflows in the order of `seq`.
    """
    newest = select(_w.seq).where(text(tables.CALLS)).order_by((_w.seq + 0).desc()).limit(MOST)
    query = select(_w.run, _w.node, _w.kind, _s.name, _w.after).join_from(tables.workflows, tables.stages)
    rows = await database.rows(query.where(_w.seq.in_(newest), _s.stage == 0).order_by(_w.seq))
    return list(
        dict.fromkeys(
            CallOfKind(row.run, row.node, (row.kind, row.name), tuple(json.loads(row.after))) for row in rows
        )
    )


async def samples(database: Database) -> list[SampleRow]:
    """Tasks that ended well, in the order in which they ended."""
    return await database.read(_samples)


def _samples(connection: Connection) -> list[SampleRow]:
    found: list[SampleRow] = []
    idents = _newest(connection)
    for start in range(0, len(idents), _PART):
        found += _of(connection, idents[start : start + _PART])
        if len(found) >= MOST:
            break
    found.sort(key=lambda row: row.ended_ms)
    return found[-MOST:]


def _newest(connection: Connection) -> list[str]:
    """Workflows, the newest first: those that live, then those that ended last."""
    live = select(_w.id).where(text(f"workflows.{tables.LIVE}")).order_by(_w.seq.desc()).limit(WORKFLOWS)
    ended = select(_w.id).where(_w.ended_ms.is_not(None)).order_by(_w.ended_ms.desc()).limit(WORKFLOWS)
    both = union_all(select(live.subquery()), select(ended.subquery()))
    return list(dict.fromkeys((connection.execute(both)).scalars()))


def _of(connection: Connection, idents: list[str]) -> list[SampleRow]:
    """The tasks of some workflows."""
    wanted = and_(_w.id.in_(idents), _t["index"] < TASKS)
    stages = tables.workflows.join(tables.stages, _s.workflow_id == _w.id)
    tasks = stages.join(tables.tasks, and_(_t.workflow_id == _s.workflow_id, _t.stage == _s.stage))
    outputs: dict[tuple[Any, ...], dict[str, int]] = {}
    written = stages.join(tables.outputs, and_(_o.workflow_id == _s.workflow_id, _o.stage == _s.stage))
    query = select(_o.workflow_id, _o.stage, _o["index"], _o.name, _o.size_bytes).select_from(written)
    for row in connection.execute(query.where(_w.id.in_(idents), _o["index"] < TASKS)):
        outputs.setdefault(tuple(row[:3]), {})[row.name] = row.size_bytes
    same = and_(
        _a.workflow_id == _t.workflow_id,
        _a.stage == _t.stage,
        _a["index"] == _t["index"],
        _a.attempt == _t.attempt,
    )
    query = select(
        _w.id,
        _t.stage,
        _t["index"],
        _w.kind,
        _s.name,
        _t.started_ms,
        _t.ended_ms,
        _t.bytes_local,
        _t.bytes_moved,
        _a.usage,
    ).select_from(tasks.outerjoin(tables.attempts, same))
    ended = query.where(
        wanted, _t.state == int(TaskState.SUCCEEDED), _t.started_ms.is_not(None), _t.ended_ms.is_not(None)
    )
    return [
        SampleRow(
            kind=row[3],
            stage=row[4],
            ended_ms=row.ended_ms,
            runtime_ms=max(1, row.ended_ms - row.started_ms),
            input_bytes=row.bytes_local + row.bytes_moved,
            usage=json.loads(row.usage) if row.usage else {},
            outputs=outputs.get(tuple(row[:3]), {}),
        )
        for row in connection.execute(ended)
    ]
