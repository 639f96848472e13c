"""The database goes away for a while: the service waits, says for what, and goes on. Only damage to the files ends it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched import Client
from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.leading import leadership
from tests.postgres import Server, start_or_skip
from tests.service.serving import PATIENCE_S, Service

pytestmark = pytest.mark.slow


#: A service whose lease lasts for 3 s instead of 12, so that an outage need not be longer to outlast it.
SHORT_LEASE = {
    "flowsched.control.leading.leadership.LEASE_MS": 3_000,
    "flowsched.control.leading.leadership.RENEW_S": 0.5,
}
#: Longer than that lease.
AWAY_S = 4.0


@pytest.fixture(scope="module")
def servers_data() -> Iterator[Server]:
    """A server of its own, since it is killed."""
    made = start_or_skip()
    yield made
    made.remove()


@pytest.fixture
def server(servers_data: Server) -> Server:
    """That server, running."""
    servers_data.start()
    return servers_data


def appending(marks: Path, seconds: float, tasks: int = 1) -> dict[str, object]:
    """A workflow whose tasks each say when they start and end."""
    script = f"echo START $FLOWSCHED_INDEX >> {marks}; sleep {seconds}; echo END $FLOWSCHED_INDEX >> {marks}"
    return {
        "name": "appending",
        "stages": [{"name": "work", "scatter": {"count": tasks}, "command": ["sh", "-c", script]}],
    }


async def submitted(url: str, document: dict[str, object]) -> str:
    async with Client(url) as client:
        return (await client.submit(document)).id


async def cancelled(url: str, workflow: str) -> None:
    async with Client(url) as client:
        await client.cancel(workflow)
        await client.wait(workflow, 90)


async def ended(url: str, workflow: str) -> str:
    async with Client(url) as client:
        return (await client.wait(workflow, 90)).state


@pytest.mark.postgresql
def test_a_database_away_for_longer_than_the_lease_costs_no_exit_and_no_task(
    tmp_path: Path, server: Server
) -> None:
    """Killed for longer than a lease: the task that runs goes on, /readyz says what is waited for, nothing runs twice."""
    marks = tmp_path / "marks"
    with Service(
        tmp_path / "root", tmp_path / "log", "--db", server.fresh(), constants=SHORT_LEASE
    ) as service:
        service.ready()
        workflow = asyncio.run(submitted(service.url, appending(marks, 2.0)))
        service.until(marks.exists, "started")
        server.kill()
        text = service.waits_for("does not answer")
        assert "postgresql" in text
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:
            assert service.alive(), service.tail()
            time.sleep(0.5)
        assert "flowsched_leader 0.0" in service.get("/metrics")[1]  # FlowschedNoLeader fires
        server.start()
        service.ready()
        # the database answers a moment before the lease is renewed
        service.until(lambda: "flowsched_leader 1.0" in service.get("/metrics")[1], "leads again")
        assert asyncio.run(ended(service.url, workflow)) == "SUCCEEDED"
        assert marks.read_text() == "START 0\nEND 0\n"
        assert service.stop() == 0
    log = (tmp_path / "log").read_text()
    assert log.count("the database is away: nothing new starts") == 1
    assert log.count("the database is back") == 1
    assert log.count("[warning") <= 4, log  # one line says so for all that waits


@pytest.mark.postgresql
def test_a_service_that_starts_before_its_database_opens_its_port_and_waits(
    tmp_path: Path, server: Server
) -> None:
    """/livez is well, /readyz says which database does not answer, a request is told 503; then all goes on by itself."""
    url = server.fresh()
    server.stop()
    with Service(tmp_path / "root", tmp_path / "log", "--db", url) as service:
        assert "does not answer" in service.waits_for("does not answer")
        assert service.alive()
        status, text = service.get("/api/v1/workflows")
        assert (status, "has not opened its database yet" in text) == (503, True)
        server.start()
        service.ready()
        marks = tmp_path / "marks"
        workflow = asyncio.run(submitted(service.url, appending(marks, 0.0)))
        assert asyncio.run(ended(service.url, workflow)) == "SUCCEEDED"


class Cut:
    """A wire between the service and its server that can be cut: connections are closed, or no byte passes any more.

    Args:
        server: Where it leads.
    """

    def __init__(self, server: Server) -> None:
        self._to = str(server.folder / ".s.PGSQL.5432")
        self._writers: list[asyncio.StreamWriter] = []
        self._mode = "open"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result()
        self.port = listening.sockets[0].getsockname()[1]

    def set(self, mode: str) -> None:
        """`open`; `refused`: connections are closed; `silent`: they stay and nothing passes."""
        self._mode = mode
        if mode in ("refused", "open"):
            self._loop.call_soon_threadsafe(lambda: [w.close() for w in self._writers])

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refused":
            writer.close()
            return
        other_reader, other_writer = await asyncio.open_unix_connection(self._to)
        self._writers += [writer, other_writer]
        await asyncio.gather(self._pass(reader, other_writer), self._pass(other_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while block := await reader.read(65536):
                if self._mode == "open":
                    writer.write(block)
                    await writer.drain()
        except OSError:
            pass
        writer.close()


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["refused", "silent"])
async def test_a_wire_that_is_cut_for_longer_than_the_lease(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Connections that are closed, and those that go silent, are waited out; the same process leads on, with the same epoch."""
    monkeypatch.setattr(leadership, "LEASE_MS", 3_000)
    monkeypatch.setattr(leadership, "RENEW_S", 0.5)
    cut = await asyncio.to_thread(Cut, server)
    name = server.fresh().split("?")[0].rpartition("/")[2]
    url = f"postgresql://flowsched@127.0.0.1:{cut.port}/{name}"
    marks = tmp_path / "marks"
    async with running(
        Settings(port=0, root=tmp_path / "root", database=url, local=LocalSettings(cpu="2"))
    ) as up:
        epoch = up.service._leader.leadership.epoch
        ident = await submitted(up.url, appending(marks, 4.0, tasks=2))
        while not marks.exists():
            await asyncio.sleep(0.05)
        cut.set(mode)
        while up.service._leader.leadership.holds() or up.service.ready()[0]:
            await asyncio.sleep(0.1)
        assert up.service.ready()[1].startswith("database: ")
        assert up.service.live() == (True, "ok")
        cut.set("open")
        assert await ended(up.url, ident) == "SUCCEEDED"
        assert up.service._leader.leadership.epoch == epoch
    assert sorted(marks.read_text().split()) == ["0", "0", "1", "1", "END", "END", "START", "START"]
    cut.close()


@pytest.mark.postgresql
async def test_a_leader_of_a_database_that_only_answers_reads_says_so(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a fail-over to a replica in recovery: reads work, the lease is not renewed. Then the same term goes on."""
    monkeypatch.setattr(leadership, "LEASE_MS", 3_000)
    monkeypatch.setattr(leadership, "RENEW_S", 0.5)
    database = server.fresh()
    name = database.split("?")[0].rpartition("/")[2]
    others = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    async with running(
        Settings(port=0, root=tmp_path / "root", database=database, local=LocalSettings(cpu="2"))
    ) as up:
        server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        server.execute(others)
        while up.service._leader.leadership.holds() or "read-only transaction" not in up.service.ready()[1]:
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        assert up.service.ready() == (
            False,
            "database: (psycopg.errors.ReadOnlySqlTransaction) cannot execute UPDATE in a read-only transaction; "
            "nothing new is started",
        )
        assert up.service.live() == (True, "ok")
        server.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        server.execute(others)
        while up.service.ready() != (True, "ok"):
            await asyncio.sleep(0.05)
        assert up.service._leader.leadership.epoch == 1


@pytest.mark.postgresql
async def test_a_server_without_a_free_connection_is_waited_for(tmp_path: Path, server: Server) -> None:
    """A server that refuses more connections is an outage as any other."""
    marks = tmp_path / "marks"
    url = server.fresh()
    name = url.split("?")[0].rpartition("/")[2]
    server.execute("CREATE ROLE service LOGIN")
    server.execute(f"ALTER DATABASE {name} OWNER TO service")
    settings = Settings(
        port=0,
        root=tmp_path / "root",
        database=url.replace("flowsched@", "service@"),
        local=LocalSettings(cpu="2"),
    )
    async with running(settings) as up:
        server.execute("ALTER ROLE service CONNECTION LIMIT 0")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'service'")
        while (
            "too many connections" not in up.service.ready()[1]
        ):  # at first it says that the old one was closed
            await asyncio.sleep(0.1)
        assert not up.service.ready()[0]
        assert up.service.live() == (True, "ok")
        server.execute("ALTER ROLE service CONNECTION LIMIT -1")
        ident = await submitted(up.url, appending(marks, 0.0))
        assert await ended(up.url, ident) == "SUCCEEDED"


def prlimit(pid: int, bytes_: int) -> None:
    """What a process may write into a file: at 0 every write fails as on a broken disk (EFBIG, which SQLite calls IOERR)."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_, hard))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux' prlimit")
def test_a_sqlite_file_that_cannot_be_written_is_waited_for(tmp_path: Path) -> None:
    """Every write of the process fails for longer than a lease, those of its log too; then it goes on, with the same task."""
    marks = tmp_path / "marks"
    with Service(tmp_path / "root", tmp_path / "log", constants=SHORT_LEASE) as service:
        service.ready()
        workflow = asyncio.run(submitted(service.url, appending(marks, 2.0)))
        service.until(marks.exists, "started")
        prlimit(service.process.pid, 0)
        service.waits_for("cannot be written: disk I/O error")
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:
            assert service.alive(), service.tail()
            time.sleep(0.5)
        status, text = service.get(f"/api/v1/workflows/{workflow}")
        assert (status, json.loads(text)["id"]) == (200, workflow)
        prlimit(service.process.pid, resource.RLIM_INFINITY)
        service.ready()
        assert asyncio.run(ended(service.url, workflow)) == "SUCCEEDED"
        assert marks.read_text() == "START 0\nEND 0\n"
        assert service.stop() == 0


def test_a_damaged_database_ends_the_service(tmp_path: Path) -> None:
    """Going on could lose more: the process says so and ends."""
    with Service(tmp_path / "root", tmp_path / "log") as service:
        service.ready()
        assert service.stop() == 0
    path = tmp_path / "root" / "flowsched.db"
    with sqlite3.connect(path) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'lease'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(os.urandom(size))
    with Service(tmp_path / "root", tmp_path / "log") as service:
        assert service.process.wait(PATIENCE_S) == 2
        assert "malformed" in service.tail()


@pytest.mark.postgresql
def test_a_second_replica_on_another_root_says_for_whom_it_stands_by_and_answers_reads(
    tmp_path: Path, server: Server
) -> None:
    """It takes nothing over, since the first root's tasks may still run there; what it accepts the leader runs."""
    url = server.fresh()
    marks = tmp_path / "marks"
    first = Service(tmp_path / "a", tmp_path / "log-a", "--db", url)
    with first:
        first.ready()
        with Service(tmp_path / "b", tmp_path / "log-b", "--db", url) as second:
            second.ready()
            said = second.get("/readyz")[1]
            assert said.startswith("standing by: ")
            assert said.rstrip().endswith(str(tmp_path / "a"))
            assert " leads on " in second.tail()
            workflow = asyncio.run(submitted(second.url, appending(marks, 0.0)))
            assert asyncio.run(ended(second.url, workflow)) == "SUCCEEDED"
            assert second.get(f"/api/v1/workflows/{workflow}")[0] == 200
            living = asyncio.run(submitted(second.url, appending(marks, 600.0)))
            second.until(lambda: marks.read_text().count("START") == 2, "started")
            status, text = second.get(f"/api/v1/workflows/{living}/explain")
            assert (status, f"{tmp_path / 'a'}; ask that service: --server URL" in text) == (409, True)
            asyncio.run(cancelled(second.url, living))
            logs = f"/api/v1/workflows/{workflow}/tasks/work/0/logs"
            assert first.get(logs) == (200, "")
            status, text = second.get(logs)
            assert (status, str(tmp_path / "a") in text) == (409, True)
            first.stop()
            second.until(
                lambda: "no process leads" in second.get("/readyz")[1], "told that the leader has gone"
            )
            assert second.alive()
            assert second.get("/readyz")[0] == 503
            assert second.get(f"/api/v1/workflows/{workflow}")[0] == 200
            status, text = second.get("/api/v1/nodes")
            assert (status, "--take-over" in text, "in a moment" in text) == (409, True, False)


async def test_a_service_whose_leader_is_cancelled_stops(tmp_path: Path) -> None:
    """It lived on, without leading and without standing by, and nothing started it again."""

    async def serving() -> None:
        async with running(Settings(port=0, root=tmp_path, log_level="error")):
            (leader,) = [task for task in asyncio.all_tasks() if task.get_name() == "leader"]
            leader.cancel()
            await asyncio.Event().wait()

    service = asyncio.create_task(serving())
    ended, _ = await asyncio.wait([service], timeout=20)
    assert ended
    assert service.cancelled()
