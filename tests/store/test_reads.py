"""Reading: pages that neither repeat nor hide, recovery, expiry, queues."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert
from sqlalchemy import event as sqlalchemy_event
from store_samples import end, event, finished, intent, rows, submission, task

from flowsched.engine.delta import Delta, GangOrderWrite, OutputWrite, ReplicaWrite, WorkflowWrite
from flowsched.engine.state.cluster import DrainOrder
from flowsched.errors import Conflict, InvalidRequest, NotFound
from flowsched.scheduling.state.usage import UsageRow
from flowsched.store import tables
from flowsched.store.database import Database, url_for
from flowsched.store.recovery import Removed, calls, load, load_living, outline, remove_finished
from flowsched.store.requests import Submission, compress
from flowsched.store.rows import QueueRow, ReplicaRow, Sums
from flowsched.store.runs import Runs
from flowsched.store.settings import Drains, Queues
from flowsched.store.workflows import Which, Workflows
from flowsched.store.writer import GroupWriter
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import Call


async def names(reads: Workflows, **asked: Any) -> list[str]:
    return [row.id for row in await reads.page(Which(**asked), 100)]


async def test_lists_are_filtered(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """By state, name, queue and labels, alone and together; newest first."""
    await writer.submit(submission("a", queue="q1", labels={"sample": "1", "x.y": "z"}))
    await writer.submit(submission("b", queue="q2", labels={"sample": "2"}))
    await writer.submit(submission("c", queue="q1", labels={"sample": "2"}, name="100%_done"))
    await writer.commit(Delta(workflows=[WorkflowWrite("b", "RUNNING", "", 5, None)]), epoch)
    assert await names(reads) == ["c", "b", "a"]
    assert await names(reads, states=("RUNNING", "FAILED")) == ["b"]
    assert await names(reads, name="name of a") == ["a"]
    assert await names(reads, search="OF A") == ["a"]
    assert await names(reads, search="c") == ["c"]
    assert await names(reads, search="0%_D") == ["c"]
    assert await names(reads, search="_") == ["c"]
    assert await names(reads, queue="q1") == ["c", "a"]
    assert await names(reads, labels=(("sample", "2"),)) == ["c", "b"]
    assert await names(reads, labels=(("x.y", "z"),)) == ["a"]
    assert await names(reads, labels=(("sample", ""),), queue="q1") == ["c", "a"]
    assert await names(reads, labels=(("sample", "2"), ("x.y", "z"))) == []
    assert sorted(await reads.some(["a", "c", "none"])) == ["a", "c"]
    assert await reads.count() == {"PENDING": 2, "RUNNING": 1}
    assert await reads.existing(["a", "c", "none"]) == {"a", "c"}


async def test_beginnings_know_case_and_parts_do_not(
    writer: GroupWriter, reads: Workflows, epoch: int
) -> None:
    """The same on both databases: the beginning of an id counts every letter as it is, a search ignores the case of ASCII alone."""
    await writer.submit(submission("wa", name="Align/É_x%"))
    await writer.submit(submission("wb", name="align/é"))
    await writer.submit(submission("wc", name="al"))
    assert await names(reads, ref="WA") == []
    assert await names(reads, ref="wa") == ["wa"]
    assert await names(reads, search="ALIGN/") == ["wb", "wa"]
    assert await names(reads, search="É") == ["wa"]
    assert await names(reads, search="é") == ["wb"]
    assert await names(reads, search="X%") == ["wa"]
    assert await names(reads, search="W") == []
    assert await names(reads, search="w") == ["wc", "wb", "wa"]


async def test_lists_are_filtered_by_user_time_and_whether_they_live(
    writer: GroupWriter, reads: Workflows, database: Database, epoch: int
) -> None:
    """Of runs of other engines too: a run is of the user of its calls, and was submitted with the first."""
    await writer.submit(submission("a", owner="ada", now_ms=1_000))
    await writer.submit(submission("b", owner="bob", now_ms=2_000))
    await writer.submit(submission("c", owner="ada", now_ms=3_000))
    call = Call(run="r", run_name="germline", source="cromwell", node="align")
    await writer.submit(submission("d", owner="ada", now_ms=4_000, call=call))
    await writer.commit(finished("c"), epoch)
    assert await names(reads, owner="ada", run="") == ["c", "a"]
    assert await names(reads, owner="ada", run="", live=True) == ["a"]
    assert await names(reads, since_ms=2_000, run="") == ["c", "b"]
    assert await names(reads, since_ms=2_000, until_ms=3_000, owner="bob") == ["b"]
    runs = Runs(database)

    async def both(live: bool, **asked: Any) -> list[str]:
        return [row.id for row in await runs.page(Which(run="", live=live, **asked), 10, 0)]

    assert (await both(True, owner="ada"), await both(False, owner="ada")) == (["r", "a"], ["c"])
    assert (await both(True, owner="bob"), await both(False, owner="bob")) == (["b"], [])
    assert (await both(True, since_ms=3_000), await both(False, since_ms=3_000)) == (["r"], ["c"])
    assert (await both(True, until_ms=3_000), await both(False, until_ms=3_000)) == (["b", "a"], [])


async def test_a_run_lives_until_its_engine_says_the_end_or_a_task_has_failed(
    writer: GroupWriter, database: Database, epoch: int
) -> None:
    """While a call lives, the run does, whatever was said. A task that was tried again well has not failed."""

    def call(ident: str, run: str, attempt: int = 1, node: str = "a") -> Submission:
        return submission(ident, call=Call(run=run, run_name="g", source="tes", node=node, attempt=attempt))

    for ident, run, attempt in (
        ("c1", "waits", 1), ("c2", "told", 1), ("c3", "told-but-lives", 1), ("c4", "failed", 1), ("c5", "cancelled", 1),
        ("c6", "again", 1), ("c7", "again", 2), ("c8", "goes-on", 1),
    ):  # fmt: skip
        await writer.submit(call(ident, run, attempt))
    await writer.submit(call("c9", "goes-on", node="b"))
    states = {
        "c1": "SUCCEEDED", "c2": "SUCCEEDED", "c4": "FAILED", "c5": "CANCELLED", "c6": "FAILED", "c7": "SUCCEEDED",
        "c8": "FAILED",
    }  # fmt: skip
    await writer.commit(
        Delta(workflows=[WorkflowWrite(each, state, "", 1, 2) for each, state in states.items()]), epoch
    )
    runs = Runs(database)
    await runs.end("told", "SUCCEEDED", "")
    await runs.end("told-but-lives", "FAILED", "")

    async def part(live: bool, *said: str) -> list[str]:
        return [row.id for row in await runs.page(Which(said, run="", live=live), 10, 0)]

    assert await part(True) == ["goes-on", "again", "told-but-lives", "waits"]
    assert await part(False) == ["cancelled", "failed", "told"]
    assert await part(False, "FAILED") == ["cancelled", "failed"]


async def plans_of(sqlite: Database, read: Callable[[], Awaitable[Any]]) -> list[set[str]]:
    """How SQLite finds the workflows and runs of each query of a read."""
    asked: list[tuple[str, Any]] = []

    def note(*given: Any) -> None:
        asked.append((given[2], given[3]))

    sqlalchemy_event.listen(Engine, "before_cursor_execute", note)
    try:
        await read()
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", note)
    plans = []
    for statement, values in asked:
        with sqlite.engine.connect() as connection:
            found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            plans.append({row[3] for row in found if re.search(r"\b(workflows|runs)\b", row[3])})
    return plans


async def test_the_calls_of_a_new_leader_are_found_by_their_index(tmp_path: Path) -> None:
    """Most workflows of a database may be no calls."""
    async with await Database.open(url_for(tmp_path / "db")) as sqlite:
        plans = await plans_of(sqlite, partial(calls, sqlite))
    assert plans == [
        {
            "SCAN workflows USING COVERING INDEX ix_workflows_run",
            "SEARCH workflows USING INDEX sqlite_autoindex_workflows_2 (seq=?)",
        }
    ]


async def test_neither_part_of_a_list_scans_a_table(tmp_path: Path) -> None:
    """Live ones are found by the indexes of what lives, ended ones in the order of their numbers."""
    plans = []
    async with await Database.open(url_for(tmp_path / "db")) as sqlite:
        for live in (True, False):
            plans += await plans_of(sqlite, partial(Runs(sqlite).page, Which(run="", live=live), 50, 0))
    assert (
        plans
        == [
            {
                "SCAN workflows USING INDEX ix_workflows_live",
                "SCAN workflows USING INDEX ix_workflows_live_calls",
                "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id=?)",
                "SCAN runs USING INDEX ix_runs_open",
                "SEARCH workflows USING INDEX ix_workflows_run (run=?)",
                "SEARCH workflows USING INDEX ix_workflows_live_calls (run=?)",
            },
            {
                "SCAN workflows USING INDEX sqlite_autoindex_workflows_2",  # from the newest, until the page is full
                "SCAN runs USING INDEX sqlite_autoindex_runs_2",
                "SEARCH workflows USING INDEX ix_workflows_live_calls (run=?)",
                "SEARCH workflows USING INDEX ix_workflows_run (run=?)",
            },
        ]
    )


async def test_tasks_of_many_workflows_are_counted_with_one_query(
    writer: GroupWriter, reads: Workflows, database: Database, epoch: int
) -> None:
    """A list of 1,000 workflows made 1,000 queries, and held up whatever else the service did."""
    for n in range(40):
        await writer.submit(submission(f"w{n}"))
    await writer.commit(finished("w7"), epoch)
    asked: list[str] = []

    def note(*given: object) -> None:
        asked.append(str(given[2]))

    sqlalchemy_event.listen(Engine, "before_cursor_execute", note)
    try:
        page = await reads.page(Which(), 1000)
        counts = await reads.sums(page)
    finally:
        sqlalchemy_event.remove(Engine, "before_cursor_execute", note)
    assert len([text for text in asked if text.startswith("SELECT")]) == 2
    assert sorted(counts) == sorted(f"w{n}" for n in range(40))
    assert counts["w7"] == Sums({"SUCCEEDED": 5}, [])


async def test_when_the_last_steps_ended_is_read_from_the_reports(
    writer: GroupWriter, reads: Workflows, epoch: int
) -> None:
    """Of attempts with steps; their text may hold what JSON text may."""
    await writer.submit(submission("a"))
    steps = rb'{"steps":[{"ended_ms":7,"stdout":""},{"ended_ms":9,"stdout":"\u0000 \"ended_ms\":3"}]}'
    ends = [
        end("pod-0")._replace(report=steps),
        end("pod-1")._replace(report=b'{"steps":[]}'),
        end("pod-2"),
    ]
    tries = [intent(f"pod-{index}", "a", index) for index in range(3)]
    await writer.commit(Delta(intents=tries), epoch)
    await writer.commit(Delta(ends=ends), epoch)
    assert await reads.steps_ended(["a", "none"]) == {("a", 0, 0, 1): 9}


async def test_pages_go_on_where_they_ended(writer: GroupWriter, reads: Workflows) -> None:
    """What arrives between two pages neither repeats nor hides an entry."""
    for n in range(5):
        await writer.submit(submission(f"w{n}"))
    first = await reads.page(Which(), 2)
    assert [row.id for row in first] == ["w4", "w3"]
    await writer.submit(submission("new"))
    assert await names(reads, before=first[-1].seq) == ["w2", "w1", "w0"]
    assert [ident for ident, _ in await reads.accepted_after(4)] == ["w4", "new"]


@pytest.mark.parametrize("token", ["x", "!!", "WzFd" * 9, "WyJhIl0", "WzEsMl0", "bnVsbA", "WzFlNDAwXQ", "é"])
async def test_foreign_tokens_are_refused(reads: Workflows, token: str) -> None:
    """A token that is not ours is the client's error, never ours."""
    with pytest.raises(InvalidRequest):
        await reads.attempts_of("w", token=token)


async def test_what_is_not_there(reads: Workflows, writer: GroupWriter) -> None:
    """NotFound for a workflow that does not exist, and for another tenant's just the same."""
    await writer.submit(submission("w", tenant="lab"))
    with pytest.raises(NotFound) as missing:
        await reads.get("x", tenant="other")
    with pytest.raises(NotFound) as hidden:
        await reads.get("w", tenant="other")
    assert str(missing.value).replace("x", "w") == str(hidden.value).replace("x", "w")
    with pytest.raises(NotFound):
        await reads.spec("x")
    assert await reads.stages("x") == []
    assert await reads.task("w", 0, 0) is None
    assert await reads.attempt("x") is None


async def test_tasks_by_page_stage_and_state(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """In order of stage and index, across the border of stages."""
    await writer.submit(submission("w"))
    made = [task(index=i, stage=s, state=7 if i == 1 else 1) for s in (1, 0) for i in (2, 0, 1)]
    await writer.commit(Delta(tasks=made), epoch)
    seen, token = [], None
    while True:
        page = await reads.tasks("w", limit=2, token=token)
        seen += [(t.stage, t.index) for t in page.items]
        token = page.next_token
        if token is None:
            break
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [t.index for t in (await reads.tasks("w", stage=1, state=TaskState.SUCCEEDED)).items] == [1]
    assert (await reads.task("w", 1, 2)).index == 2  # type: ignore[union-attr]


async def test_events_since(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """After an id, of all or of one workflow, at most so many, in the order of commits."""
    await writer.submit(submission("a"))
    await writer.submit(submission("b"))
    await writer.commit(Delta(events=[event("a", "one"), event("b", "two"), event("a", "three")]), epoch)
    assert [(e.id, e.kind) for e in await reads.events(2)] == [(3, "one"), (4, "two"), (5, "three")]
    assert [e.kind for e in await reads.events(2, workflow_id="a")] == ["one", "three"]
    assert [e.id for e in await reads.events(2, limit=1)] == [3]
    assert await reads.last_event() == 5


async def test_a_new_leader_reads_what_lives(
    writer: GroupWriter, database: Database, reads: Workflows, epoch: int
) -> None:
    """Living workflows with all that hangs on them; of finished ones nothing; replicas of all."""
    for name in ("done", "a", "b"):
        await writer.submit(submission(name, spec=b'{"name": "%s"}' % name.encode()))
    await writer.commit(
        Delta(
            tasks=[task("done"), task("a", 1, state=4), task("a", 0, state=7)],
            intents=[intent("p1", "a", 1), intent("p0", "a", 0), intent("d", "done")],
            ends=[end("p0"), end("d")],
            outputs=[
                OutputWrite("a", 0, 0, "bam", "u", 5, "v", 1),
                OutputWrite("done", 0, 0, "bam", "x", 5, None, 1),
            ],
            gang_orders=[
                GangOrderWrite("a", 0, 2, "", b"roster"),
                GangOrderWrite("a", 0, 2, "k", b"told"),
                GangOrderWrite("done", 0, 0, "", b"of done"),
            ],
            replicas=[ReplicaWrite("u", "n", 5, True)],
        ),
        epoch,
    )
    await writer.commit(Delta(gang_orders=[GangOrderWrite("a", 0, 2, "", b"grown")]), epoch)
    await writer.commit(finished("done"), epoch)
    await writer.command("b", "cancel", {}, 5)
    found = await outline(database)
    assert [(each.id, each.stages) for each in found.living] == [("a", 2), ("b", 2)]
    back = await load_living(database, 1, 3)
    assert list(back) == ["a", "b"]
    a, b = back["a"], back["b"]
    assert a.spec == b'{"name": "a"}'
    assert [(t.index, t.state, t.version) for t in a.tasks] == [(0, 7, 1), (1, 4, 1)]
    assert [(o.uri, o.value) for o in a.outputs] == [("u", "v")]
    assert [stage.name for stage in b.stages] == ["align", "train"]
    assert b.workflow.cancel_requested
    assert found.pods == [("a", 0, b'{"pod": "p1"}')]
    assert found.gang_orders == {("a", 0, 2, ""): b"grown", ("a", 0, 2, "k"): b"told"}
    assert found.replicas == [ReplicaRow("u", "n", 5)]
    assert (found.last_seq, found.last_event) == (3, await reads.last_event())
    named = await load(database, "done")
    assert named is not None
    assert [t.workflow for t in named.tasks] == ["done"]
    assert await load(database, "nobody") is None


async def test_fault_07_recovery_is_fast(database: Database) -> None:
    """100,000 finished and 10,000 active workflows, 40,000 active tasks: read within the five seconds of a
    restart (once of three times, for others use this machine too).
    """
    spec = compress(b'{"name": "w", "stages": [{"name": "align", "command": ["./align.sh"]}]}')

    def work(connection: Connection) -> None:
        for start in range(0, 110_000, 10_000):
            state, ended = ("RUNNING", None) if start >= 100_000 else ("SUCCEEDED", 9)
            common = {"state": state, "stages": 1, "tasks": 4, "spec": spec, "ended_ms": ended}
            ids = range(start, start + 10_000)
            connection.execute(
                insert(tables.workflows), [{"id": f"w{n:06}", "seq": n, **common} for n in ids]
            )
            row = {"stage": 0, "state": state, "width": 4, "members": 1}
            connection.execute(insert(tables.stages), [{"workflow_id": f"w{n:06}", **row} for n in ids])
            if start >= 100_000:
                columns = tables.tasks.c.keys()
                tasks = [dict(zip(columns, task(f"w{n:06}", i), strict=True)) for n in ids for i in range(4)]
                connection.execute(insert(tables.tasks), tasks)

    await database.write(work)
    took: list[float] = []
    while len(took) < 3 and min(took, default=5) >= 5:
        began = time.perf_counter()
        found = {}
        assert len((await outline(database)).living) == 10_000
        for first in range(100_000, 110_000, 2_000):
            found |= await load_living(database, first, first + 1_999)
        took.append(time.perf_counter() - began)
    assert len(found) == 10_000
    assert sum(len(workflow.tasks) for workflow in found.values()) == 40_000
    assert min(took) < 5, took
    print(f"recovery on {database.kind}: {min(took):.2f} s")


async def test_finished_workflows_expire_in_bounded_rounds(
    writer: GroupWriter, database: Database, reads: Workflows, epoch: int
) -> None:
    """Only what ended before goes, with everything that hangs on it, a bounded number of rows at a time."""
    for name in ("old", "young", "alive"):
        await writer.submit(submission(name, key=name, stages=[("s", 50, 1), ("t", 1, 1)]))
        await writer.commit(
            Delta(
                tasks=[task(name, i) for i in range(50)],
                intents=[intent(f"p{name}", name)],
                gang_orders=[GangOrderWrite(name, 0, 0, "", b"roster")],
                ends=[end(f"p{name}")],
            ),
            epoch,
        )
    number = await writer.command("old", "retry", {}, 3)
    await writer.commit(finished("old", 100), epoch)
    assert await remove_finished(database, 150, rows=20) == Removed(
        0, 0
    )  # the user's command is still to be done
    await writer.commit(Delta(commands_done=[number]), epoch)
    await writer.commit(finished("young", 200), epoch)
    rounds = []
    while (removed := await remove_finished(database, 150, rows=20)) != Removed(0, 0):
        rounds.append(removed)
    assert [removed.workflows for removed in rounds] == [0, 0, 1]
    assert await names(reads) == ["alive", "young"]
    for table in ("tasks", "attempts", "gang_orders", "events", "stages", "commands", "idempotency"):
        assert await rows(database, f"SELECT count(*) FROM {table} WHERE workflow_id = 'old'") == [(0,)], (
            table
        )
        assert await rows(database, f"SELECT count(*) FROM {table} WHERE workflow_id = 'young'") != [
            (0,)
        ] or (table == "commands")


async def test_orders_to_drain_nodes_are_kept(database: Database) -> None:
    """With author, reason, begin and deadline; a new order replaces the old one, and None takes it back."""
    drains = Drains(database)
    order = DrainOrder(from_ms=5_000, until_ms=9_000, reason="new disk", author="ada", at_ms=1_000)
    await drains.put("n0", order)
    await drains.put("n1", DrainOrder(from_ms=1_000))
    assert await drains.all() == {"n0": order, "n1": DrainOrder(from_ms=1_000)}
    await drains.put("n0", DrainOrder(from_ms=2_000, until_ms=0))
    await drains.put("n1", None)
    assert await drains.all() == {"n0": DrainOrder(from_ms=2_000, until_ms=0)}


async def test_queues(database: Database, writer: GroupWriter) -> None:
    """Made, changed and removed; a tree stays a tree, and a queue in use stays."""
    queues = Queues(database)
    await queues.put(QueueRow("lab", weight=3, guarantee={"cpu": 8_000}))
    await queues.put(QueueRow("genomics", "lab", cap={"gpu": 1}, paused=True, order="fifo"))
    await queues.put(QueueRow("lab", weight=5, reclaimable=False))
    assert await queues.list() == [
        QueueRow("genomics", "lab", cap={"gpu": 1}, paused=True, order="fifo"),
        QueueRow("lab", weight=5, reclaimable=False),
    ]
    for wrong in (QueueRow("x", "nowhere"), QueueRow("lab", "genomics"), QueueRow("lab", "lab")):
        with pytest.raises(Conflict):
            await queues.put(wrong)
    with pytest.raises(Conflict, match="below it: genomics"):
        await queues.delete("lab")
    await writer.submit(submission("w", queue="genomics"))
    with pytest.raises(Conflict, match="has 1 workflow that has not ended: w"):
        await queues.delete("genomics")
    await queues.put(QueueRow("empty"))
    await queues.delete("empty")
    with pytest.raises(NotFound):
        await queues.delete("empty")
    with pytest.raises(NotFound):
        await queues.get("empty")
    assert (await queues.get("lab")).weight == 5


async def test_usage_is_what_was_written_last(database: Database, writer: GroupWriter, epoch: int) -> None:
    """By queue and user, amounts beyond 64 bits included; an older row never takes the place of a newer one."""
    ann, nobody = UsageRow("lab", "ann", 9, 5, {"memory": 1 << 70}), UsageRow("lab", "", 9, 0, {"cpu": 1})
    await writer.commit(Delta(usage=[UsageRow("lab", "ann", 8, 5, {"cpu": 7}), ann, nobody]), epoch)
    await writer.commit(Delta(usage=[UsageRow("lab", "", 8, 0, {"cpu": 2})]), epoch)
    assert (await outline(database)).usage == [nobody, ann]


async def test_attempts_for_reports_come_in_pages(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """By stage, index and attempt, with their launch orders and the names of their stages; each once."""
    await writer.submit(submission("w"))
    await writer.submit(submission("v"))
    orders = [
        intent(f"w-{index}-{attempt}", index=index)._replace(attempt=attempt)
        for index in (1, 0)
        for attempt in (1, 2)
    ]
    await writer.commit(Delta(intents=[*orders, intent("v-0", "v")]), epoch)
    await writer.commit(Delta(ends=[end("w-0-1", exit_code=3)]), epoch)
    found, token = [], None
    while True:
        page = await reads.attempts_of("w", limit=3, token=token)
        found += page.items
        token = page.next_token
        if token is None:
            break
    assert [use.row.name for use in found] == ["w-0-1", "w-0-2", "w-1-1", "w-1-2"]
    assert [(use.stage, use.call, use.pod) for use in found[:1]] == [("align", "", b'{"pod": "w-0-1"}')]
    assert [(use.row.exit_code, dict(use.row.usage)) for use in found[:2]] == [(3, {"cpu_ms": 7}), (None, {})]
    assert [use.row.name for use in (await reads.attempts_of("v")).items] == ["v-0"]
    with pytest.raises(InvalidRequest):
        await reads.attempts_of("w", token="x")
