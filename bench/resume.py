"""What a resumed run costs: seconds until 10,000 tasks are CACHED, against the seconds of the first run over fake pods.

    python bench/resume.py [--tasks 10000]

Everything but the pods is real: document, SQLite, leader, engine. A pod of the first run ends after a millisecond, so the ratio is
that of the service's own work; real tasks take longer, and a cached task does not. The longest hold of the event loop is told, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from flowsched.store.database import url_for  # noqa: E402
from tests.cluster.fake import FakeProcesses, Outcome  # noqa: E402
from tests.service.processes import Process, process  # noqa: E402

QUICK = Outcome(runtime_ms=1)


def document(tasks: int, **more: Any) -> bytes:
    """Two stages, the second reading the first shard by shard, and a gather of all."""
    small, out = {"cpu": "1m", "memory": "1Mi"}, [{"name": "o", "path": "o"}]
    half = tasks // 2
    stages = [
        {"name": "a", "command": ["a"], "scatter": {"count": half}, "resources": small, "outputs": out},
        {"name": "b", "command": ["b"], "scatter": {"count": half}, "resources": small, "outputs": out,
         "inputs": [{"name": "i", "from": "a.o", "match": "index"}]},
        {"name": "all", "command": ["c"], "resources": small, "inputs": [{"name": "i", "from": "b.o"}]},
    ]  # fmt: skip
    return json.dumps({"name": "resumed", "stages": stages, **more}).encode()


async def run(one: Process, raw: bytes) -> tuple[str, float, float]:
    """To its end: its id, how long it took and the longest hold of the loop, s."""
    began, held = time.perf_counter(), 0.0
    ident = (await one.service.submit(raw)).id
    checked = time.perf_counter()
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.005)
        held = max(held, time.perf_counter() - before - 0.005)
        if time.perf_counter() - checked > 0.2:
            checked = time.perf_counter()
            if (await one.service.workflow(ident)).ended_at is not None:
                return ident, time.perf_counter() - began, held


async def main(tasks: int) -> None:
    """First run, resumed run."""
    with tempfile.TemporaryDirectory() as folder:
        async with process(url_for(Path(folder) / "db"), Path(folder), FakeProcesses(lambda _: QUICK)) as one:
            one.lead()
            await one.ready()
            ident, first_s, first_hold = await run(one, document(tasks))
            again, second_s, hold = await run(one, document(tasks, resume=ident))
            cached = sum(stage.cached for stage in await one.service.stages(again))
    print(
        f"{tasks} tasks: first run {first_s:.2f} s, resumed {second_s:.2f} s, ratio {second_s / first_s:.2f}; {cached} cached"
    )
    print(f"longest hold of the loop: first {1000 * first_hold:.0f} ms, resumed {1000 * hold:.0f} ms")
    if cached < tasks:
        sys.exit("not every task was taken from the cache")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    asyncio.run(main(parser.parse_args().tasks))
