"""A million tasks in SQL and ten thousand nodes: what one core binds, and creates and binds, against a stub API server.

    python bench/kube/backlog.py [--nodes 10000] [--stages 1000] [--width 1000] [--pods 20000] [--rounds 3] [--json]

The stub (`stub.py`) has one core and who is measured has another; both are shared with whatever else the machine does, so CPU
per pod is the figure that counts, and its ratio to the raw loop of the same round. Everybody gets a stub of its own.

    raw          bindings of pods that are there, by our client
    binds        the service: pods of others, while a million tasks of its own wait that fit nowhere
    raw-own      creates and bindings, by our client
    own          the service: the first of a million tasks, as far as there is room, from submission to the last binding

After each: as many pods bound as asked, no pod twice, no node overcommitted, nothing refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from processes import Process, Service, cpu_s, memory_mb  # noqa: E402
from stub import Facts  # noqa: E402
from stubbed import HERE, OUR_CORE, Stub  # noqa: E402

PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn showed."""

    who: str
    per_s: float
    cpu_us: float  #: of who is measured, per pod
    stub_cpu_us: float
    memory_mb: float  #: at most
    load: float
    faults: tuple[str, ...]


def document(stages: int, width: int, cpu: str) -> dict[str, Any]:
    """So many bags of so many tasks."""
    return {
        "name": "wide",
        "stages": [
            {
                "name": f"s{number}",
                "scatter": {"count": width},
                "command": ["true"],
                "resources": {"cpu": cpu, "memory": "128Mi"},
            }
            for number in range(stages)
        ],
    }


async def measured(
    who: str, stub: Stub, process: Process, pods: int, own: bool, begin: Callable[[], Awaitable[None]]
) -> Turn:
    """CPU from the beginning to the last binding, rate from the first call that counts to that."""
    await stub.ask("/stub/reset")
    load, cpu, stub_cpu = os.getloadavg()[0], cpu_s([process.pid]), cpu_s([stub.pid])
    begun = time.monotonic()
    await begin()
    facts = await stub.until_bound(pods, PATIENCE_S)
    used = cpu_s([process.pid]) - cpu
    first = facts.first_create_s if own else max(begun, facts.first_bind_s)
    rate = (facts.bound - 1) / max(1e-9, facts.last_bind_s - first)
    stub_used = (cpu_s([stub.pid]) - stub_cpu) / pods * 1e6
    faults = tuple(problems(facts, pods))
    return Turn(who, rate, used / pods * 1e6, stub_used, memory_mb(process.pid)[1], load, faults)


def problems(facts: Facts, pods: int) -> list[str]:
    """What is wrong."""
    found = []
    if facts.bound != pods:
        found.append(f"{facts.bound} of {pods} pods bound")
    if facts.bound_twice:
        found.append(f"{facts.bound_twice} pods bound twice")
    if facts.overcommitted:
        found.append(f"{len(facts.overcommitted)} nodes overcommitted")
    return found


async def raw(given: argparse.Namespace, folder: Path, own: bool) -> Turn:
    """The raw loop."""
    with Stub(folder, given.nodes, -(-given.pods // given.nodes)) as stub:
        kubeconfig = await stub.ready()
        command = [sys.executable, str(HERE / "raw.py"), "--kubeconfig", str(kubeconfig)]
        if own:
            command += ["--create", str(given.pods)]
        else:
            await stub.ask("/stub/pods", {"count": given.pods})
        with Process(command, folder / "raw.log", core=OUR_CORE) as process:
            child = process.child
            assert child is not None
            assert child.stdin is not None
            assert child.stdout is not None
            await asyncio.to_thread(child.stdout.readline)
            pipe = child.stdin

            async def begin() -> None:
                pipe.write(b"go\n")
                pipe.flush()

            return await measured("raw-own" if own else "raw", stub, process, given.pods, own, begin)


async def ours(given: argparse.Namespace, folder: Path, own: bool) -> Turn:
    """The service."""
    with Stub(folder, given.nodes, -(-given.pods // given.nodes)) as stub:
        kubeconfig = await stub.ready()
        with Service(kubeconfig, folder, core=OUR_CORE) as service:
            await service.ready()
            large = document(given.stages, given.width, "100m" if own else "65")
            if not own:
                await service.ask("POST", "/api/v1/workflows", large)
                await quiet(service)

            async def begin() -> None:
                if own:
                    await service.ask("POST", "/api/v1/workflows", large)
                else:
                    await stub.ask("/stub/pods", {"count": given.pods})

            return await measured("own" if own else "binds", stub, service, given.pods, own, begin)


async def quiet(service: Service) -> None:
    """Wait until it has nothing to do."""
    while True:
        before = cpu_s([service.pid])
        await asyncio.sleep(2.0)
        if cpu_s([service.pid]) - before < 0.2:
            return


async def measure(given: argparse.Namespace) -> list[Turn]:
    """All turns, by turns."""
    kinds: list[Callable[[Path], Awaitable[Turn]]] = [
        lambda folder: raw(given, folder, False),
        lambda folder: ours(given, folder, False),
        lambda folder: raw(given, folder, True),
        lambda folder: ours(given, folder, True),
    ]
    turns = []
    for number in range(given.rounds):
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:
                turns.append(await kind(Path(folder)))
            if not given.json:
                print(line(turns[-1]), flush=True)
    return turns


def line(found: Turn) -> str:
    """One turn for people."""
    return (
        f"{found.who:<8} {found.per_s:7.0f} pods/s  CPU/pod {found.cpu_us:6.0f} us (stub {found.stub_cpu_us:4.0f})  "
        f"{found.memory_mb:5.0f} MB at most  load {found.load:4.1f}  {'; '.join(found.faults) or 'ok'}"
    )


def table(turns: list[Turn]) -> str:
    """Medians."""
    rows = ["", "who       pods/s  CPU/pod us  pods per CPU second  CPU ÷ raw     MB"]
    middle = {
        who: [
            statistics.median(getattr(each, field) for each in turns if each.who == who)
            for field in ("per_s", "cpu_us", "memory_mb")
        ]
        for who in dict.fromkeys(each.who for each in turns)
    }
    for who, (rate, cpu, memory) in middle.items():
        base = middle["raw-own" if who in ("own", "raw-own") else "raw"][1]
        rows.append(f"{who:<8} {rate:7.0f}  {cpu:10.0f}  {1e6 / cpu:19.0f}  {cpu / base:9.2f}  {memory:5.0f}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--stages", type=int, default=1_000)
    parser.add_argument("--width", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    turns = asyncio.run(measure(given))
    print(json.dumps([asdict(each) for each in turns]) if given.json else table(turns))
    if any(each.faults for each in turns):
        raise SystemExit("a check has failed")


if __name__ == "__main__":
    main()
