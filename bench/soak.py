"""Replays traces for some minutes while the service is killed again and again, and looks whether anything was lost.

`python -m bench.soak --minutes 5 --kill-every 15 trace.json.gz …` (WfFormat documents; without one a made-up pipeline). Several
traces are under way at any time. At the end every workflow must have succeeded, and each task must have started once: one that
a kill of the service had ended, or that ran twice, would have started again. (An attempt that was written down and not yet
launched when the service died is given up, and counts for nothing.) Each task checks the bytes it reads by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.synthetic.document import Scale
from bench.synthetic.replay import load, replaying
from flowsched.client import Client
from flowsched.errors import FlowschedError

UNDER_WAY = 3
PATIENCE_S = 600.0


def pipeline(lanes: int = 24) -> dict[str, Any]:
    """Prepare, align and sort by lane, merge by six, call, join: 1.4, runtimes and sizes made up."""
    tasks: list[dict[str, Any]] = []

    def task(name: str, kind: str, seconds: float, reads: dict[str, int], writes: dict[str, int]) -> None:
        files = [{"link": "input", "name": file, "sizeInBytes": size} for file, size in reads.items()]
        files += [{"link": "output", "name": file, "sizeInBytes": size} for file, size in writes.items()]
        tasks.append({"name": name, "category": kind, "runtimeInSeconds": seconds, "files": files})

    task("index", "index", 20, {"reference": 3_000_000_000}, {"bwt": 4_000_000_000})
    for lane in range(lanes):
        reads = {f"reads{lane}": 500_000_000 + lane, "bwt": 4_000_000_000}
        task(f"align{lane}", "align", 60 + lane, reads, {f"bam{lane}": 900_000_000})
        task(f"sort{lane}", "sort", 20, {f"bam{lane}": 900_000_000}, {f"sorted{lane}": 700_000_000})
    for sample in range(lanes // 6):
        merged = {f"sorted{lane}": 700_000_000 for lane in range(sample * 6, sample * 6 + 6)}
        task(f"merge{sample}", "merge", 30, merged, {f"sample{sample}": 4_000_000_000})
    samples = {f"sample{sample}": 4_000_000_000 for sample in range(lanes // 6)}
    task("call", "call", 100, samples, {"vcf": 50_000_000})
    return {"name": "soak", "schemaVersion": "1.4", "workflow": {"tasks": tasks}}


class Service:
    """`flowsched serve`, which is killed and started again on the same root and port."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [
            sys.executable, "-m", "flowsched", "serve", "--root", str(root), "--port", str(self.port),
            "--nodes", str(options.nodes), "--cpu", "2", "--memory", "2Gi", "--log-level", "error", "--no-supervise", "--no-token",
        ]  # fmt: skip
        self.process = self.start()
        self.kills = 0

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, start_new_session=True)

    def kill(self) -> None:
        """Kill -9 of the service alone: what it started goes on."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.process = self.start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


async def patiently(ask: Any) -> Any:
    """Ask again while the service is away."""
    end = time.monotonic() + 60
    while True:
        try:
            return await ask()
        except (FlowschedError, OSError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.3)


async def killing(service: Service, every_s: float, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * every_s)
        service.kill()


async def replay(service: Service, folder: Path, path: str, scale: Scale, ends: list[dict[str, Any]]) -> None:
    """One trace from its submission to its end, whoever is killed meanwhile."""
    trace = load(Path(path))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(service.url))
        found = await patiently(lambda: stack.enter_async_context(replaying(client, trace, scale, folder)))
        key = f"{os.path.basename(path)}-{len(ends)}-{time.time_ns()}"
        run = await patiently(lambda: client.submit(found.document, idempotency_key=key))
        end = time.monotonic() + PATIENCE_S
        view = await patiently(lambda: client.get(run.id))
        while view.ended_at is None and time.monotonic() < end:
            await asyncio.sleep(0.5)
            view = await patiently(lambda: client.get(run.id))

        async def tasks() -> list[Any]:
            return [task async for task in client.tasks(run.id)]

        every = await patiently(tasks)
        again = []
        for task in [task for task in every if task.attempt > 0]:  # counted from 0
            whole = await patiently(lambda task=task: client.task(run.id, task.stage, task.index))
            started = [attempt for attempt in whole.attempts if attempt.started_at is not None]
            if len(started) > 1:
                again.append(f"{task.stage}[{task.shard}]")
        states = Counter(task.state for task in every)
        ends.append(
            {
                "trace": found.trace.name,
                "id": run.id,
                "state": view.state,
                "tasks": dict(states),
                "again": again,
            }
        )


async def main(options: argparse.Namespace) -> int:
    root = Path(tempfile.mkdtemp(prefix="flowsched-soak-"))
    (root / "pipeline.json").write_text(json.dumps(pipeline()))
    paths = options.traces or [str(root / "pipeline.json")]
    scale, ends = Scale(options.time_scale, options.size_scale), []
    service = Service(root / "service", options)
    killer = asyncio.create_task(killing(service, options.kill_every, random.Random(options.seed)))
    try:
        end, number, under_way = time.monotonic() + options.minutes * 60, 0, set()
        while time.monotonic() < end or under_way:
            while len(under_way) < UNDER_WAY and time.monotonic() < end:
                path = paths[number % len(paths)]
                under_way.add(asyncio.create_task(replay(service, root, path, scale, ends)))
                number += 1
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
                print(ends[-1], flush=True)
    finally:
        killer.cancel()
        service.stop()
    tasks = sum(sum(each["tasks"].values()) for each in ends)
    wrong = [
        each
        for each in ends
        if each["state"] != "SUCCEEDED" or set(each["tasks"]) != {"SUCCEEDED"} or each["again"]
    ]
    print(f"{len(ends)} workflows, {tasks} tasks, {service.kills} kills; {len(wrong)} workflows went wrong")
    for each in wrong:
        print(f"  {each}")
    if wrong:
        print(f"what is left of it: {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", help="WfFormat documents, .gz or not")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kill-every", type=float, default=15.0, help="seconds, on average")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--time-scale", type=float, default=0.002)
    parser.add_argument("--size-scale", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(asyncio.run(main(parser.parse_args())))
