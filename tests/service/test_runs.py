"""Runs of engines that keep the DAG themselves: their calls are workflows here, and the run is one to people."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.client import naming
from flowsched.errors import Conflict, NotFound
from flowsched.store.database import url_for
from flowsched.workflow.views import WorkflowView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process

RUN = "cromwell-1"


def call(node: str, shard: int | None = None, attempt: int = 1, *after: str, **more: Any) -> bytes:
    said: dict[str, Any] = {
        "run": RUN, "run_name": "germline", "source": "cromwell", "node": node, "attempt": attempt, "after": after,
    }  # fmt: skip
    if shard is not None:
        said["shard"] = shard
    stage = {"name": "task", "command": ["x"], **more}
    document = {"name": node, "labels": {"sample": "a"}, "call": said, "stages": [stage]}
    return json.dumps(document).encode()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Process]:
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        yield one


async def ended(one: Process, *idents: str) -> None:
    for ident in idents:
        while (await one.service.workflow(ident)).state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            await asyncio.sleep(0.01)


async def submit(one: Process, *documents: bytes) -> list[str]:
    return [(await one.service.submit(raw)).id for raw in documents]


async def test_a_run_is_one_workflow_whose_stages_are_its_calls(served: Process) -> None:
    """Listed once, among the others, with its calls as stages and their shards as tasks."""
    before = await submit(served, b'{"name": "other", "stages": [{"name": "a", "command": ["x"]}]}')
    calls = await submit(
        served, call("W.split"), call("W.align", 0, 1, "W.split"), call("W.align", 1, 1, "W.split")
    )
    await ended(served, *before, *calls)
    page = await served.service.list_workflows()
    assert [(view.id, view.name, view.source) for view in page.workflows] == [
        (RUN, "germline", "cromwell"),
        (before[0], "other", ""),
    ]
    view = await served.service.workflow(RUN)
    assert (view.state, view.stages, view.tasks, view.counts) == ("ENGINE", 2, 3, {"SUCCEEDED": 3})
    assert view.labels == {"sample": "a"}
    timeline = await served.service.timeline(RUN)
    assert view.started_at == view.created_at == timeline.begin_at
    stages = await served.service.stages(RUN)
    assert [(s.name, s.width, s.needs, s.counts, s.state) for s in stages] == [
        ("W.split", 1, [], {"SUCCEEDED": 1}, "SUCCEEDED"),
        ("W.align", 2, ["W.split"], {"SUCCEEDED": 2}, "SUCCEEDED"),
    ]
    tasks = await served.service.tasks(RUN)
    assert [(t.stage, t.shard, t.state) for t in tasks.tasks] == [
        ("W.split", 0, "SUCCEEDED"),
        ("W.align", 0, "SUCCEEDED"),
        ("W.align", 1, "SUCCEEDED"),
    ]
    page = await served.service.list_workflows(run=RUN)
    assert [view.id for view in page.workflows] == calls[::-1]
    assert await served.service.logs(RUN, "W.align", 1) == (f"fs-{calls[2]}-task-0-0\n".encode(), False)


async def test_a_call_is_found_by_its_id_and_by_the_beginning_of_it(served: Process) -> None:
    """Any try of it, as the list of a run's calls names them; a name still means a run or a workflow, never a call."""
    first, again = await submit(served, call("germline"), call("germline", None, 2))
    await ended(served, first, again)
    both = next(length for length in range(len(first)) if first[:length] != again[:length])
    for ident in (first, again):
        page = await served.service.list_workflows(search=ident)
        assert [view.id for view in page.workflows] == [ident]
        for ref in (ident, ident[:both]):
            page = await served.service.list_workflows(ref=ref)
            assert [view.id for view in page.workflows] == [ident]
        assert (await find(served.service, ident[:both])).id == ident
    page = await served.service.list_workflows(ref=first[: both - 1])
    assert [view.id for view in page.workflows] == [again, first]
    page = await served.service.list_workflows(search="ERMLIN")
    assert [view.id for view in page.workflows] == [RUN]
    assert (await find(served.service, "germline")).id == RUN
    with pytest.raises(NotFound, match="no beginning of one"):
        await find(served.service, "w%")


async def find(service: Any, given: str) -> naming.Named:
    """As commands and the SDK find it."""

    async def listing(ref: str | None = None, page: int = 100) -> AsyncGenerator[WorkflowView, None]:
        for view in (await service.list_workflows(ref=ref, limit=page)).workflows:
            yield view

    return await naming.find(listing, given)


async def test_a_later_try_takes_the_place_of_an_earlier_one(served: Process) -> None:
    """The engine tried a call again: the run is as good as the last try."""
    first = await submit(served, call("W.a", None, 1, policies=[], cache=False, timeout=1))
    await served.service.command(first[0], "cancel")
    await ended(served, *first)
    assert (await served.service.workflow(RUN)).state in ("CANCELLED", "ENGINE")
    second = await submit(served, call("W.a", None, 2))
    await ended(served, *second)
    view = await served.service.workflow(RUN)
    assert (view.state, view.tasks) == ("ENGINE", 1)
    assert [task.state for task in (await served.service.tasks(RUN)).tasks] == ["SUCCEEDED"]


async def test_each_try_of_a_call_has_its_log_by_its_number(served: Process) -> None:
    """From 0, as everywhere; one that there is not names those that there are. Tasks are listed by shard, however they came."""
    second, first, again = await submit(served, call("W.t", 2), call("W.t", 1), call("W.t", 1, 2))
    await ended(served, second, first, again)
    assert await served.service.logs(RUN, "W.t", 1, attempt=0) == (f"fs-{first}-task-0-0\n".encode(), False)
    assert await served.service.logs(RUN, "W.t", 1, attempt=1) == (f"fs-{again}-task-0-0\n".encode(), False)
    task = await served.service.task(RUN, "W.t", 1)
    assert [(each.attempt, each.pod) for each in task.attempts] == [(1, f"fs-{again}-task-0-0")]
    with pytest.raises(NotFound, match=r"W.t\[1\] of run cromwell-1 has no attempt 2; it has 0 to 1"):
        await served.service.logs(RUN, "W.t", 1, attempt=2)
    assert [task.index for task in (await served.service.tasks(RUN)).tasks] == [1, 2]


async def test_a_failed_run_names_the_task_that_failed_first(tmp_path: Path) -> None:
    """With its call, its shard and why, as a run of flowsched does; and how many failed."""
    world = FakeProcesses(lambda pod: Outcome(exit_code=3, runtime_ms=5))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        once = {"retry": {"attempts": 1}}
        await ended(one, *await submit(one, call("W.align", 1, **once)))
        view = await one.service.workflow(RUN)
        assert (view.state, view.reason) == ("FAILED", "W.align: task 1 failed: exit code 3")
        await ended(one, *await submit(one, call("W.sort", **once)))
        page = await one.service.list_workflows()
        assert page.workflows[0].reason == "W.align: task 1 failed: exit code 3 (2 tasks failed in all)"


async def test_a_run_is_cancelled_as_a_whole(served: Process) -> None:
    """Every call of it that lives; to try again is the engine's."""
    huge = {"resources": {"cpu": 1000}}
    calls = await submit(served, call("W.a", 0, **huge), call("W.a", 1, **huge), call("W.b", **huge))
    reasons: list[tuple[str, int, list[int], str]] = []
    while len(reasons) != 2:  # until the leader has looked at all of them
        await asyncio.sleep(0.01)
        found = await served.service.explain(RUN)
        reasons = [(view.stage, view.tasks, view.shards, view.code) for view in found]
    assert reasons == [("W.a", 2, [0, 1], "LargerThanNode"), ("W.b", 1, [], "LargerThanNode")]
    with pytest.raises(Conflict, match="decides itself what is tried again"):
        await served.service.command(RUN, "retry")
    view = await served.service.command(RUN, "pause")
    assert (view.state, {stage.state for stage in await served.service.stages(RUN)}) == ("PAUSED", {"QUEUED"})
    await served.service.command(RUN, "resume")
    view = await served.service.command(RUN, "cancel")
    assert view.state in ("CANCELLING", "CANCELLED")
    await ended(served, *calls)
    assert (await served.service.workflow(RUN)).state == "CANCELLED"
    assert view.tasks == 3


async def test_events_of_a_run_are_those_of_its_calls(served: Process) -> None:
    """Until none of them lives."""
    other = await submit(served, b'{"name": "other", "stages": [{"name": "a", "command": ["x"]}]}')
    calls = await submit(served, call("W.a", 0), call("W.a", 1))
    told = [event async for batch in served.service.events(RUN, 0) for event in batch]
    assert {event.workflow for event in told} == set(calls)
    assert [event.workflow for event in told if event.kind == "workflow.submitted"] == calls
    assert [event.body["shard"] for event in told if event.kind == "workflow.submitted"] == [0, 1]
    assert {event.workflow for event in told if event.kind == "workflow.succeeded"} == set(calls)
    await ended(served, *other)


async def test_pages_of_workflows_and_runs_neither_repeat_nor_hide(served: Process) -> None:
    """Runs stand where their first call was submitted."""
    await served.service.put_queue("default", {"paused": True})
    plain = b'{"name": "plain", "stages": [{"name": "a", "command": ["x"]}]}'
    first = await submit(served, plain)
    await submit(served, call("W.a"))
    second = await submit(served, plain, plain)
    await submit(served, call("W.b"))
    seen, token = [], None
    while True:
        page = await served.service.list_workflows(limit=1, page_token=token)
        seen += [view.id for view in page.workflows]
        token = page.next_page_token
        if token is None:
            break
    assert seen == [second[1], second[0], RUN, first[0]]


async def test_what_lives_is_listed_before_what_has_ended(tmp_path: Path) -> None:
    """Old or not, with runs that wait for their engine; a run with a task that failed has ended. By state too, in any pages."""
    fails = FakeProcesses(lambda pod: Outcome(exit_code=3 if "-fails-" in pod.name else 0, runtime_ms=5))
    async with process(url_for(tmp_path / "db"), tmp_path, fails) as one:
        one.lead()
        await one.ready()
        plain = b'{"name": "plain", "stages": [{"name": "a", "command": ["x"]}]}'
        waits = b'{"name": "waits", "queue": "later", "stages": [{"name": "a", "command": ["x"]}]}'
        await one.service.put_queue("later", {"paused": True})
        old = await submit(one, waits)
        at_rest = await submit(one, call("W.a"))
        failed = await submit(
            one, call("W.a", name="fails", retry={"attempts": 1}).replace(RUN.encode(), b"cromwell-2")
        )
        some = await submit(one, *[plain] * 5)
        await ended(one, *at_rest, *failed, *some)
        new = await submit(one, waits)
        live, over = [*new, RUN, *old], [*some[::-1], "cromwell-2"]

        async def listed(limit: int, **asked: Any) -> list[str]:
            seen, token = [], None
            while True:
                page = await one.service.list_workflows(limit=limit, page_token=token, **asked)
                seen += [view.id for view in page.workflows]
                token = page.next_page_token
                if token is None:
                    return seen

        for limit in (1, 2, 3, 4, 100):
            assert await listed(limit) == live + over
        assert await listed(2, state="SUCCEEDED") == some[::-1]
        assert await listed(2, state="FAILED") == ["cromwell-2"]
        assert await listed(2, state="ENGINE") == [RUN]
        assert await listed(1, state="PENDING") + await listed(1, state="QUEUED") == [*new, *old]
        assert await listed(1, live=True) == [*new, *old]
        assert await listed(1, live=True, state="FAILED") == []


async def test_a_run_that_nothing_came_of_for_a_day_is_listed_with_what_has_ended(tmp_path: Path) -> None:
    """Its engine never says the end. It keeps its state, and lists of that state have it; a call that comes brings it back."""
    url = url_for(tmp_path / "db")
    plain = b'{"name": "plain", "stages": [{"name": "a", "command": ["x"]}]}'
    async with process(url, tmp_path, FakeProcesses(lambda _: Outcome(runtime_ms=5))) as one:
        one.lead()
        await one.ready()
        await ended(one, *await submit(one, call("W.a")), *(later := await submit(one, plain)))

        async def listed(**asked: Any) -> list[str]:
            return [view.id for view in (await one.service.list_workflows(**asked)).workflows]

        assert await listed() == [RUN, *later]
        with sqlite3.connect(tmp_path / "db") as database:
            database.execute("UPDATE workflows SET ended_ms = ended_ms - 86400000 WHERE run <> ''")
        assert await listed() == [*later, RUN]
        assert await listed(state="ENGINE") == [RUN]
        assert await listed(state="SUCCEEDED") == later
        await one.service.put_queue("default", {"paused": True})
        await submit(one, call("W.b"))
        assert await listed() == [RUN, *later]


async def test_what_ends_between_two_pages_is_not_missed(served: Process) -> None:
    """It may come twice; what was not shown yet comes among those that have ended."""
    await served.service.put_queue("default", {"paused": True})
    plain = b'{"name": "plain", "stages": [{"name": "a", "command": ["x"]}]}'
    first, second, third = await submit(served, plain, plain, plain)
    page = await served.service.list_workflows(limit=1)
    assert [view.id for view in page.workflows] == [third]
    for each in (first, third):
        await served.service.command(each, "cancel")
    page = await served.service.list_workflows(limit=1, page_token=page.next_page_token)
    assert [view.id for view in page.workflows] == [second]
    page = await served.service.list_workflows(page_token=page.next_page_token)
    assert [view.id for view in page.workflows] == [third, first]


async def test_what_a_run_has_not_is_said(served: Process) -> None:
    """No document, no such call, no such shard, no such run."""
    await submit(served, call("W.a", 2))
    with pytest.raises(NotFound, match="keeps its document"):
        await served.service.document(RUN)
    with pytest.raises(NotFound, match=r"no task 0 so far; there are 2"):
        await served.service.logs(RUN, "W.a", 0)
    with pytest.raises(NotFound, match=r"no call 'W\.x' so far"):
        await served.service.task(RUN, "W.x", 0)
    with pytest.raises(NotFound, match="there is no workflow with the id nobody"):
        await served.service.stages("nobody")


async def test_attempts_of_a_run_are_those_of_its_calls(served: Process) -> None:
    """Under the names of calls and shards, page by page, with what each asked for; a workflow of its own has its own."""
    resources = {"resources": {"cpu": 2, "memory": "1Gi"}}
    other = json.dumps(
        {"name": "o", "stages": [{"name": "a", "command": ["x"], "scatter": {"items": ["u", "v"]}}]}
    )
    calls = await submit(
        served, call("W.split", **resources), call("W.align", 0), call("W.align", 7), other.encode()
    )
    await ended(served, *calls)
    first = await served.service.attempts(RUN, limit=2)
    rest = await served.service.attempts(RUN, limit=2, page_token=first.next_page_token)
    both = [*first.attempts, *rest.attempts]
    assert [(view.stage, view.index, view.exit_code) for view in both] == [
        ("W.split", 0, 0),
        ("W.align", 0, 0),
        ("W.align", 7, 0),
    ]
    assert (rest.next_page_token, both[0].requested) == (None, {"cpu": 2000, "memory": 1 << 30})
    own = (await served.service.attempts(calls[3])).attempts
    assert [(view.stage, view.index, view.shard, view.item) for view in own] == [
        ("a", 0, 0, "u"),
        ("a", 1, 1, "v"),
    ]
    assert own[0].pod == f"fs-{calls[3]}-a-0-0"
    with pytest.raises(NotFound, match="nothing"):
        await served.service.attempts("nothing")


async def test_a_task_of_a_run_is_cancelled_with_its_call(served: Process) -> None:
    """Its engine decides what follows: the other calls go on. Several runs are cancelled like workflows."""
    await served.service.put_queue("default", {"paused": True})
    calls = await submit(served, call("W.align", 0), call("W.align", 1), call("W.call"))
    view = await served.service.cancel_task(RUN, "W.align", 1)
    assert (view.stage, view.index, view.state) == ("W.align", 1, "CANCELLED")
    states = [(await served.service.workflow(each)).state for each in calls]
    assert states == ["QUEUED", "CANCELLED", "QUEUED"]
    found = await served.service.cancel_all([RUN, "none"])
    assert ([view.id for view in found.workflows], found.refused) == (
        [RUN],
        {"none": "there is no workflow with the id none"},
    )
    assert {(await served.service.workflow(each)).state for each in calls} == {"CANCELLED"}


async def test_live_workflows_are_listed_without_runs_that_no_call_lives_of(served: Process) -> None:
    """As `cancel --user` takes them: nothing of such a run could be cancelled."""
    done = await submit(served, call("W.align", 0))
    await ended(served, *done)
    assert (await served.service.list_workflows(live=True)).workflows == []
    await served.service.put_queue("default", {"paused": True})
    (waits,) = await submit(
        served, b'{"name": "other", "user": "ada", "stages": [{"name": "a", "command": ["x"]}]}'
    )
    await submit(served, call("W.call"))
    assert [view.id for view in (await served.service.list_workflows(live=True)).workflows] == [waits, RUN]
    found = await served.service.list_workflows(live=True, user="ada", since="1h")
    assert [view.id for view in found.workflows] == [waits]
    assert (await served.service.list_workflows(until="1h")).workflows == []
