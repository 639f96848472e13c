"""Durable task transitions per second: the group writer against one commit per event, on the same database
and run.

A transition is one task row (compare-and-set on its version) and one event row, fenced by the leader's epoch.
Three ways:

    per event   one transaction per transition, statements compiled once, one after the other
    singles     the group writer with many transitions in flight, each waiting for its own COMMIT
    steps       the group writer with the engine's steps of many transitions each

Every way is timed several times, by turns; ratios are of medians. Afterwards the database is opened again and
the rows are counted: each task must have exactly the versions that were acknowledged, each transition its
event.

    python bench/transitions.py [--json] [--rounds 5] [--postgresql URL | --no-postgresql]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from sqlalchemy import Connection, func, insert, select, text  # noqa: E402

from flowsched.engine.delta import Delta, EventRow, TaskWrite  # noqa: E402
from flowsched.store import tables  # noqa: E402
from flowsched.store.database import Database, url_for  # noqa: E402
from flowsched.store.lease import Lease  # noqa: E402
from flowsched.store.requests import Submission  # noqa: E402
from flowsched.store.writer import GroupWriter  # noqa: E402

WORKFLOW = "bench"


@dataclass
class Bench:
    """One database with one wide workflow; `versions` is what has been acknowledged."""

    database: Database
    writer: GroupWriter
    epoch: int
    versions: list[int]
    events: int = 1  # the submission's own

    def write(self, index: int) -> TaskWrite:
        version = self.versions[index] + 1
        return TaskWrite(
            WORKFLOW, 0, index, version % 8, 1, "node-17", 0, version, "", None,
            1_700_000_000_000, 1_700_000_000_100, 1_700_000_000_150, 1_700_000_000_200, 1_700_000_000_300, None,
            1 << 30, 1 << 20,
        )  # fmt: skip

    def event(self, index: int) -> EventRow:
        return EventRow(
            WORKFLOW, 1_700_000_000_000, "task.running", {"stage": 0, "index": index, "node": "n"}
        )

    def acknowledged(self, indices: range) -> None:
        for index in indices:
            self.versions[index] += 1
        self.events += len(indices)


async def per_event(bench: Bench, indices: range) -> None:
    """The same rows, a transaction each."""
    task, event = tables.tasks, tables.events
    change = (
        task.update()
        .where(task.c.workflow_id == text(":w"), task.c.stage == text(":s"), task.c["index"] == text(":i"))
        .where(task.c.version == text(":v"))
    )
    names = TaskWrite._fields[3:]
    fence = text("UPDATE lease SET epoch = epoch WHERE name = 'leader' AND epoch = :epoch")
    number = text("UPDATE counters SET value = value + 1 WHERE name = 'event' RETURNING value")

    def work(connection: Connection, index: int) -> None:
        write, line = bench.write(index), bench.event(index)
        assert connection.execute(fence, {"epoch": bench.epoch}).rowcount == 1
        if write.version == 1:
            connection.execute(insert(task), dict(zip(tables.tasks.c.keys(), write, strict=True)))
        else:
            where = {"w": WORKFLOW, "s": 0, "i": index, "v": write.version - 1}
            values = dict(zip(names, write[3:], strict=True))
            assert connection.execute(change.values(values), where).rowcount == 1
        first = connection.execute(number).scalar_one()
        row = {"id": first, "workflow_id": WORKFLOW, "at_ms": line.at_ms, "kind": line.kind}
        connection.execute(insert(event), row | {"body": json.dumps(line.body)})

    for index in indices:
        await bench.database.write(partial(work, index=index))


async def singles(bench: Bench, indices: range) -> None:
    """Each transition waits for its own commit; the writer groups what is in flight."""
    for start in range(indices.start, indices.stop, 1_000):
        some = range(start, min(start + 1_000, indices.stop))
        deltas = [Delta(tasks=[bench.write(i)], events=[bench.event(i)]) for i in some]
        await asyncio.gather(*(bench.writer.commit(delta, bench.epoch) for delta in deltas))


def steps(size: int) -> Callable[[Bench, range], Awaitable[None]]:
    """The engine's way: a delta of many transitions, one at a time."""

    async def run(bench: Bench, indices: range) -> None:
        for start in range(indices.start, indices.stop, size):
            some = range(start, min(start + size, indices.stop))
            delta = Delta(tasks=[bench.write(i) for i in some], events=[bench.event(i) for i in some])
            await bench.writer.commit(delta, bench.epoch)

    return run


async def measure(url: str, rounds: int, tasks: int, baseline: int) -> dict[str, Any]:
    """Time all ways on one database, then verify what it holds."""
    ways: dict[str, tuple[Callable[[Bench, range], Awaitable[None]], int]] = {
        "per event": (per_event, baseline),
        "singles, 1,000 in flight": (singles, tasks // 4),
        "steps of 100": (steps(100), tasks // 4),
        "steps of 1,000": (steps(1_000), tasks),
        "steps of 5,000": (steps(5_000), tasks),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    async with await Database.open(url) as database:
        epoch = await Lease(database).acquire("bench", 3_600_000, 0)
        assert epoch is not None
        async with GroupWriter(database) as writer:
            stages = [("wide", tasks, 1)]
            await writer.submit(Submission(WORKFLOW, "bench", "q", 0, {}, b"{}", stages, 0))
            bench = Bench(database, writer, epoch, [0] * tasks)
            for step in range(0, tasks, 5_000):  # every row exists before the clock starts
                await steps(5_000)(bench, range(step, min(step + 5_000, tasks)))
            bench.acknowledged(range(tasks))
            for _ in range(rounds):
                for name, (way, count) in ways.items():
                    began = time.perf_counter()
                    await way(bench, range(count))
                    rates[name].append(count / (time.perf_counter() - began))
                    bench.acknowledged(range(count))
        facts = await database.doctor()
    await verify(url, bench)
    base = statistics.median(rates["per event"])
    return {
        "database": f"{facts['database']} {facts['version']}",
        "durability": {
            k: facts[k] for k in ("journal_mode", "synchronous", "fsync", "synchronous_commit") if k in facts
        },
        "verified_transitions": sum(bench.versions),
        "rates": {
            name: {
                "median_per_s": round(statistics.median(values)),
                "ratio": round(statistics.median(values) / base, 1),
                "all_per_s": [round(value) for value in values],
            }
            for name, values in rates.items()
        },
    }


async def verify(url: str, bench: Bench) -> None:
    """Open it again and count: every acknowledged transition is there, and none twice."""
    async with await Database.open(url, create=False) as database:
        facts = await database.doctor()
        if facts["database"] == "sqlite":
            assert (facts["journal_mode"], facts["synchronous"]) == ("wal", 2), facts
            assert facts["integrity_check"] == "ok", facts
        else:
            assert (facts["fsync"], facts["synchronous_commit"]) == ("on", "on"), facts
        query = select(tables.tasks.c.version).order_by(tables.tasks.c["index"])
        versions = [row.version for row in await database.rows(query)]
        events = (await database.rows(select(func.count()).select_from(tables.events)))[0][0]
    assert versions == bench.versions, "a task's version is not what was acknowledged"
    assert events == bench.events, (events, bench.events)


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['database']}  {result['durability']}")
    print(f"{'way':28}{'transitions/s':>15}{'ratio':>9}")
    for name, rate in result["rates"].items():
        print(f"{name:28}{rate['median_per_s']:>15,}{rate['ratio']:>8,.1f}×")
    print(f"verified after reopening: {result['verified_transitions']:,} transitions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--baseline", type=int, default=300, help="transitions of a per-event round")
    parser.add_argument("--folder", help="where the SQLite file goes (default: a temporary folder)")
    parser.add_argument(
        "--postgresql", metavar="URL", help="default: a server of our own, if there are binaries"
    )
    parser.add_argument("--no-postgresql", action="store_true")
    given = parser.parse_args()
    amounts = (given.rounds, given.tasks, given.baseline)
    results = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        results.append(asyncio.run(measure(url_for(Path(folder) / "bench.db"), *amounts)))
    if given.postgresql:
        results.append(asyncio.run(measure(given.postgresql, *amounts)))
    elif not given.no_postgresql:
        import postgres

        try:
            server = postgres.Server(fsync=True)
        except postgres.NoPostgres as error:
            print(f"no PostgreSQL: {error}", file=sys.stderr)
        else:
            try:
                server.start()
                results.append(asyncio.run(measure(server.fresh(), *amounts)))
            finally:
                server.remove()
    if given.json:
        print(json.dumps(results, indent=2))
    else:
        for result in results:
            show(result)


if __name__ == "__main__":
    main()
