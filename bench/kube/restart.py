"""Restart to first bind: a service of 5,000 nodes and 100,000 bound pods is killed, and started again.

    python bench/kube/restart.py [--nodes 5000] [--own 50000] [--others 50000] [--rounds 3] [--json]

Against the stub (`stub.py`). A workflow's tasks fill part of the room and others' pods the rest; the service is killed
(SIGKILL), so that it has to find out what became of everything; a few pods of others wait for it. Timed from the start of its
process: ready (it leads and has recovered), and its first binding. The baseline of the same run is the raw loop (`raw.py`),
which lists the same nodes and pods and binds: an interpreter's start and reading what is there.

Afterwards all that waited is bound once, no node is overcommitted, and no pod that was there is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from backlog import document  # noqa: E402
from processes import Process, Service, cpu_s, memory_mb  # noqa: E402
from stub import Facts  # noqa: E402
from stubbed import HERE, OUR_CORE, Stub  # noqa: E402

PATIENCE_S = 1800.0
WAITING = 100


@dataclass(frozen=True, slots=True)
class Start:
    """One start."""

    who: str
    ready_s: float
    first_bind_s: float
    cpu_s: float  #: until the last of those that waited was bound
    memory_mb: float
    memory_most_mb: float
    load: float
    faults: tuple[str, ...] = ()


async def fill(stub: Stub, kubeconfig: Path, folder: Path, given: argparse.Namespace) -> None:
    """Let a service bind its tasks, then kill it; others' pods come beside them."""
    with Service(kubeconfig, folder, core=OUR_CORE) as service:
        await service.ready()
        stages = max(1, given.own // 1000)
        await service.ask("POST", "/api/v1/workflows", document(stages, given.own // stages, "100m"))
        facts = await stub.until_bound(given.own, PATIENCE_S)
        if facts.bound != given.own:
            raise SystemExit(f"only {facts.bound} of {given.own} tasks were bound: {service.tail()}")
        await asyncio.sleep(2.0)  # what was seen of it becomes durable
        service.stop(signal.SIGKILL)
    await stub.ask("/stub/pods", {"count": given.others, "bound": True})


async def started(
    who: str, stub: Stub, process: Process, ready: asyncio.Task[float], begun: float, there: int
) -> Start:
    """From a process's start to the last binding of those that waited."""
    load = os.getloadavg()[0]
    facts = await stub.until_bound(WAITING, PATIENCE_S)
    used, (now, most) = cpu_s([process.pid]), memory_mb(process.pid)
    faults = problems(facts, there)
    return Start(who, await ready - begun, facts.first_bind_s - begun, used, now, most, load, tuple(faults))


def problems(facts: Facts, there: int) -> list[str]:
    """What is wrong."""
    found = []
    if facts.bound != WAITING or facts.bound_twice:
        found.append(f"{facts.bound} of {WAITING} bound, {facts.bound_twice} twice")
    if facts.overcommitted:
        found.append(f"{len(facts.overcommitted)} nodes overcommitted")
    if facts.pods_on_nodes != there + WAITING:
        found.append(f"{facts.pods_on_nodes} pods on nodes, not {there + WAITING}")
    return found


async def measure(given: argparse.Namespace) -> list[Start]:
    """Fill once, then start again and again."""
    starts = []
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as name:
        folder = Path(name)
        room = -(-(given.own + given.others + 2 * given.rounds * WAITING) // given.nodes) + 2
        with Stub(folder, given.nodes, room) as stub:
            kubeconfig = await stub.ready()
            await fill(stub, kubeconfig, folder, given)
            there = given.own + given.others
            for _ in range(given.rounds):
                for who in ("raw", "service"):
                    await stub.ask("/stub/reset")
                    await stub.ask("/stub/pods", {"count": WAITING})
                    starts.append(await one(who, stub, kubeconfig, folder, there))
                    there += WAITING
                    if not given.json:
                        print(line(starts[-1]), flush=True)
    return starts


async def one(who: str, stub: Stub, kubeconfig: Path, folder: Path, there: int) -> Start:
    """Start one of them, and end it."""
    if who == "service":
        process: Process = Service(kubeconfig, folder, core=OUR_CORE)
    else:
        command = [sys.executable, str(HERE / "raw.py"), "--kubeconfig", str(kubeconfig)]
        process = Process(command, folder / "raw.log", core=OUR_CORE)
    begun = time.monotonic()
    process.start()
    try:
        if isinstance(process, Service):
            ready = asyncio.create_task(process.ready())
        else:
            ready = asyncio.create_task(_let_go(process))
        return await started(who, stub, process, ready, begun, there)
    finally:
        process.stop(signal.SIGKILL)


async def _let_go(process: Process) -> float:
    child = process.child
    assert child is not None
    assert child.stdin is not None
    assert child.stdout is not None
    await asyncio.to_thread(child.stdout.readline)
    child.stdin.write(b"go\n")
    child.stdin.flush()
    return time.monotonic()


def line(found: Start) -> str:
    """One start for people."""
    return (
        f"{found.who:<8} ready {found.ready_s:6.1f} s  first bind {found.first_bind_s:6.1f} s  CPU {found.cpu_s:5.1f} s  "
        f"{found.memory_mb:5.0f} MB, {found.memory_most_mb:5.0f} at most  load {found.load:4.1f}  "
        f"{'; '.join(found.faults) or 'ok'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--own", type=int, default=50_000)
    parser.add_argument("--others", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    starts = asyncio.run(measure(given))
    if given.json:
        print(json.dumps([asdict(each) for each in starts]))
    else:
        for who in ("raw", "service"):
            mine = [each for each in starts if each.who == who]
            figures = [
                statistics.median(getattr(each, field) for each in mine)
                for field in ("ready_s", "first_bind_s", "cpu_s", "memory_mb")
            ]
            print(
                f"{who:<8} medians: ready {figures[0]:.1f} s, first bind {figures[1]:.1f} s, CPU {figures[2]:.1f} s, "
                f"{figures[3]:.0f} MB"
            )
    if any(each.faults for each in starts):
        raise SystemExit("a check has failed")


if __name__ == "__main__":
    main()
