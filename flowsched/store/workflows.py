"""Reading workflows: for people, page by page, and with no lock that a writer would have to wait for.

Pages are found by key, not by offset: a page costs the same however deep it lies, and what arrives in between
neither repeats nor hides an entry.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
    text,
    tuple_,
)

from flowsched.engine.delta import OutputWrite, TaskWrite
from flowsched.errors import InvalidRequest, NotFound
from flowsched.store import tables
from flowsched.store.database import IDS, Database
from flowsched.store.dialects import begins, contains, text_in
from flowsched.store.rows import (
    AttemptRow,
    AttemptUseRow,
    CommandRow,
    Page,
    StageRow,
    StoredEvent,
    Sums,
    WorkflowRow,
)
from flowsched.workflow.run.states import RunState, TaskState

#: A page is never longer than this, whatever is asked for.
MOST_PER_PAGE: Final = 2_000
#: Stages that one query counts: some 10 ms.
MOST_STAGES: Final = 5_000

_w, _s, _t, _a = tables.workflows.c, tables.stages.c, tables.tasks.c, tables.attempts.c
#: Of a stage: a task of it has succeeded with another exit code than 0 (`workflow.returned`).
RETURNED: Final = _s.totals.like('%"returned\\_%', escape="\\")
_o, _e, _c = tables.outputs.c, tables.events.c, tables.commands.c
WORKFLOW_COLUMNS: Final = tuple(_w[name] for name in WorkflowRow._fields)
STAGE_COLUMNS: Final = (_s.workflow_id, *(_s[name] for name in StageRow._fields[1:]))
ATTEMPT_COLUMNS: Final = tuple(
    _a["workflow_id" if name == "workflow" else name] for name in AttemptRow._fields
)
_USE_COLUMNS: Final = ATTEMPT_COLUMNS[:-2]  #: without `report` and `choice`
OUTPUT_COLUMNS: Final = (_o.workflow_id, *(_o[name] for name in OutputWrite._fields[1:]))


#: How many rows a list may have.
PAGE: Final[ColumnElement[int]] = bindparam("limit", type_=Integer)
#: Made once: making a query costs more than running it.
_ACCEPTED: Final = (
    select(_w.id, _w.seq).where(_w.seq > bindparam("seq")).order_by(_w.seq).limit(MOST_PER_PAGE)
)
_ONE: Final = select(*WORKFLOW_COLUMNS).where(_w.id == bindparam("id"))
_EXISTING: Final = select(_w.id).where(_w.id.in_(IDS))
_SOME: Final = select(*WORKFLOW_COLUMNS).where(_w.id.in_(IDS))
_RETURNED: Final = case((RETURNED, _s.totals))
_SUMS_OF: Final = (
    select(_s.workflow_id, _s.counts, _RETURNED.label("totals"), func.count().label("stages"))
    .where(_s.workflow_id.in_(IDS))
    .group_by(_s.workflow_id, _s.counts, _RETURNED)
)
_COMMANDS: Final = (
    select(_c.id, _c.workflow_id, _c.kind, _c.body, _c.at_ms).where(~_c.done).order_by(_c.id).limit(PAGE)
)


class Workflows:
    """The reads over one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, which: Which, limit: int) -> Sequence[WorkflowRow]:
        """At most `limit` workflows, newest first."""
        rows = await self._database.rows(listing(self._database.kind, which.shape), which.values(limit))
        return [workflow_row(row) for row in rows]

    async def accepted_after(self, seq: int) -> Sequence[tuple[str, int]]:
        """(id, number) of workflows submitted after number `seq`, oldest first: so the leader finds accepted workflows.

        Numbers follow the order of commits, so none can appear behind one that has been seen.
        """
        return [(row.id, row.seq) for row in await self._database.rows(_ACCEPTED, {"seq": seq})]

    async def get(self, workflow_id: str, tenant: str | None = None) -> WorkflowRow:
        """One workflow.

        Raises:
            NotFound: There is none, or it is another tenant's (the error does not reveal which).
        """
        rows = await self._database.rows(_ONE, {"id": workflow_id})
        if not rows or tenant not in (None, (row := workflow_row(rows[0])).tenant):
            raise NotFound(f"there is no workflow with the id {workflow_id}")
        return row

    async def some(self, workflow_ids: Sequence[str]) -> dict[str, WorkflowRow]:
        """Those of them that exist, by id."""
        return {row.id: workflow_row(row) for row in await self._database.rows_of(_SOME, workflow_ids)}

    async def existing(self, workflow_ids: Sequence[str]) -> set[str]:
        """Those of them that exist."""
        return {row.id for row in await self._database.rows_of(_EXISTING, workflow_ids)}

    async def spec(self, workflow_id: str) -> bytes:
        """The document as it was submitted, byte by byte.

        Raises:
            NotFound: There is no such workflow.
        """
        rows = await self._database.rows(select(_w.spec).where(_w.id == workflow_id))
        if not rows:
            raise NotFound(f"there is no workflow with the id {workflow_id}")
        return zlib.decompress(rows[0].spec)

    async def stages(
        self,
        workflow_id: str,
        *,
        first: int = 0,
        last: int | None = None,
        holding: tuple[Sequence[RunState], TaskState] | None = None,
        limit: int | None = None,
    ) -> Sequence[StageRow]:
        """Its stages, in the order of the document.

        Args:
            workflow_id: Of the workflow.
            first, last: From this number on, up to that one.
            holding: Only stages in one of these states that count tasks in that state.
            limit: How many at most.
        """
        query = select(*STAGE_COLUMNS).where(_s.workflow_id == workflow_id, _s.stage >= first)
        if last is not None:
            query = query.where(_s.stage <= last)
        if holding is not None:
            query = query.where(*_holds(*holding))
        rows = await self._database.rows(query.order_by(_s.stage).limit(limit))
        return [stage_row(row) for row in rows]

    async def sums(self, workflows: Sequence[WorkflowRow]) -> dict[str, Sums]:
        """The sums over their stages, by id: one query for every 5,000 stages.

        Of ten thousand stages nearly all read the same: the database says how many.
        """
        found = {each.id: Sums({}, []) for each in workflows}
        for ids in _batches(workflows):
            for row in await self._database.rows(_SUMS_OF, {"ids": ids}):
                total, totals = found[row.workflow_id]
                for state, number in decode(row.counts).items():
                    total[state] = total.get(state, 0) + number * row.stages
                if row.totals is not None:
                    totals.extend([decode(row.totals)] * row.stages)
        return found

    async def tasks(
        self,
        workflow_id: str,
        *,
        stage: int | None = None,
        state: TaskState | None = None,
        stage_states: Sequence[RunState] = (),
        limit: int = 100,
        token: str | None = None,
    ) -> Page[TaskWrite]:
        """Tasks that have been touched, by stage and index. Those without a row are PENDING.

        Args:
            workflow_id: Of the workflow.
            stage: Of this stage alone; None = of all.
            state: Only tasks in this state; None = in any.
            stage_states: Also all tasks of stages that are in one of these states and count tasks in `state`.
            limit: How many at most.
            token: Of the page before.

        Raises:
            InvalidRequest: The token is not one of ours.
        """
        query = select(*tables.tasks.c).where(_t.workflow_id == workflow_id)
        if stage is not None:
            query = query.where(_t.stage == stage)
        if state is not None:
            among = select(_s.stage).where(_s.workflow_id == workflow_id, *_holds(stage_states, state))
            its = _t.state == int(state)
            query = query.where(or_(its, _t.stage.in_(among)) if stage_states else its)
        if token:
            query = query.where(tuple_(_t.stage, _t["index"]) > tuple_(*untoken(token, 2)))
        limit = _bounded(limit)
        rows = await self._database.rows(query.order_by(_t.stage, _t["index"]).limit(limit + 1))
        return _page([TaskWrite._make(row) for row in rows], limit, lambda row: (row.stage, row.index))

    async def noted(self, workflow_id: str, reason: str, stage: int | None = None) -> list[tuple[int, int]]:
        """Stage and index of the tasks that have succeeded with a reason, in order. `stage`: of this one alone."""
        query = select(_t.stage, _t["index"]).where(
            _t.workflow_id == workflow_id, _t.state == int(TaskState.SUCCEEDED), _t.reason == reason
        )
        if stage is not None:
            query = query.where(_t.stage == stage)
        return [tuple(row) for row in await self._database.rows(query.order_by(_t.stage, _t["index"]))]

    async def task(self, workflow_id: str, stage: int, index: int) -> TaskWrite | None:
        """One task; None if it has not been touched yet (or does not exist)."""
        query = select(*tables.tasks.c).where(
            _t.workflow_id == workflow_id, _t.stage == stage, _t["index"] == index
        )
        rows = await self._database.rows(query)
        return TaskWrite._make(rows[0]) if rows else None

    async def attempts(self, workflow_id: str, stage: int, index: int) -> Sequence[AttemptRow]:
        """All tries of one task, first to last."""
        query = select(*ATTEMPT_COLUMNS).where(
            _a.workflow_id == workflow_id, _a.stage == stage, _a["index"] == index
        )
        return [attempt_row(row) for row in await self._database.rows(query.order_by(_a.attempt))]

    async def attempts_of(
        self, workflow_id: str, *, limit: int = MOST_PER_PAGE, token: str | None = None
    ) -> Page[AttemptUseRow]:
        """All tries of all tasks of a workflow, or of all calls of a run, by order of submission, stage, index and attempt.

        Raises:
            InvalidRequest: The token is not one of ours.
        """
        order = (_w.seq, _a.stage, _a["index"], _a.attempt)
        columns: list[ColumnElement[Any]] = [*_USE_COLUMNS, _s.name, _w.node, _a.pod, _w.seq]
        joined = tables.attempts.join(tables.workflows, _w.id == _a.workflow_id).join(
            tables.stages, and_(_s.workflow_id == _a.workflow_id, _s.stage == _a.stage)
        )
        its = or_(_w.id == workflow_id, and_(_w.run == workflow_id, text(f"workflows.{tables.CALLS}")))
        query = select(*columns).select_from(joined).where(its)
        if token:
            query = query.where(tuple_(*order) > tuple_(*untoken(token, 4)))
        limit = _bounded(limit)
        rows = await self._database.rows(query.order_by(*order).limit(limit + 1))
        page = _page(list(rows), limit, lambda row: (row[-1], row[2], row[3], row[4]))
        wide = len(_USE_COLUMNS)
        found = []
        for row in page.items:
            stage, call, pod = row[wide : wide + 3]
            found.append(AttemptUseRow(attempt_row((*row[:wide], "", "")), stage, call, bytes(pod)))
        return Page(found, page.next_token)

    async def steps_ended(self, workflow_ids: Sequence[str]) -> dict[tuple[str, int, int, int], int]:
        """When the last step of each container task's attempts ended, in ms: (workflow, stage, index, attempt) -> moment.

        The database reads the reports: each may have kilobytes of the steps' output.
        """
        ended: ColumnElement[Any]
        if self._database.kind == "sqlite":
            ended = func.json_extract(_a.report, "$.steps[#-1].ended_ms")
        else:
            # PostgreSQL refuses JSON with U+0000. In a text of the report the quote before the colon is escaped.
            ended = cast(func.substring(_a.report, '.*"ended_ms":([0-9]+)'), BigInteger)
        query = select(
            _a.workflow_id, _a.stage, _a["index"].label("place"), _a.attempt, ended.label("at_ms")
        ).where(_a.workflow_id.in_(IDS), _a.report != "")
        return {
            (row.workflow_id, row.stage, row.place, row.attempt): int(row.at_ms)
            for row in await self._database.rows_of(query, workflow_ids)
            if row.at_ms is not None
        }

    async def first_tasks(self, workflow_ids: Sequence[str]) -> dict[str, TaskWrite]:
        """The first task of each of these workflows that has been touched, by id: each call of a run has one task."""
        query = select(*tables.tasks.c).where(_t.workflow_id.in_(IDS), _t.stage == 0, _t["index"] == 0)
        rows = await self._database.rows_of(query, workflow_ids)
        return {row[0]: TaskWrite._make(row) for row in rows}

    async def attempt(self, name: str) -> AttemptRow | None:
        """One try by the name of its pod."""
        rows = await self._database.rows(select(*ATTEMPT_COLUMNS).where(_a.name == name))
        return attempt_row(rows[0]) if rows else None

    async def outputs(
        self, workflow_id: str, stage: int | None = None, index: int | None = None
    ) -> Sequence[OutputWrite]:
        """The outputs that it has published so far, by stage, index and name."""
        query = select(*OUTPUT_COLUMNS).where(_o.workflow_id == workflow_id)
        if stage is not None:
            query = query.where(_o.stage == stage)
        if index is not None:
            query = query.where(_o["index"] == index)
        rows = await self._database.rows(query.order_by(_o.stage, _o["index"], _o.name))
        return [OutputWrite._make(row) for row in rows]

    async def outputs_between(
        self, workflow_id: str, first: tuple[int, int], last: tuple[int, int]
    ) -> Sequence[OutputWrite]:
        """The outputs that its tasks from `first` to `last` (stage, index) have published, by stage, index and name."""
        place = tuple_(_o.stage, _o["index"])
        query = select(*OUTPUT_COLUMNS).where(
            _o.workflow_id == workflow_id, place >= tuple_(*first), place <= tuple_(*last)
        )
        rows = await self._database.rows(query.order_by(_o.stage, _o["index"], _o.name))
        return [OutputWrite._make(row) for row in rows]

    async def events(
        self,
        after: int = 0,
        *,
        workflow_id: str | None = None,
        run: str | None = None,
        limit: int = MOST_PER_PAGE,
    ) -> Sequence[StoredEvent]:
        """History after an id, of one workflow, of the calls of a run, or of all, in the order of commits."""
        which = {"workflow": workflow_id, "run": run}
        values = {name: value for name, value in which.items() if value is not None}
        rows = await self._database.rows(
            _events(frozenset(values)), {**values, "after": after, "limit": _bounded(limit)}
        )
        return [StoredEvent(row.id, row.workflow_id, row.at_ms, row.kind, decode(row.body)) for row in rows]

    async def last_event(self) -> int:
        """The id of the newest event; 0 if there is none."""
        rows = await self._database.rows(select(func.coalesce(func.max(_e.id), 0)))
        return int(rows[0][0])

    async def commands(self, limit: int = MOST_PER_PAGE) -> Sequence[CommandRow]:
        """The commands of users that the leader has not carried out yet, oldest first."""
        rows = await self._database.rows(_COMMANDS, {"limit": _bounded(limit)})
        return [CommandRow(row.id, row.workflow_id, row.kind, decode(row.body), row.at_ms) for row in rows]

    async def live_load(self) -> tuple[int, int]:
        """Tasks of all workflows that live, and bytes of their documents."""
        total = select(func.sum(_w.tasks), func.sum(_w.spec_bytes)).where(text(f"workflows.{tables.LIVE}"))
        load = [int(each or 0) for each in tuple((await self._database.rows(total))[0])]
        return load[0], load[1]

    async def live_tasks(self, queue: str, owner: str) -> int:
        """Tasks of the workflows of one user in one queue that live."""
        mine = select(func.sum(_w.tasks)).where(
            text(f"workflows.{tables.LIVE}"), _w.queue == queue, _w.owner == owner
        )
        return int((await self._database.rows(mine))[0][0] or 0)

    async def count(self, tenant: str | None = None) -> dict[str, int]:
        """How many workflows are in which state."""
        query: Select[Any] = select(_w.state, func.count()).group_by(_w.state)
        rows = await self._database.rows(query if tenant is None else query.where(_w.tenant == tenant))
        return dict(tuple(row) for row in rows)


#: The fields of `Which` of which an empty text asks for nothing.
_BEGINNINGS: Final = ("ref", "search")


class Shape(NamedTuple):
    """The filters of a list, without the values: lists of one shape have one statement."""

    filters: frozenset[str]  #: fields of `Which`
    labels: tuple[tuple[str, str], ...]


class Which(NamedTuple):
    """Which workflows to list. None asks for nothing."""

    states: tuple[str, ...] = ()
    name: str | None = None
    queue: str | None = None
    run: str | None = None  #: the calls of this run; "": workflows that are no calls
    ref: str | None = None  #: the beginning of an id, or a name
    search: str | None = None  #: the beginning of an id, or any part of a name in either case
    labels: tuple[tuple[str, str], ...] = ()  #: one with an empty value asks only that it be there
    before: int | None = None  #: submitted before the one of this number
    owner: str | None = None
    since_ms: int | None = None  #: submitted from then on
    until_ms: int | None = None  #: and before then
    live: bool | None = None  #: True: those that have not ended; False: those that have

    @property
    def shape(self) -> Shape:
        """Its shape."""
        names = {name for name in self._fields if getattr(self, name) not in (None, ()) and name != "labels"}
        names -= {name for name in _BEGINNINGS if not getattr(self, name)}
        return Shape(frozenset(names - {"live"} | {"ended"} if self.live is False else names), self.labels)

    def values(self, limit: int) -> dict[str, object]:
        """The values of its statement's parameters."""
        names = self.shape.filters - {"live", "ended"}
        return {name: getattr(self, name) for name in names} | {"limit": limit}


def _holds(states: Sequence[RunState], task: TaskState) -> tuple[ColumnElement[bool], ...]:
    """Of a stage: it is in one of these states, and counts tasks in that state."""
    return _s.state.in_([state.value for state in states]), _s.counts.contains(f'"{task.name}"')


def search_of(table: Any, kind: str) -> ColumnElement[bool]:
    """The condition of `search` on the columns of workflows or of runs."""
    return or_(contains(table.name, bindparam("search"), kind), begins(table.id, bindparam("search")))


@lru_cache(maxsize=256)  # made once: making a statement costs more than running it
def listing(kind: str, shape: Shape) -> Select[Any]:
    """The statement of lists of one shape, of `WORKFLOW_COLUMNS`."""
    filters = {
        "states": _w.state.in_(bindparam("states", expanding=True)),
        "name": _w.name == bindparam("name"),
        "queue": _w.queue == bindparam("queue"),
        "run": _w.run == bindparam("run"),
        "ref": or_(_w.name == bindparam("ref"), begins(_w.id, bindparam("ref"))),
        "search": search_of(_w, kind),
        "before": _w.seq < bindparam("before"),
        "owner": _w.owner == bindparam("owner"),
        "since_ms": _w.created_ms >= bindparam("since_ms"),
        "until_ms": _w.created_ms < bindparam("until_ms"),
        "live": text(f"workflows.{tables.LIVE}"),
        "ended": text(f"NOT workflows.{tables.LIVE}"),
    }
    conditions: list[Any] = [filters[name] for name in sorted(shape.filters)]
    conditions += [_has_label(kind, key, value) for key, value in shape.labels]
    query = select(*WORKFLOW_COLUMNS).where(and_(True, *conditions))
    return query.order_by(_w.seq.desc()).limit(PAGE)


@lru_cache
def _events(filters: frozenset[str]) -> Select[Any]:
    """The statement of `Workflows.events`: "workflow" and "run" limit it to their events."""
    query = select(_e.id, _e.workflow_id, _e.at_ms, _e.kind, _e.body).where(_e.id > bindparam("after"))
    if "workflow" in filters:
        query = query.where(_e.workflow_id == bindparam("workflow"))
    if "run" in filters:
        query = query.where(_e.workflow_id.in_(select(_w.id).where(_w.run == bindparam("run"), _w.run != "")))
    return query.order_by(_e.id).limit(PAGE)


def _has_label(kind: str, key: str, value: str) -> ColumnElement[bool]:
    """Whether a workflow carries a label."""
    label = text_in(_w.labels, key, kind)
    found: ColumnElement[bool] = label == value if value else label.is_not(None)
    return found


def _batches(rows: Sequence[WorkflowRow]) -> Iterator[list[str]]:
    """Ids of workflows that have up to `MOST_STAGES` stages together, or of one that has more."""
    batch: list[str] = []
    stages = 0
    for row in rows:
        if batch and stages + row.stages > MOST_STAGES:
            yield batch
            batch, stages = [], 0
        batch.append(row.id)
        stages += row.stages
    if batch:
        yield batch


def workflow_row(row: Sequence[Any]) -> WorkflowRow:
    """Give a row of `WORKFLOW_COLUMNS` its names."""
    labels = {} if row[5] == "{}" else decode(row[5])
    return WorkflowRow._make((*row[:5], labels, *row[6:]))


def stage_row(row: Sequence[Any]) -> StageRow:
    """Give a row of `STAGE_COLUMNS` its names."""
    return StageRow._make((*row[:6], decode(row[6]), decode(row[7]), *row[8:]))


def attempt_row(row: Sequence[Any]) -> AttemptRow:
    """Give a row of `ATTEMPT_COLUMNS` its names."""
    return AttemptRow._make((*row[:13], decode(row[13]), *row[14:]))


def decode(document: str) -> Any:
    """Read JSON that we wrote."""
    try:
        return msgspec.json.decode(document)
    except msgspec.DecodeError:  # lone surrogates, written by the slower encoder
        return json.loads(document)


def _bounded(limit: int) -> int:
    """A page's length within the allowed bounds."""
    return max(1, min(limit, MOST_PER_PAGE))


def _page(rows: list[Any], limit: int, key: Any) -> Page[Any]:
    """Cut the one row too many, which only shows that there is more."""
    if len(rows) <= limit:
        return Page(rows)
    return Page(rows[:limit], token_of(key(rows[limit - 1])))


def token_of(key: tuple[int, ...]) -> str:
    """The key of a page's last row, opaque to clients."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def untoken(token: str, length: int) -> tuple[int, ...]:
    """Read a token.

    Raises:
        InvalidRequest: It is not one of ours.
    """
    try:
        key = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the page token is not one this service gave out") from error
    fits = isinstance(key, list) and len(key) == length and all(type(part) is int for part in key)
    if not fits or any(abs(part) >= 2**63 for part in key):
        raise InvalidRequest("the page token is not one this service gave out")
    return tuple(key)
