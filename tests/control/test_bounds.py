"""However much was asked for: the service answers, its work can be cancelled, and it goes on leading."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from sqlite3 import connect

import pytest
from sqlalchemy.event import listen

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.leading import leadership
from flowsched.errors import LeadershipLost, Unavailable
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease
from tests.cluster.fake import FakeProcesses
from tests.forks import Forked
from tests.heartbeat import BEAT_S, HELD_S, beat
from tests.postgres import fresh_postgres, postgres_server, postgres_url
from tests.service.processes import Process, process

__all__ = ["fresh_postgres", "postgres_server", "postgres_url"]

#: What a stage says to run, by the form of its tasks.
FORMS: dict[str, dict[str, object]] = {
    "plain": {"command": ["true"]},
    "container": {"steps": [{"command": ["true"]}]},
}


def poison(form: str = "plain") -> bytes:
    """5,000,000 tasks in some 450 bytes."""
    stage = {"scatter": {"count": 1_000_000}, **FORMS[form], "resources": {"cpu": 900}}
    stages = [{"name": f"s{n}", **stage} for n in range(5)]
    return json.dumps({"name": "poison", "stages": stages}).encode()


SMALL = b'{"name": "w", "stages": [{"name": "a", "command": ["x"], "resources": {"cpu": 900}}]}'


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind."""
    if request.param == "sqlite":
        return url_for(tmp_path / "db")
    found: str = request.getfixturevalue("fresh_postgres")()
    return found


class Gate:
    """A failpoint that holds whoever passes a point until it is opened."""

    def __init__(self, name: str) -> None:
        self._name, self.open, self.reached = name, asyncio.Event(), asyncio.Event()

    async def __call__(self, name: str) -> None:
        if name == self._name:
            self.reached.set()
            await self.open.wait()


@contextmanager
def served(root: Path, failpoints: str) -> Iterator[int]:
    """`flowsched serve` in a process of its own; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--root", str(root), "--port", str(port), "--no-token"]
    environment = os.environ | {"FLOWSCHED_FAILPOINTS": failpoints}
    with (root.parent / "log").open("ab") as log:
        running_process = Forked(words, env=environment, stderr=log, stdout=log)
    try:
        yield port
    finally:
        running_process.send_signal(signal.SIGTERM)
        running_process.wait(60)


def ask(port: int, method: str, path: str) -> tuple[int, str]:
    """One request, asked again while nothing listens."""
    for _ in range(600):
        with suppress(ConnectionRefusedError), closing(http.client.HTTPConnection("127.0.0.1", port)) as made:
            made.request(method, path)
            answer = made.getresponse()
            return answer.status, answer.read().decode()
        time.sleep(0.1)
    raise AssertionError("the port was never opened")


async def wait(one: Process, ident: str, state: str) -> None:
    """Until a workflow is in this state."""
    async with asyncio.timeout(60):
        while (await one.service.workflow(ident)).state != state:
            await asyncio.sleep(0.02)


async def take_over(database: str) -> int:
    """Lead as soon as nobody else does; the epoch."""
    async with await Database.open(database) as opened:
        while (epoch := await Lease(opened).acquire("another", 60_000, 0)) is None:
            await asyncio.sleep(0.1)
        return epoch


async def attempts(database: str, end: threading.Event) -> list[int]:
    """Ask to lead until the event; the epoch, if it was given one."""
    async with await Database.open(database) as opened:
        while not end.is_set():
            if (epoch := await Lease(opened).acquire("another", 60_000, 0)) is not None:
                return [epoch]
            await asyncio.sleep(0.1)
    return []


async def test_the_port_is_open_before_anything_is_recovered(tmp_path: Path) -> None:
    """A recovery that takes an hour: the service says so, lists what there is, and takes a cancel."""
    root = tmp_path / "root"
    async with running(Settings(port=0, root=root, log_level="error")) as up:
        ident = (await up.service.submit(poison())).id
    with served(root, "recover.before=sleep:3600") as port:
        assert await asyncio.to_thread(ask, port, "GET", "/livez") == (200, "ok\n")
        async with asyncio.timeout(60):
            while not (said := await asyncio.to_thread(ask, port, "GET", "/readyz"))[1].startswith(
                "recovery"
            ):
                assert said[0] == 503
        assert said == (503, "recovery: 0 of 0 workflows are back; reading and cancelling work\n")
        status, listed = await asyncio.to_thread(ask, port, "GET", "/api/v1/workflows")
        assert (status, [each["id"] for each in json.loads(listed)["workflows"]]) == (200, [ident])
        status, _ = await asyncio.to_thread(ask, port, "POST", f"/api/v1/workflows/{ident}/cancel")
        assert status == 200


@pytest.mark.parametrize("form", FORMS)
async def test_what_was_cancelled_before_it_was_recovered_is_never_expanded(
    url: str, tmp_path: Path, form: str
) -> None:
    """A document that is too much for the service can be got rid of while the service cannot lead."""
    async with process(url, tmp_path, FakeProcesses()) as one:
        large = (await one.service.submit(poison(form))).id
        small = (await one.service.submit(SMALL)).id
        one.lead()
        await one.ready()
        await wait(one, small, "QUEUED")
    gate = Gate("recover.slice")
    async with process(url, tmp_path, FakeProcesses(), "two", failpoint=gate) as two:
        await two.service.command(large, "cancel")
        two.lead()
        await gate.reached.wait()
        assert two.service.ready() == (
            False,
            "recovery: 1 of 2 workflows are back; reading and cancelling work",
        )
        with pytest.raises(Unavailable, match="1 of 2 workflows are back"):
            await two.service.queues()
        assert (await two.service.workflow(large)).state == "CANCELLED"
        assert (await two.service.workflow(small)).state == "QUEUED"
        gate.open.set()
        await two.ready()
        assert (await two.service.command(small, "cancel")).state == "CANCELLED"
        async with asyncio.timeout(60):  # the command that was answered before is done with, too
            while await two.service._reads.commands():
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("form", FORMS)
async def test_no_step_over_five_million_tasks_holds_the_loop(
    database_url: str | None, tmp_path: Path, form: str
) -> None:
    """Expanding, offering and cancelling them took 2 to 17 s in which nothing was answered."""
    stalls: list[float] = []
    settings = Settings(
        port=0, root=tmp_path / "root", database=database_url, log_level="error", local=LocalSettings(cpu="1")
    )
    async with running(settings) as up:
        beating = asyncio.create_task(beat(stalls))
        ident = (await up.service.submit(poison(form))).id
        async with asyncio.timeout(300):
            while (await up.service.workflow(ident)).state not in ("QUEUED", "RUNNING"):
                await asyncio.sleep(0.05)
            await up.service.command(ident, "cancel")
            while (await up.service.workflow(ident)).state != "CANCELLED":
                await asyncio.sleep(0.05)
        await asyncio.sleep(4 * BEAT_S)  # the last beat counts what was used since the one before
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert stalls == [], f"held for more than {HELD_S} s"


async def test_with_sqlite_a_late_renewal_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock on the file is the leadership: the database is locked for longer than a lease, and the same term goes on."""
    monkeypatch.setattr(leadership, "RENEW_S", 0.05)
    monkeypatch.setattr(leadership, "LEASE_MS", 1_200)
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        epoch = up.service._leader.leadership.epoch
        with closing(connect(tmp_path / "flowsched.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(3)
            other.execute("ROLLBACK")
        assert up.service._leader.leadership.holds()
        ident = (await up.service.submit(SMALL)).id
        assert (await up.service.command(ident, "cancel")).state == "CANCELLED"
        assert up.service._leader.leadership.epoch == epoch


@pytest.mark.postgresql
async def test_a_lease_outlives_a_loop_that_stands_still(
    fresh_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long step, request or garbage collection: the lease is renewed all the same, by a thread; another asks all the time."""
    monkeypatch.setattr(leadership, "RENEW_S", 0.2)
    monkeypatch.setattr(leadership, "LEASE_MS", 3_000)
    database, moves, taken = fresh_postgres(), threading.Event(), list[int]()
    async with process(database, tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        another = threading.Thread(target=lambda: taken.extend(asyncio.run(attempts(database, moves))))
        another.start()
        time.sleep(4.5)  # noqa: ASYNC251  # the point of it
        moves.set()
        another.join()
        assert taken == []
        async with asyncio.timeout(60):  # the loop sees what the thread has done
            while not one.leader.leadership.holds():
                await asyncio.sleep(0.02)
        ident = (await one.service.submit(SMALL)).id
        assert (await one.service.command(ident, "cancel")).state == "CANCELLED"
        assert one.leader.leadership.epoch == 1


@pytest.mark.postgresql
async def test_a_process_that_is_stuck_loses_its_lease_in_spite_of_the_thread(
    fresh_postgres: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has moved for too long: another may begin, and the old leader stops as soon as it moves again."""
    monkeypatch.setattr(leadership, "RENEW_S", 0.1)
    monkeypatch.setattr(leadership, "LEASE_MS", 2_000)
    monkeypatch.setattr(leadership, "STUCK_S", 1.0)
    database, taken = fresh_postgres(), list[int]()
    async with process(database, tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        another = threading.Thread(target=lambda: taken.append(asyncio.run(take_over(database))), daemon=True)
        another.start()
        another.join(60)  # the event loop stands still until another process leads
        assert taken == [2]
        assert one.task is not None
        with pytest.raises(BaseException, match="unhandled errors") as ended:
            await one.task
        assert isinstance(ended.value, BaseExceptionGroup)
        assert ended.value.subgroup(LeadershipLost) is not None


async def test_a_list_asks_the_database_as_often_for_forty_workflows_as_for_two(
    url: str, tmp_path: Path
) -> None:
    """A page of 1,000 cost a query for each of its rows, 0.7 s in which nothing else was answered."""
    async with process(url, tmp_path, FakeProcesses()) as one:
        asked: list[str] = []
        listen(one.database.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
        counts = []
        for more in (2, 38):
            for _ in range(more):
                await one.service.submit(SMALL)
            asked.clear()
            page = await one.service.list_workflows(limit=1_000)
            counts.append((len(page.workflows), sum(text.startswith("SELECT") for text in asked)))
        (two, of_two), (forty, of_forty) = counts
        assert (two, forty) == (2, 40)
        assert of_two == of_forty
