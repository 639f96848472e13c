"""Tasks of runs whose engines send them below two scatters, in sub-workflows, or without saying what is a retry.

The bodies are what a real Cromwell sends over TES, and what its config backend's command makes of a call's folder.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cli.cromwell_job import Job, document
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process

RUN = "8d2b8a0e-6d0c-4a6f-9f43-0c1d2e3f4a5b"
ROOT = "/data/cromwell-executions"


def sub(number: int) -> str:
    """The id of a sub-workflow."""
    return f"00000000-0000-4000-8000-{number:012}"


def over_tes(folder: str, workflow: str, fqn: str, shard: int = -1, attempt: int = 1, **more: Any) -> bytes:
    """One call as Cromwell posts it."""
    here = f"{ROOT}/w/{RUN}/{folder}/execution"
    script = {
        "name": "commandScript",
        "description": f"{fqn}.commandScript",
        "path": f"{here}/script",
        "url": f"{here}/script",
    }
    return json.dumps({
        "name": fqn,
        "description": f"{workflow}:BackendJobDescriptorKey_CommandCallNode_{fqn}:{shard}:{attempt}",
        "inputs": [script],
        "outputs": [{"name": "rc", "url": f"{here}/rc", "path": f"{here}/rc", "type": "FILE"}],
        "executors": [{"image": "ubuntu", "command": ["/bin/bash", f"{here}/script"]}],
        "resources": {"cpu_cores": 1, "ram_gb": 0.001},
        "tags": {"workflow_id": workflow, "root_workflow_id": RUN, "parent_workflow_id": RUN},
        **more,
    }).encode()  # fmt: skip


def by_config(folder: str) -> bytes:
    """One call as `flowsched cromwell submit` sends it."""
    cwd = f"{ROOT}/w/{RUN}/{folder}"
    job = Job(name="cromwell_8d2b8a0e_t", cwd=cwd, script=f"{cwd}/execution/script", cpu="1", memory_mb="1")
    return json.dumps(document(job)).encode()


def nested(width: int, *, tes: bool, attempt: int = 1) -> Iterator[bytes]:
    """A scatter of a sub-workflow that scatters a task: each sub-workflow has an id of its own."""
    again = f"/attempt-{attempt}" if attempt > 1 else ""
    for outer in range(width):
        for inner in range(width):
            folder = f"call-inner/shard-{outer}/inner/{sub(outer)}/call-t/shard-{inner}{again}"
            yield over_tes(folder, sub(outer), "inner.t", inner, attempt) if tes else by_config(folder)


async def send(one: Process, *bodies: bytes, tes: bool = True) -> list[str]:
    async def sent(body: bytes) -> str:
        return await one.service.tes.create(body) if tes else (await one.service.submit(body)).id

    return [await sent(body) for body in bodies]


async def at_rest(one: Process) -> None:
    """Until no task of the run lives."""
    await asyncio.wait_for(one.service.ended(RUN), 20)


def failing(*folders: str) -> Callable[[Pod], Outcome]:
    """The tasks in these folders reach their time limit, the others end well."""

    def outcome(pod: Pod) -> Outcome:
        assert pod.container is not None
        timed_out = any(f"/{folder}/" in pod.container.steps[0].command[-1] for folder in folders)
        return (
            Outcome(143, "Timeout", "it ran for longer than its timeout of 1 s", 5)
            if timed_out
            else Outcome(runtime_ms=5)
        )

    return outcome


@pytest.mark.parametrize("tes", [True, False], ids=["tes", "config"])
async def test_each_task_below_two_scatters_is_a_task_of_its_own(tes: bool, tmp_path: Path) -> None:
    """20 × 20 jobs are 400 tasks, with the shards of both scatters in their numbers."""
    world = FakeProcesses(lambda pod: Outcome(runtime_ms=1))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        await send(one, *nested(20, tes=tes), tes=tes)
        await at_rest(one)
        view = await one.service.workflow(RUN)
        assert (view.name, view.tasks, view.counts, view.stages) == ("w", 400, {"SUCCEEDED": 400}, 1)
        (stage,) = await one.service.stages(RUN)
        assert (stage.name, stage.width, stage.counts) == ("w.inner.t", 400, {"SUCCEEDED": 400})
        timeline = await one.service.timeline(RUN)
        wanted = [outer * 100_000 + inner for outer in range(20) for inner in range(20)]
        assert list(timeline.index) == wanted
        attempts = (await one.service.attempts(RUN)).attempts
        assert Counter(each.index for each in attempts) == Counter(wanted)


@pytest.mark.parametrize("tes", [True, False], ids=["tes", "config"])
async def test_failures_below_two_scatters_are_told(tes: bool, tmp_path: Path) -> None:
    """Three of twelve reach their time limit: each word about them is about them."""
    late = [f"call-inner/shard-{outer}/inner/{sub(outer)}/call-t/shard-1" for outer in (0, 1, 3)]
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing(*late))) as one:
        one.lead()
        await one.ready()
        bodies = [
            body
            for number, body in enumerate(nested(4, tes=tes))
            if number % 4 < 3
        ]  # fmt: skip
        calls = await send(one, *bodies, tes=tes)
        await at_rest(one)
        view = await one.service.workflow(RUN)
        assert (view.state, view.tasks, view.counts) == ("FAILED", 12, {"SUCCEEDED": 9, "FAILED": 3})
        assert view.reason.startswith("w.inner.t: task 0.1 failed: Timeout")
        assert view.reason.endswith("(3 tasks failed in all)")
        assert [each.id for each in (await one.service.list_workflows(state="FAILED")).workflows] == [RUN]
        assert (await one.service.list_workflows(state="SUCCEEDED")).workflows == []
        (stage,) = await one.service.stages(RUN)
        assert (stage.state, stage.width, stage.counts) == ("FAILED", 12, {"SUCCEEDED": 9, "FAILED": 3})
        failed = (await one.service.tasks(RUN, state="FAILED")).tasks
        assert [(task.index, task.item, task.reason) for task in failed] == [
            (1, "0.1", "Timeout"), (100_001, "1.1", "Timeout"), (300_001, "3.1", "Timeout"),
        ]  # fmt: skip
        assert sorted(n for each in await one.service.explain(RUN) for n in each.shards) == [
            1,
            100_001,
            300_001,
        ]
        assert sorted(name for each in await one.service.explain(RUN) for name in each.items) == [
            "0.1",
            "1.1",
            "3.1",
        ]
        (told, *_) = await one.service.explain(RUN, stage="w.inner.t", index=300_001)
        assert (told.shards, told.items) == ([300_001], ["3.1"])
        for number, call in ((300_001, calls[10]), (200_001, calls[7])):
            task = await one.service.task(RUN, "w.inner.t", number)
            assert (task.index, task.attempts[0].pod.split("-")[1]) == (number, call)
            log, _ = await one.service.logs(RUN, "w.inner.t", number)
            assert log.decode().startswith(f"fs-{call}-")
            assert (task.item, log.decode().split("-")[1]) == (f"{number // 100_000}.1", call)
        attempts = (await one.service.attempts(RUN)).attempts
        assert {(e.index, e.item) for e in attempts if e.reason == "Timeout"} == {
            (1, "0.1"), (100_001, "1.1"), (300_001, "3.1"),
        }  # fmt: skip
        assert sorted((await one.service.timeline(RUN)).items.values()) == [
            f"{outer}.{inner}" for outer in range(4) for inner in range(3)
        ]


async def test_a_retry_of_cromwell_takes_the_place_of_its_own_task_alone(tmp_path: Path) -> None:
    """Two shards of two sub-workflows fail; one is tried again and ends well: one task has failed."""
    first, other = (f"call-inner/shard-{outer}/inner/{sub(outer)}/call-t/shard-0" for outer in (0, 1))
    world = FakeProcesses(failing(f"{first}/execution", f"{other}/execution"))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        await send(one, *nested(2, tes=True))
        (again,) = await send(one, over_tes(f"{first}/attempt-2", sub(0), "inner.t", 0, 2))
        await at_rest(one)
        view = await one.service.workflow(RUN)
        assert (view.state, view.tasks, view.counts) == ("FAILED", 4, {"SUCCEEDED": 3, "FAILED": 1})
        assert (
            view.reason == "w.inner.t: task 1.0 failed: Timeout (it ran for longer than its timeout of 1 s)"
        )
        log, _ = await one.service.logs(RUN, "w.inner.t", 0, attempt=1)
        assert log.decode().startswith(f"fs-{again}-")


async def test_an_attempt_that_cromwell_sends_again_after_a_crash_is_no_second_task(tmp_path: Path) -> None:
    """The same folder and attempt, with another image: Cromwell's configuration changed meanwhile."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing())) as one:
        one.lead()
        await one.ready()
        again = {"executors": [{"image": "debian", "command": ["/bin/bash", "/x/script"]}]}
        await send(one, over_tes("call-a", RUN, "w.a"), over_tes("call-a", RUN, "w.a", **again))
        await at_rest(one)
        assert (await one.service.workflow(RUN)).tasks == 1


SAME_NODE = {
    "a sub-workflow in a scatter, its call in none": [
        (f"call-s/shard-{n}/s/{sub(n)}/call-t", sub(n), "s.t", -1) for n in range(3)
    ],
    "another sub-workflow at the same place": [
        (f"call-s/s/{sub(n)}/call-t/shard-0", sub(n), "s.t", 0) for n in range(3)
    ],
    "a scatter in a sub-workflow in a scatter in a sub-workflow in a scatter": [
        (f"call-a/shard-{n}/a/{sub(n)}/call-b/shard-{n}/b/{sub(9 + n)}/call-t/shard-2", sub(9 + n), "b.t", 2) for n in range(3)
    ],
    "six scatters inside each other": [
        (
            f"call-a/shard-1/a/{sub(1)}/call-b/shard-2/b/{sub(2)}/call-c/shard-3/c/{sub(3)}/call-d/shard-{n}/d/{sub(4 + n)}"
            f"/call-e/shard-5/e/{sub(8 + n)}/call-t/shard-6", sub(8 + n), "e.t", 6,
        )
        for n in range(3)
    ],
    "wide scatters": [(f"call-s/shard-0/s/{sub(0)}/call-t/shard-{n}", sub(0), "s.t", n) for n in (99_999, 100_000, 300_000)],
    "folders that are not told": [("", sub(n), "s.t", 4) for n in range(3)],
}  # fmt: skip


@pytest.mark.parametrize("calls", SAME_NODE.values(), ids=SAME_NODE)
async def test_tasks_of_one_node_have_numbers_of_their_own(
    calls: list[tuple[str, str, str, int]], tmp_path: Path
) -> None:
    """However the scatters and sub-workflows around them lie: each number leads to its own log."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing())) as one:
        one.lead()
        await one.ready()
        idents = await send(one, *(over_tes(*call) for call in calls))
        await at_rest(one)
        assert (await one.service.workflow(RUN)).counts == {"SUCCEEDED": 3}
        (stage,) = await one.service.stages(RUN)
        tasks = (await one.service.tasks(RUN)).tasks
        assert len({task.index for task in tasks}) == 3
        logs = {
            (await one.service.logs(RUN, stage.name, task.index))[0].split(b"-")[1].decode() for task in tasks
        }
        assert logs == set(idents)


async def test_one_sub_workflow_called_by_two_names_is_two_calls(tmp_path: Path) -> None:
    """`call s` and `call s as again`."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(failing())) as one:
        one.lead()
        await one.ready()
        await send(
            one,
            over_tes(f"call-s/s/{sub(1)}/call-t", sub(1), "s.t"),
            over_tes(f"call-again/s/{sub(2)}/call-t", sub(2), "s.t"),
        )
        await at_rest(one)
        stages = await one.service.stages(RUN)
        assert [(each.name, each.width) for each in stages] == [("w.s.t", 1), ("w.again.t", 1)]


async def test_a_task_that_may_be_a_retry_or_another_is_another(tmp_path: Path) -> None:
    """Nextflow sends two processes with one tag, and a retry, alike: no failure is hidden behind the second."""
    world = FakeProcesses(failing("aa"))
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()

        def grow(folder: str) -> bytes:
            return json.dumps({
                "name": "GROW (s3)",
                "executors": [{"image": "ubuntu", "command": ["bash", f"/data/{folder}/.command.run"]}],
                "resources": {"cpu_cores": 1, "ram_gb": 0.001},
                "tags": {"workflow_id": RUN},
            }).encode()  # fmt: skip

        first, second = await send(one, grow("aa"), grow("bb"))
        await at_rest(one)
        view = await one.service.workflow(RUN)
        assert (view.state, view.counts) == ("FAILED", {"FAILED": 1, "SUCCEEDED": 1})
        tasks = (await one.service.tasks(RUN)).tasks
        assert [(task.index, task.item, task.state) for task in tasks] == [
            (0, None, "FAILED"),
            (1, second, "SUCCEEDED"),
        ]
        assert (await one.service.logs(RUN, "GROW (s3)", 1))[0].decode().startswith(f"fs-{second}-")
        assert (await one.service.logs(RUN, "GROW (s3)", 0))[0].decode().startswith(f"fs-{first}-")


async def test_a_document_s_call_is_a_retry_where_its_engine_numbers_attempts(tmp_path: Path) -> None:
    """Without `attempt` and `task` each call is a task; with `task`, the same text is the same task."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()

        def call(node: str, **more: Any) -> bytes:
            stage = {"name": "x", "command": ["x"]}
            return json.dumps(
                {"name": "x", "call": {"run": RUN, "node": node, **more}, "stages": [stage]}
            ).encode()

        await send(
            one, call("alone"), call("alone"), call("tried", attempt=1), call("tried", attempt=2),
            call("named", task="b"), call("named", task="a"), call("named", task="a"),
            call("sharded", shard=3), call("sharded", shard=3),
            tes=False,
        )  # fmt: skip
        stages = await one.service.stages(RUN)
        assert [(stage.name, stage.width) for stage in stages] == [
            ("alone", 2), ("tried", 1), ("named", 2), ("sharded", 2),
        ]  # fmt: skip
        tasks = (await one.service.tasks(RUN, stage="sharded")).tasks
        assert [task.index for task in tasks] == [3, 4]
