"""Intake: submissions that follow each other wait for one another, commands wait for nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from flowsched.control import intake
from flowsched.control.documents import Documents
from flowsched.control.intake import Intake
from flowsched.engine.recovery import make_run
from flowsched.engine.state import EngineState
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec
from tests.house.second_ways import needs

SPEC = decode_workflow(b'{"name": "one", "stages": [{"name": "one", "command": ["true"]}]}')


class Slow:
    """A dispatcher whose last step took long."""

    took_s = 3_600.0

    def __init__(self, started: bool) -> None:
        self.started = started
        self.state = EngineState()
        self.reported: list[Any] = []

    async def rest(self) -> None:
        pass

    def report(self, events: Any) -> None:
        self.reported += events


@asynccontextmanager
async def looking(
    folder: Path, monkeypatch: Any, dispatcher: Slow, accepted: int = 1
) -> AsyncIterator[tuple[Intake, list[str]]]:
    """An intake that has looked once and found so many workflows, and what it looks for."""
    looks: list[str] = []

    class Counting(Workflows):
        async def accepted_after(self, seq: int) -> Any:
            looks.append("submissions")
            return [(f"w{number}", number) for number in range(seq + 1, accepted + 1)]

        async def commands(self, limit: int = 1) -> Any:
            looks.append("commands")
            return await super().commands(limit)

    monkeypatch.setattr(intake, "_LONGEST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(intake, "Workflows", Counting)
    async with await Database.open(str(folder / "intake.db")) as database:
        documents = Documents(Workflows(database))
        for number in range(1, accepted + 1):
            documents.keep(f"w{number}", SPEC, 64)
        made = Intake(
            database, documents, cast("Any", dispatcher), cast("Any", None), last_seq=0, clock=lambda: 0
        )
        running = asyncio.create_task(made.run())
        while len(looks) < 2 or len(dispatcher.reported) < accepted:
            await asyncio.sleep(0.01)
        yield made, looks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@needs("remembered_documents")  # the documents of its fake are nowhere else
@pytest.mark.parametrize("started", [True, False])
async def test_a_stream_of_submissions_is_taken_in_together(
    tmp_path: Path, monkeypatch: Any, started: bool
) -> None:
    """After an expensive step the next look for submissions is put off; a command that somebody waits for is read at once."""
    async with looking(tmp_path, monkeypatch, Slow(started)) as (made, looks):
        for _ in range(20):
            made.wake(urgent=False)
            await asyncio.sleep(0.005)
        assert looks == ["submissions", "commands"]
        made.wake(urgent=True)
        while len(looks) < 4:
            await asyncio.sleep(0.01)
    assert looks == ["submissions", "commands"] * 2


@pytest.mark.parametrize(("started", "seen"), [(True, 2), (False, 1)])
async def test_after_a_step_that_started_nothing_the_pause_is_longer(
    tmp_path: Path, monkeypatch: Any, started: bool, seen: int
) -> None:
    """What is submitted next most likely waits, too."""
    monkeypatch.setattr(intake, "_PAUSE_PER_STEP", 0.0)
    async with looking(tmp_path, monkeypatch, Slow(started)) as (made, looks):
        made.wake(urgent=False)
        await asyncio.sleep(0.5)
    assert looks.count("submissions") == seen


async def test_a_submission_after_a_look_that_found_nothing_is_taken_in_at_once(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """So is the first one after a start, whose steps take long: it waited a quarter of a second."""
    async with looking(tmp_path, monkeypatch, Slow(started=False), accepted=0) as (made, looks):
        made.wake(urgent=False)
        await asyncio.sleep(0.5)
    assert looks.count("submissions") == 2


class Sizes:
    """An executor whose network file system answers late."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.asked: list[list[str]] = []

    async def placed_sizes(self, paths: Sequence[str]) -> dict[str, int]:
        self.asked.append(sorted(paths))
        return {path: self.known[path] for path in paths if path in self.known}


async def test_files_of_unknown_size_are_measured_again_until_their_run_ends(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Also those of runs that a new leader brings back. A run whose sizes are known is not measured again."""
    monkeypatch.setattr(intake, "_AGAIN_S", 0.0)
    dispatcher, executor = Slow(started=False), Sizes()
    async with await Database.open(str(tmp_path / "intake.db")) as database:
        documents = Documents(Workflows(database))
        made = Intake(
            database, documents, cast("Any", dispatcher), cast("Any", executor), last_seq=0, clock=lambda: 0
        )
        runs = [reading(dispatcher.state, f"w{number}") for number in range(3)]
        executor.known = {"/nfs/w0": 5}
        await made.measure(runs)
        assert [run.placed_bytes for run in runs] == [{0: 5}, {}, {}]
        dispatcher.state.work.runs = {run.id: run for run in runs[:2]}
        await made.catch_up()
        assert len(executor.asked) == 1
        for expected in ({}, {0: 7}, {0: 7}):
            made.wake(urgent=False)
            await made.catch_up()
            executor.known = {"/nfs/w1": 7}
            assert runs[1].placed_bytes == expected
    assert executor.asked == [["/nfs/w0", "/nfs/w1", "/nfs/w2"], ["/nfs/w1"], ["/nfs/w1"]]


@needs("remembered_documents")
async def test_a_step_waits_for_the_look_that_is_under_way(tmp_path: Path, monkeypatch: Any) -> None:
    """Else a workflow whose files are being measured comes to the step after it, and a later one takes its place."""
    measured = asyncio.Event()

    class Slower(Sizes):
        async def placed_sizes(self, paths: Sequence[str]) -> dict[str, int]:
            await measured.wait()
            return await super().placed_sizes(paths)

    class Accepting(Workflows):
        async def accepted_after(self, seq: int) -> Any:
            return [("w1", 1)] if seq < 1 else []

    monkeypatch.setattr(intake, "Workflows", Accepting)
    dispatcher, executor = Slow(started=False), Slower()
    async with await Database.open(str(tmp_path / "intake.db")) as database:
        documents = Documents(Workflows(database))
        documents.keep("w1", reading_spec("w1"), 64)
        made = Intake(
            database, documents, cast("Any", dispatcher), cast("Any", executor), last_seq=0, clock=lambda: 0
        )
        made.wake(urgent=False)
        looks = [asyncio.create_task(made.catch_up()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(look.done() for look in looks)
        measured.set()
        await asyncio.gather(*looks)
    assert [event.run.id for event in dispatcher.reported] == ["w1"]


def reading(state: EngineState, ident: str) -> WorkflowRun:
    """A run that reads one file where it lies."""
    return make_run(state, ident, reading_spec(ident), 1)


def reading_spec(ident: str) -> WorkflowSpec:
    stage = {
        "name": "a",
        "steps": [{"command": ["x"]}],
        "files": {"inputs": [{"path": "/i", "uri": f"/nfs/{ident}"}]},
    }
    return decode_workflow(json.dumps({"name": ident, "stages": [stage]}).encode())
