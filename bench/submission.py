"""POST of a 50-task workflow: accepted and durable, against the smallest durable write the same database can do.

    python bench/submission.py [--json] [--runs N]

The figure is requests/s of `POST /api/v1/workflows` (decode, check, one transaction, 202) over a real socket, one after the other
and 16 at a time; the baseline, in the same run on the same file system, is a bare SQLite transaction of one row with
synchronous=FULL. Afterwards the database is opened again and every answered id must be there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from flowsched.app import Settings, running
from flowsched.client import Client
from flowsched.cluster.local.settings import LocalSettings

REQUESTS = 64
#: The queue is paused, so that acceptance is measured and not the running of tasks.
DOCUMENT = {
    "name": "fifty",
    "queue": "bench",
    "stages": [
        {
            "name": f"s{number}",
            "scatter": {"count": 10},
            "command": ["true"],
            "inputs": [{"name": "x", "from": f"s{number - 1}.out", "match": "index"}] if number else [],
            "outputs": [{"name": "out", "path": "out"}],
        }
        for number in range(5)
    ],
}


def bare(folder: Path) -> float:
    """Transactions/s of one row each."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE row (body TEXT)")
    begun = time.perf_counter()
    for _ in range(REQUESTS):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO row VALUES (?)", ("x" * 200,))
        connection.execute("COMMIT")
    taken = time.perf_counter() - begun
    connection.close()
    return REQUESTS / taken


async def posted(client: Client, at_once: int) -> tuple[float, list[str]]:
    """Requests/s with so many in flight, and the ids that were answered."""
    raw = json.dumps(DOCUMENT).encode()
    gate = asyncio.Semaphore(at_once)

    async def one() -> str:
        async with gate:
            return (await client.submit(raw)).id

    begun = time.perf_counter()
    idents = await asyncio.gather(*(one() for _ in range(REQUESTS)))
    return REQUESTS / (time.perf_counter() - begun), list(idents)


async def measure(runs: int) -> dict[str, float]:
    """Medians of several rounds, all in one service."""
    figures: dict[str, list[float]] = {"bare": [], "one": [], "sixteen": []}
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as name:
        folder = Path(name)
        settings = Settings(
            port=0, root=folder, log_level="error", local=LocalSettings(cpu="1", memory="1Gi")
        )
        idents: list[str] = []
        async with running(settings) as service, Client(service.url) as client:
            await client.put_queue("bench", paused=True)
            for number in range(runs):
                (folder / str(number)).mkdir()
                figures["bare"].append(bare(folder / str(number)))
                for key, at_once in (("one", 1), ("sixteen", 16)):
                    rate, answered = await posted(client, at_once)
                    figures[key].append(rate)
                    idents += answered
        kept = {
            row[0] for row in sqlite3.connect(folder / "flowsched.db").execute("SELECT id FROM workflows")
        }
        lost = set(idents) - kept
        if lost:
            raise SystemExit(f"{len(lost)} of {len(idents)} accepted workflows are not in the database")
    result = {key: statistics.median(values) for key, values in figures.items()}
    return result | {"accepted": float(len(idents)), "lost": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    figures = asyncio.run(measure(given.runs))
    if given.json:
        print(json.dumps(figures))
        return
    print(f"bare one-row transactions        {figures['bare']:8.0f}/s   1.00")
    for key, said in (
        ("one", "POST of 50 tasks, one at a time "),
        ("sixteen", "POST of 50 tasks, 16 in flight  "),
    ):
        print(f"{said} {figures[key]:8.0f}/s   {figures[key] / figures['bare']:.2f} of it")
    print(f"{figures['accepted']:.0f} accepted, {figures['lost']:.0f} missing after reopening the database")


if __name__ == "__main__":
    main()
