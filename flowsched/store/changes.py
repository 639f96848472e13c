"""Writes of the leader: the deltas of engine steps. Each row is fenced by its epoch and its version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import text

from flowsched.engine.delta import (
    BindingWrite,
    CacheKeyWrite,
    Delta,
    EventRow,
    StageWrite,
    TaskWrite,
    WorkflowWrite,
)
from flowsched.errors import CancelRequested, FlowschedError, LeadershipLost, StaleWrite
from flowsched.store import tables
from flowsched.store.bulk import Bulk, delete, encode, insert, select_among, tidy, update, upsert
from flowsched.store.requests import allocate_numbers
from flowsched.store.statements import Statements

#: The lease a leader must hold (see `lease`).
LEADER: Final = "leader"
_FENCE: Final = text("UPDATE lease SET epoch = epoch WHERE name = :name AND epoch = :epoch")
_VERSION: Final = text(
    'SELECT version FROM tasks WHERE workflow_id = :workflow AND stage = :stage AND "index" = :index'
)
#: Rows of a StaleWrite that are named.
_NAMED: Final = 20

TASK_COLUMNS: Final = tuple(column.name for column in tables.tasks.columns)
_TASK_STATE: Final = TASK_COLUMNS[3:]
_TASK_KEY: Final = {"workflow_id": "workflow_id", "stage": "stage", "index": "index"}
_ATTEMPT: Final = (
    "workflow_id",
    "stage",
    "index",
    "attempt",
    "name",
    "node",
    "epoch",
    "at_ms",
    "pod",
    "choice",
)

_STAGE_STATE: Final = ("state", "counts", "started_ms", "ended_ms", "reason", "totals")
_WORKFLOW_STATE: Final = ("state", "reason", "started_ms", "ended_ms")


class Step(NamedTuple):
    """A delta and the epoch of the leader that decided it."""

    delta: Delta
    epoch: int


class Changes:
    """The statements for deltas, for one kind of database."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._new_tasks = insert(kind, tables.tasks, TASK_COLUMNS, "ON CONFLICT DO NOTHING")
        self._tasks = update(
            kind, tables.tasks, dict.fromkeys(_TASK_STATE, "{new}"), {**_TASK_KEY, "expected": "version"}
        )
        self._intents = insert(kind, tables.attempts, _ATTEMPT, "ON CONFLICT DO NOTHING")
        self._gang_orders = upsert(
            kind, tables.gang_orders, ("workflow_id", "stage", "shard", "key"), ("pod",)
        )
        self._ends = update(
            kind,
            tables.attempts,
            {"ended_ms": "{new}", "started_ms": "COALESCE({new}, {old})"}
            | dict.fromkeys(("exit_code", "reason", "message", "usage", "report"), "{new}"),
            {"name": "name"},
            "{old}ended_ms IS NULL",
        )
        keys = {"workflow_id": "workflow_id", "stage": "stage"}
        self._stages = update(kind, tables.stages, dict.fromkeys(_STAGE_STATE, "{new}"), keys)
        self._workflows = update(
            kind, tables.workflows, dict.fromkeys(_WORKFLOW_STATE, "{new}"), {"id": "id"}
        )
        self._other_run_ends = update(
            kind, tables.runs, {"reason": "CASE WHEN runs.state = {new} THEN {old} ELSE '' END"}, {"id": "id"}
        )
        self._run_ends = update(
            kind,
            tables.runs,
            {"state": "{new}", "reason": "CASE WHEN {old} = '' THEN {new} ELSE {old} END"},
            {"id": "id"},
        )
        self._outputs = upsert(
            kind,
            tables.outputs,
            ("workflow_id", "stage", "index", "name"),
            ("uri", "size_bytes", "value", "attempt"),
            "outputs.attempt <= excluded.attempt",
        )
        self._replicas = upsert(kind, tables.replicas, ("uri", "node"), ("size_bytes",))
        self._cache_keys = upsert(
            kind, tables.cache_keys, ("workflow_id", "stage", "shard"), CacheKeyWrite._fields[3:]
        )
        self._no_replicas = delete(kind, tables.replicas, ("uri", "node"))
        self._bindings = upsert(kind, tables.bindings, ("uid",), BindingWrite._fields[1:])
        self._no_bindings = delete(kind, tables.bindings, ("uid",))
        self._usage = upsert(
            kind,
            tables.queue_usage,
            ("queue", "who"),
            ("at_ms", "served_ms", "past"),
            "queue_usage.at_ms <= excluded.at_ms",
        )
        self._done = update(kind, tables.commands, {"done": "{new}"}, {"id": "id"})
        self._events = insert(kind, tables.events, ("id", "workflow_id", "at_ms", "kind", "body"))

    def refusals(self, connection: Statements, deltas: Sequence[Step]) -> list[FlowschedError | None]:
        """Which deltas must not be written at all: their leader is deposed, or they launch what was
        cancelled.

        The lease's row stays locked until the commit: no other process can begin to lead in between. So do, on
        PostgreSQL, the rows of workflows with launches: a cancel that comes now waits for this commit, and
        finds the launches.
        """
        leads = {
            epoch: (connection.execute(_FENCE, {"name": LEADER, "epoch": epoch})).rowcount == 1
            for epoch in sorted({epoch for _, epoch in deltas})
        }
        launching = {i.workflow for delta, epoch in deltas if leads[epoch] for i in delta.intents}
        found = select_among(
            connection,
            self._kind,
            "SELECT id, cancel_requested FROM workflows WHERE",
            "id",
            sorted(launching),
            after="ORDER BY id FOR NO KEY UPDATE",
        )
        cancelled = self._cancelled(connection, [row.id for row in found if row.cancel_requested])
        return [
            LeadershipLost(f"epoch {epoch} is over: another process leads")
            if not leads[epoch]
            else _refused(delta, cancelled)
            for delta, epoch in deltas
        ]

    def _cancelled(self, connection: Statements, workflows: Sequence[str]) -> dict[str, str]:
        """The words of the commands that cancelled these workflows, which the leader may not have read yet; "" = there are none."""
        rows = select_among(
            connection,
            self._kind,
            "SELECT workflow_id, body FROM commands WHERE kind = 'cancel' AND NOT done AND",
            "workflow_id",
            workflows,
            after="ORDER BY id DESC",
        )
        reasons = {row.workflow_id: str(json.loads(row.body).get("reason") or "") for row in rows}
        return {workflow: reasons.get(workflow, "") for workflow in workflows}

    def write(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """Write everything but the events.

        Raises:
            StaleWrite: A row is not as its writer thought: the whole transaction must be rolled back.
        """
        self._write_tasks(connection, _last_of_each(write for delta in deltas for write in delta.tasks))
        intents = [
            (i.workflow, i.stage, i.index, i.attempt, i.name, i.node, i.epoch, i.at_ms, i.pod, i.choice)
            for delta in deltas
            for i in delta.intents
        ]
        if self._intents.run(connection, intents) != len(intents):
            raise StaleWrite("an attempt of this name exists already", [row[4] for row in intents[:_NAMED]])
        shared = {row[:4]: row for delta in deltas for row in delta.gang_orders}
        self._gang_orders.run(connection, list(shared.values()))
        self._write_ends(connection, deltas)
        self._write_states(connection, deltas)
        self._write_data(connection, deltas)
        self._write_bindings(connection, deltas)
        self._write_usage(connection, deltas)
        done = sorted({number for delta in deltas for number in delta.commands_done})
        self._done.run(connection, [(True, number) for number in done])

    def _write_bindings(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """Of several words about one pod, the last."""
        last: dict[str, BindingWrite | None] = {}
        for delta in deltas:
            last.update(dict.fromkeys(delta.bindings_done))
            last.update({binding.uid: binding for binding in delta.bindings})
        self._bindings.run(connection, [binding for binding in last.values() if binding is not None])
        self._no_bindings.run(connection, [(uid,) for uid, binding in last.items() if binding is None])

    def _write_usage(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """Write the usage of accounts. Of several rows of one account the last counts."""
        rows = {(row.queue, row.user): row for delta in deltas for row in delta.usage}
        values = [
            (*key, row.at_ms, row.served_ms, encode({name: str(amount) for name, amount in row.past.items()}))
            for key, row in sorted(rows.items())
        ]
        self._usage.run(connection, tidy(values, 1))

    def write_events(
        self, connection: Statements, events: Sequence[EventRow]
    ) -> list[tuple[int, str, int, str, str]]:
        """Number and write events, last in a transaction since their counter is locked from here on; the rows."""
        if not events:
            return []
        first = allocate_numbers(connection, "event", len(events))
        rows = [
            (first + place, e.workflow, e.at_ms, e.kind, encode(e.body)) for place, e in enumerate(events)
        ]
        self._events.run(connection, rows)
        return rows

    def _write_tasks(
        self, connection: Statements, writes: Mapping[tuple[str, int, int], tuple[int, TaskWrite]]
    ) -> None:
        """Insert tasks that are touched for the first time, update the others, each from the version it must
        have.
        """
        new = [write for expected, write in writes.values() if expected == 0]
        old = [(*w[3:], w[0], w[1], w[2], expected) for expected, w in writes.values() if expected]
        for statement, rows in (
            (self._new_tasks, tidy(new, TASK_COLUMNS.index("reason"))),
            (self._tasks, tidy(old, _TASK_STATE.index("reason"))),
        ):
            if statement.run(connection, rows) != len(rows):
                keys = _stale(connection, {key: expected for key, (expected, _) in writes.items()})
                raise StaleWrite("tasks have another version in the database", keys)

    def _write_ends(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """End attempts. The first end counts: a later one for the same attempt changes nothing.

        Raises:
            StaleWrite: There is no such attempt.
        """
        ends = [
            (
                e.at_ms,
                e.started_ms,
                e.exit_code,
                e.reason,
                e.message,
                encode(e.usage),
                e.report.decode(),
                e.name,
            )
            for delta in deltas
            for e in delta.ends
        ]
        if self._ends.run(connection, tidy(ends, 3, 4, 6)) == len(ends):
            return
        names = {row[-1] for row in ends}
        found = select_among(connection, self._kind, "SELECT name FROM attempts WHERE", "name", names)
        if missing := names - {row.name for row in found}:
            raise StaleWrite("there are no such attempts", sorted(missing)[:_NAMED])

    def _write_states(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """The last state of each stage and workflow, in order of their ids (so that two transactions never
        cross).
        """
        stages: dict[tuple[str, int], StageWrite] = {}
        workflows: dict[str, WorkflowWrite] = {}
        for delta in deltas:
            stages.update({(write.workflow, write.stage): write for write in delta.stages})
            workflows.update({write.workflow: write for write in delta.workflows})
        rows: list[tuple[Any, ...]] = [
            (w.state, encode(w.counts), w.started_ms, w.ended_ms, w.reason, encode(w.totals), *key)
            for key, w in sorted(stages.items())
        ]
        _all(self._stages, connection, tidy(rows, 4), stages)
        rows = [
            (w.state, w.reason, w.started_ms, w.ended_ms, w.workflow) for _, w in sorted(workflows.items())
        ]
        _all(self._workflows, connection, tidy(rows, 1), workflows)
        ends = {end.run: end for delta in deltas for end in delta.run_ends}.values()
        self._other_run_ends.run(connection, tidy([(end.state, end.run) for end in ends], 1))
        self._run_ends.run(connection, tidy([(end.state, end.reason, end.run) for end in ends], 1, 2))

    def _write_data(self, connection: Statements, deltas: Sequence[Delta]) -> None:
        """Outputs and replicas: of several about the same thing, the last."""
        outputs = {
            (o.workflow, o.stage, o.index, o.name): (o.uri, o.size_bytes, o.value, o.attempt)
            for delta in deltas
            for o in delta.outputs
        }
        self._outputs.run(connection, tidy([(*key, *o) for key, o in outputs.items()], 6))
        replicas = {(r.uri, r.node): r for delta in deltas for r in delta.replicas}
        there = [(*key, r.size_bytes) for key, r in replicas.items() if r.present]
        self._replicas.run(connection, there)
        self._no_replicas.run(connection, [key for key, r in replicas.items() if not r.present])
        keys = {(k.workflow, k.stage, k.shard): k for delta in deltas for k in delta.cache_keys}
        self._cache_keys.run(connection, tidy(list(keys.values()), 5, 7))


def _refused(delta: Delta, cancelled: Mapping[str, str]) -> CancelRequested | None:
    """Why a delta must not be written, if it launches for cancelled workflows."""
    named = sorted({intent.workflow for intent in delta.intents} & cancelled.keys()) if cancelled else []
    return CancelRequested({workflow: cancelled[workflow] for workflow in named}) if named else None


def _last_of_each(writes: Iterable[TaskWrite]) -> dict[tuple[str, int, int], tuple[int, TaskWrite]]:
    """The last write of each task, with the version the row must have now.

    Raises:
        StaleWrite: Two writes of one task do not follow one another.
    """
    last: dict[tuple[str, int, int], tuple[int, TaskWrite]] = {}
    for write in writes:
        key = write[:3]
        earlier = last.get(key)
        if earlier is None:
            last[key] = (write.version - 1, write)
        elif write.version == earlier[1].version + 1:
            last[key] = (earlier[0], write)
        else:
            raise StaleWrite(f"version {write.version} does not follow {earlier[1].version}", [key])
    return last


def _all(
    statement: Bulk, connection: Statements, rows: Sequence[tuple[Any, ...]], keys: Iterable[object]
) -> None:
    """Run an update that must find every row."""
    if statement.run(connection, rows) != len(rows):
        raise StaleWrite("there is no such row any more", sorted(keys, key=str)[:_NAMED])


def _stale(
    connection: Statements, expected: Mapping[tuple[str, int, int], int]
) -> list[tuple[str, int, int]]:
    """Some of the tasks that do not have the expected version. Rolls back first, so as not to see our own
    writes.
    """
    connection.rollback()
    stale: list[tuple[str, int, int]] = []
    for name, version in expected.items():
        values = dict(zip(("workflow", "stage", "index"), name, strict=True))
        found = list(connection.execute(_VERSION, values))
        if (found[0].version if found else 0) != version:
            stale.append(name)
        if len(stale) == _NAMED:
            break
    return stale
