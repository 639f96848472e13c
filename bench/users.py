"""Many users of one service, and a service with a long history: latencies, and CPU of the service by kind of request.

    python bench/users.py [--database sqlite|postgresql|both] [--against FOLDER] [--users 200] [--seconds 8] [--history 50000]
        [--json FILE]

It starts `flowsched serve` on a root of its own, in a process that computes nothing else. Clients are other processes, with plain
sockets. With `--against` the same is done with the sources in FOLDER (another worktree), in the same run. Four parts:

1. `users`: each user submits, watches the events of the workflow, lists, looks at it, cancels it and sees its end. After each
   answer the user waits for `--think` seconds in the mean, and in a second round not at all. The tasks ask for more than there
   is, so that requests are measured and not the running of tasks.
2. `kinds`: each kind of request alone, 8 in flight: CPU of the service, and of PostgreSQL, for one of them.
3. `history`: that many ended workflows of one task, copied from a real one, rows and folders of attempts alike: the time and the
   CPU from the start of the process until it is ready, and `ls` of the newest, of the oldest, and by filters.
4. `streams`: how long `/livez` takes, first alone, then while 10 clients replay all events and 200 read them as slowly as they may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

HERE: Final = Path(__file__).resolve().parent.parent
WORKFLOWS: Final = "/api/v1/workflows"
#: No node has so much: the tasks wait until they are cancelled.
WAITING: Final = {
    "name": "waits",
    "stages": [
        {
            "name": "s",
            "scatter": {"count": 3},
            "command": ["true"],
            "resources": {"cpu": "900", "memory": "1Gi"},
        }
    ],
}
ENDING: Final = {"name": "ends", "stages": [{"name": "s", "command": ["true"]}]}
PATIENCE_S: Final = 120.0
#: After so long an ended attempt's folder holds what it will hold for 30 days.
TIDIED_S: Final = 7.0
#: In flight, where one kind of request is measured.
AT_ONCE: Final = 8
#: Workflows that live while lists are measured.
LIVING: Final = 300
#: Starts with a history, of which the median is told.
STARTS: Final = 3


# ---- the service, from outside ----


class Service:
    """`flowsched serve` with the sources of a folder."""

    def __init__(self, sources: Path, root: Path, database: str | None, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.root = root
        command = [
            sys.executable, "-m", "flowsched", "serve", "--root", str(root), "--port", str(self.port),
            "--cpu", "2", "--memory", "2Gi", "--no-supervise", "--no-token", *(["--db", database] if database else []), *options,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(sources)}
        self.log = root.with_suffix(".log")
        self.began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=sources, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def ready(self) -> float:
        """Wait until it has recovered; the seconds since its start."""
        while time.monotonic() - self.began < PATIENCE_S:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as peer:
                peer.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                if peer.recv(64).split(b" ", 2)[1:2] == [b"200"]:
                    return time.monotonic() - self.began
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise SystemExit(f"the service is not ready: {self.log.read_text()[-2000:]}")

    def cpu_s(self) -> float:
        """CPU seconds of its process."""
        return cpu_of(self._process.pid)

    def kill(self) -> None:
        """Stop it as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process; 0 when it has ended."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


class Postgres:
    """A PostgreSQL server of the bench's own, with fsync."""

    def __init__(self) -> None:
        sys.path.insert(0, str(HERE))
        from tests.postgres import Server

        self._server = Server(fsync=True)
        self._server.start()
        self.folder = self._server.folder

    def fresh(self, like: str | None = None) -> str:
        """A new database, or a copy of one; its URL."""
        if like is None:
            return self._server.fresh()
        name = f"copy{int(time.monotonic() * 1e6)}"
        self._server.execute(f"CREATE DATABASE {name} TEMPLATE {like.rpartition('@/')[2].partition('?')[0]}")
        return self._server.url(name)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes, those that have ended included."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        try:
            children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            waited = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        except OSError:
            return 0.0
        return sum(map(cpu_of, [pid, *children])) + sum(map(int, waited)) / os.sysconf("SC_CLK_TCK")

    def remove(self) -> None:
        self._server.remove()


# ---- a client ----


class Connection:
    """One keep-alive connection, as plain as can be: the other side is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """One request; the body of its answer, which must be a 2xx."""
        if self._pair is None:
            self._pair = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._pair
        raw = b"" if body is None else json.dumps(body).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        head = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(
            int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        )
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{method} {path}: {head[:60]!r} {answer[:300]!r}")
        return answer

    def close(self) -> None:
        if self._pair is not None:
            self._pair[1].close()


@contextlib.asynccontextmanager
async def stream(port: int, path: str, limit: int = 1 << 20) -> AsyncIterator[asyncio.StreamReader]:
    """A stream of events, after its head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {head!r}")
        yield reader
    finally:
        writer.close()


Times = dict[str, list[float]]


async def users(port: int, count: int, seconds: float, think_s: float) -> dict[str, Any]:
    """Users who work for so long. Returns seconds by kind of request. The first failure of one ends all."""
    times: Times = defaultdict(list)
    end = time.monotonic() + seconds

    async def timed(kind: str, work: Awaitable[bytes]) -> bytes:
        begun = time.perf_counter()
        answer = await work
        times[kind].append(time.perf_counter() - begun)
        return answer

    async def user(seed: int) -> None:
        chance = random.Random(seed)
        connection = Connection(port)

        async def pause() -> None:
            await asyncio.sleep(chance.expovariate(1 / think_s) if think_s else 0)

        if think_s:
            await asyncio.sleep(chance.random() * think_s)
        try:
            while time.monotonic() < end:
                ident = json.loads(await timed("submit", connection.ask("POST", WORKFLOWS, WAITING)))["id"]
                path = f"{WORKFLOWS}/{ident}"
                async with stream(port, f"{path}/events") as events:
                    watched = asyncio.create_task(ended(events))
                    for _ in range(2):
                        await pause()
                        await timed("list", connection.ask("GET", f"{WORKFLOWS}?limit=100"))
                        await pause()
                        await timed("get", connection.ask("GET", path))
                    await pause()
                    cancelled = time.perf_counter()
                    await timed("cancel", connection.ask("POST", f"{path}/cancel"))
                    await asyncio.wait_for(watched, PATIENCE_S)
                    times["end seen"].append(time.perf_counter() - cancelled)
                await pause()
        finally:
            connection.close()

    begun, used = time.monotonic(), time.process_time()
    await asyncio.gather(*map(user, range(count)))
    return {
        "times": times,
        "seconds": time.monotonic() - begun,
        "cpu_s": time.process_time() - used,
    }


async def ended(events: asyncio.StreamReader) -> None:
    """Read a stream until the service says that the workflow has ended."""
    while (line := await events.readline()) != b"event: end\n":
        if not line:
            raise RuntimeError("a stream of events ended early")


async def alone(port: int, kind: str, count: int, idents: Sequence[str]) -> dict[str, Any]:
    """One kind of request, `AT_ONCE` in flight."""
    times: list[float] = []
    made: list[str] = []
    jobs = iter(range(count))

    async def work() -> None:
        connection = Connection(port)
        for number in jobs:
            ident = idents[number % len(idents)] if idents else ""
            path = f"{WORKFLOWS}/{ident}"
            begun = time.perf_counter()
            if kind == "submit":
                made.append(json.loads(await connection.ask("POST", WORKFLOWS, WAITING))["id"])
            elif kind == "cancel":
                await connection.ask("POST", f"{path}/cancel")
            elif kind == "get":
                await connection.ask("GET", path)
            elif kind == "events":
                async with stream(port, f"{path}/events?follow=false") as events:
                    await events.read()
            else:
                await connection.ask("GET", kind)
            times.append(time.perf_counter() - begun)
        connection.close()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return {"times": {kind: times}, "made": made}


async def probe(port: int, seconds: float) -> dict[str, Any]:
    """How long `/livez` takes, every 10 ms."""
    connection, times = Connection(port), []
    await connection.ask("GET", "/livez")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        await connection.ask("GET", "/livez")
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(0.01)
    return {"times": {"livez": times}}


async def readers(port: int, replays: int, slow: int, seconds: float) -> dict[str, Any]:
    """Clients that replay all events as fast as they can, and clients that take 4 KiB a second."""
    end, taken = time.monotonic() + seconds, 0

    async def replay() -> None:
        nonlocal taken
        while time.monotonic() < end:
            async with stream(port, "/api/v1/events?follow=false") as events:
                while (part := await events.read(1 << 16)) and time.monotonic() < end:
                    taken += len(part)

    async def slowly() -> None:
        async with stream(port, "/api/v1/events", limit=4096) as events:
            while time.monotonic() < end:
                await events.read(4096)
                await asyncio.sleep(1.0)

    await asyncio.gather(*(replay() for _ in range(replays)), *(slowly() for _ in range(slow)))
    return {"times": {}, "replayed": taken}


CLIENTS: Final[dict[str, Callable[..., Any]]] = {
    "users": users,
    "alone": alone,
    "probe": probe,
    "readers": readers,
}


@contextlib.contextmanager
def other(name: str, *arguments: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run a client in another process; the call waits for its figures."""
    command = [sys.executable, __file__, "--client", json.dumps([name, *arguments])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def result() -> dict[str, Any]:
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"the client {name} failed")
        found: dict[str, Any] = json.loads(out)
        return found

    try:
        yield result
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def done(name: str, *arguments: Any) -> dict[str, Any]:
    """The figures of a client in another process."""
    with other(name, *arguments) as result:
        return result()


# ---- a long history ----

#: Tables of which each row belongs to a workflow, and the column that says to which.
COPIED: Final = {
    "workflows": "id",
    "stages": "workflow_id",
    "tasks": "workflow_id",
    "attempts": "workflow_id",
    "outputs": "workflow_id",
    "events": "workflow_id",
}


def copies(
    names: Sequence[str], rows: Sequence[Sequence[Any]], ident: str, count: int, first: int
) -> Iterator[tuple[Any, ...]]:
    """Rows of a table for `count` workflows, as those of one. Numbers of events and of submissions go on from `first`."""
    number = first
    for copy in range(count):
        fresh = copied_ident(ident, copy)
        for row in rows:
            number += 1
            values = []
            for name, value in zip(names, row, strict=True):
                if isinstance(value, str) and ident in value:
                    value = value.replace(ident, fresh)
                elif isinstance(value, bytes) and ident.encode() in value:
                    value = value.replace(ident.encode(), fresh.encode())
                elif name == "seq" or (name == "id" and isinstance(value, int)):
                    value = number
                elif name == "name" and value == ENDING["name"]:
                    value = f"{value}-{copy % 100}"
                values.append(value)
            yield tuple(values)


def copied_ident(ident: str, copy: int) -> str:
    return f"{ident[:-6]}{copy:06d}"


def copy_root(template: Path, root: Path) -> None:
    """A root like another one, at a path of its own: what a service keeps of its root's name is in the database."""
    subprocess.run(["cp", "-a", str(template), str(root)], check=True)


def make_history(
    sources: Path, folder: Path, postgres: Postgres | None, count: int
) -> tuple[Path, str | None, str]:
    """A root and a database with so many ended workflows, made by the sources of a folder; and the id of the first of them."""
    root, url = folder / "template", None if postgres is None else postgres.fresh()
    service = Service(sources, root, url)
    try:
        service.ready()
        ident = asyncio.run(ended_workflow(service.port))
        time.sleep(TIDIED_S)
    finally:
        service.kill()
    add_history(root, url, ident, count)
    return root, url, ident


async def ended_workflow(port: int) -> str:
    """The id of a workflow that has succeeded."""
    connection = Connection(port)
    ident: str = json.loads(await connection.ask("POST", WORKFLOWS, ENDING))["id"]
    async with stream(port, f"{WORKFLOWS}/{ident}/events") as events:
        await ended(events)
    connection.close()
    return ident


def add_history(root: Path, url: str | None, ident: str, count: int) -> None:
    """Copy an ended workflow so many times: its rows, and the folders of its attempts."""
    for attempt in list((root / "nodes" / "node-0" / "attempts").glob(f"*{ident}*")):
        files = [item for item in attempt.iterdir() if item.is_file()]
        for copy in range(count):
            fresh = attempt.with_name(attempt.name.replace(ident, copied_ident(ident, copy)))
            fresh.mkdir()
            for item in files:
                os.link(item, fresh / item.name)
    if url is None:
        database = sqlite3.connect(root / "flowsched.db")
        database.execute("PRAGMA synchronous=OFF")
        for table, key in COPIED.items():
            cursor = database.execute(f"SELECT * FROM {table} WHERE {key} = ?", (ident,))
            names = [each[0] for each in cursor.description]
            rows = cursor.fetchall()
            marks = ",".join("?" * len(names))
            database.executemany(
                f"INSERT INTO {table} VALUES ({marks})", copies(names, rows, ident, count, 1000)
            )
        for counter, table, column in (("workflow", "workflows", "seq"), ("event", "events", "id")):
            database.execute(
                f"UPDATE counters SET value = (SELECT max({column}) FROM {table}) WHERE name = ?", (counter,)
            )
        database.commit()
        database.close()
        return
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for table, key in COPIED.items():
            cursor = connection.execute(f"SELECT * FROM {table} WHERE {key} = %s", (ident,))  # type: ignore[call-overload]
            names = [each.name for each in cursor.description]
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:  # type: ignore[call-overload]
                for row in copies(names, cursor.fetchall(), ident, count, 1000):
                    copy.write_row(row)
        for counter, table, column in (("workflow", "workflows", "seq"), ("event", "events", "id")):
            connection.execute(  # type: ignore[call-overload]
                f"UPDATE counters SET value = (SELECT max({column}) FROM {table}) WHERE name = %s", (counter,)
            )
        connection.commit()
        connection.autocommit = True
        connection.execute("ANALYZE")


# ---- the parts ----

Figures = dict[str, str]


class Told(Figures):
    """Figures, each of which is shown while the bench goes on."""

    def __setitem__(self, name: str, value: str) -> None:
        print(f"{name}: {value}", file=sys.stderr, flush=True)
        super().__setitem__(name, value)


def milliseconds(seconds: Sequence[float], part: float) -> float:
    """A quantile, in ms."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def quantiles(seconds: Sequence[float]) -> str:
    return f"{milliseconds(seconds, 0.5):.1f} / {milliseconds(seconds, 0.99):.1f}"


class Bench:
    """One service after the other, with the sources of one folder, on one database."""

    def __init__(self, sources: Path, folder: Path, postgres: Postgres | None) -> None:
        self.sources, self.folder, self.postgres = sources, folder, postgres
        self.figures = Told()
        self.starts: list[tuple[float, float]] = []
        self._number = 0

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        """A service that is ready, on an empty database."""
        self._number += 1
        url = None if self.postgres is None else self.postgres.fresh()
        service = Service(self.sources, self.folder / f"root{self._number}", url)
        try:
            service.ready()
            yield service
        finally:
            service.kill()

    def cpu(self, service: Service) -> tuple[float, float]:
        return service.cpu_s(), 0.0 if self.postgres is None else self.postgres.cpu_s()

    def cpu_of_one(self, service: Service, before: tuple[float, float], times: int) -> str:
        own, database = (
            1000 * (now - was) / max(1, times) for now, was in zip(self.cpu(service), before, strict=True)
        )
        return f"{own:.2f}" + (f" + {database:.2f}" if self.postgres is not None else "")

    def users(self, count: int, seconds: float, think_s: float) -> None:
        for think in (think_s, 0.0):
            with self.service() as service:
                before = self.cpu(service)
                found = done("users", service.port, count, seconds, think)
                times = found["times"]
                requests = sum(len(each) for kind, each in times.items() if kind != "end seen")
                said = f"{count} users, {think:g} s of thought" if think else f"{count} users without a pause"
                self.figures[f"{said}: requests/s"] = f"{requests / found['seconds']:.0f}"
                self.figures[f"{said}: CPU a request, ms"] = self.cpu_of_one(service, before, requests)
                own = 1000 * found["cpu_s"] / max(1, requests)
                self.figures[f"{said}: CPU of the clients a request, ms"] = f"{own:.2f}"
                for kind, each in times.items():
                    self.figures[f"{said}: {kind}, p50 / p99 ms"] = quantiles(each)

    def kinds(self, count: int) -> None:
        with self.service() as service:
            made = self._kind(service, "submit", "submit", LIVING)
            for name, kind in (
                ("list of 100 that live", f"{WORKFLOWS}?limit=100"),
                ("list of 10", f"{WORKFLOWS}?limit=10"),
                ("look at one", "get"),
                ("its events", "events"),
                ("livez", "/livez"),
            ):
                self._kind(service, name, kind, count, made)
            self._kind(service, "cancel", "cancel", LIVING, made)
            self._kind(service, "list of 100 ended", f"{WORKFLOWS}?limit=100", count)

    def _kind(
        self, service: Service, name: str, kind: str, count: int, idents: Sequence[str] = ()
    ) -> list[str]:
        before = self.cpu(service)
        found = done("alone", service.port, kind, count, idents)
        self.figures[f"{name}: CPU, ms"] = self.cpu_of_one(service, before, count)
        made: list[str] = found["made"]
        return made

    def history(self, seed: tuple[Path, str | None, str], count: int) -> None:
        template, like, ident = seed
        root, url = self.folder / "history", None
        copy_root(template, root)
        if self.postgres is not None:
            url = self.postgres.fresh(like)
        for turn in range(STARTS):
            service = Service(self.sources, root, url, "--take-over")  # the root is a copy
            try:
                seconds = service.ready()
                self.starts.append((seconds, service.cpu_s()))
                if turn == STARTS - 1:
                    self._lists(service, ident, count)
                    self._streams(service)
            finally:
                service.kill()
        took, cpu = (statistics.median(each) for each in zip(*self.starts, strict=True))
        self.figures[f"start with {count} that have ended: s until ready"] = f"{took:.2f}"
        self.figures[f"start with {count} that have ended: CPU s until ready"] = f"{cpu:.2f}"

    def _lists(self, service: Service, ident: str, count: int) -> None:
        for name, query in (
            ("newest 100", ""),
            ("by name", "&name=ends-7"),
            ("by state", "&state=SUCCEEDED"),
            ("by state, none", "&state=FAILED"),
            ("by queue, none", "&queue=none"),
            ("by ref", f"&ref={copied_ident(ident, 77)}"),
            ("by label, none", f"&label={quote('a=b')}"),
        ):
            path = f"{WORKFLOWS}?limit=100{query}"
            before = self.cpu(service)
            found = done("alone", service.port, path, 32, [])
            self.figures[f"ls of {count}, {name}: CPU, ms"] = self.cpu_of_one(service, before, 32)
            self.figures[f"ls of {count}, {name}: p50 / p99 ms, {AT_ONCE} at once"] = quantiles(
                found["times"][path]
            )

    def _streams(self, service: Service) -> None:
        alone = done("probe", service.port, 3.0)["times"]["livez"]
        before = self.cpu(service)
        with other("readers", service.port, 10, 200, 8.0) as reading:
            time.sleep(1.0)
            beside = done("probe", service.port, 5.0)["times"]["livez"]
            replayed = reading()["replayed"]
        own = self.cpu(service)[0] - before[0]
        self.figures["livez alone: p50 / p99 / longest ms"] = f"{quantiles(alone)} / {1000 * max(alone):.1f}"
        self.figures["livez, 10 replays, 200 slow readers"] = (
            f"{quantiles(beside)} / {1000 * max(beside):.1f}"
        )
        self.figures["replays: MB/s, CPU s of the service for 100 MB"] = (
            f"{replayed / 8e6:.1f}, {own / max(1, replayed) * 1e8:.2f}"
        )


def measure(
    sources: Path,
    folder: Path,
    postgres: Postgres | None,
    seed: tuple[Path, str | None, str] | None,
    given: argparse.Namespace,
) -> Figures:
    """All parts that were asked for."""
    folder.mkdir()
    bench = Bench(sources, folder, postgres)
    if "users" in given.parts:
        bench.users(given.users, given.seconds, given.think)
    if "kinds" in given.parts:
        bench.kinds(given.requests)
    if seed is not None:
        bench.history(seed, given.history)
    return bench.figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--against", type=Path, help="a folder with other sources, measured in the same run")
    parser.add_argument("--parts", default="users,kinds,history", help="by commas")
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round of users")
    parser.add_argument(
        "--think", type=float, default=1.0, help="mean seconds between two requests of a user"
    )
    parser.add_argument("--requests", type=int, default=300, help="of each kind")
    parser.add_argument("--history", type=int, default=50_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the services end with the bench
    if given.client:
        name, *arguments = json.loads(given.client)
        try:
            print(json.dumps(asyncio.run(CLIENTS[name](*arguments))))
        except (RuntimeError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            sys.exit(f"{name}: {error!r}")
        return
    folders = [*([given.against.resolve()] if given.against else []), HERE]
    told: list[dict[str, Any]] = []
    for database in ("sqlite", "postgresql") if given.database == "both" else (given.database,):
        found: list[Figures] = []
        postgres = Postgres() if database == "postgresql" else None
        with tempfile.TemporaryDirectory(prefix="flowsched-users-", ignore_cleanup_errors=True) as name:
            try:
                seed = (
                    make_history(folders[0], Path(name), postgres, given.history)
                    if "history" in given.parts
                    else None
                )
                for number, sources in enumerate(folders):
                    found.append(measure(sources, Path(name) / str(number), postgres, seed, given))
            finally:
                if postgres is not None:
                    postgres.remove()
        show(database, folders, found)
        columns = dict(zip(columns_of(folders), found, strict=True))
        told.append({"database": database, "living": LIVING, **columns})
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def columns_of(folders: Sequence[Path]) -> list[str]:
    """What the figures of each folder are called."""
    return ["before", "now"] if len(folders) == 2 else ["now"]


def show(database: str, folders: Sequence[Path], found: Sequence[Figures]) -> None:
    """A table, a column for each folder."""
    heads = columns_of(folders)
    print(f"\n| {database} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name in dict.fromkeys(name for each in found for name in each):
        print(f"| {name} | {' | '.join(each.get(name, '-') for each in found)} |", flush=True)


if __name__ == "__main__":
    main()
