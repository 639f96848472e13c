"""TES tasks as clients sent them, read together with their workflows, and their rest when those have expired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    update,
)

from flowsched.errors import InvalidRequest
from flowsched.store import tables
from flowsched.store.bulk import tidy_text
from flowsched.store.database import IDS, Database
from flowsched.store.dialects import begins, in_range
from flowsched.store.workflows import decode
from flowsched.workflow.formats.tes.answers import Try
from flowsched.workflow.formats.tes.engines import BESIDE, REPEATED, RunSoFar, repetition
from flowsched.workflow.run.states import RunState
from flowsched.workflow.spec import Call

_x, _w, _t, _a = tables.tes_tasks.c, tables.workflows.c, tables.tasks.c, tables.attempts.c
_r = tables.runs.c


class TesRow(NamedTuple):
    """A TES task: its document, and its workflow and only task as they are now."""

    id: str
    seq: int
    created_ms: int
    final_state: str  #: the task's final state once its workflow has expired, else ""
    final_logs: str  #: JSON
    body: bytes  #: JSON, compressed; or nothing where it was not asked for
    run_state: str | None  #: RunState; None if the workflow has expired
    run_reason: str | None
    task_state: int | None  #: TaskState; None as long as nothing has touched the task
    attempt: int | None
    goal: int | None
    reason: str | None
    started_ms: int | None
    ended_ms: int | None


class TesFilter(msgspec.Struct, frozen=True):
    """Which tasks to list. A tag with an empty value asks only that it be there."""

    name_prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    run_states: tuple[str, ...] | None = None  #: of workflows that have not expired; None = any
    final_states: tuple[str, ...] | None = None  #: of those that have


_ENDED: Final = tuple(state.value for state in RunState if state.terminal)
_PLAIN: Final = (
    _x.id,
    _x.seq,
    _x.created_ms,
    _x.state.label("final_state"),
    _x.logs.label("final_logs"),
)
_NOW: Final = (
    _w.state.label("run_state"),
    _w.reason.label("run_reason"),
    _t.state.label("task_state"),
    _t.attempt,
    _t.goal,
    _t.reason,
    _t.started_ms,
    _t.ended_ms,
)


class TesTasks:
    """The reads over one database, and the two writes of expiry."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, ident: str, *, body: bool = True) -> TesRow | None:
        """One task; None if there is none."""
        rows = await self._database.rows(_ONE[body], {"ident": ident})
        return _row(rows[0], body=body) if rows else None

    async def page(
        self, which: TesFilter, *, body: bool, before: int | None = None, limit: int = 256
    ) -> list[TesRow]:
        """Tasks, newest first, of those with a number below `before`."""
        conditions: list[ColumnElement[bool]] = []
        if which.name_prefix:
            conditions.append(begins(_x.name, literal(which.name_prefix)))
        if before is not None:
            conditions.append(_x.seq < before)
        if which.run_states is not None:
            living = _w.state.in_(which.run_states)
            conditions.append(living | (_w.state.is_(None) & _x.state.in_(which.final_states or ())))
        conditions += [self._tagged(number, *tag) for number, tag in enumerate(which.tags)]
        query = _query(body=body).where(and_(True, *conditions)).order_by(_x.seq.desc()).limit(limit)
        return [_row(row, body=body) for row in await self._database.rows(query)]

    def _tagged(self, number: int, key: str, value: str) -> ColumnElement[bool]:
        """Whether a task has a tag. Keys may be any text, hence no JSON path."""
        each = (
            "json_each(tes_tasks.tags)"
            if self._database.kind == "sqlite"
            else "json_each_text(tes_tasks.tags::json)"
        )
        names = {f"key_{number}": key} | ({f"value_{number}": value} if value else {})
        same = f" AND tag.value = :value_{number}" if value else ""
        found = text(f"EXISTS (SELECT 1 FROM {each} AS tag WHERE tag.key = :key_{number}{same})")
        return found.bindparams(*(bindparam(name, bound) for name, bound in names.items()))  # type: ignore[return-value]

    async def attempts(self, idents: Sequence[str]) -> Mapping[str, Sequence[Try]]:
        """All tries of tasks, first to last, by task."""
        found: dict[str, list[Try]] = {ident: [] for ident in idents}
        for row in await self._database.rows_of(_TRIES, idents):
            found[row.workflow_id].append(Try._make(row[:-1]))
        return found

    async def latest_run(self, call: Call) -> tuple[str, int]:
        """(the newest run of a call's text, the number of the next one): the text itself, or it with the number of a repetition.

        A run of another source or name has such an id as its own text: it is none of these, and keeps its number.
        """
        begun = in_range(_r.id, f"{call.run}{REPEATED}", self._database.kind)
        found = await self._database.rows(select(_r.id, _r.source, _r.name).where(begun))
        rows = [(repetition(call.run, row.id), row) for row in found]
        own = (call.source, tidy_text(call.run_name or call.run))
        ids = {1: call.run} | {number: row.id for number, row in rows if (row.source, row.name) == own}
        return ids[max(ids)], max([1, *(number for number, _ in rows)]) + 1

    async def run_so_far(self, run: str, node: str, task: str) -> RunSoFar:
        """A run, and the states of a task of it and of those beside it."""
        its = _w.run == run, _w.run != ""
        same = or_(_w.task == task, begins(_w.task, literal(f"{task}{BESIDE}")))
        calls = select(_w.task, _w.state).where(*its, _w.node == node, same).order_by(_w.seq)
        # The tasks first: the run as it is read then knows each of them.
        tasks = {each.task: RunState(each.state) for each in await self._database.rows(calls)}
        live = exists().where(_w.run == run, text(f"workflows.{tables.CALLS} AND workflows.{tables.LIVE}"))
        reported = exists().where(_r.id == run, _r.state != "")
        query = select(
            reported.label("reported"), live.label("live"), func.max(_w.ended_ms).label("ended_ms")
        )
        (row,) = await self._database.rows(query.where(*its))
        return RunSoFar(bool(row.reported), bool(row.live), row.ended_ms or 0, tasks)

    async def siblings(self, run: str, after: int, limit: int) -> Sequence[tuple[int, str, str, bytes]]:
        """(number, node, task, compressed document) of the tasks of a run with numbers above `after`, oldest first."""
        query = (
            select(_w.seq, _w.node, _w.task, _x.body)
            .join_from(tables.tes_tasks, tables.workflows, _x.id == _w.id)
            .where(_w.run == run, _w.run != "", _w.seq > after)
        )
        rows = await self._database.rows(query.order_by(_w.seq).limit(limit))
        return [tuple(row) for row in rows]

    async def expiring(self, before_ms: int, limit: int) -> list[TesRow]:
        """Tasks that have no kept end yet, of workflows that ended before a time and will soon be removed."""
        query = (
            _query(body=False).where(_w.ended_ms < before_ms, _x.state == "").order_by(_x.seq).limit(limit)
        )
        return [_row(row, body=False) for row in await self._database.rows(query)]

    async def keep(self, finals: Sequence[tuple[str, str, str]]) -> None:
        """Write down how tasks ended: (id, state, logs as JSON)."""
        if not finals:
            return
        query = update(tables.tes_tasks).where(_x.id == bindparam("ident"))
        query = query.values(state=bindparam("final"), logs=bindparam("said"))
        values = [{"ident": ident, "final": state, "said": logs} for ident, state, logs in finals]
        await self._database.write(lambda connection: connection.execute(query, values))

    async def forget(self, before_ms: int, limit: int = 5_000) -> int:
        """Remove tasks that were created before a time and have no workflow any more. Returns how many."""
        gone = (
            select(_x.id)
            .join_from(tables.tes_tasks, tables.workflows, _x.id == _w.id, isouter=True)
            .where(_x.created_ms < before_ms, _w.id.is_(None))
            .limit(limit)
        )
        statement = delete(tables.tes_tasks).where(_x.id.in_(gone))
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)


def _query(*, body: bool) -> Select[Any]:
    """Tasks with their workflows and tasks as far as there are any."""
    joined = tables.tes_tasks.outerjoin(tables.workflows, _w.id == _x.id).outerjoin(
        tables.tasks, and_(_t.workflow_id == _x.id, _t.stage == 0, _t["index"] == 0)
    )
    return select(*_PLAIN, *_NOW, *([_x.body] if body else [])).select_from(joined)


#: One task, with and without its document: made once, since making a query costs more than running it.
_ONE: Final = {body: _query(body=body).where(_x.id == bindparam("ident")) for body in (True, False)}
_TRY_COLUMNS: Final = tuple(_a[name] for name in Try._fields)
_TRIES: Final = (
    select(*_TRY_COLUMNS, _a.workflow_id)
    .where(_a.workflow_id.in_(IDS), _a["index"] == 0)  # of a gang, the member that delivers
    .order_by(_a.workflow_id, _a.attempt)
)


def _row(row: Row[Any], *, body: bool) -> TesRow:
    sent = row.body if body else b""
    return TesRow._make((*row[: len(_PLAIN)], sent, *row[len(_PLAIN) : len(_PLAIN) + len(_NOW)]))


def page_token(seq: int) -> str:
    """Where the page after the task of this number begins: new tasks neither repeat nor hide any."""
    return str(seq)


def read_token(token: str) -> int:
    """Read a page token.

    Raises:
        InvalidRequest: It is not one of ours.
    """
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise InvalidRequest("the page token is not one this service gave out")
    return int(token)


def read_logs(logs: str) -> Any:
    """The logs in a row."""
    return decode(logs)
