"""Why a task went to its node, asked of a running service: in the task's attempts, and in `explain`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flowsched.control.views import placed_view
from flowsched.errors import InvalidRequest, NotFound
from flowsched.store.database import url_for
from flowsched.workflow.views import AttemptView, TaskView
from tests.cluster.fake import FakeProcesses
from tests.service.processes import Process, process

DOCUMENT = {
    "name": "w",
    "stages": [
        {"name": "make", "command": ["x"], "outputs": [{"name": "o", "path": "o"}]},
        {"name": "use", "command": ["x"], "inputs": [{"name": "i", "from": "make.o"}]},
    ],
}


async def ended(one: Process, document: dict[str, Any]) -> str:
    ident = (await one.service.submit(json.dumps(document).encode())).id
    while (await one.service.workflow(ident)).state not in ("SUCCEEDED", "FAILED"):
        await asyncio.sleep(0.01)
    return ident


async def test_explain_of_a_task_says_why_it_ran_where_it_did(tmp_path: Path) -> None:
    """After its end too, and after a restart: the costs on its node, and what the node that came next would have cost."""
    url, world = url_for(tmp_path / "db"), FakeProcesses()
    async with process(url, tmp_path, world) as one:
        one.lead()
        await one.ready()
        ident = await ended(one, DOCUMENT)
    async with process(url, tmp_path, world, "two") as two:
        two.lead()
        await two.ready()
        made = (await two.service.task(ident, "make", 0)).attempts[0].choice
        used = (await two.service.task(ident, "use", 0)).attempts[0]
        (told,) = await two.service.explain(ident, stage="use", index=0)
        (first,) = await two.service.explain(ident, stage="make", index=0)
    assert made is not None
    assert (made.cost_ms, made.others) == ({}, [])
    assert used.choice is not None
    assert used.choice.cost_ms == {"stage-in": 0}
    (other,) = used.choice.others
    assert not other.full
    assert other.node not in ("", used.node)
    assert (told.code, told.state) == ("Placed", "SUCCEEDED")
    assert told.message.startswith(f"{used.node}: stage-in 0s; {other.node}: stage-in 1")
    assert "no data to bring" in first.message


async def test_a_task_that_waits_is_explained_by_its_index_too(tmp_path: Path) -> None:
    """It has no node, so only its reason is told; an index needs a stage, and a task that there is."""
    task = {"name": "a", "command": ["x"], "resources": {"cpu": 10_000, "memory": "1Mi"}}
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(json.dumps({"name": "w", "stages": [task]}).encode())).id
        while not (found := await one.service.explain(ident, stage="a", index=0)):
            await asyncio.sleep(0.01)
        assert [each.code for each in found] == ["LargerThanNode"]
        with pytest.raises(InvalidRequest, match="stage"):
            await one.service.explain(ident, index=0)
        with pytest.raises(NotFound, match="tasks 0 to 0"):
            await one.service.explain(ident, stage="a", index=1)


def test_the_node_of_an_ended_attempt_is_not_told_as_that_of_a_task_that_waits() -> None:
    """A task that was evicted had a node, and has none now."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    past = AttemptView(attempt=0, pod="p", node="n0", bound_at=at, ended_at=at)
    task = TaskView(stage="a", index=0, shard=0, role="", state="QUEUED", attempt=1, attempts=[past])
    waits, ended = placed_view(task), placed_view(replace(task, state="SUCCEEDED"))
    assert waits is not None
    assert ended is not None
    assert waits.message == "attempt 0, which has ended, was on n0: why was not kept"
    assert ended.message == "n0: why was not kept"
