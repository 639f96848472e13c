"""Runs whose tasks have all ended: the engine alone knows whether more come, and whether the run has gone well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowsched.errors import Conflict, NotFound
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from flowsched.workflow.views import WorkflowView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.plans.fake_cromwell import cromwell
from tests.service.processes import Process, process
from tests.service.test_run_tasks import RUN, failing, nested, over_tes, send

WHY = "Job w.a:NA:1 exited with return code 3 which has not been declared as a valid return code."


async def at_rest(one: Process) -> WorkflowView:
    """The run, once none of its tasks lives."""
    while True:
        view = await one.service.workflow(RUN)
        if view.state in ("ENGINE", "SUCCEEDED", "FAILED", "CANCELLED"):
            return view
        await asyncio.sleep(0.01)


async def listed(one: Process, state: str) -> list[str]:
    return [view.id for view in (await one.service.list_workflows(state=state)).workflows]


async def test_a_run_whose_tasks_have_all_succeeded_has_not_succeeded(tmp_path: Path) -> None:
    """Nobody has said so: lists have it under ENGINE, and a wait for its end is not kept waiting for ever."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing())) as one:
        one.lead()
        await one.ready()
        await send(one, over_tes("call-a", RUN, "w.a"))
        view = await at_rest(one)
        assert (view.state, view.counts) == ("ENGINE", {"SUCCEEDED": 1})
        assert view.reason == "no task of it waits or runs; cromwell alone knows whether more come"
        assert (await listed(one, "ENGINE"), await listed(one, "SUCCEEDED")) == ([RUN], [])
        assert [stage.state for stage in await one.service.stages(RUN)] == ["SUCCEEDED"]
        await asyncio.wait_for(one.service.ended(RUN), 10)
        async for _ in one.service.events(RUN, 0):
            pass


async def test_a_failed_task_s_run_has_failed_until_its_engine_says_otherwise(tmp_path: Path) -> None:
    """Miniwdl takes some return codes for success: its word counts."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing("call-a"))) as one:
        one.lead()
        await one.ready()
        await send(one, over_tes("call-a", RUN, "w.a"), over_tes("call-b", RUN, "w.b"))
        view = await at_rest(one)
        assert (view.state, await listed(one, "FAILED")) == ("FAILED", [RUN])
        view = await one.service.report_end(RUN, "SUCCEEDED", "")
        assert (view.state, view.reason, view.counts) == ("SUCCEEDED", "", {"SUCCEEDED": 1, "FAILED": 1})
        assert (await listed(one, "FAILED"), await listed(one, "SUCCEEDED")) == ([], [RUN])


@pytest.mark.parametrize(
    ("state", "reason"), [("FAILED", "miniwdl: an output is not there"), ("CANCELLED", "stopped")]
)
async def test_an_engine_s_word_ends_a_run(state: str, reason: str, tmp_path: Path) -> None:
    """Who waits for the end is told at once."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing())) as one:
        one.lead()
        await one.ready()
        (call,) = await send(one, over_tes("call-a", RUN, "w.a"))
        await at_rest(one)
        view = await one.service.report_end(RUN, state, reason)
        assert (view.state, view.reason, await listed(one, state)) == (state, reason, [RUN])
        with pytest.raises(NotFound):
            await one.service.report_end("nothing", state, reason)
        with pytest.raises(Conflict, match="knows its end itself"):
            await one.service.report_end(call, state, reason)
        await send(one, over_tes("call-b", RUN, "w.b"))
        view = await one.service.workflow(RUN)
        assert view.state in ("PENDING", "QUEUED", "STARTING", "RUNNING", state)
        assert (await at_rest(one)).state == state


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ("Succeeded", "SUCCEEDED", ""),
        ("Failed", "FAILED", f"Cromwell: {WHY}"),
        ("Aborted", "CANCELLED", ""),
    ],
)  # fmt: skip
async def test_cromwell_is_asked_how_a_run_has_ended(
    status: str, state: str, reason: str, tmp_path: Path
) -> None:
    """While it goes on the run is in ENGINE, and who waits waits."""
    async with (
        cromwell() as (fake, url),
        process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing()), cromwell=[url]) as one,
    ):
        one.lead()
        await one.ready()
        fake.failures = [{"message": "Workflow failed", "causedBy": [{"message": WHY, "causedBy": []}]}]
        await send(one, over_tes("call-a", RUN, "w.a"))
        assert (await at_rest(one)).state == "ENGINE"
        waiting = asyncio.create_task(one.service.ended(RUN))
        for going_on in (None, "Running", "Aborting"):
            if going_on is not None:
                fake.statuses[RUN] = going_on
            await one.service.engine_ends.poll(every=True)
            assert (await one.service.workflow(RUN)).state == "ENGINE"
            assert not waiting.done()
        fake.statuses[RUN] = status
        await one.service.engine_ends.poll(every=True)
        await asyncio.wait_for(waiting, 10)
        view = await one.service.workflow(RUN)
        assert (view.state, view.reason, await listed(one, state)) == (state, reason, [RUN])
        asked = len(fake.asked)
        await one.service.engine_ends.poll(every=True)
        assert len(fake.asked) == asked


async def test_cromwell_is_not_asked_for_a_run_whose_tasks_live(tmp_path: Path) -> None:
    """Nor for one of another engine."""
    async with (
        cromwell() as (fake, url),
        process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing()), cromwell=[url]) as one,
    ):
        one.lead()
        await one.ready()
        huge = {"resources": {"cpu_cores": 1000}}
        await send(one, over_tes("call-a", RUN, "w.a", **huge))
        while (await one.service.workflow(RUN)).state != "QUEUED":
            await asyncio.sleep(0.01)
        await one.service.engine_ends.poll(every=True)
        assert not [path for path in fake.asked if path.endswith("/status")]


def returning(codes: dict[str, int]) -> FakeProcesses:
    """The tasks in these folders return these codes to their engine; all end well."""

    def outcome(pod: Pod) -> Outcome:
        assert pod.container is not None
        command = pod.container.steps[0].command[-1]
        code = next((code for folder, code in codes.items() if folder in command), None)
        return Outcome(runtime_ms=5, returned=code)

    return FakeProcesses(outcome)


@pytest.mark.parametrize("tes", [True, False], ids=["tes", "config"])
async def test_a_run_that_its_engine_has_failed_is_explained(tes: bool, tmp_path: Path) -> None:
    """The engine's reason, and each exit code with the tasks that returned it and the command for the log of the first."""
    world = returning({"shard-1/inner": 3, "shard-2/execution": 4, "shard-0/execution": 0})
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        await send(one, *nested(3, tes=tes), tes=tes)
        assert (await at_rest(one)).returned == {"3": 3, "4": 2}
        assert await one.service.explain(RUN) == []
        await one.service.report_end(RUN, "FAILED", f"Cromwell: {WHY}")
        whole, *codes = await one.service.explain(RUN)
        assert (whole.stage, whole.state, whole.code) == ("all calls", "FAILED", "EngineFailed")
        assert whole.message == f"its engine has failed the run; Cromwell: {WHY}"
        assert [(each.stage, each.code, each.tasks, each.shards, each.items) for each in codes] == [
            ("w.inner.t", "ReturnCode", 2, [2, 200_002], ["0.2", "2.2"]),
            ("w.inner.t", "ReturnCode", 3, [100_000, 100_001, 100_002], ["1.0", "1.1", "1.2"]),
        ]
        assert codes[1].message == (
            "3 tasks returned 3 to their engine, which may have failed the run for that; the log of the first: "
            f"`flowsched logs {RUN} w.inner.t 1.0`"
        )
        assert await one.service.explain(RUN, stage="w.inner.t") == codes
        told = await one.service.explain(RUN, stage="w.inner.t", index=200_002)
        assert [each.message for each in told if each.code == "ReturnCode"] == [
            "task 2.2 returned 4 to its engine, which may have failed the run for that; its log: "
            f"`flowsched logs {RUN} w.inner.t 2.2`"
        ]
        assert "ReturnCode" not in [
            each.code for each in await one.service.explain(RUN, stage="w.inner.t", index=0)
        ]


async def test_a_run_that_its_engine_has_failed_for_another_reason_is_explained(tmp_path: Path) -> None:
    """No task returned another code than 0: an output was missing. Without a reason it says so."""
    async with process(url_for(tmp_path / "db"), tmp_path, returning({})) as one:
        one.lead()
        await one.ready()
        await send(one, over_tes("call-a", RUN, "w.a"))
        await at_rest(one)
        await one.service.report_end(RUN, "FAILED", "")
        (told,) = await one.service.explain(RUN)
        assert told.message == "its engine has failed the run; it has given no reason"


async def test_codes_of_a_run_that_its_engine_takes_for_success_are_no_failures(tmp_path: Path) -> None:
    """`continueOnReturnCode` allows them; nor is the code of an attempt that was tried again a failure."""
    async with process(url_for(tmp_path / "db"), tmp_path, returning({"call-a/execution": 3})) as one:
        one.lead()
        await one.ready()
        await send(one, over_tes("call-a", RUN, "w.a"))
        await at_rest(one)
        await one.service.report_end(RUN, "SUCCEEDED", "")
        assert await one.service.explain(RUN) == []
        await send(one, over_tes("call-a/attempt-2", RUN, "w.a", attempt=2))
        await one.service.report_end(RUN, "FAILED", "it said so")
        while (await one.service.stages(RUN))[0].state != "SUCCEEDED":
            await asyncio.sleep(0.01)
        assert [each.code for each in await one.service.explain(RUN)] == ["EngineFailed"]
