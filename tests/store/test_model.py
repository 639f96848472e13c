"""The writer against a model of a few dictionaries: whatever is done, SQL holds exactly what was
acknowledged.

Requests come one by one and in groups, some of them bad; commits fail before, or after they took place;
leaders are deposed; the database is closed and opened again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_samples import (
    Failpoints,
    connection_lost,
    end,
    event,
    intent,
    rows,
    serialization_failure,
    submission,
    task,
)

from flowsched.engine.delta import Delta
from flowsched.errors import CancelRequested, Conflict, LeadershipLost, NotFound, StaleWrite
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease
from flowsched.store.requests import Submitted
from flowsched.store.writer import GroupWriter
from tests.soak import worlds

pytestmark = pytest.mark.soak

NAMES = st.sampled_from(["a", "b", "c", "d"])
BODIES = st.sampled_from(["h1", "h2"])
INDICES = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
ERRORS = st.sampled_from([connection_lost, serialization_failure, TimeoutError])


@pytest.fixture(scope="module", autouse=True)
def template() -> Any:
    """An empty database with its schema, copied for each run: migrating takes longer than a run."""
    with tempfile.TemporaryDirectory() as folder:
        Writers.template = Path(folder) / "empty.db"

        async def make() -> None:
            await (await Database.open(url_for(Writers.template))).close()

        asyncio.run(make())
        yield


class Writers(RuleBasedStateMachine):
    """One process with one writer at a time, on SQLite."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="flowsched-model-"))
        shutil.copy(self.template, self.folder / "store.db")
        # The model.
        self.keys: dict[str, str] = {}  # key = workflow id -> body hash
        self.cancelled: set[str] = set()
        self.versions: dict[tuple[str, int], int] = {}
        self.attempts: dict[str, int | None] = {}  # name -> exit code
        self.events = 0
        self.commands = 0
        self.epoch = 0

    def run(self, work: Awaitable[Any]) -> Any:
        async def within() -> Any:
            return await asyncio.wait_for(work, 20)

        return self.loop.run_until_complete(within())

    @initialize()
    def open(self) -> None:
        async def start() -> None:
            self.database = await Database.open(url_for(self.folder / "store.db"))
            self.failpoints = Failpoints()

            async def at_once(_pause: float) -> None:
                await asyncio.sleep(0)

            self.writer = GroupWriter(self.database, failpoint=self.failpoints, sleep=at_once)
            await self.writer.__aenter__()

        self.run(start())
        self.lead()

    def close(self) -> None:
        async def stop() -> None:
            await self.writer.close()
            await self.database.close()

        self.run(stop())

    @rule()
    def restart(self) -> None:
        self.failpoints.planned.clear()
        self.close()
        self.open()

    @rule()
    def lead(self) -> None:
        """A take-over: the epoch grows by one."""
        self.epoch += 1
        holder = f"leader-{self.epoch}"

        async def take() -> int | None:
            if self.epoch > 1:
                await Lease(self.database).release(self.epoch - 1)
            return await Lease(self.database).acquire(holder, 10_000, 0)

        assert self.run(take()) == self.epoch

    @rule(place=st.sampled_from(["writer.before_commit", "writer.after_commit"]), error=ERRORS)
    def fail_next(self, place: str, error: Any) -> None:
        self.failpoints.plan(place, error())

    def model_submit(self, name: str, body: str) -> type[Exception] | bool:
        """What must come of a submission: created, found again, or refused."""
        if name not in self.keys:
            self.keys[name] = body
            self.events += 1
            return True
        return False if self.keys[name] == body else Conflict

    @rule(name=NAMES, body=BODIES)
    def submit(self, name: str, body: str) -> None:
        expected = self.model_submit(name, body)
        self.check(self.run(self.settled(self.writer.submit(submission(name, name, body)))), expected, name)

    def check(self, outcome: Any, expected: type[Exception] | bool, name: str) -> None:
        if isinstance(expected, bool):
            assert isinstance(outcome, Submitted), outcome
            assert (outcome.workflow_id, outcome.created) == (name, expected)
        else:
            assert isinstance(outcome, expected), outcome

    async def settled(self, work: Awaitable[Any]) -> Any:
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        return outcome

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        outcome = self.run(self.settled(self.writer.command(name, "cancel", {}, 5)))
        if name not in self.keys:
            assert isinstance(outcome, NotFound)
            return
        self.commands += 1
        self.cancelled.add(name)
        assert outcome == self.commands

    def good_delta(self, name: str, indices: list[int]) -> Delta:
        """The next version of some tasks, each with an event."""
        made = [task(name, i, self.versions.get((name, i), 0) + 1) for i in indices]
        return Delta(tasks=made, events=[event(name) for _ in indices])

    def model_delta(self, name: str, indices: list[int]) -> int:
        """Take it over into the model; the first event's id."""
        for index in indices:
            self.versions[name, index] = self.versions.get((name, index), 0) + 1
        self.events += len(indices)
        return self.events - len(indices) + 1

    @rule(name=NAMES, indices=INDICES)
    def step(self, name: str, indices: list[int]) -> None:
        outcome = self.run(self.writer.commit(self.good_delta(name, indices), self.epoch))
        assert outcome == self.model_delta(name, indices)

    @rule(name=NAMES, indices=INDICES, off=st.sampled_from([-1, 1, 2]))
    def stale_step(self, name: str, indices: list[int], off: int) -> None:
        delta = self.good_delta(name, indices)
        delta.tasks[-1] = delta.tasks[-1]._replace(version=max(0, delta.tasks[-1].version + off))
        assert isinstance(self.run(self.settled(self.writer.commit(delta, self.epoch))), StaleWrite)

    @precondition(lambda self: self.epoch > 1)
    @rule(name=NAMES, indices=INDICES)
    def deposed_step(self, name: str, indices: list[int]) -> None:
        work = self.writer.commit(self.good_delta(name, indices), self.epoch - 1)
        assert isinstance(self.run(self.settled(work)), LeadershipLost)

    @rule(name=NAMES, number=st.integers(0, 3))
    def launch(self, name: str, number: int) -> None:
        pod = f"fs-{name}-{number}"
        work = self.writer.commit(Delta(intents=[intent(pod, name)], events=[event(name)]), self.epoch)
        outcome = self.run(self.settled(work))
        if name in self.cancelled:
            assert isinstance(outcome, CancelRequested), outcome
            assert outcome.reasons == {name: ""}
        elif pod in self.attempts:
            assert isinstance(outcome, StaleWrite)
        else:
            self.attempts[pod] = None
            self.events += 1
            assert outcome == self.events

    @rule(name=NAMES, number=st.integers(0, 3), exit_code=st.integers(0, 2))
    def finish(self, name: str, number: int, exit_code: int) -> None:
        pod = f"fs-{name}-{number}"
        outcome = self.run(self.settled(self.writer.commit(Delta(ends=[end(pod, exit_code)]), self.epoch)))
        if pod not in self.attempts:
            assert isinstance(outcome, StaleWrite)
        elif self.attempts[pod] is None:
            self.attempts[pod] = exit_code

    @rule(submissions=st.lists(st.tuples(NAMES, BODIES), max_size=5), name=NAMES, indices=INDICES)
    def group(self, submissions: list[tuple[str, str]], name: str, indices: list[int]) -> None:
        """Much at once: good submissions and copies, a stale step and a good one. The bad ones fail alone."""
        expected = [(self.model_submit(other, body), other) for other, body in submissions]
        good = self.good_delta(name, indices)
        stale = Delta(tasks=[task("z", 0, 99)], events=[event("z")])

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(
                *(self.writer.submit(submission(other, other, body)) for other, body in submissions),
                self.writer.commit(stale, self.epoch),
                self.writer.commit(good, self.epoch),
                return_exceptions=True,
            )

        *answers, refused, written = self.run(all_at_once())
        for answer, (wanted, other) in zip(answers, expected, strict=True):
            self.check(answer, wanted, other)
        assert isinstance(refused, StaleWrite)
        self.model_delta(name, indices)
        assert isinstance(written, int)

    @invariant()
    def sql_is_the_model(self) -> None:
        if not hasattr(self, "writer"):
            return

        async def look() -> list[Any]:
            queries = (
                "SELECT id, cancel_requested, seq FROM workflows ORDER BY seq",
                'SELECT workflow_id, "index", version FROM tasks',
                "SELECT name, exit_code FROM attempts",
                "SELECT count(*), coalesce(max(id), 0) FROM events",
                "SELECT count(*), coalesce(max(id), 0) FROM commands",
            )
            return [await rows(self.database, query) for query in queries]

        workflows, tasks, attempts, events, commands = self.run(look())
        assert [(name, bool(flag)) for name, flag, _ in workflows] == [
            (name, name in self.cancelled) for name in self.keys
        ] or {name for name, _, _ in workflows} == set(self.keys)
        assert [seq for _, _, seq in workflows] == list(range(1, len(self.keys) + 1))
        assert {name for name, flag, _ in workflows if flag} == self.cancelled
        assert {(name, index): version for name, index, version in tasks} == self.versions
        assert dict(attempts) == self.attempts
        assert events == [(self.events, self.events)]
        assert commands == [(self.commands, self.commands)]

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.failpoints.planned.clear()
            self.close()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=worlds(few=15, many=120), stateful_step_count=25, deadline=None)
