"""Queues as they are set and shown by a running service; what was used outlives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from flowsched.errors import Conflict, InvalidDocument, InvalidRequest, NotFound
from flowsched.executor.protocol import Pod
from flowsched.scheduling.state.usage import Payer
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process


def document(name: str, tasks: int, **more: object) -> bytes:
    stage = {
        "name": "s", "scatter": {"count": tasks}, "command": ["x"],
        "resources": {"cpu": 1, "memory": "64Mi"},
    }  # fmt: skip
    return msgspec.json.encode({"name": name, "stages": [stage], **more})


def forever(_: Pod) -> Outcome:
    return Outcome(runtime_ms=60_000)


async def running(made: Process, queue: str, count: int) -> None:
    while next(view for view in await made.service.queues() if view.name == queue).running < count:
        await asyncio.sleep(0.01)


async def test_queues_say_what_they_have_deserve_and_wait_for(tmp_path: Path) -> None:
    """Ann and bob in a fifo queue below a department with a cap."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(forever)) as one:
        one.lead()
        await one.ready()
        put = one.service.put_queue
        await put("lab", {"weight": 3, "cap": {"cpu": 2}, "reclaimable": False})
        made = await put("lab.a", {"parent": "lab", "order": "fifo", "guarantee": {"cpu": 1}})
        assert (made.order, made.reclaimable, made.guarantee) == ("fifo", True, {"cpu": 1000})
        with pytest.raises(Conflict, match="no parent queue"):
            await put("x", {"parent": "nowhere"})
        with pytest.raises(InvalidDocument, match="to be guaranteed at most"):
            await put("lab.b", {"parent": "lab", "guarantee": {"cpu": 2}})
        huge = await put("huge", {"guarantee": {"cpu": 1_000_000}})
        assert "it is guaranteed 1000000 CPU" in huge.warnings[0]
        submitted = await one.service.submit(document("a", 1, queue="lab.a", user="ann"))
        assert (await one.service.workflow(submitted.id)).user == "ann"
        await running(one, "lab.a", 1)
        await one.service.submit(document("b", 5, queue="lab.a", user="bob"))
        await running(one, "lab.a", 2)
        views = {view.name: view for view in await one.service.queues()}
        assert views["lab"].used == views["lab.a"].used == {"cpu": 2000, "memory": 128 << 20}
        assert views["lab"].deserved["cpu"] == 2000
        assert views["lab.a"].pending == {"cpu": 4000, "memory": 256 << 20}
        assert [(user.user, user.used["cpu"]) for user in views["lab.a"].users] == [
            ("ann", 1000),
            ("bob", 1000),
        ]
        assert views["default"].users == []


async def test_a_queue_is_removed_when_nothing_is_in_it(tmp_path: Path) -> None:
    """Its settings go, in memory and in the database; while a workflow in it lives, or a queue is below it, it stays."""
    url = url_for(tmp_path / "db")
    async with process(url, tmp_path, FakeProcesses(forever)) as one:
        one.lead()
        await one.ready()
        service = one.service
        await service.put_queue("lab", {"weight": 3})
        await service.put_queue("lab.a", {"parent": "lab", "cap": {"cpu": 1}})
        with pytest.raises(Conflict, match=r"queue 'lab' has queues below it: lab\.a"):
            await service.delete_queue("lab")
        submitted = await service.submit(document("a", 1, queue="lab.a"))
        await running(one, "lab.a", 1)
        with pytest.raises(Conflict, match=f"has 1 workflow that has not ended: {submitted.id}"):
            await service.delete_queue("lab.a")
        await service.command(submitted.id, "cancel")
        while (await service.workflow(submitted.id)).ended_at is None:
            await asyncio.sleep(0.01)
        assert (await service.delete_queue("lab.a")).cap == {"cpu": 1000}
        with pytest.raises(NotFound, match="there is no queue 'lba'; did you mean 'lab'"):
            await service.delete_queue("lba")
        with pytest.raises(NotFound, match="no queue 'default' with settings of its own"):
            await service.delete_queue("default")
    async with process(url, tmp_path, FakeProcesses(forever)) as two:
        two.lead()
        await two.ready()
        kept = {view.name: view for view in await two.service.queues()}
        assert kept["lab"].weight == 3
        assert "lab.a" not in kept or kept["lab.a"].cap == {}


async def test_what_was_used_outlives_the_service(tmp_path: Path) -> None:
    """A row of an account that is written when its step of time ends is what the next leader begins with."""
    url = url_for(tmp_path / "db")
    async with process(url, tmp_path, FakeProcesses(forever)) as one:
        one.lead()
        await one.ready()
        await one.service.submit(document("a", 1, user="ann"))
        await running(one, "default", 1)
        leader = one.service._leader.dispatcher
        assert leader is not None
        usage = leader.state.cluster.snapshot.usage
        usage.written = usage.step - 1  # as if a step of time had ended
        usage._accounts[Payer("default", "ann")].past[0] = 10**15
        await one.service.put_queue("default", {"weight": 2})  # a step
    async with process(url, tmp_path, FakeProcesses(forever)) as two:
        two.lead()
        await two.ready()
        (user,) = next(view for view in await two.service.queues() if view.name == "default").users
        assert user.user == "ann"
        assert user.recent["cpu"] >= 8000


async def test_usage_counts_ended_workflows_and_those_that_live(tmp_path: Path) -> None:
    """One of ann ended after a second on a core, and one of nobody runs: its attempt counts when it ends."""

    def outcome(pod: Pod) -> Outcome:
        return Outcome(runtime_ms=1_000 if pod.queue == "lab" else 60_000)

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(outcome)) as one:
        one.lead()
        await one.ready()
        labels = {"project": "x"}
        ended = await one.service.submit(document("a", 1, queue="lab", user="ann", labels=labels))
        await one.service.submit(document("b", 1))
        while (await one.service.workflow(ended.id)).state != "SUCCEEDED":
            await asyncio.sleep(0.01)
        await running(one, "default", 1)
        view = await one.service.usage(since="1h")
        assert [(row.name, row.workflows) for row in view.rows] == [("lab", 1), ("default", 1)]
        assert view.rows[0].core_hours * 3600 == pytest.approx(1.0, abs=0.5)
        assert view.rows[0].memory_gib_hours * 3600 == pytest.approx(1 / 16, abs=0.05)
        assert view.rows[1].core_hours == 0
        (stage,) = await one.service.stages(ended.id)
        assert stage.core_hours == view.rows[0].core_hours == view.total.core_hours
        for by, names in (("user", ["ann", None]), ("label:project", ["x", None])):
            view = await one.service.usage(by=by)
            assert [row.name for row in view.rows] == names
        assert (await one.service.usage(since="2020-01-01", until="1h", queue="lab")).rows == []
        view = await one.service.usage(since="2026-11-01", until="2026-11-01")
        assert (str(view.since), str(view.until)) == (
            "2026-11-01 00:00:00+00:00",
            "2026-11-02 00:00:00+00:00",
        )
        view = await one.service.usage(until="2026-11-01T00:00")
        assert str(view.until) == "2026-11-01 00:00:00+00:00"
        with pytest.raises(
            InvalidRequest, match=r"'soon' is no duration.* or a date or time, such as 2026-11-01"
        ):
            await one.service.usage(since="soon")
