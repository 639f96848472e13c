"""Small values for the store's tests."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from flowsched.engine.delta import AttemptEnd, Delta, EventRow, Intent, StageWrite, TaskWrite, WorkflowWrite
from flowsched.store.database import Database
from flowsched.store.requests import Submission


def submission(
    workflow_id: str = "w", key: str | None = None, body_hash: str = "h", **other: Any
) -> Submission:
    values: dict[str, Any] = {
        "id": workflow_id,
        "name": f"name of {workflow_id}",
        "queue": "default",
        "priority": 0,
        "labels": {},
        "spec": b'{"name": "sample"}',
        "stages": [("align", 3, 1), ("train", 1, 2)],
        "now_ms": 1_000,
        "idempotency_key": key,
        "body_hash": body_hash,
    }
    return Submission(**(values | other))


def task(workflow: str = "w", index: int = 0, version: int = 1, state: int = 1, **other: Any) -> TaskWrite:
    values = TaskWrite(
        workflow, 0, index, state, 1, None, 0, version, "", None, 10, None, None, None, None, None, 0, 0
    )
    return values._replace(**other)


def intent(name: str, workflow: str = "w", index: int = 0, epoch: int = 1) -> Intent:
    return Intent(workflow, 0, index, 1, name, "node-1", epoch, 20, b'{"pod": "%s"}' % name.encode())


def end(name: str, exit_code: int = 0, message: str = "", at_ms: int = 50) -> AttemptEnd:
    return AttemptEnd(name, at_ms, 30, exit_code, "", message, {"cpu_ms": 7})


def event(workflow: str = "w", kind: str = "task.running") -> EventRow:
    return EventRow(workflow, 40, kind, {"index": 0})


def finished(workflow: str, at_ms: int = 90) -> Delta:
    return Delta(
        stages=[
            StageWrite(workflow, 0, "SUCCEEDED", {"SUCCEEDED": 3}, 10, at_ms, "", {"running_ms": 5}),
            StageWrite(workflow, 1, "SUCCEEDED", {"SUCCEEDED": 2}, 10, at_ms, "", {}),
        ],
        workflows=[WorkflowWrite(workflow, "SUCCEEDED", "", 10, at_ms)],
        events=[EventRow(workflow, at_ms, "workflow.succeeded", {})],
    )


async def rows(database: Database, query: str) -> Sequence[tuple[Any, ...]]:
    """Look past the code under test."""
    return [tuple(row) for row in await database.rows(text(query))]


class SqlState(Exception):
    """A driver's error with PostgreSQL's code."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def serialization_failure() -> OperationalError:
    return OperationalError("COMMIT", {}, SqlState("40001"))


def connection_lost() -> OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = 10
    return OperationalError("COMMIT", {}, error)


class Failpoints:
    """Raises what it has been told to, at the named place, as often as told."""

    def __init__(self) -> None:
        self.planned: dict[str, list[BaseException]] = {}
        self.passed: dict[str, int] = {}
        self.gate: asyncio.Event | None = None
        self.at_gate = asyncio.Event()  #: somebody stands before a COMMIT until the gate opens
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def plan(self, place: str, *errors: BaseException) -> None:
        self.planned.setdefault(place, []).extend(errors)

    async def __call__(self, place: str) -> None:
        self.passed[place] = self.passed.get(place, 0) + 1
        if self.gate is not None and place == "writer.before_commit":
            await self._wait(self.gate)
        if waiting := self.planned.get(place):
            raise waiting.pop(0)

    async def _wait(self, gate: asyncio.Event) -> None:
        """Until the gate opens: in the event loop, or in SQLite's thread, which holds up nothing else."""
        self._loop.call_soon_threadsafe(self.at_gate.set)
        if threading.get_ident() == self._thread:
            await gate.wait()
        while not gate.is_set():
            time.sleep(0.002)  # noqa: ASYNC251 - in a thread of its own
