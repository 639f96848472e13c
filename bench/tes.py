"""The TES server under the load of Cromwell: how long a poll takes, and how many creates a second are made durable.

    python bench/tes.py [--json] [--tasks 1000] [--seconds 30] [--creates 2000] [--no-postgresql]
    python bench/tes.py --beside 4

Polls: so many tasks run, and each is asked for in view FULL every 10 s, over 4 keep-alive connections (akka-http's default), evenly
spread. A time is from the moment a poll is due to the end of its answer, so it holds the wait for a connection, too. The baseline,
by turns in the same run at the same rate, is a bare aiohttp handler in a process of its own with an answer of the same size.

Creates: tasks of Cromwell's kind, each unlike the others, over one keep-alive connection and over 16, until their answers; their
queue is paused, so that accepting is measured and not running. The baseline is a bare transaction of one row on the same file
system (SQLite with synchronous=FULL). For CPU it is the bare aiohttp handler, which reads the same bodies by turns. Afterwards the
service is killed, the database is opened again, and every answered id must be there.

The service is a process of its own, the whole of it but for the pods, which are timers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

POLL_S = 10.0
POLLERS, CREATORS = 4, 16
TASKS = "/ga4gh/tes/v1/tasks"


def task(number: int, queue: str) -> dict[str, Any]:
    """A task as Cromwell sends them: a script, five inputs, six outputs, one executor."""
    folder = (
        f"/data/cromwell-executions/W/7f0d7c16-d434-4dd7-a7ba-c7e897701c9a/call-c/shard-{number}/execution"
    )
    names = ("rc", "stdout", "stderr", "a.bam", "a.bai", "metrics.txt")
    inputs = [f"/data/cromwell-executions/W/1/call-b/shard-{number}/execution/{n}.bam" for n in range(5)]
    return {
        "name": "W.c",
        "description": f"7f0d7c16-d434-4dd7-a7ba-c7e897701c9a:BackendJobDescriptorKey_CommandCallNode_W.c:{number}:1",
        "inputs": [{"name": f"W.c.input.{n}", "url": url, "path": url, "type": "FILE"} for n, url in enumerate(inputs)],
        "outputs": [{"name": n, "url": f"{folder}/{n}", "path": f"{folder}/{n}", "type": "FILE"} for n in names],
        "resources": {
            "cpu_cores": 1, "ram_gb": 2.0, "disk_gb": 10.0, "preemptible": False,
            "backend_parameters": {"queue": queue, "internal_path_prefix": f"{folder}/tes_task"},
        },
        "executors": [{
            "image": "ubuntu@sha256:" + "0" * 64, "command": ["/bin/bash", f"{folder}/script"],
            "stdout": f"{folder}/stdout", "stderr": f"{folder}/stderr",
        }],
        "tags": {"workflow_id": "7f0d7c16", "root_workflow_id": "7f0d7c16", "parent_workflow_id": None},
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- processes


async def serve(folder: Path, database: str) -> None:
    """Be the service, on any free port, which is printed."""
    from aiohttp import web

    from flowsched import app
    from flowsched.api.server import build_api
    from flowsched.executor.nodes import NodeInfo
    from tests.cluster.fake import FakeProcesses, Outcome
    from tests.service.processes import process

    world = FakeProcesses(lambda _: Outcome(runtime_ms=3_600_000))
    nodes = [NodeInfo(f"node-{number}", 64_000, 512 << 30, 16 << 40) for number in range(64)]
    async with process(database, folder, world, nodes=nodes) as made:
        made.lead()
        await made.ready()
        app.spare_the_collector()
        await _listen(build_api(made.service), web)


async def bare(size: int) -> None:
    """Be a server that does nothing, with an answer of so many bytes."""
    from aiohttp import web

    body = json.dumps({"x": "y" * (size - 9)}).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    await _listen(application, web)


async def _listen(application: Any, web: Any) -> None:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"port {runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


class Started(NamedTuple):
    """A process that listens."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU seconds it has taken: what a busy machine does not blur."""
        ticks = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Started]:
    """Another process of this program. It is killed at the end."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=env,
    )
    assert other.stdout is not None
    try:
        while not (line := await asyncio.wait_for(other.stdout.readline(), 60)).startswith(b"port "):
            if not line:
                raise SystemExit(f"{' '.join(arguments)} ended at once")
        yield Started(other.pid, int(line.split()[1]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            other.send_signal(signal.SIGKILL)
        await other.wait()


class Connection:
    """One keep-alive connection, as plain as can be: what is measured is the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """One request; the body of its answer, which must be 200 or 202."""
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        told = await self._reader.readexactly(length)
        if answer.split(b" ", 2)[1] not in (b"200", b"202"):
            raise SystemExit(f"{method} {path}: {answer[:100]!r} {told[:500]!r}")
        return told

    def close(self) -> None:
        self._writer.close()


async def over(port: int, connections: int, work: Callable[[Connection], Awaitable[None]]) -> None:
    """The same work on several connections at once."""
    opened = [await Connection.to(port) for _ in range(connections)]
    try:
        await asyncio.gather(*(work(each) for each in opened))
    finally:
        for each in opened:
            each.close()


# ---------------------------------------------------------------------------------------------------- creates


async def created(
    port: int, first: int, count: int, queue: str, connections: int = CREATORS
) -> tuple[float, list[str]]:
    """Creates a second, and the ids that were answered."""
    bodies = iter([task(number, queue) for number in range(first, first + count)])
    idents: list[str] = []

    async def work(connection: Connection) -> None:
        for body in bodies:
            idents.append(json.loads(await connection.ask("POST", TASKS, body))["id"])

    begun = time.perf_counter()
    await over(port, connections, work)
    return count / (time.perf_counter() - begun), idents


async def read_bodies(port: int, first: int, count: int, connections: int) -> None:
    """The requests of `created`, to the server that does nothing."""
    bodies = iter([task(number, "bench") for number in range(first, first + count)])

    async def work(connection: Connection) -> None:
        for body in bodies:
            await connection.ask("POST", TASKS, body)

    await over(port, connections, work)


def transactions(folder: Path, count: int = 300) -> float:
    """Bare transactions of one row a second."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS row (body TEXT)")
    begun = time.perf_counter()
    for _ in range(count):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO row VALUES (?)", ("x" * 200,))
        connection.execute("COMMIT")
    taken = time.perf_counter() - begun
    connection.close()
    return count / taken


async def kept(url: str) -> set[str]:
    """Ids of the tasks in a database that is opened anew."""
    from sqlalchemy import text

    from flowsched.store.database import Database

    async with await Database.open(url, create=False, migrate=False) as database:
        rows = await database.rows(text("SELECT t.id FROM tes_tasks t JOIN workflows w ON w.id = t.id"))
        return {row[0] for row in rows}


async def measure_creates(url: str, folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Medians of several rounds."""
    plain: list[float] = []
    idents: list[str] = []
    rates: dict[int, list[float]] = {1: [], CREATORS: []}
    cpu: dict[int, list[float]] = {1: [], CREATORS: []}
    bare_cpu: dict[int, list[float]] = {1: [], CREATORS: []}
    async with started("--serve", str(folder), url) as server, started("--bare", "30") as other:
        await over(server.port, 1, paused)
        for number in range(rounds):
            plain.append(transactions(folder))
            for place, connections in enumerate(rates):
                before = server.cpu_s()
                first = (2 * number + place) * count
                rate, answered = await created(server.port, first, count, "bench", connections)
                cpu[connections].append((server.cpu_s() - before) / count * 1e6)
                before = other.cpu_s()
                await read_bodies(other.port, first, count, connections)
                bare_cpu[connections].append((other.cpu_s() - before) / count * 1e6)
                rates[connections].append(rate)
                idents += answered
    if len(set(idents)) != 2 * rounds * count:
        raise SystemExit(f"{len(set(idents))} ids for {2 * rounds * count} creates")
    lost = set(idents) - await kept(url)
    if lost:
        raise SystemExit(f"{len(lost)} of {len(idents)} accepted tasks are not in the database")
    return {
        "creates_per_s": statistics.median(rates[CREATORS]),
        "create_cpu_us": statistics.median(cpu[CREATORS]),
        "bare_create_cpu_us": statistics.median(bare_cpu[CREATORS]),
        "bare_single_create_cpu_us": statistics.median(bare_cpu[1]),
        "single_creates_per_s": statistics.median(rates[1]),
        "single_create_cpu_us": statistics.median(cpu[1]),
        "bare_per_s": statistics.median(plain),
        "accepted": float(len(idents)),
        "lost": 0.0,
    }


async def paused(connection: Connection) -> None:
    await connection.ask("PUT", "/api/v1/queues/bench", {"paused": True})


# ---------------------------------------------------------------------------------------------------- polls


async def polled(port: int, paths: list[str], seconds: float) -> list[float]:
    """Ms from the moment each poll was due to the end of its answer."""
    loop = asyncio.get_running_loop()
    step = POLL_S / len(paths)
    due = iter([(n * step, paths[n % len(paths)]) for n in range(int(seconds / step))])
    begun = loop.time() + 0.1
    times: list[float] = []

    async def work(connection: Connection) -> None:
        for at, path in due:
            await asyncio.sleep(begun + at - loop.time())
            await connection.ask("GET", path)
            times.append((loop.time() - begun - at) * 1000)

    await over(port, POLLERS, work)
    return times


async def running(port: int, count: int) -> list[str]:
    """So many tasks that run; their ids."""
    _, idents = await created(port, 0, count, "default")
    seen: list[bytes] = []

    async def look(connection: Connection) -> None:
        end = time.monotonic() + 120
        for ident in idents:
            while b'"RUNNING"' not in (answer := await connection.ask("GET", f"{TASKS}/{ident}?view=FULL")):
                if time.monotonic() > end:
                    raise SystemExit(f"the tasks do not run: {answer[:300]!r}")
                await asyncio.sleep(0.2)
            seen.append(answer)

    await over(port, 1, look)
    return idents


async def measure_polls(url: str, folder: Path, tasks: int, seconds: float) -> dict[str, float]:
    """p50 and p99 of ours and of a server that does nothing, by turns, three times."""
    ours: list[float] = []
    plain: list[float] = []
    async with started("--serve", str(folder), url) as server:
        paths = [f"{TASKS}/{ident}?view=FULL" for ident in await running(server.port, tasks)]
        opened = await Connection.to(server.port)
        size = len(await opened.ask("GET", paths[0]))
        opened.close()
        async with started("--bare", str(size)) as other:
            before, other_before = server.cpu_s(), other.cpu_s()
            for _ in range(3):
                ours += await polled(server.port, paths, seconds / 3)
                plain += await polled(other.port, paths, seconds / 3)
            cpu, other_cpu = server.cpu_s() - before, other.cpu_s() - other_before
    return {
        "tasks": float(tasks),
        "polls": float(len(ours)),
        "bytes": float(size),
        "ours_cpu_us": cpu / len(ours) * 1e6,
        "bare_cpu_us": other_cpu / len(plain) * 1e6,
        **{f"ours_{name}_ms": value for name, value in quantiles(ours).items()},
        **{f"bare_{name}_ms": value for name, value in quantiles(plain).items()},
    }


def quantiles(times: list[float]) -> dict[str, float]:
    cut = statistics.quantiles(times, n=100)
    return {"p50": cut[49], "p99": cut[98], "max": max(times)}


async def measure_beside(url: str, folder: Path, clients: int, seconds: float) -> dict[str, float]:
    """Ms of creates over one connection while so many clients post documents of 0.9 MB."""
    stage = {"command": ["echo", "x" * 200], "env": {"A": "y" * 100}}
    stages = [{"name": f"s{number}", **stage} for number in range(2_300)]
    document = {"name": "large", "queue": "bench", "stages": stages}
    times: list[float] = []
    async with started("--serve", str(folder), url) as server:
        await over(server.port, 1, paused)
        end = time.monotonic() + seconds

        async def post(connection: Connection) -> None:
            while time.monotonic() < end:
                await connection.ask("POST", "/api/v1/workflows", document)

        async def create(connection: Connection) -> None:
            while time.monotonic() < end:
                begun = time.monotonic()
                await connection.ask("POST", TASKS, task(len(times), "bench"))
                times.append((time.monotonic() - begun) * 1000)

        await asyncio.gather(over(server.port, clients, post), over(server.port, 1, create))
    return {"clients": float(clients), "creates": float(len(times)), **quantiles(times)}


# ---------------------------------------------------------------------------------------------------- the whole


async def measure(name: str, url: Callable[[Path, str], str], given: argparse.Namespace) -> dict[str, Any]:
    """All figures of one kind of database."""
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-", dir=given.folder) as place:
        folder = Path(place)
        polls = await measure_polls(url(folder, "polls"), folder / "polls", given.tasks, given.seconds)
        creates = await measure_creates(
            url(folder, "creates"), folder / "creates", given.creates, given.rounds
        )
    return {"database": name, **polls, **creates}


def sqlite(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return f"sqlite:///{folder / name / 'flowsched.db'}"


def show(figures: dict[str, Any]) -> None:
    print(
        f"{figures['database']}: {figures['tasks']:,.0f} running tasks, each asked for in full every {POLL_S:.0f} s,"
    )
    print(
        f"{figures['polls']:,.0f} polls over {POLLERS} connections, answers of {figures['bytes']:,.0f} bytes"
    )
    for who in ("ours", "bare"):
        p50, p99, most = (figures[f"{who}_{name}_ms"] for name in ("p50", "p99", "max"))
        cpu = figures[f"{who}_cpu_us"]
        print(
            f"  {who:5} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   longest {most:7.2f} ms   CPU {cpu:5.0f} µs each"
        )
    print(f"  ratio p50 {figures['ours_p50_ms'] / figures['bare_p50_ms']:.1f}, p99 {_ratio(figures):.1f}")
    rate, plain = figures["creates_per_s"], figures["bare_per_s"]
    single, many = figures["single_create_cpu_us"], figures["create_cpu_us"]
    bare_single, bare_many = figures["bare_single_create_cpu_us"], figures["bare_create_cpu_us"]
    print(
        f"  CPU of a create {single:,.0f} µs over one connection ({single / bare_single:.1f} of bare aiohttp's), "
        f"{many:,.0f} µs over {CREATORS} ({many / bare_many:.1f})"
    )
    print(f"  creates over one connection {figures['single_creates_per_s']:,.0f}/s")
    print(
        f"  creates over {CREATORS} connections {rate:,.0f}/s, {rate / plain:.2f} of {plain:,.0f}/s bare transactions"
    )
    print(
        f"  {figures['accepted']:,.0f} accepted, {figures['lost']:.0f} missing after the database was opened again"
    )


def _ratio(figures: dict[str, Any]) -> float:
    return float(figures["ours_p99_ms"] / figures["bare_p99_ms"])


def all_of(given: argparse.Namespace) -> list[dict[str, Any]]:
    results = [asyncio.run(measure("SQLite", sqlite, given))]
    if given.no_postgresql:
        return results
    from tests.postgres import NoPostgres, Server

    try:
        server = Server(fsync=True)
    except NoPostgres as error:
        print(f"no PostgreSQL: {error}", file=sys.stderr)
        return results

    def fresh(folder: Path, name: str) -> str:
        (folder / name).mkdir()
        return server.fresh()

    try:
        server.start()
        return [*results, asyncio.run(measure("PostgreSQL", fresh, given))]
    finally:
        server.remove()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of polling, each of ours and of the baseline"
    )
    parser.add_argument("--creates", type=int, default=1000, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    parser.add_argument("--no-postgresql", action="store_true")
    parser.add_argument(
        "--beside", type=int, default=0, help="only creates, beside so many posters of large documents"
    )
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "URL"), help=argparse.SUPPRESS)
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(Path(given.serve[0]), given.serve[1]))
    elif given.bare:
        asyncio.run(bare(given.bare))
    elif given.beside:
        with tempfile.TemporaryDirectory(prefix="flowsched-bench-", dir=given.folder) as place:
            url = sqlite(Path(place), "beside")
            found = measure_beside(url, Path(place) / "beside", given.beside, given.seconds)
            print(json.dumps(asyncio.run(found), indent=2))
    elif given.json:
        print(json.dumps(all_of(given), indent=2))
    else:
        for figures in all_of(given):
            show(figures)


if __name__ == "__main__":
    main()
