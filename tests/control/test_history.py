"""The event stream: what this process committed lately from memory, the rest from SQL; only its own workflow wakes a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowsched.control.history import History
from flowsched.store.rows import StoredEvent


class Rows:
    """The database, as far as the history asks it; `asked` counts."""

    def __init__(self) -> None:
        self.stored: list[StoredEvent] = []
        self.ended: set[str] = set()
        self.asked = 0
        self.read = 0  #: times that it was asked for events

    async def events(
        self, after: int = 0, *, workflow_id: str | None = None, run: str | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        self.asked += 1
        self.read += 1
        found = [each for each in self.stored if each.id > after and workflow_id in (None, each.workflow)]
        return found[:limit]

    async def last_event(self) -> int:
        self.asked += 1
        return self.stored[-1].id if self.stored else 0

    async def get(self, workflow: str) -> Any:
        self.asked += 1
        return SimpleNamespace(state="SUCCEEDED" if workflow in self.ended else "RUNNING")


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def history(rows: Rows) -> History:
    return History(rows, poll_s=0.05)  # type: ignore[arg-type]


def happen(rows: Rows, history: History | None, *events: tuple[str, str]) -> None:
    """Events (workflow, kind) are committed, by this process if it has a history."""
    number = len(rows.stored)
    made = [StoredEvent(number + 1 + at, name, 0, kind, {}) for at, (name, kind) in enumerate(events)]
    rows.stored += made
    if history is not None:
        history.committed(made, ())


async def read(history: History, workflow: str | None, found: list[int]) -> None:
    async for batch in history.follow(workflow, 0):
        found += [event.id for event in batch]


async def test_a_follower_reads_from_memory_and_is_not_woken_by_others(rows: Rows, history: History) -> None:
    """A thousand commits of other workflows cost it no query, and its own are read without one."""
    slow = History(rows, poll_s=60)  # type: ignore[arg-type]
    found: list[int] = []
    happen(rows, slow, ("a", "workflow.submitted"))
    reader = asyncio.create_task(read(slow, "a", found))
    await asyncio.sleep(0.01)
    asked = rows.asked
    for _ in range(1000):
        happen(rows, slow, ("b", "task.running"))
        await asyncio.sleep(0)
    happen(rows, slow, ("a", "task.running"))
    await asyncio.sleep(0.01)
    assert (found, rows.asked) == ([1, 1002], asked)
    rows.ended.add("a")
    happen(rows, slow, ("a", "workflow.succeeded"))
    await asyncio.wait_for(reader, 5)
    assert found == [1, 1002, 1003]


async def test_only_the_end_wakes_a_caller_that_waits_for_it(rows: Rows) -> None:
    """A thousand commits of its workflow cost it no query."""
    history = History(rows, poll_s=60)  # type: ignore[arg-type]
    waiter = asyncio.create_task(history.ended("a"))
    await asyncio.sleep(0.01)
    for _ in range(1000):
        happen(rows, history, ("a", "task.running"), ("b", "workflow.failed"))
        await asyncio.sleep(0)
    assert (rows.asked, waiter.done()) == (1, False)
    rows.ended.add("a")
    happen(rows, history, ("a", "workflow.succeeded"))
    await asyncio.wait_for(waiter, 5)
    assert rows.asked == 2


async def test_an_end_that_another_process_commits_is_found(rows: Rows, history: History) -> None:
    """Its events are not in memory; their numbers tell that something was committed."""
    waiter = asyncio.create_task(history.ended("a"))
    await asyncio.sleep(0.01)
    happen(rows, None, ("a", "task.running"))
    await asyncio.sleep(0.2)
    rows.ended.add("a")
    happen(rows, None, ("a", "workflow.succeeded"))
    await asyncio.wait_for(waiter, 5)


async def test_a_follower_of_a_workflow_that_began_lately_asks_the_database_nothing(rows: Rows) -> None:
    """All its events are in memory, whatever number it asks from; the end is looked up in the database."""
    history = History(rows, poll_s=60)  # type: ignore[arg-type]
    happen(rows, None, *[("old", "task.running")] * 3)
    happen(rows, history, ("b", "task.running"), ("a", "workflow.submitted"), ("b", "task.running"))
    found: list[int] = []
    reader = asyncio.create_task(read(history, "a", found))
    await asyncio.sleep(0.01)
    assert (found, rows.asked, history.lives("a")) == ([5], 0, True)
    rows.ended.add("a")
    happen(rows, history, ("a", "workflow.failed"))
    await asyncio.wait_for(reader, 5)
    assert (found, history.lives("a")) == ([5, 7], False)


async def test_a_workflow_that_began_before_the_oldest_event_in_memory_is_read_from_the_database(
    rows: Rows, history: History
) -> None:
    """Memory keeps the last 4,096 events: with the first event of a workflow goes the claim that all of them are there."""
    happen(rows, history, ("a", "workflow.submitted"), ("a", "task.running"))
    happen(rows, history, *[("b", "task.running")] * 4_095)
    assert not history.lives("a")
    rows.ended.add("a")
    found: list[int] = []
    await asyncio.wait_for(read(history, "a", found), 5)
    assert found == [1, 2]


async def test_a_follower_reads_the_database_again_only_after_commits_of_other_processes(
    rows: Rows, history: History
) -> None:
    """It looks for the newest number of all; where memory goes that far, nothing is to be read."""
    found: list[int] = []
    happen(rows, history, ("a", "workflow.submitted"))
    reader = asyncio.create_task(read(history, "a", found))
    await asyncio.sleep(0.01)
    happen(rows, history, ("b", "workflow.submitted"))
    await asyncio.sleep(0.2)
    assert (rows.read, rows.asked > 1) == (0, True)
    happen(rows, None, ("a", "task.running"))
    async with asyncio.timeout(5):
        while found != [1, 3]:
            await asyncio.sleep(0.01)
    reader.cancel()


async def test_a_look_at_what_has_happened_tells_what_other_processes_committed_last(
    rows: Rows, history: History
) -> None:
    """Without `follow` the database answers: memory does not show whether another process has committed since."""
    happen(rows, history, ("a", "workflow.submitted"))
    happen(rows, None, ("a", "task.running"))
    told = [event.id async for batch in history.follow("a", 0, follow=False) for event in batch]
    assert told == [1, 2]


async def test_what_other_processes_commit_is_found(rows: Rows, history: History) -> None:
    """Before and between events of this process, without a repeat and without a gap."""
    found: list[int] = []
    happen(rows, history, ("a", "workflow.submitted"))
    reader = asyncio.create_task(read(history, None, found))
    await asyncio.sleep(0.01)
    happen(rows, None, ("b", "workflow.submitted"))
    async with asyncio.timeout(5):
        while found != [1, 2]:
            await asyncio.sleep(0.01)
        happen(rows, None, ("b", "task.running"))
        happen(rows, history, ("a", "task.running"))
        while found != [1, 2, 3, 4]:
            await asyncio.sleep(0.01)
    reader.cancel()


async def test_a_caller_hears_when_its_command_is_carried_out(history: History) -> None:
    """Before it asks, while it waits, or not in time."""
    history.committed([], [7])
    assert await history.carried_out(7, 0.01)
    assert not await history.carried_out(8, 0.01)
    waiting = asyncio.create_task(history.carried_out(9, 5))
    await asyncio.sleep(0.01)
    history.committed([], [9])
    assert await asyncio.wait_for(waiting, 1)
