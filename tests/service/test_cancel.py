"""Cancels: of several workflows in one step, of one task, and those that come when no leader is ready for them (P8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flowsched.errors import Conflict, NotFound
from flowsched.store.bulk import Statements
from flowsched.store.database import url_for
from flowsched.store.requests import Command, Requests
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import process

DOCUMENT = b'{"name": "w", "stages": [{"name": "a", "scatter": {"count": 3}, "command": ["x"]}]}'


async def test_what_was_cancelled_while_nobody_led_is_never_launched(tmp_path: Path) -> None:
    """The leader that recovers it cancels it, and serves on: it does not offer the same launch for ever."""
    world = FakeProcesses()
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        ident = (await one.service.submit(DOCUMENT)).id
        await one.service.command(ident, "cancel")
        one.lead()
        await one.ready()
        while (await one.service.workflow(ident)).state != "CANCELLED":
            await asyncio.sleep(0.01)
        assert [(told.stage, told.tasks, told.state) for told in await one.service.explain(ident)] == [
            ("a", 3, "CANCELLED")
        ]
    assert not world.launched


async def test_many_workflows_are_cancelled_in_one_transaction_and_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 one by one made 300 transactions, and as many steps of the leader."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=600_000))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        idents = [(await one.service.submit(DOCUMENT)).id for _ in range(300)]
        ended = (await one.service.submit(DOCUMENT)).id
        await one.service.command(ended, "cancel")
        batches: list[int] = []
        write = Requests.command

        def counted(requests: Requests, connection: Statements, commands: Sequence[Command]) -> Any:
            batches.append(len(commands))
            return write(requests, connection, commands)

        monkeypatch.setattr(Requests, "command", counted)
        assert one.leader.dispatcher is not None
        before = one.leader.dispatcher.steps
        found = await one.service.cancel_all([*idents, ended, "none"], {"reason": "enough"})
        assert [size for size in batches if size] == [300]
        assert one.leader.dispatcher.steps - before < 20
        assert found.refused == {"none": "there is no workflow with the id none"}
        assert {view.id for view in found.workflows} == {*idents, ended}
        assert all(view.cancel_requested for view in found.workflows)
        left = await one.service.list_workflows(live=True, limit=1_000)
        assert {view.state for view in left.workflows} <= {"CANCELLING"}


async def test_workflows_that_have_ended_are_named_when_several_are_cancelled(tmp_path: Path) -> None:
    """The others are cancelled all the same."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        done = (await one.service.submit(DOCUMENT)).id
        while (await one.service.workflow(done)).state != "SUCCEEDED":
            await asyncio.sleep(0.01)
        await one.service.put_queue("default", {"paused": True})
        waits = (await one.service.submit(DOCUMENT)).id
        found = await one.service.cancel_all([done, waits])
        assert found.refused == {done: f"{done} has ended as SUCCEEDED: there is nothing to cancel"}
        assert [(view.id, view.state) for view in found.workflows] == [(waits, "CANCELLED")]


def chained(**more: object) -> bytes:
    """Three tasks, and one that needs them."""
    first = {"name": "a", "scatter": {"count": 3}, "command": ["x"], "retry": {"attempts": 3}, **more}
    return json.dumps(
        {"name": "w", "stages": [first, {"name": "b", "needs": ["a"], "command": ["x"]}]}
    ).encode()


async def test_one_task_is_cancelled_as_if_it_had_failed(tmp_path: Path) -> None:
    """It is not tried again; its stage fails and the stage after it is skipped. A retry of the workflow runs it again."""
    world = FakeProcesses(lambda pod: Outcome(runtime_ms=600_000 if pod.name.endswith("a-1-0") else 100))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(chained())).id
        while (await one.service.task(ident, "a", 1)).state != "RUNNING":
            await asyncio.sleep(0.01)
        with pytest.raises(Conflict, match="waits for other stages"):
            await one.service.cancel_task(ident, "b", 0)
        with pytest.raises(NotFound, match="there is no stage 'c'"):
            await one.service.cancel_task(ident, "c", 0)
        view = await one.service.cancel_task(ident, "a", 1, {"reason": "hung"})
        assert view.reason == "Cancelled"
        while (await one.service.workflow(ident)).state != "FAILED":
            await asyncio.sleep(0.01)
        assert (await one.service.workflow(ident)).reason == "a: task 1 was cancelled by request: hung"
        assert [stage.state for stage in await one.service.stages(ident)] == ["FAILED", "SKIPPED"]
        task = await one.service.task(ident, "a", 1)
        assert (task.state, task.attempt, task.reason) == ("FAILED", 0, "Cancelled")
        assert (await one.service.cancel_task(ident, "a", 1)).state == "FAILED"
        with pytest.raises(Conflict, match="has ended as SUCCEEDED: there is nothing to cancel"):
            await one.service.cancel_task(ident, "a", 0)
        await one.service.command(ident, "retry")
        while (await one.service.workflow(ident)).state != "SUCCEEDED":
            await asyncio.sleep(0.01)
