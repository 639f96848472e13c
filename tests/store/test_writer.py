"""The group writer: what is acknowledged is there once, and one bad write harms nobody else."""

from __future__ import annotations

import asyncio
import random
import zlib

import pytest
from sqlalchemy.exc import DBAPIError
from store_samples import (
    Failpoints,
    connection_lost,
    end,
    event,
    finished,
    intent,
    rows,
    serialization_failure,
    submission,
    task,
)

from flowsched.engine.delta import Delta, OutputWrite, ReplicaWrite, RunEnd, TaskWrite
from flowsched.errors import (
    CancelRequested,
    Conflict,
    LeadershipLost,
    NotFound,
    OutcomeUnknown,
    StaleWrite,
    StorageBusy,
    Unavailable,
)
from flowsched.store import tables
from flowsched.store.database import Database
from flowsched.store.lease import Lease
from flowsched.store.requests import Submitted
from flowsched.store.runs import Runs
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter
from flowsched.workflow.spec import Call
from tests.house.second_ways import needs


def test_task_rows_are_what_the_engine_writes() -> None:
    """The tuple goes to the database as it is: a field more or less in either would shift the columns."""
    columns = [column.name for column in tables.tasks.columns]
    assert columns == ["workflow_id", *TaskWrite._fields[1:]]


async def test_an_accepted_workflow_is_there_byte_by_byte(writer: GroupWriter, reads: Workflows) -> None:
    """Document, labels, stages and counts are kept as submitted."""
    document = b'{"name": "\xc3\xa4", "spaces":   1}' + b" " * 100_000
    sent = submission(
        "w", labels={"sample": "NA18507", "a.b": 'q"\\'}, spec=document, tenant="lab", owner="ann"
    )
    assert await writer.submit(sent) == Submitted("w", True, 1)
    assert await reads.spec("w") == document
    row = await reads.get("w")
    assert row.labels == {"sample": "NA18507", "a.b": 'q"\\'}
    assert (row.state, row.stages, row.tasks, row.spec_bytes) == ("PENDING", 2, 5, len(document))
    assert (row.tenant, row.owner, row.cancel_requested, row.paused) == ("lab", "ann", False, False)
    first, second = await reads.stages("w")
    assert (first.name, first.width, first.members, first.counts) == ("align", 3, 1, {"PENDING": 3})
    assert (second.name, second.width, second.members, second.counts) == ("train", 1, 2, {"PENDING": 2})
    assert [e.kind for e in await reads.events(workflow_id="w")] == ["workflow.submitted"]


@needs("small_bodies")
async def test_fault_06_two_hundred_copies_make_one_workflow(writer: GroupWriter, database: Database) -> None:
    """The same key and body sent 200 times at once: one is created, all get its id, another body refused."""
    copies = [submission(f"w{n}", key="once") for n in range(200)]
    other = submission("other", key="once", body_hash="different")
    *same, refused = await asyncio.gather(
        *(writer.submit(copy) for copy in copies), writer.submit(other), return_exceptions=True
    )
    assert [answer for answer in same if answer.created] == [same[0]]
    assert {answer.workflow_id for answer in same} == {"w0"}
    assert isinstance(refused, Conflict)
    assert await writer.submit(submission("later", key="once")) == Submitted("w0", False, 1)
    assert await rows(database, "SELECT id, seq FROM workflows") == [("w0", 1)]


async def test_fault_17_two_writers_accept_the_same_key_once(database: Database) -> None:
    """Two processes (here: two writers) race with the same keys: one workflow for each key."""
    async with GroupWriter(database) as one, GroupWriter(database) as two:
        answers = await asyncio.gather(
            *(
                w.submit(submission(f"{side}{n}", key=f"k{n}"))
                for n in range(40)
                for side, w in (("a", one), ("b", two))
            )
        )
    assert sum(answer.created for answer in answers) == 40
    assert (await rows(database, "SELECT count(*), max(seq) FROM workflows"))[0] == (40, 40)


async def test_tenants_do_not_share_keys(writer: GroupWriter) -> None:
    """A key that another tenant used tells nothing and takes nothing."""
    one = await writer.submit(submission("a", key="k", tenant="one"))
    two = await writer.submit(submission("b", key="k", tenant="two", body_hash="x"))
    assert (one.created, two.created) == (True, True)


async def test_a_taken_id_is_refused_and_spoils_nothing(writer: GroupWriter, database: Database) -> None:
    """A second workflow of an id fails alone, and its key is not used up."""
    await writer.submit(submission("w"))
    good, bad, also = await asyncio.gather(
        writer.submit(submission("x")),
        writer.submit(submission("w", key="k")),
        writer.submit(submission("y")),
        return_exceptions=True,
    )
    assert (good.workflow_id, also.workflow_id) == ("x", "y")
    assert isinstance(bad, Conflict)
    assert await rows(database, "SELECT count(*) FROM idempotency") == [(0,)]
    assert await rows(database, "SELECT seq FROM workflows ORDER BY seq") == [(1,), (2,), (3,)]


async def test_a_delta_is_written_as_one(
    writer: GroupWriter, database: Database, reads: Workflows, epoch: int
) -> None:
    """Every kind of row of a step arrives, and its events are numbered from what `commit` returns."""
    await writer.submit(submission("w"))
    first = await writer.commit(
        Delta(tasks=[task(index=1, state=4)], intents=[intent("p1", index=1)], events=[event(), event()]),
        epoch,
    )
    assert first == 2
    delta = Delta(
        tasks=[task(index=1, version=2, state=7, exit_code=0)],
        ends=[end("p1", message="nul \x00 and \ud800")],
        outputs=[OutputWrite("w", 0, 1, "bam", "file:///a", 5, None, 1)],
        replicas=[ReplicaWrite("u", "n1", 7, True), ReplicaWrite("u", "n2", 7, False)],
        events=[event(kind="task.succeeded")],
    )
    assert await writer.commit(delta, epoch) == 4
    assert await writer.commit(finished("w"), epoch) == 5
    assert await writer.commit(Delta(tasks=[task(index=2)]), epoch) == 0
    (attempt,) = await reads.attempts("w", 0, 1)
    assert (attempt.ended_ms, attempt.started_ms, attempt.exit_code) == (50, 30, 0)
    assert (attempt.message, attempt.usage) == ("nul \ufffd and ?", {"cpu_ms": 7})
    (kept,) = await rows(database, "SELECT pod FROM attempts WHERE name = 'p1'")
    assert bytes(kept[0]) == b'{"pod": "p1"}'
    assert [o.uri for o in await reads.outputs("w")] == ["file:///a"]
    done = await reads.get("w")
    assert (done.state, done.started_ms, done.ended_ms) == ("SUCCEEDED", 10, 90)
    assert (await reads.stages("w"))[0].counts == {"SUCCEEDED": 3}
    ids = [e.id for e in await reads.events()]
    assert ids == [1, 2, 3, 4, 5]


async def test_the_end_of_a_run_keeps_a_reported_reason_beside_the_same_state_alone(
    writer: GroupWriter, database: Database, epoch: int
) -> None:
    """The engine knows more than its exit code. A head that is retried has another end, and the old reason is none of it."""
    call = Call(run="r", run_name="germline", source="miniwdl", node="miniwdl", head=True)
    await writer.submit(submission("w", call=call))
    runs = Runs(database)

    async def ended(state: str, reason: str) -> tuple[str, str]:
        await writer.commit(Delta(run_ends=[RunEnd("r", state, reason)]), epoch)
        row = await runs.find("r")
        assert row is not None
        return row.state, row.reason

    assert await ended("FAILED", "exit code 1") == ("FAILED", "exit code 1")
    assert await ended("SUCCEEDED", "") == ("SUCCEEDED", "")
    await runs.end("r", "FAILED", "align failed")
    assert await ended("FAILED", "exit code 1\0") == ("FAILED", "align failed")
    assert await ended("CANCELLED", "by request") == ("CANCELLED", "by request")


async def test_several_writes_of_a_task_in_one_step(
    writer: GroupWriter, reads: Workflows, epoch: int
) -> None:
    """They count as one from the first's version to the last's; a gap between them is refused."""
    await writer.submit(submission("w"))
    await writer.commit(Delta(tasks=[task(version=1), task(version=2), task(version=3, state=6)]), epoch)
    assert [(t.version, t.state) for t in (await reads.tasks("w")).items] == [(3, 6)]
    with pytest.raises(StaleWrite):
        await writer.commit(Delta(tasks=[task(version=4), task(version=6)]), epoch)


async def test_a_stale_version_changes_nothing(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """Compare-and-set: too old, too new, and made twice are refused with the rows' names, whole delta and
    all.
    """
    await writer.submit(submission("w"))
    await writer.commit(Delta(tasks=[task(index=0), task(index=1)]), epoch)
    for wrong in (task(index=1, version=1), task(index=1, version=3), task(index=2, version=2)):
        with pytest.raises(StaleWrite) as refusal:
            await writer.commit(Delta(tasks=[task(index=0, version=2), wrong], events=[event()]), epoch)
        assert ("w", 0, wrong.index) in refusal.value.keys
    assert [t.version for t in (await reads.tasks("w")).items] == [1, 1]
    assert await reads.last_event() == 1


async def test_an_attempt_is_launched_once_and_ends_once(
    writer: GroupWriter, reads: Workflows, epoch: int
) -> None:
    """A name is never reused, the first end stays, and an end of nothing is a bug that is told."""
    await writer.submit(submission("w"))
    await writer.commit(Delta(intents=[intent("p")]), epoch)
    with pytest.raises(StaleWrite):
        await writer.commit(Delta(intents=[intent("p", index=2)]), epoch)
    await writer.commit(Delta(ends=[end("p", exit_code=3)]), epoch)
    await writer.commit(Delta(ends=[end("p", exit_code=0, at_ms=99)]), epoch)
    (attempt,) = await reads.attempts("w", 0, 0)
    assert (attempt.exit_code, attempt.ended_ms) == (3, 50)
    with pytest.raises(StaleWrite):
        await writer.commit(Delta(ends=[end("unknown")]), epoch)


async def test_a_poisonous_write_fails_alone(
    writer: GroupWriter, reads: Workflows, epoch: int, failpoints: Failpoints
) -> None:
    """Of a group with a stale delta, an impossible number and an unknown workflow, all others are written."""
    await writer.submit(submission("w"))
    failpoints.gate = asyncio.Event()
    blocker = asyncio.create_task(writer.submit(submission("blocker")))
    await failpoints.at_gate.wait()
    writes = [
        writer.commit(Delta(tasks=[task(index=0)], events=[event()]), epoch),
        writer.commit(Delta(tasks=[task(index=1, version=7)], events=[event()]), epoch),
        writer.commit(Delta(tasks=[task(index=2, exit_code=2**70)]), epoch),
        writer.submit(submission("x")),
        writer.command("nobody", "cancel", {}, 5),
        writer.commit(Delta(tasks=[task(index=3)], events=[event()]), epoch),
    ]
    waiting = asyncio.gather(*writes, return_exceptions=True)
    await asyncio.sleep(0.05)
    failpoints.gate.set()
    first, stale, impossible, accepted, unknown, last = await waiting
    await blocker
    assert isinstance(stale, StaleWrite)
    assert isinstance(impossible, (DBAPIError, OverflowError))
    assert isinstance(unknown, NotFound)
    assert accepted.created
    assert [t.index for t in (await reads.tasks("w")).items] == [0, 3]
    assert {first, last} <= {e.id for e in await reads.events(workflow_id="w")}
    assert await reads.last_event() == 5  # no gaps for what was refused


async def test_fault_13_a_deposed_leader_changes_nothing(
    writer: GroupWriter, database: Database, reads: Workflows, epoch: int
) -> None:
    """The old leader wakes up after three lease times: all its writes are refused, also within a common
    group.
    """
    lease = Lease(database)
    await writer.submit(submission("w"))
    if database.kind == "postgresql":  # whose own clock counts
        late = tables.lease.update().values(expires_ms=1)
        await database.write(lambda connection: connection.execute(late))
    new = await lease.acquire("leader-2", 10_000, 30_000)
    assert new == 2
    good, late = await asyncio.gather(
        writer.commit(Delta(tasks=[task(index=1)]), 2),
        writer.commit(Delta(tasks=[task(index=0)], intents=[intent("p")], events=[event()]), epoch),
        return_exceptions=True,
    )
    assert good == 0
    assert isinstance(late, LeadershipLost)
    with pytest.raises(LeadershipLost):
        await writer.commit(Delta(events=[event()]), epoch)
    assert not await lease.renew(epoch, 10_000, 30_000)
    assert [t.index for t in (await reads.tasks("w")).items] == [1]
    assert await reads.attempts("w", 0, 0) == []


async def test_cancel_wins_over_a_launch(writer: GroupWriter, reads: Workflows, epoch: int) -> None:
    """After a cancel, or in one group with it, no launch is written; the step learns which workflows."""
    await writer.submit(submission("w"))
    await writer.submit(submission("x"))
    launch = Delta(tasks=[task(state=4)], intents=[intent("p"), intent("q", "x")], events=[event()])
    refused, number = await asyncio.gather(
        writer.commit(launch, epoch),
        writer.command("w", "cancel", {"reason": "later"}, 7),
        return_exceptions=True,
    )
    if not isinstance(refused, CancelRequested):  # the launch may have been in an earlier group
        refused = await asyncio.gather(
            writer.commit(Delta(intents=[intent("r")]), epoch), return_exceptions=True
        )
        refused = refused[0]
        assert isinstance(refused, CancelRequested)
    assert refused.reasons == {"w": "later"}
    with pytest.raises(CancelRequested):
        await writer.commit(Delta(intents=[intent("again")]), epoch)
    assert (await reads.get("w")).cancel_requested
    assert [(c.id, c.kind, c.body) for c in await reads.commands()] == [
        (number, "cancel", {"reason": "later"})
    ]
    await writer.commit(Delta(tasks=[task("x")], intents=[intent("s", "x")], commands_done=[number]), epoch)
    assert await reads.commands() == []


async def test_a_cancel_waits_for_a_launch_that_is_being_committed(
    writer: GroupWriter, database: Database, reads: Workflows, epoch: int, failpoints: Failpoints
) -> None:
    """P8 across processes: cancel is answered only once the launch is visible, so that the leader can undo it."""
    await writer.submit(submission("w"))
    failpoints.gate = asyncio.Event()
    launch = asyncio.create_task(writer.commit(Delta(intents=[intent("p")]), epoch))
    await failpoints.at_gate.wait()  # the launch has been checked and stands before its COMMIT
    async with GroupWriter(database) as other:
        cancel = asyncio.create_task(other.command("w", "cancel", {}, 5))
        await asyncio.sleep(0.4)
        assert not cancel.done()
        failpoints.gate.set()
        assert await cancel == 1
    assert await launch == 0
    assert [attempt.name for attempt in await reads.attempts("w", 0, 0)] == ["p"]
    with pytest.raises(CancelRequested):
        await writer.commit(Delta(intents=[intent("q")]), epoch)


async def test_pause_and_resume_are_remembered(writer: GroupWriter, reads: Workflows) -> None:
    """A flag on the workflow, as last said; the numbers of commands follow their order."""
    await writer.submit(submission("w"))
    one = await writer.command("w", "pause", {}, 5)
    assert (await reads.get("w")).paused
    two = await writer.command("w", "resume", {}, 6)
    assert not (await reads.get("w")).paused
    assert (one, two) == (1, 2)
    with pytest.raises(NotFound):
        await writer.command("nobody", "pause", {}, 5)


@pytest.mark.parametrize("error", [connection_lost(), serialization_failure(), ConnectionResetError("gone")])
async def test_fault_05_a_lost_answer_repeats_nothing(
    writer: GroupWriter, database: Database, failpoints: Failpoints, epoch: int, error: Exception
) -> None:
    """COMMIT took place and its answer did not arrive: the writer looks, and gives the answer of the first
    time.
    """
    failpoints.plan("writer.after_commit", error)
    assert await writer.submit(submission("w")) == Submitted("w", True, 1)
    failpoints.plan("writer.after_commit", error)
    assert await writer.commit(Delta(tasks=[task()], events=[event(), event()]), epoch) == 2
    failpoints.plan("writer.after_commit", error)
    assert await writer.command("w", "cancel", {}, 5) == 1
    assert await rows(database, "SELECT count(*), max(id) FROM events") == [(3, 3)]
    assert await rows(database, "SELECT version FROM tasks") == [(1,)]
    assert await rows(database, "SELECT count(*) FROM commands") == [(1,)]
    assert failpoints.passed["writer.after_commit"] == 3


async def test_fault_05_a_commit_that_did_not_happen_is_repeated(
    writer: GroupWriter, database: Database, failpoints: Failpoints
) -> None:
    """Failing before COMMIT, three times: tried again, written once."""
    failpoints.plan("writer.before_commit", connection_lost(), serialization_failure(), TimeoutError())
    assert await writer.submit(submission("w")) == Submitted("w", True, 1)
    assert failpoints.passed["writer.before_commit"] == 4
    assert writer.retries == 3
    assert await rows(database, "SELECT id, seq FROM workflows") == [("w", 1)]


async def test_fault_44_serialization_failures_lose_nothing(database: Database, epoch: int) -> None:
    """30 % of transactions fail with 40001 or 40P01, before or after COMMIT: no update is lost or doubled."""
    dice = random.Random(44)

    async def failing(place: str) -> None:
        if dice.random() < 0.15:  # at each of two places
            raise serialization_failure()

    async with GroupWriter(database, failpoint=failing, jitter=dice.random, retry_s=300) as writer:
        await writer.submit(submission("w", stages=[("s", 20, 1)]))
        for version in range(1, 11):
            await asyncio.gather(
                *(
                    writer.commit(Delta(tasks=[task(index=i, version=version)], events=[event()]), epoch)
                    for i in range(20)
                )
            )
        assert writer.retries > 0
    assert await rows(database, "SELECT count(*), min(version), max(version) FROM tasks") == [(20, 10, 10)]
    assert await rows(database, "SELECT count(*), min(id), max(id) FROM events") == [(201, 1, 201)]


async def test_waiting_has_a_limit(database: Database) -> None:
    """A database that never lets the writer in: StorageBusy after the limit, then it goes on as if nothing
    had been.
    """
    failpoints = Failpoints()
    failpoints.plan("writer.before_commit", *(serialization_failure() for _ in range(1_000)))
    async with GroupWriter(database, failpoint=failpoints, jitter=lambda: 0.5, retry_s=0.2) as writer:
        with pytest.raises(StorageBusy) as refusal:
            await writer.submit(submission("w"))
        assert not isinstance(refusal.value, OutcomeUnknown)
        failpoints.planned.clear()
        assert (await writer.submit(submission("x"))).seq == 1


@needs("small_bodies")
async def test_who_has_time_left_waits_on(database: Database, failpoints: Failpoints) -> None:
    """Of one group the eldest has waited for 30 s and is refused; the younger one is tried again, and written."""
    clock = [0.0]

    async def sleep(pause: float) -> None:
        clock[0] += pause
        await asyncio.sleep(0)

    failpoints.gate = asyncio.Event()
    async with GroupWriter(
        database, failpoint=failpoints, sleep=sleep, monotonic=lambda: clock[0], jitter=lambda: 0.5
    ) as writer:
        blocker = asyncio.create_task(writer.submit(submission("blocker")))
        await failpoints.at_gate.wait()
        elder = asyncio.create_task(writer.submit(submission("elder")))
        await asyncio.sleep(0)
        clock[0] = 20.0
        younger = asyncio.create_task(writer.submit(submission("younger")))
        await asyncio.sleep(0)
        clock[0] = 29.5
        failpoints.plan("writer.before_commit", *([serialization_failure()] * 14))
        failpoints.planned["writer.before_commit"].insert(0, serialization_failure())  # the blocker's own
        failpoints.gate.set()
        answers = await asyncio.gather(blocker, elder, younger, return_exceptions=True)
    assert isinstance(answers[1], StorageBusy)
    assert answers[2].workflow_id == "younger"
    assert "elder" not in {name for (name,) in await rows(database, "SELECT id FROM workflows")}


async def test_an_outcome_that_cannot_be_found_out_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost and the database stays away: neither yes nor no, but OutcomeUnknown."""
    failpoints = Failpoints()
    failpoints.plan("writer.after_commit", connection_lost())
    async with GroupWriter(database, failpoint=failpoints, retry_s=0.2) as writer:

        def away(*_: object) -> bool:
            raise connection_lost()

        original = writer._raise_mark
        calls = iter([original])

        def once(*given: object) -> bool:
            return next(calls, away)(*given)  # type: ignore[operator]

        monkeypatch.setattr(writer, "_raise_mark", once)
        with pytest.raises(OutcomeUnknown):
            await writer.submit(submission("w", key="k"))
        monkeypatch.undo()
        assert await writer.submit(submission("again", key="k")) == Submitted("w", False, 1)


@needs("small_bodies")
async def test_closing_writes_what_waits(database: Database) -> None:
    """`close` is a promise kept to those who wait, and a refusal to those who come later."""
    writer = GroupWriter(database)
    running = asyncio.create_task(writer.run())
    waiting = [asyncio.create_task(writer.submit(submission(f"w{n}"))) for n in range(5)]
    await asyncio.sleep(0)
    await writer.close()
    await running
    assert [answer.created for answer in await asyncio.gather(*waiting)] == [True] * 5
    with pytest.raises(Unavailable):
        await writer.submit(submission("late"))
    assert await rows(database, "SELECT count(*) FROM marks") == [(0,)]


async def test_a_stopped_writer_leaves_nobody_waiting(database: Database, failpoints: Failpoints) -> None:
    """If the loop around it dies, callers get an error instead of silence."""
    failpoints.gate = asyncio.Event()
    writer = GroupWriter(database, failpoint=failpoints)
    running = asyncio.create_task(writer.run())
    first = asyncio.create_task(writer.submit(submission("w")))
    await failpoints.at_gate.wait()
    second = asyncio.create_task(writer.submit(submission("x")))
    await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.sleep(0.05)
    failpoints.gate.set()
    answers = await asyncio.gather(first, second, running, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable, asyncio.CancelledError]


async def test_a_caller_who_leaves_has_still_written(
    writer: GroupWriter, reads: Workflows, failpoints: Failpoints
) -> None:
    """A client that hangs up does not undo its request, nor disturb the group it was in."""
    failpoints.gate = asyncio.Event()
    leaving = asyncio.create_task(writer.submit(submission("w")))
    await failpoints.at_gate.wait()
    leaving.cancel()
    failpoints.gate.set()
    assert (await writer.submit(submission("x"))).created
    assert (await reads.get("w")).id == "w"


async def test_documents_are_stored_small(writer: GroupWriter, database: Database) -> None:
    """A repetitive document of 1 MB takes a fraction of that."""
    document = b'{"stages": [' + b'{"name": "align", "command": ["./align.sh"]},' * 20_000 + b"]}"
    await writer.submit(submission("w", spec=document))
    ((stored,),) = await rows(database, "SELECT spec FROM workflows")
    assert len(stored) < len(document) / 20
    assert zlib.decompress(stored) == document
