"""Lists of tasks by state: what they say, and what they cost a workflow of many stages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowsched.executor.protocol import Pod
from flowsched.store.database import Database, url_for
from flowsched.workflow.views import TaskView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401
from tests.service.processes import Process, process

#: States that rows hold. While a long step runs in its thread the database answers, and what is QUEUED has no row.
KEPT = ("RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED")
SMALL = {"cpu": 1, "memory": "1Mi"}
DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database."""
    if request.param == "sqlite":
        return url_for(tmp_path / "db")
    made: str = request.getfixturevalue("fresh_postgres")()
    return made


def fails(pod: Pod) -> Outcome:
    """All that runs fails."""
    return Outcome(exit_code=1, runtime_ms=20)


def chain(stages: int) -> dict[str, Any]:
    """Each stage needs the one before it."""
    return {
        "name": "chain",
        "stages": [
            {"name": f"s{n}", "command": ["x"], "resources": SMALL, **({"needs": [f"s{n - 1}"]} if n else {})}
            for n in range(stages)
        ],
    }


async def ended(made: Process, document: dict[str, Any], state: str) -> str:
    """The id of a workflow that has ended, and of which only the database knows."""
    ident = (await made.service.submit(json.dumps(document).encode())).id
    while (await made.service.workflow(ident)).state != state:
        await asyncio.sleep(0.01)
    assert made.leader.dispatcher is not None
    while ident in made.leader.dispatcher.state.work.runs:
        await asyncio.sleep(0.01)
    return ident


async def listed(made: Process, ident: str, limit: int, **asked: Any) -> list[TaskView]:
    """All pages of a list."""
    found: list[TaskView] = []
    token = None
    while True:
        page = await made.service.tasks(ident, limit=limit, page_token=token, **asked)
        found += page.tasks
        token = page.next_page_token
        if token is None:
            return found


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each query gave."""
    counts: list[int] = []
    original: Callable[..., Any] = Database.rows

    async def rows(self: Database, *arguments: Any, **more: Any) -> Sequence[Any]:
        found: Sequence[Any] = await original(self, *arguments, **more)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Database, "rows", rows)
    return counts


async def test_the_failed_task_of_a_long_chain_is_found_by_few_queries(
    url: str, tmp_path: Path, rows_read: list[int]
) -> None:
    """As many queries and rows for 160 stages as for 40; it was a query for each stage, of the rows of all stages."""
    costs = []
    async with process(url, tmp_path, FakeProcesses(fails)) as made:
        made.lead()
        await made.ready()
        for stages in (40, 160):
            ident = await ended(made, chain(stages), "FAILED")
            await made.service.workflow(ident)
            rows_read.clear()
            assert [task.stage for task in await listed(made, ident, 1, state="FAILED")] == ["s0"]
            costs.append((len(rows_read), sum(rows_read)))
    assert costs[0] == costs[1]


async def test_a_list_reads_no_more_stages_than_it_shows(
    url: str, tmp_path: Path, rows_read: list[int]
) -> None:
    """A page of 5 tasks that were skipped, each of a stage of its own, reads a dozen stages of 160, not 160 for each."""
    async with process(url, tmp_path, FakeProcesses(fails)) as made:
        made.lead()
        await made.ready()
        ident = await ended(made, chain(160), "FAILED")
        await made.service.workflow(ident)
        rows_read.clear()
        page = await made.service.tasks(ident, state="SKIPPED", limit=5)
        assert [task.stage for task in page.tasks] == ["s1", "s2", "s3", "s4", "s5"]
        assert sum(rows_read) < 20


async def test_a_task_that_succeeded_is_no_cancelled_one(url: str, tmp_path: Path) -> None:
    """The states of a cancelled stage are those of its tasks, in each list; untouched tasks count as cancelled."""
    document = {
        "name": "wide",
        "stages": [
            {"name": "a", "command": ["x"], "scatter": {"count": 20}, "resources": {"cpu": 4, "memory": "1Mi"}},
            {"name": "b", "command": ["x"], "needs": ["a"], "resources": SMALL},
        ],
    }  # fmt: skip

    def outcome(pod: Pod) -> Outcome:
        return Outcome(exit_code=0, runtime_ms=20 if pod.index < 2 else 600_000)

    async with process(url, tmp_path, FakeProcesses(outcome)) as made:
        made.lead()
        await made.ready()
        ident = (await made.service.submit(json.dumps(document).encode())).id
        settled = {"SUCCEEDED": 2, "RUNNING": 2, "QUEUED": 16, "PENDING": 1}
        while (await made.service.workflow(ident)).counts != settled:
            await asyncio.sleep(0.01)
        await check_lists_agree(made, ident, KEPT)
        await made.service.command(ident, "cancel")
        while (await made.service.workflow(ident)).state != "CANCELLED":
            await asyncio.sleep(0.01)
        await check_lists_agree(made, ident, (*KEPT, "PENDING", "QUEUED"))
        done = [(task.stage, task.index) for task in await listed(made, ident, 100, state="SUCCEEDED")]
        dropped = [(task.stage, task.index) for task in await listed(made, ident, 100, state="CANCELLED")]
        assert done == [("a", 0), ("a", 1)]
        assert dropped == [*(("a", index) for index in range(2, 20)), ("b", 0)]


async def places(made: Process, ident: str, limit: int, **asked: Any) -> list[tuple[str, int, str]]:
    """Stage, index and state of what is listed."""
    return [(task.stage, task.index, task.state) for task in await listed(made, ident, limit, **asked)]


async def check_lists_agree(made: Process, ident: str, states: Sequence[str]) -> None:
    """Each list by state, and by stage, in pages of any size, is that part of the whole list."""
    whole = await places(made, ident, 1000)
    assert [place[:2] for place in whole] == [*(("a", n) for n in range(20)), ("b", 0)]
    for state in states:
        for limit in (1, 3, 1000):
            of_state = [place for place in whole if place[2] == state]
            assert await places(made, ident, limit, state=state) == of_state, (state, limit)
            of_both = [place for place in of_state if place[0] == "a"]
            assert await places(made, ident, limit, state=state, stage="a") == of_both, (state, limit)
    assert [index for _, index, _ in await places(made, ident, 2, stage="a")] == [*range(20)]
    assert [index for _, index, _ in await places(made, ident, 2, stage="b")] == [0]
