"""The head of a run is the process of its engine: the run ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowsched.engine.events import NodeDrained, Recovered
from flowsched.engine.state.cluster import DrainOrder
from flowsched.engine.step import step
from flowsched.executor.protocol import PodEnded, PodGone, PodStarted
from flowsched.store.database import url_for
from flowsched.workflow.document.decode import check_workflow
from tests.cluster.fake import FakeProcesses, Outcome
from tests.engine.scene import Scene, node
from tests.engine.world import World
from tests.service.processes import process

STAGE: dict[str, Any] = {"name": "t", "command": ["x"], "resources": {"cpu": 1}}
SMALL = STAGE | {"resources": {"cpu": 0}}


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"run": "r", "node": name, "source": "miniwdl", **more}


def scene() -> Scene:
    """A head and a task of its run are at work, and a task of another run."""
    found = Scene(node(cpu=8))
    found.submit("head", STAGE, call=call("miniwdl", head=True))
    found.submit("task", STAGE, call=call("w.a"))
    found.submit("other", STAGE, call={**call("w.a"), "run": "r2"})
    found.start("fs-head-t-0-0", "fs-task-t-0-0", "fs-other-t-0-0")
    return found


def test_the_end_of_the_head_cancels_the_tasks_that_it_leaves_behind() -> None:
    """An engine that was killed has tasks that no process waits for any more."""
    told = scene()
    told.end("fs-head-t-0-0", code=1)
    assert told.last.releases == ["fs-task-t-0-0"]
    assert [(end.run, end.state) for end in told.last.delta.run_ends] == [("r", "FAILED")]
    assert told.runs["task"].reason == "cancelled by request: miniwdl has ended"
    assert not told.runs["other"].cancel_requested


def test_a_task_that_arrives_with_the_end_of_its_head_is_cancelled() -> None:
    """An engine that is being cancelled may send one more."""
    told = scene()
    told.tell(told.accepted("late", STAGE, call=call("w.b")), told.ending("fs-head-t-0-0"))
    assert told.runs["late"].state.value == "CANCELLED"
    assert told.launched == []


def test_a_task_that_arrives_after_the_end_of_its_head_is_cancelled_until_there_is_a_head_again() -> None:
    """The create of a killed engine may still be under way. A later head of the same run id
    opens the run again.
    """
    told = scene()
    told.end("fs-head-t-0-0", code=1)
    told.submit("late", STAGE, call=call("w.b"))
    assert told.launched == []
    assert told.runs["late"].state.value == "CANCELLED"
    assert told.runs["late"].reason == "cancelled by request: miniwdl has ended"
    told.submit("again", STAGE, call=call("miniwdl", head=True))
    told.submit("next", STAGE, call=call("w.b"))
    assert told.launched == ["fs-next-t-0-0"]


def test_a_task_that_a_restart_brings_back_after_the_end_of_its_head_is_cancelled() -> None:
    """A new leader brings workflows back in slices. The head may end before the slice of its task."""
    told = scene()
    late = told.accepted("late", STAGE, call=call("w.b")).run
    told.tell(told.ending("fs-head-t-0-0", code=1))
    told.tell(Recovered(late, ()))
    assert told.launched == []
    assert late.state.value == "CANCELLED"


def test_a_dropped_step_forgets_that_a_run_has_ended() -> None:
    """The end of the head was not written, so its tasks may still arrive."""
    told = scene()
    step(told.state, [told.ending("fs-head-t-0-0", code=1)], told.now).drop()
    told.submit("late", STAGE, call=call("w.b"))
    assert told.launched == ["fs-late-t-0-0"]


def test_a_head_that_gives_up_waiting_ends_its_run_in_the_same_step() -> None:
    """Its policy fails it in the scheduling round, in which its task would have got the room."""
    told = Scene(node(cpu=1))
    told.submit("busy", STAGE)
    policy = {"event": "task_pending", "timeout": "1s", "action": "fail_stage"}
    told.submit("head", STAGE | {"policies": [policy]}, call=call("miniwdl", head=True))
    told.submit("task", STAGE, call=call("w.a"))
    told.end("fs-busy-t-0-0", after=5_000)
    assert told.launched == []
    assert [(end.run, end.state) for end in told.last.delta.run_ends] == [("r", "FAILED")]
    assert told.runs["task"].state.value == "CANCELLED"


def test_a_restart_goes_on_cancelling_what_the_end_of_a_head_has_cancelled() -> None:
    """The leader dies after it has written the cancel. The row of the task does not say that a user asked for it."""
    world = World([node(cpu=2)], seed=0)
    world.submit("head", check_workflow({"name": "h", "call": call("miniwdl", head=True), "stages": [SMALL]}))
    wide = STAGE | {"scatter": {"count": 4}}
    world.submit("task", check_workflow({"name": "t", "call": call("w.a"), "stages": [wide]}))
    world.service(world.inbox)
    (head,) = [name for name in world.live if name.startswith("fs-head")]
    del world.live[head]
    world.service([PodEnded(head, world.now, 1)])
    assert world.sql.workflows["task"][0] == "CANCELLING"
    world.boot()
    world.run()
    world.finished()
    assert world.sql.terminal == {"head": "FAILED", "task": "CANCELLED"}
    assert len(world.ever) == 3


def test_the_end_of_another_task_ends_no_run() -> None:
    """Its engine may try it again."""
    told = scene()
    told.end("fs-task-t-0-0", code=1)
    assert (told.last.releases, told.last.delta.run_ends) == ([], [])


def document(name: str, **more: Any) -> bytes:
    return msgspec.json.encode(
        {"name": name, "call": {**call(name), **more}, "stages": [{"name": "t", "command": [name]}]}
    )


def test_a_head_that_is_lost_cancels_what_its_engine_waited_for_and_starts_again() -> None:
    """The new engine sends those tasks anew. The run goes on, and takes tasks at any time."""
    told = scene()
    told.tell(PodGone("fs-head-t-0-0", told.now, "RunnerLost", started=True))
    assert told.last.releases == ["fs-task-t-0-0"]
    assert told.launched == ["fs-head-t-0-1"]
    assert told.last.delta.run_ends == []
    assert told.runs["task"].reason == "cancelled by request: miniwdl starts again"
    assert not told.runs["other"].cancel_requested
    told.start("fs-head-t-0-1")
    told.submit("next", STAGE, call=call("w.a"))
    assert told.launched == ["fs-next-t-0-0"]
    told.end("fs-head-t-0-1")
    assert [(end.run, end.state) for end in told.last.delta.run_ends] == [("r", "SUCCEEDED")]


def test_a_task_that_arrives_before_the_new_engine_starts_is_cancelled() -> None:
    """The engine that was lost has sent it. The new one is known by the start of its process, also in the same step."""
    told = scene()
    step(told.state, [PodGone("fs-head-t-0-0", told.now, "RunnerLost", started=True)], told.now).drop()
    told.submit("before", STAGE, call=call("w.b"))
    assert not told.runs["before"].cancel_requested
    gone = PodGone("fs-head-t-0-0", told.now, "RunnerLost", started=True)
    told.tell(gone, told.accepted("with", STAGE, call=call("w.b")))
    assert told.launched == ["fs-head-t-0-1"]
    told.submit("late", STAGE, call=call("w.b"))
    for name in ("before", "with", "late"):
        assert told.runs[name].reason == "cancelled by request: miniwdl starts again"
    step(told.state, [PodStarted("fs-head-t-0-1", told.now)], told.now).drop()
    told.submit("later", STAGE, call=call("w.b"))
    assert told.runs["later"].cancel_requested
    told.tell(PodStarted("fs-head-t-0-1", told.now), told.accepted("next", STAGE, call=call("w.b")))
    assert told.launched == ["fs-next-t-0-0"]


def test_a_head_that_is_lost_cancels_no_other_head_of_its_run() -> None:
    """Two heads under one name: the end of the other one would end the run of both."""
    told = scene()
    told.submit("second", STAGE, call=call("toil", head=True))
    told.tell(PodGone("fs-head-t-0-0", told.now, "RunnerLost", started=True))
    assert told.runs["task"].cancel_requested
    assert not told.runs["second"].cancel_requested
    assert told.last.delta.run_ends == []


def test_a_head_that_a_drain_takes_away_starts_again_on_another_node() -> None:
    """Its engine ends by SIGTERM, with an exit code that says nothing of the run."""
    told = Scene(node("n0", cpu=8), node("n1", cpu=8))
    told.submit("head", SMALL, call=call("miniwdl", head=True))
    told.start("fs-head-t-0-0")
    told.submit("task", STAGE, call=call("w.a"))
    told.tell(NodeDrained(told.pods["fs-head-t-0-0"].node, DrainOrder(told.now, told.now)))
    assert "fs-head-t-0-0" in told.last.releases
    told.tell(told.ending("fs-head-t-0-0", code=143))
    assert told.launched == ["fs-head-t-0-1"]
    assert told.pods["fs-head-t-0-0"].node != told.pods["fs-head-t-0-1"].node
    assert told.runs["task"].cancel_requested
    assert told.last.delta.run_ends == []


async def test_an_engine_has_a_minute_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake that is killed leaves its locks behind: the next run would fail."""
    world, released = FakeProcesses(lambda pod: Outcome(runtime_ms=600_000)), []

    async def release(names: Sequence[str], grace_ms: int) -> None:
        released.append((list(names), grace_ms))
        await FakeProcesses.release(world, names, grace_ms)

    monkeypatch.setattr(world, "release", release)
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        head = await one.service.submit(document("engine", run="r", head=True))
        task = await one.service.submit(document("a", run="r", task="1"))
        while (await one.service.workflow("r")).counts != {"RUNNING": 2}:
            await asyncio.sleep(0.01)
        await one.service.command("r", "cancel")
        await one.service.ended("r")
    graces = {name: grace for names, grace in released for name in names}
    assert graces == {f"fs-{head.id}-t-0-0": 60_000, f"fs-{task.id}-t-0-0": 5_000}


async def test_a_task_that_an_engine_sends_anew_after_its_loss_is_another_one(tmp_path: Path) -> None:
    """The same bytes, a moment later: the first one was cancelled with the engine that was lost."""
    world = FakeProcesses(lambda pod: Outcome(runtime_ms=600_000))
    body = b'{"name": "a", "executors": [{"image": "x", "command": ["x"]}]}'
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        head = await one.service.submit(document("engine", run="r", head=True))
        task = await one.service.tes.create(body, run="r")
        while (await one.service.workflow("r")).counts != {"RUNNING": 2}:
            await asyncio.sleep(0.01)
        world.lose(f"fs-{head.id}-t-0-0")
        while (await one.service.workflow(task)).state != "CANCELLED":
            await asyncio.sleep(0.01)
        again = await one.service.tes.create(body, run="r")
        assert again != task
        assert await one.service.tes.create(body, run="r") == again


async def test_a_run_is_as_its_head_has_ended(tmp_path: Path) -> None:
    """A task that failed may be one that the engine ignores: its exit status decides. Reported reasons stay."""

    def outcome(pod: Any) -> Outcome:
        return Outcome(runtime_ms=50, exit_code=int("bad" in pod.command[0]))

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(outcome)) as one:
        one.lead()
        await one.ready()
        for run, name in (("good", "engine"), ("ill", "bad engine")):
            await one.service.submit(document(name, run=run, head=True))
            await one.service.submit(document("bad", run=run, task="1"))
            await one.service.ended(run)
        for run, state, reason in (("good", "SUCCEEDED", ""), ("ill", "FAILED", "bad engine: task 0 failed")):
            view = await one.service.workflow(run)
            assert view.state == state
            assert view.reason.startswith(reason)
            listed = (await one.service.list_workflows(state=state)).workflows
            assert [each.id for each in listed] == [run]
