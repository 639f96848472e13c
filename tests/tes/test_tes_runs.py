"""Runs of engines over TES: what is learned of one task is known of the next of its kind, and one run is one workflow."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from sqlalchemy import Engine, event

from flowsched.api.server import build_api
from flowsched.control.tes import Edges
from flowsched.engine.state import EngineState
from flowsched.errors import Unavailable
from flowsched.store.database import engine_of_a_thread
from flowsched.store.tes import TesTasks
from flowsched.workflow.formats.tes.engines import Identity, identify
from flowsched.workflow.formats.tes.task import Task
from flowsched.workflow.spec import Call
from tests.cluster.fake import Outcome
from tests.house.second_ways import needs
from tests.service.processes import process
from tests.tes.conftest import BOTH, NODES, Tes, World
from tests.tes.recordings import requests_of


def nextflow(name: str, own: int, reads: str = "/data/a", **more: Any) -> dict[str, Any]:
    """A task of nf-ga4gh 1.4.2, in the folder of this number."""
    folder = f"/data/work/{own:02x}/{own:030x}"
    files = {".command.sh": f"{folder}/.command.sh", ".command.run": f"{folder}/.command.run", "a": reads}
    return {
        "name": name,
        "executors": [{"image": "ubuntu:24.04", "command": ["bash", "-c", "bash /work/.command.run"]}],
        "inputs": [{"path": f"/work/{path}", "url": url} for path, url in files.items()],
        "outputs": [{"path": "/work/b", "url": f"{folder}/b"}],
        **more,
    }


async def estimate(tes: Tes, ident: str) -> str:
    """How long a task that waits is expected to take, as `explain` says it."""
    (said,) = await (await tes.api.get(f"/api/v1/workflows/{ident}/explain")).json()
    return str(said["estimate"])


@asynccontextmanager
async def serving(url: str, folder: Path, world: World) -> AsyncIterator[Tes]:
    """One life of the service."""
    async with process(url, folder, world.processes, clock=world.clock, nodes=NODES) as one:
        one.lead()
        await one.ready()
        async with TestClient(TestServer(build_api(one.service))) as api:
            yield Tes(api, one, world)


async def test_a_task_is_expected_to_take_as_long_as_others_of_its_process(
    url: str, world: World, tmp_path: Path
) -> None:
    """Eight of one process with names of their own, then one of a later run that waits; also after a restart."""
    world.outcome = lambda pod: Outcome(runtime_ms=300)
    huge = {"tags": {"workflow_id": "later"}, "resources": {"cpu_cores": 64}}
    async with serving(url, tmp_path, world) as tes:
        for number in range(8):
            await tes.until(
                await tes.create(nextflow(f"GROW (s{number})", number, f"/data/{number}")), "COMPLETE"
            )
        waits = await tes.create(nextflow("GROW (s8)", 8, **huge))
        other = await tes.create(nextflow("SHRINK (s8)", 9, **huge))
        assert re.match(r"runs for \d+ms, learned from 8 GROW tasks; ", await estimate(tes, waits))
        assert (await estimate(tes, other)).startswith("runtime unknown")
    async with serving(url, tmp_path, world) as tes:
        assert re.match(r"runs for \d+ms, learned from 8 GROW tasks; ", await estimate(tes, waits))


async def test_edges_between_processes_are_learned_of_files_and_outlive_a_restart(
    url: str, world: World, tmp_path: Path
) -> None:
    """FOLD reads what GROW has delivered. A GROW of a later run is then known to have a FOLD behind it."""
    world.outcome = lambda pod: Outcome(runtime_ms=300)
    huge = {"tags": {"workflow_id": "later"}, "resources": {"cpu_cores": 64}}
    async with serving(url, tmp_path, world) as tes:
        await tes.until(await tes.create(nextflow("GROW (s0)", 0)), "COMPLETE")
        alone = await tes.create(nextflow("GROW (s1)", 1, **huge))
        await tes.until(await tes.create(nextflow("FOLD", 2, f"/data/work/00/{0:030x}/b")), "COMPLETE")
        behind = await tes.create(nextflow("GROW (s2)", 3, **huge))
        assert await rank_of(tes, behind) > await rank_of(tes, alone) > 0
    async with serving(url, tmp_path, world) as tes:
        assert await rank_of(tes, behind) == await rank_of(tes, alone)
        plan = memory_of(tes).work.engines.learned_plan.plan(("GROW", "task"))
        assert plan is not None
        assert [(edge.parent, edge.child) for edge in plan.edges] == [("GROW/task", "FOLD/task")]


def memory_of(tes: Tes) -> EngineState:
    """The memory of the service, which leads."""
    leader = tes.process.service._leader
    assert leader is not None
    return leader.dispatcher.state


async def rank_of(tes: Tes, ident: str) -> int:
    """Expected ms from the start of a task that waits to the end of its run, once the leader has it."""
    async with asyncio.timeout(30):
        while ident not in memory_of(tes).work.runs:
            await asyncio.sleep(0.01)
    return int(memory_of(tes).work.runs[ident].ranks[0])


async def listed(tes: Tes) -> dict[str, tuple[int, int, str]]:
    """Of each workflow in the list: its stages, its tasks and its state."""
    page = await (await tes.api.get("/api/v1/workflows")).json()
    return {each["id"]: (each["stages"], each["tasks"], each["state"]) for each in page["workflows"]}


async def test_recorded_requests_of_engines_are_one_workflow_for_each_run(tes: Tes) -> None:
    """A process is a stage with shards. The recordings of Snakemake have no script, which names the run."""
    clients: Counter[str] = Counter()
    for line in requests_of("engines-2026-11.jsonl"):
        ident = await tes.create(line["request"])
        await tes.until(ident, "COMPLETE")
        clients[line["client"].partition("-")[0]] += 1
    assert clients == {"nextflow": 4, "sprocket": 6, "toil": 4, "cwl": 4, "snakemake": 2}
    runs = await listed(tes)
    assert len(runs) == 2 + 5 + 3 + 1 + 2
    assert runs["demo-1"] == (1, 3, "ENGINE")
    assert runs["sprocket-1cbrYJxejivW"] == (1, 2, "ENGINE")
    assert runs["cwl-tes-sPsGjA"] == (1, 4, "ENGINE")
    assert sorted(name for name in runs if name.startswith("toil-")) == [
        "toil-042c4ccbcc3e4352",
        "toil-22c1bd732284a3bb",
        "toil-bcb463e4e716c010",
    ]


async def ends(tes: Tes, world: World, body: dict[str, Any], exit_code: int = 0) -> str:
    """Create a task, and wait until it has ended so."""
    world.outcome = lambda pod: Outcome(exit_code=exit_code, runtime_ms=5)
    ident = await tes.create(body)
    await tes.until(ident)
    return ident


TAG = {"workflow_id": "rnaseq"}


@BOTH
async def test_two_runs_with_the_same_tag_are_two_workflows(tes: Tes, world: World) -> None:
    """The second begins with a task that has succeeded, while nothing of the first lives; the service may start anew between."""
    for number, name in enumerate(("A (s1)", "A (s2)", "B (s1)")):
        await ends(tes, world, nextflow(name, number, tags=TAG))
    assert await listed(tes) == {"rnaseq": (2, 3, "ENGINE")}
    world.skew_ms += 60_000
    for number, name in enumerate(("A (s1)", "A (s2)")):
        await ends(tes, world, nextflow(name, 10 + number, tags=TAG))
    tes.process.service.tes._edges._runs.clear()  # as after a restart
    await ends(tes, world, nextflow("B (s1)", 12, tags=TAG))
    assert await listed(tes) == {"rnaseq": (2, 3, "ENGINE"), "rnaseq~2": (2, 3, "ENGINE")}
    world.skew_ms += 60_000
    await ends(tes, world, nextflow("B (s1)", 13, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq~3", "rnaseq~2", "rnaseq"]


async def test_tasks_of_a_run_that_is_sent_at_once_stay_together(tes: Tes, world: World) -> None:
    """All of the second run's first tasks repeat some of the first run."""
    for again in range(2):
        bodies = [nextflow(f"A (s{n})", 16 * again + n, f"/data/{n}", tags=TAG) for n in range(8)]
        made = await asyncio.gather(*map(tes.create, bodies))
        for ident in made:
            await tes.until(ident, "COMPLETE")
        world.skew_ms += 60_000
    assert await listed(tes) == {"rnaseq": (1, 8, "ENGINE"), "rnaseq~2": (1, 8, "ENGINE")}


async def test_two_processes_of_the_service_agree_on_the_run_that_goes_on(tes: Tes, world: World) -> None:
    """One is sent the first run and the beginning of the second; the other one reads of both in the database."""
    service = tes.process.service.tes
    one, two = (Edges(service._reads, refresh=True) for _ in range(2))
    order = ((one, "A (s1)"), (two, "B (s1)"), (one, "A (s1)"), (two, "B (s1)"), (one, "C (s1)"))
    for number, (asked, name) in enumerate(order):
        service._edges = asked
        world.skew_ms += 60_000
        await ends(tes, world, nextflow(name, number, tags=TAG))
    assert await listed(tes) == {"rnaseq": (2, 2, "ENGINE"), "rnaseq~2": (3, 3, "ENGINE")}


async def test_a_retry_of_nextflow_replaces_its_failed_try(tes: Tes, world: World) -> None:
    """It has the same name and files as the task that failed, and another folder. Another sample is another task."""
    await ends(tes, world, nextflow("A (s1)", 1, tags=TAG), exit_code=1)
    await ends(tes, world, nextflow("A (s2)", 2, "/data/b", tags=TAG))
    assert await listed(tes) == {"rnaseq": (1, 2, "FAILED")}
    await ends(tes, world, nextflow("A (s1)", 3, tags=TAG, resources={"ram_gb": 1}))
    assert await listed(tes) == {"rnaseq": (1, 2, "ENGINE")}


async def test_a_task_that_repeats_one_that_lives_is_another_task(tes: Tes, world: World) -> None:
    """Nextflow sends such ones for each value of an input that is no file. A failure hides behind none of them."""
    lives = await tes.create(nextflow("A (s1)", 1, tags=TAG, resources={"cpu_cores": 64}))
    await ends(tes, world, nextflow("A (s1)", 2, tags=TAG), exit_code=1)
    await ends(tes, world, nextflow("A (s1)", 3, tags=TAG))
    assert (await listed(tes))["rnaseq"][:2] == (1, 2)
    await ends(tes, world, nextflow("A (s1)", 4, tags=TAG))
    assert (await listed(tes))["rnaseq"][:2] == (1, 3)
    tasks = (await (await tes.api.get("/api/v1/workflows/rnaseq/tasks")).json())["tasks"]
    assert [task["state"] for task in tasks] == ["QUEUED", "SUCCEEDED", "SUCCEEDED"]
    await tes.api.post(f"/ga4gh/tes/v1/tasks/{lives}:cancel")


async def test_a_run_whose_engine_has_ended_it_or_that_rested_for_an_hour_is_over(
    tes: Tes, world: World
) -> None:
    """The next task with its text begins another run; half an hour is a pause."""
    world.stop_clock()
    await ends(tes, world, nextflow("A (s1)", 1, tags=TAG))
    world.skew_ms += 1_800_000
    await ends(tes, world, nextflow("B (s1)", 2, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq"]
    world.skew_ms += 3_600_000
    await ends(tes, world, nextflow("C (s1)", 3, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq~2", "rnaseq"]
    await tes.api.post("/api/v1/workflows/rnaseq~2/ended", json={"state": "SUCCEEDED"})
    tes.process.service.tes._edges._runs.clear()
    await ends(tes, world, nextflow("D (s1)", 4, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq~3", "rnaseq", "rnaseq~2"]  # what has ended is last


async def test_a_create_that_is_sent_again_begins_no_run(tes: Tes) -> None:
    """Its task has succeeded meanwhile, and its client has not heard of it."""
    first = nextflow("A (s1)", 1, tags=TAG)
    ident = await tes.create(first)
    while (await (await tes.api.get(f"/api/v1/workflows/{ident}")).json())["state"] != "SUCCEEDED":
        await asyncio.sleep(0.01)
    assert await tes.create(first) == ident
    await tes.create(nextflow("B (s1)", 2, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq"]


async def test_equal_tasks_one_after_another_are_tasks_of_one_run(tes: Tes, world: World) -> None:
    """A process with a constant tag that runs `each` value of an input: nothing lives between two of them."""
    for number in range(3):
        await ends(tes, world, nextflow("A (s1)", number, tags=TAG))
    assert await listed(tes) == {"rnaseq": (1, 3, "ENGINE")}


async def test_equal_tasks_that_are_sent_at_once_are_tasks_of_their_own(tes: Tes) -> None:
    """Also the third, which the service is sent before the second is in the database."""
    created = asyncio.gather(*(tes.create(nextflow("A (s1)", number, tags=TAG)) for number in range(5)))
    assert len(set(await created)) == 5
    assert (await listed(tes))["rnaseq"][:2] == (1, 5)


async def test_a_task_that_is_accepted_while_its_run_is_read_lives(
    tes: Tes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks and run are read by two queries. A task of a run that seems to have ended long ago would begin another run."""
    task = nextflow("A (s1)", 1, tags=TAG)
    call = identify(msgspec.convert(task, Task)).call
    assert call is not None
    database = tes.process.database
    read = database.rows

    async def then_accepted(query: Any) -> Any:
        found = await read(query)
        monkeypatch.undo()
        await tes.create(task)
        return found

    monkeypatch.setattr(database, "rows", then_accepted)
    so_far = await TesTasks(database).run_so_far(call.run, call.node, call.task)
    assert so_far.live
    assert (await TesTasks(database).run_so_far(call.run, call.node, call.task)).tries


async def test_a_task_that_was_refused_is_no_earlier_task(
    tes: Tes, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was away, or a path was wrong. The task that its client sends then is the first one."""
    service = tes.process.service.tes

    async def away(*_: Any) -> Any:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(service._admission, "submit", away)
        answer = await tes.api.post("/ga4gh/tes/v1/tasks", json=nextflow("A (s1)", 1, tags=TAG))
        assert answer.status == 503
    wrong = nextflow("B (s1)", 2, tags=TAG)
    await tes.refused(wrong | {"outputs": [*wrong["outputs"], {"path": "b", "url": "b"}]})
    await ends(tes, world, nextflow("A (s1)", 1, tags=TAG))
    await ends(tes, world, nextflow("B (s1)", 2, tags=TAG))
    tasks = (await (await tes.api.get("/api/v1/workflows/rnaseq/tasks")).json())["tasks"]
    assert ["#" in (task["item"] or "") for task in tasks] == [False, False]
    world.skew_ms += 60_000
    await ends(tes, world, nextflow("A (s1)", 3, tags=TAG))
    assert list(await listed(tes)) == ["rnaseq~2", "rnaseq"]


@BOTH
async def test_a_name_with_a_nul_character_is_refused_each_time(tes: Tes) -> None:
    """PostgreSQL takes none, so no query has it."""
    for _ in range(2):
        faults = await tes.refused(nextflow("A (s\0)", 1, tags=TAG))
        assert [found.endswith("with a NUL character at 1") for found, _ in faults.values()] == [True]


async def test_a_task_without_a_command_is_refused(tes: Tes) -> None:
    """Its other fields are those of a job of Toil."""
    job = {
        "name": "'A' a v1",
        "inputs": [{"path": "/j", "url": "file:///j"}],
        "executors": [{"image": "a", "command": []}],
    }
    assert "$.executors[0].command" in await tes.refused(job)


@BOTH
async def test_a_tag_that_looks_like_a_repetition_is_a_run_of_its_own(tes: Tes, world: World) -> None:
    """Its run has another name. The next repetition has the number after it."""
    user = {"workflow_id": "rnaseq~7"}
    await ends(tes, world, nextflow("A (s1)", 1, tags=TAG))
    await ends(tes, world, nextflow("A (s1)", 2, tags=user))
    tes.process.service.tes._edges._runs.clear()  # as after a restart
    await ends(tes, world, nextflow("B (s1)", 3, tags=TAG))
    assert await listed(tes) == {"rnaseq": (2, 2, "ENGINE"), "rnaseq~7": (1, 1, "ENGINE")}
    world.skew_ms += 60_000
    await ends(tes, world, nextflow("A (s1)", 4, tags=TAG))
    assert set(await listed(tes)) == {"rnaseq", "rnaseq~7", "rnaseq~8"}


@BOTH
async def test_repetitions_are_found_by_an_index(tes: Tes, url: str) -> None:
    """A database has many runs."""
    reads, asked = tes.process.service.tes._reads, list[tuple[str, Any]]()

    def note(*given: Any) -> None:
        asked.append((given[2], given[3]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await reads.latest_run(Call("rnaseq", "rnaseq", "nextflow", "A"))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    ((query, values),) = [each for each in asked if "FROM runs" in each[0]]
    engine = engine_of_a_thread(reads._database.url)
    with engine.connect() as connection:
        if reads._database.kind == "sqlite":
            plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values).all())
            assert re.search(r"SEARCH runs USING INDEX \w+ \(id>\? AND id<\?\)", plan)
        else:
            connection.exec_driver_sql("SET enable_seqscan = off")  # the table is empty
            plan = str(connection.exec_driver_sql(f"EXPLAIN {query}", values).all())
            assert re.search(r"Index Cond: \(\(id ~>=~ '\S+'::text\) AND \(id ~<~ ", plan)
    engine.dispose()


@needs("small_bodies")
async def test_a_large_task_is_recognized_beside_the_event_loop(
    tes: Tes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To hash all its inputs takes long."""
    threads = set()

    def noted(task: Task, run: str) -> Identity:
        threads.add(threading.current_thread().name.partition("_")[0])
        return identify(task, run)

    monkeypatch.setattr("flowsched.control.tes.identify", noted)
    await tes.create(nextflow("A (s1)", 1, "/data/" + "a" * 200))
    assert threads == {"MainThread"}
    await tes.create(nextflow("A (s2)", 2, description="x" * 40_000))
    assert threads == {"MainThread", "aside"}


async def test_a_run_that_is_forgotten_while_it_is_read_is_no_fault(tes: Tes, world: World) -> None:
    """Replicas read it for each task; another task may be a repeat of a create at that time."""
    service = tes.process.service.tes
    service._edges = edges = Edges(service._reads, refresh=True)
    await ends(tes, world, nextflow("A (s1)", 1, tags=TAG))
    latest = service._reads.latest_run

    async def forgotten(call: Call) -> tuple[str, int]:
        found = await latest(call)
        edges.forget("rnaseq")
        return found

    service._reads.latest_run = forgotten
    await ends(tes, world, nextflow("B (s1)", 2, tags=TAG))
    assert await listed(tes) == {"rnaseq": (2, 2, "ENGINE")}


async def test_a_client_of_no_known_engine_decides_itself_what_is_one_run(tes: Tes, world: World) -> None:
    """Its tag is its word, however often it sends the same task."""
    for number in range(2):
        body = {
            "executors": [{"image": "a", "command": ["x"]}],
            "name": "s",
            "tags": TAG,
            "description": str(number),
        }
        await ends(tes, world, body)
    assert await listed(tes) == {"rnaseq": (1, 2, "ENGINE")}


@pytest.mark.parametrize("prefix", ["/ga4gh/tes/v1", "/v1", ""])
async def test_an_endpoint_that_names_a_run_counts_before_the_task(
    prefix: str, tes: Tes, world: World
) -> None:
    """Any client can name its run so, one that sends no tags, too. Equal tasks of two runs are two tasks."""
    plain = {"executors": [{"image": "a", "command": ["x"]}], "name": "s"}
    world.outcome = lambda pod: Outcome(runtime_ms=5)
    idents = []
    for run in ("night%201", "night-2"):
        for body in (plain, nextflow("A (s1)", 1, tags=TAG)):
            idents.append(await tes.create(body, prefix=f"/runs/{run}{prefix}"))
            await tes.until(idents[-1])
            assert (await tes.get(idents[-1], "MINIMAL", prefix=f"/runs/{run}{prefix}"))[
                "state"
            ] == "COMPLETE"
    assert len(set(idents)) == 4
    assert await listed(tes) == {"night-2": (2, 2, "ENGINE"), "night 1": (2, 2, "ENGINE")}
