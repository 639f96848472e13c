"""Accounting: sums over workflows that live, that have ended, and that have expired."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from store_samples import submission

from flowsched.engine.delta import Delta, StageWrite, WorkflowWrite
from flowsched.errors import InvalidRequest
from flowsched.store import accounting
from flowsched.store.accounting import Accounting, UsageSum
from flowsched.store.database import Database
from flowsched.store.recovery import remove_finished
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter
from flowsched.workflow.spec import Call

DAY = 86_400_000


def used(workflow: str, *totals: Mapping[str, int], ended_ms: int | None = None) -> Delta:
    state = "RUNNING" if ended_ms is None else "SUCCEEDED"
    return Delta(
        stages=[
            StageWrite(workflow, number, state, {}, 10, ended_ms, "", row)
            for number, row in enumerate(totals)
        ],
        workflows=[WorkflowWrite(workflow, state, "", 10, ended_ms)],
    )


def sums(name: str | None, workflows: int, **more: int) -> UsageSum:
    return UsageSum(name, workflows, **(dict.fromkeys(UsageSum._fields[2:], 0) | more))


@pytest.fixture
async def a_lab(writer: GroupWriter, epoch: int) -> None:
    """Ann: 100 core-ms in `day` and 7 in `night`, the latter lives; bob: 30 in `night`; one of no user, of an old version."""
    await writer.submit(submission("a", queue="day", owner="ann", labels={"project": "x", "a.b/c": "1"}))
    await writer.submit(submission("b", queue="night", owner="bob", labels={"project": "y"}))
    await writer.submit(submission("c", queue="night", owner="ann", labels={"project": "x"}))
    await writer.submit(submission("d", queue="night"))
    await writer.commit(
        used(
            "a",
            {"core_ms": 60, "gpu_ms": 5, "memory_gib_ms": 1 << 61, "queued_ms": 3, "returned_1": 1},
            {"core_ms": 40, "running_ms": 9, "bytes_local": 11, "bytes_moved": 12, "memory_saved_gib_ms": -8},
            ended_ms=2 * DAY + 5,
        ),
        epoch,
    )
    await writer.commit(used("b", {"core_ms": 30}, {}, ended_ms=3 * DAY), epoch)
    await writer.commit(used("c", {"core_ms": 7}), epoch)
    await writer.commit(used("d", {"running_ms": 4}, ended_ms=3 * DAY + 1), epoch)


@pytest.mark.usefixtures("a_lab")
async def test_queues_users_and_labels_are_summed(database: Database) -> None:
    """Most core-ms first; a workflow without user or label is in the row without a name."""
    ask = Accounting(database).sums
    day = sums(
        "day", 1, core_ms=100, gpu_ms=5, memory_gib_ms=1 << 61, queued_ms=3, running_ms=9, bytes_local=11,
        bytes_moved=12, memory_saved_gib_ms=-8,
    )  # fmt: skip
    assert await ask("queue") == [day, sums("night", 3, core_ms=37, running_ms=4)]
    assert [(row.name, row.workflows, row.core_ms) for row in await ask("user")] == [
        ("ann", 2, 107),
        ("bob", 1, 30),
        (None, 1, 0),
    ]
    assert [(row.name, row.core_ms) for row in await ask("label:project")] == [
        ("x", 107),
        ("y", 30),
        (None, 0),
    ]
    assert [(row.name, row.core_ms) for row in await ask("label:a.b/c")] == [("1", 100), (None, 37)]
    assert [(row.name, row.core_ms) for row in await ask("user", queue="night")] == [
        ("bob", 30),
        ("ann", 7),
        (None, 0),
    ]


async def test_a_run_of_another_engine_is_one_workflow(
    database: Database, writer: GroupWriter, epoch: int
) -> None:
    """Three calls of it, beside a workflow of its own: two workflows, also once they have expired."""
    for number, name in enumerate("abc"):
        call = Call(run="r1", run_name="germline", source="miniwdl", node=f"call-{number}")
        await writer.submit(submission(name, call=call))
        await writer.commit(used(name, {"core_ms": 10}, {}, ended_ms=DAY), epoch)
    await writer.submit(submission("d"))
    await writer.commit(used("d", {"core_ms": 5}, {}, ended_ms=DAY), epoch)
    assert await Accounting(database).sums("queue") == [sums("default", 2, core_ms=35)]
    while (await remove_finished(database, 4 * DAY)).workflows:
        pass
    assert await Accounting(database).sums("queue") == [sums("default", 2, core_ms=35)]


@pytest.mark.usefixtures("a_lab")
async def test_a_workflow_counts_in_the_time_in_which_it_ended(database: Database) -> None:
    """Those that live count until now. Times that follow each other add up to all."""
    ask = Accounting(database).sums
    assert [(row.name, row.core_ms) for row in await ask("queue", since_ms=3 * DAY)] == [("night", 37)]
    assert [(row.name, row.core_ms) for row in await ask("queue", until_ms=3 * DAY)] == [("day", 100)]
    between = await ask("queue", since_ms=3 * DAY, until_ms=3 * DAY + 1)
    assert between == [sums("night", 1, core_ms=30)]
    assert await ask("queue", since_ms=9 * DAY, until_ms=10 * DAY) == []


@pytest.mark.usefixtures("a_lab")
async def test_sums_outlive_their_workflows(database: Database, reads: Workflows) -> None:
    """What has expired is in the sums as before, in days; more than two years later it is not."""
    ask = Accounting(database).sums
    before = {by: await ask(by) for by in ("queue", "user", "label:project", "label:a.b/c")}
    for _ in range(2):
        while (await remove_finished(database, 4 * DAY)).workflows:
            pass
    assert await reads.existing(["a", "b", "c", "d"]) == {"c"}
    assert {by: await ask(by) for by in before} == before
    assert [row.core_ms for row in await ask("queue", since_ms=3 * DAY)] == [37]
    assert [row.core_ms for row in await ask("queue", until_ms=3 * DAY)] == [100]
    assert [row.core_ms for row in await ask("queue", queue="day")] == [100]
    await remove_finished(database, 900 * DAY)
    assert await ask("queue") == [sums("night", 1, core_ms=7)]


async def test_every_way_to_divide_gives_the_same_total(
    database: Database, writer: GroupWriter, epoch: int
) -> None:
    """Random workflows, some of them expired: queues, users and labels add up to the same, as does a brute force."""
    dice = random.Random(7)
    brute: dict[str, int] = dict.fromkeys(UsageSum._fields[1:], 0)
    for number in range(60):
        labels = {key: dice.choice("uvw") for key in ("k", "l") if dice.random() < 0.6}
        ident = f"w{number}"
        asked = {"queue": dice.choice(["q1", "q2"]), "owner": dice.choice(["", "ann", "bob"])}
        await writer.submit(submission(ident, labels=labels, **asked))
        totals = [
            {name: dice.randrange(1 << 40) for name in UsageSum._fields[2:] if dice.random() < 0.8}
            for _ in range(2)
        ]
        brute["workflows"] += 1
        for row in totals:
            for name, value in row.items():
                brute[name] += value
        ended = None if dice.random() < 0.2 else dice.randrange(10 * DAY)
        await writer.commit(used(ident, *totals, ended_ms=ended), epoch)
    for expired in (0, 5 * DAY, 20 * DAY):
        while (await remove_finished(database, expired, workflows=7)).workflows:
            pass
        for by in ("queue", "user", "label:k", "label:l", "label:none"):
            rows = await Accounting(database).sums(by)
            found = [sum(column) for column in zip(*(row[1:] for row in rows), strict=True)]
            assert found == list(brute.values()), (by, expired)


@pytest.mark.usefixtures("a_lab")
async def test_too_many_names_are_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that is different for each of a million workflows makes no answer of 100 MB."""
    monkeypatch.setattr(accounting, "MOST_NAMES", 2)
    with pytest.raises(InvalidRequest, match=r"more than 2 names .* than 'label:project'"):
        await Accounting(database).sums("label:project")
