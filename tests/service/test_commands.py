"""What a command's answer shows, and whom it wakes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowsched.control import service as commands
from flowsched.errors import Conflict, NotFound
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process

DOCUMENT = b'{"name": "w", "stages": [{"name": "a", "command": ["x"]}]}'


async def until(made: Process, ident: str, state: str) -> None:
    while (await made.service.workflow(ident)).state != state:
        await asyncio.sleep(0.01)


async def test_a_retry_is_seen_by_whoever_looks_after_it(tmp_path: Path) -> None:
    """`flowsched retry ID; flowsched watch ID` must not end at once with the old failure."""
    codes = [1]
    world = FakeProcesses(lambda _: Outcome(codes.pop() if codes else 0, runtime_ms=300))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(DOCUMENT)).id
        await until(one, ident, "FAILED")
        assert (await one.service.command(ident, "retry")).state in (
            "QUEUED",
            "STARTING",
            "RUNNING",
            "SUCCEEDED",
        )
        await until(one, ident, "SUCCEEDED")


async def test_pause_resume_and_cancel_are_seen_too(tmp_path: Path) -> None:
    """Carried out, not only noted. What has not ended is not tried again: it is cancelled first."""

    def forever(_: Pod) -> Outcome:
        return Outcome(runtime_ms=60_000, ignores_term=True)

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(forever)) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(DOCUMENT)).id
        await until(one, ident, "RUNNING")
        for answer in (f"{ident} has not ended: `flowsched cancel {ident}` ends it", "runs it anew"):
            with pytest.raises(Conflict, match=answer):
                await one.service.command(ident, "retry")
        assert (await one.service.command(ident, "pause")).state == "PAUSED"
        assert (await one.service.command(ident, "resume")).state == "RUNNING"
        assert (await one.service.command(ident, "cancel")).state == "CANCELLING"


async def test_without_a_leader_a_command_is_noted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may lead: nobody here waits for it, or this test would for an hour."""
    monkeypatch.setattr(commands, "CARRIED_OUT_S", 3600)
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        ident = (await one.service.submit(DOCUMENT)).id
        assert (await one.service.command(ident, "pause")).paused


async def test_followers_are_woken_by_submissions_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They poll only where others may commit too; `after=-1` tells nothing of the past."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        monkeypatch.setattr(one.service._history, "_poll_s", 3600)
        old = (await one.service.submit(DOCUMENT)).id
        coming = one.service.events(None, -1)
        first = asyncio.ensure_future(anext(coming))
        await asyncio.sleep(0.1)
        assert not first.done()
        new = (await one.service.submit(DOCUMENT)).id
        assert [(event.workflow, event.kind) for event in await first] == [(new, "workflow.submitted")]
        ends = asyncio.create_task(_all(one, old))
        one.lead()
        await ends


async def _all(one: Process, ident: str) -> None:
    async for _ in one.service.events(ident, 0):
        pass


async def test_the_reason_of_a_cancel_is_the_workflows_and_is_in_its_history(tmp_path: Path) -> None:
    """`flowsched cancel --reason` was accepted and dropped."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=600_000))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(DOCUMENT)).id
        await until(one, ident, "RUNNING")
        await one.service.command(ident, "pause", {"reason": "disk is full"})
        await one.service.command(ident, "resume", {"reason": "disk is empty"})
        await one.service.command(ident, "cancel", {"reason": "wrong samples"})
        await until(one, ident, "CANCELLED")
        assert (await one.service.workflow(ident)).reason == "cancelled by request: wrong samples"
        events = [event async for batch in one.service.events(ident, 0) for event in batch]
    told = {event.kind: event.body.get("reason") for event in events}
    assert told["workflow.paused"] == "disk is full"
    assert told["workflow.cancelling"] == "cancelled by request: wrong samples"
    assert "disk is empty" in [
        event.body.get("reason") for event in events if event.kind == "workflow.running"
    ]


async def test_what_is_missing_is_named_not_the_workflow_that_is_there(tmp_path: Path) -> None:
    """`GET …/tasks/a/99` of a workflow said that there was no such workflow."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        ident = (await one.service.submit(DOCUMENT)).id
        with pytest.raises(NotFound, match=r"^stage 'a' has tasks 0 to 0, not 99$"):
            await one.service.task(ident, "a", 99)
        for ask in (one.service.task(ident, "b", 0), one.service.tasks(ident, stage="b")):
            with pytest.raises(NotFound, match=f"^workflow {ident}: there is no stage 'b'; there is a$"):
                await ask
        with pytest.raises(NotFound, match=r"^there is no workflow with the id nope$"):
            await one.service.task("nope", "a", 0)


async def test_what_a_failed_sibling_kept_from_starting_says_so(tmp_path: Path) -> None:
    """One task runs at a time, and the first fails: the others' reason is that one, in lists and in `explain`."""
    document = (
        b'{"name": "w", "stages": [{"name": "a", "scatter": {"count": 3}, "command": ["x"], "resources": {"cpu": 3}}, '
        b'{"name": "b", "needs": ["a"], "command": ["x"]}]}'
    )
    world = FakeProcesses(lambda pod: Outcome(1, runtime_ms=300))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(document)).id
        await until(one, ident, "FAILED")
        rows = {(task.stage, task.index): task for task in (await one.service.tasks(ident)).tasks}
        dropped = [task for task in rows.values() if task.state == "CANCELLED"]
        assert dropped
        failed = next(task for task in rows.values() if task.state == "FAILED")
        for task in dropped:
            assert task.reason == f"not started: task {failed.index} failed: exit code 1"
            [found] = await one.service.explain(ident, stage="a", index=task.index)
            assert (found.state, found.code, found.message) == ("CANCELLED", "Cancelled", task.reason)
        assert (await one.service.task(ident, "b", 0)).reason == "'a' did not succeed"


async def test_what_a_user_cancelled_says_why(tmp_path: Path) -> None:
    """What ran, and what had not started; `explain` has the words of the user too."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=60_000))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        chain = b'{"name": "w", "stages": [{"name": "a", "command": ["x"]}, {"name": "b", "needs": ["a"], "command": ["x"]}]}'
        ident = (await one.service.submit(chain)).id
        await until(one, ident, "RUNNING")
        await one.service.command(ident, "cancel", {"reason": "had enough"})
        await until(one, ident, "CANCELLED")
        why = "cancelled by request: had enough"
        reasons = [task.reason for task in (await one.service.tasks(ident)).tasks]
        assert reasons == [why, f"not started: {why}"]
        assert [each.message for each in await one.service.explain(ident)] == [why, why]
