"""The timeline of a workflow: the same facts as the list of its tasks, as columns, from memory and from the database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from flowsched.workflow.views import TimelineView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process

SMALL = {"cpu": 1, "memory": "1Mi"}
#: Three stages: 20 shards, a gang of 2 that needs them, and one task that fits nowhere.
DOCUMENT = {
    "name": "three",
    "stages": [
        {
            "name": "split", "command": ["x"], "scatter": {"items": [f"s{n}" for n in range(20)]},
            "resources": SMALL, "retry": {"attempts": 2},
        },
        {
            "name": "train", "gang": True, "needs": ["split"],
            "roles": {"worker": {"replicas": 2, "command": ["x"], "resources": SMALL}},
        },
        {"name": "huge", "command": ["x"], "needs": ["train"], "resources": {"cpu": 1000}},
    ],
}  # fmt: skip


def outcome(pod: Pod) -> Outcome:
    """Shard 3 is tried twice."""
    return Outcome(exit_code=int(pod.index == 3 and pod.stage == "split" and not pod.attempt), runtime_ms=20)


async def pages(made: Process, ident: str, limit: int) -> list[TimelineView]:
    found = [await made.service.timeline(ident, limit=limit)]
    while (token := found[-1].next_page_token) is not None:
        found.append(await made.service.timeline(ident, limit=limit, page_token=token))
    return found


async def check_the_list_says_the_same(made: Process, ident: str) -> None:
    """State, node, attempt, times and bytes of each task are those of the list of tasks."""
    line = await made.service.timeline(ident)
    stages = await made.service.stages(ident)
    tasks = (await made.service.tasks(ident, limit=1000)).tasks
    assert len(tasks) == len(line.stage) == 23

    def at(column: list[int | None], place: int) -> int | None:
        return column[place] if column else None

    def ms(moment: object) -> int | None:
        return None if moment is None else round((moment - line.begin_at).total_seconds() * 1000)  # type: ignore[operator]

    for place, task in enumerate(tasks):
        node = at(line.node, place)
        assert (
            stages[line.stage[place]].name, line.index[place], line.states[line.state[place]],
            None if node is None else line.nodes[node], line.attempt[place] if line.attempt else 0,
            at(line.ready_ms, place), at(line.bound_ms, place), at(line.started_ms, place),
            at(line.ended_ms, place), at(line.exit_code, place), line.items.get(place),
        ) == (
            task.stage, task.index, task.state, task.node, task.attempt, ms(task.ready_at), ms(task.bound_at),
            ms(task.started_at), ms(task.ended_at), task.exit_code, task.item,
        )  # fmt: skip


async def test_columns_say_what_the_list_says_while_it_runs_and_after(tmp_path: Path) -> None:
    """The last stage waits for ever, so all tasks are in memory; once cancelled, the database answers."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(outcome)) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(json.dumps(DOCUMENT).encode())).id
        while (await one.service.workflow(ident)).counts.get("SUCCEEDED") != 22:
            await asyncio.sleep(0.01)
        await check_the_list_says_the_same(one, ident)
        line = await one.service.timeline(ident)
        assert line.attempt[3] == 1
        assert line.bytes_moved == line.staging_in_ms == line.staging_out_ms == []
        assert line.states[line.state[22]] == "QUEUED"
        assert 0 <= line.ready_ms[22] <= line.now_ms
        parts = await pages(one, ident, 7)
        assert [len(part.stage) for part in parts] == [7, 7, 7, 2]
        assert [place for part in parts for place in zip(part.stage, part.index, strict=True)] == [
            *((0, index) for index in range(20)), (1, 0), (1, 1), (2, 0),
        ]  # fmt: skip
        await one.service.command(ident, "cancel")
        while (await one.service.workflow(ident)).state != "CANCELLED":
            await asyncio.sleep(0.01)
        await check_the_list_says_the_same(one, ident)
        line, huge = await one.service.timeline(ident), (await one.service.stages(ident))[2]
        assert line.ended_ms[22] - line.ready_ms[22] == round(1000 * huge.queued_seconds) > 0
        assert [len(part.stage) for part in await pages(one, ident, 7)] == [7, 7, 7, 2]


async def test_a_standby_reads_the_columns_from_the_database(tmp_path: Path) -> None:
    """It leads nothing and remembers nothing: tasks that no row speaks of are PENDING."""
    url, world = url_for(tmp_path / "db"), FakeProcesses(outcome)
    async with process(url, tmp_path, world) as one:
        ident = (await one.service.submit(json.dumps(DOCUMENT).encode())).id
        line = await one.service.timeline(ident)
        assert (len(line.stage), {line.states[state] for state in line.state}) == (23, {"PENDING"})
        assert (line.node, line.nodes, line.ready_ms, line.attempt) == ([], [], [], [])


async def test_a_run_of_another_engine_has_one_task_for_each_call(tmp_path: Path) -> None:
    """The last try of each shard, under the number of its call; a container task says when its last step ended."""

    def call(node: str, shard: int, attempt: int) -> bytes:
        said = {
            "run": "r1",
            "node": node,
            "shard": shard,
            "attempt": attempt,
            "source": "cromwell",
            "after": [],
        }
        step = {"image": "debian", "command": ["x"]}
        stage = {"name": "task", "steps": [step], "resources": SMALL}
        return json.dumps({"name": node, "call": said, "stages": [stage]}).encode()

    async with process(
        url_for(tmp_path / "db"), tmp_path, FakeProcesses(lambda _: Outcome(runtime_ms=20))
    ) as one:
        one.lead()
        await one.ready()
        for node, shard, attempt in (("b", 0, 1), ("a", 0, 1), ("a", 1, 1), ("a", 1, 2)):
            await one.service.submit(call(node, shard, attempt))
        while (
            await one.service.workflow("r1")
        ).state != "ENGINE":  # no task waits, and its engine has not said how it ended
            await asyncio.sleep(0.01)
        line = await one.service.timeline("r1")
        assert list(zip(line.stage, line.index, strict=True)) == [(0, 0), (1, 0), (1, 1)]
        assert {line.states[state] for state in line.state} == {"SUCCEEDED"}
        assert all(out <= end for out, end in zip(line.staging_out_ms, line.ended_ms, strict=True))
        first = await one.service.timeline("r1", limit=2)
        rest = await one.service.timeline("r1", limit=2, page_token=first.next_page_token)
        assert (first.stage, rest.stage, rest.index, rest.next_page_token) == ([0, 1], [1], [1], None)


async def test_a_list_has_the_outputs_of_what_succeeded(tmp_path: Path) -> None:
    """As each task by itself, whichever page it is on and whether memory or the database answers; what failed has none."""
    outputs = [{"name": "o", "path": "o", "value": True}, {"name": "p", "path": "p"}]
    document = {
        "name": "sweep",
        "stages": [
            {"name": "plain", "command": ["x"], "resources": SMALL},
            {
                "name": "trial",
                "command": ["x"],
                "scatter": {"count": 5},
                "resources": SMALL,
                "outputs": outputs,
            },
            {"name": "best", "command": ["x"], "resources": SMALL, "outputs": outputs[:1]},
        ],
    }

    def written(pod: Pod) -> Outcome:
        return Outcome(
            exit_code=int(pod.stage == "trial" and pod.index == 3), runtime_ms=1, values={"o": str(pod.index)}
        )

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(written)) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(json.dumps(document).encode())).id
        while (await one.service.workflow(ident)).ended_at is None:
            await asyncio.sleep(0.01)
        listed, token = [], None
        while True:
            page = await one.service.tasks(ident, limit=3, page_token=token)
            listed += page.tasks
            token = page.next_page_token
            if token is None:
                break
        said = {(task.stage, task.index): [(o.name, o.value) for o in task.outputs] for task in listed}
        assert said == {
            ("plain", 0): [], ("trial", 0): [("o", "0"), ("p", None)], ("trial", 1): [("o", "1"), ("p", None)],
            ("trial", 2): [("o", "2"), ("p", None)], ("trial", 3): [], ("trial", 4): [("o", "4"), ("p", None)],
            ("best", 0): [("o", "0")],
        }  # fmt: skip
        only = (await one.service.tasks(ident, state="SUCCEEDED", stage="trial")).tasks
        assert [task.outputs for task in only] == [
            (await one.service.task(ident, "trial", task.index)).outputs for task in only
        ]
