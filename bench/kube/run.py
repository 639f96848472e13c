"""Pods bound per second on a real API server: raw loop, ours, stock kube-scheduler, Volcano's vc-scheduler, in one run.

    python bench/kube/run.py [--nodes 100,1000,5000] [--pods 2000] [--rounds 3] [--shape plain|gangs]
                             [--who raw,ours,kube-scheduler,volcano,raw-own,ours-own] [--shared] [--json]

Nodes are objects without kubelets and without heartbeats (no controller manager runs). For each size of cluster and each round,
everybody has a turn, in an order that rotates: it is started, gets to know the nodes, is held by SIGSTOP while the pods are
made, and let go. Rates are from the first to the last binding that a watch of the bench's own sees; CPU is what the process
has used from then until the last, per pod; medians over rounds, ratios to the raw loop of the same run.

After each turn it is checked that every pod has exactly one node and was bound by exactly one request, and that no node has
given more than it has (P6).

While it is measured, kube-apiserver and etcd have one core of the machine, and who is measured (with the bench's watch) has
another, which is kept busy besides (see `never_idle`): in a cluster a scheduler does not take CPU from the control plane, which
is what limits it. With `--shared` all of them run where they like; on two cores everybody's rate is then what the CPU of all of
them leaves.

How busy the control plane's core was says whether it was the limit, also where the machine is faster in one turn than in the
next, as shared machines are.

`raw` posts bindings, 32 in flight, by the client that flowsched uses: what the API server lets through. `raw-own` and
`ours-own` create the pods too: ours from a workflow of so many tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import loads  # noqa: E402
from cluster import Bench  # noqa: E402
from contenders import KINDS, NEEDS, Contender, Raw, all_of  # noqa: E402
from processes import cpu_s, keep_to, memory_mb, never_idle  # noqa: E402

from flowsched.cluster.kubernetes.api.client import Client  # noqa: E402
from tests.kubernetes.definitions import apply_crds  # noqa: E402
from tests.kubernetes.hollow.binaries import find  # noqa: E402
from tests.kubernetes.hollow.controlplane import ControlPlane  # noqa: E402

PATIENCE_S = 300.0
HELD_S = 11.0
TRIES = 4
#: For what the server still does about the pods that were made.
QUIET_S = 1.0
#: Of the machine: the control plane's, and that of who is measured.
SERVER_CORE, CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn showed."""

    who: str
    nodes: int
    per_s: float  #: pods/s from the first to the last binding
    whole_s: float  #: from the word "go" to the last binding
    cpu_us: float  #: of the process, per pod
    server_cpu_us: float  #: of kube-apiserver, per pod
    etcd_cpu_us: float
    memory_mb: float
    load: float  #: of the machine, when it began
    faults: tuple[str, ...] = ()

    @property
    def busy(self) -> float:
        """How much of a core kube-apiserver and etcd used meanwhile: at 1 nobody binds faster on theirs."""
        return self.per_s * (self.server_cpu_us + self.etcd_cpu_us) / 1e6


async def turn(
    bench: Bench, who: str, contender: Contender, pods: int, shape: str, run: str, *, shared: bool
) -> Turn:
    """Start it, make the pods, let it go, measure, check, clean up. A turn whose pods took too long to make is begun anew."""
    for number in range(TRIES):
        try:
            found = await one_try(bench, who, contender, pods, shape, f"{run}-{number}", shared)
        finally:
            keep_to([os.getpid(), *bench.server_pids()], range(os.cpu_count() or 1))
        if found is not None:
            return found
    raise SystemExit(f"this machine makes no {pods} pods in {HELD_S:g} s: ask for fewer by --pods")


async def one_try(
    bench: Bench, who: str, contender: Contender, pods: int, shape: str, run: str, shared: bool
) -> Turn | None:
    """None if it was held for so long that it is not the same any more: a leader loses its lease, a watch is cut."""
    busy = contextlib.ExitStack()
    await contender.start(pods)
    try:
        await contender.hold()
        bench.watch()
        if not contender.own:
            held = time.monotonic()
            await bench.pods(pods, shape, contender.scheduler, run)
            if time.monotonic() - held > HELD_S and not isinstance(contender, Raw):
                print(f"{who}: the pods took {time.monotonic() - held:.0f} s to make, again", file=sys.stderr)
                await contender.stop()
                await bench.unwatch()
                await bench.clear()
                return None
        if isinstance(contender, Raw):
            await contender.go(pods)
        await asyncio.sleep(QUIET_S)
        before = await bench.bindings()
        if not shared:
            keep_to(bench.server_pids(), [SERVER_CORE])
            keep_to([os.getpid(), contender.pid], [CORE])
            busy.enter_context(never_idle(CORE))
        load, server = os.getloadavg()[0], bench.server_cpu()
        cpu, begun = cpu_s([contender.pid]), time.monotonic()
        if isinstance(contender, Raw):
            contender.begin()
        else:
            await contender.go(pods)
        complete = await bench.observed.until_bound(pods, PATIENCE_S)
        used = [cpu_s([contender.pid]) - cpu]
        used += [now - then for now, then in zip(bench.server_cpu(), server, strict=True)]
        memory = memory_mb(contender.pid)[0]
        faults = await check(bench, pods, complete, await bench.bindings() - before)
    finally:
        busy.close()
        await contender.stop()
    bound = sorted(bench.observed.bound_s.values())
    first = min(bench.observed.made_s.values()) if contender.own else bound[0]
    await bench.unwatch()
    await bench.clear()
    return Turn(
        who, bench.size, (len(bound) - 1) / (bound[-1] - first), bound[-1] - begun,
        *(seconds / len(bound) * 1e6 for seconds in used), memory, load, tuple(faults),
    )  # fmt: skip


async def check(bench: Bench, pods: int, complete: bool, answered: dict[str, int]) -> list[str]:
    """What is wrong after a turn; nothing, if all is well."""
    faults = []
    if not complete:
        faults.append(f"{len(bench.observed.bound_s)} of {pods} pods were bound")
    moved = sum(len(nodes) > 1 for nodes in bench.observed.nodes.values())
    if moved:
        faults.append(f"{moved} pods were seen on several nodes")
    if answered.get("201", 0) != pods:
        faults.append(f"{answered.get('201', 0)} bindings were accepted for {pods} pods")
    if overcommitted := await bench.overcommitted():
        faults.append(f"{len(overcommitted)} nodes gave more than they have")
    return faults


async def measure(given: argparse.Namespace) -> list[Turn]:
    """All turns."""
    names = [name for name in given.who if name not in NEEDS or find(NEEDS[name]) is not None]
    for name in given.who:
        if name not in names:
            print(f"no {NEEDS[name]}: left out", file=sys.stderr)
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:
        async with ControlPlane() as plane, Client(plane.connection()) as client:
            bench = Bench(plane, client)
            await bench.create(
                [
                    (
                        "/api/v1/namespaces",
                        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": loads.NAMESPACE}},
                    )
                ]
            )
            await apply_crds(client)
            contenders = all_of(names, bench, Path(folder))
            for size in given.nodes:
                await bench.grow(size)
                for number in range(given.rounds):
                    order = names[number % len(names) :] + names[: number % len(names)]
                    for name in order:
                        run = f"r{size}-{number}-{names.index(name)}"
                        contender = contenders[name]
                        turns.append(
                            await turn(
                                bench, name, contender, given.pods, given.shape, run, shared=given.shared
                            )
                        )
                        if not given.json:
                            print(line(turns[-1]), flush=True)
    return turns


def line(found: Turn) -> str:
    """One turn for people."""
    return (
        f"{found.nodes:>6} nodes  {found.who:<15} {found.per_s:8.0f} pods/s  {found.whole_s:6.1f} s in all  "
        f"CPU/pod {found.cpu_us:7.0f} us, apiserver {found.server_cpu_us:6.0f}, etcd {found.etcd_cpu_us:5.0f}  "
        f"server busy {found.busy:4.2f}  {found.memory_mb:5.0f} MB  load {found.load:4.1f}  {'; '.join(found.faults) or 'ok'}"
    )


def table(turns: list[Turn]) -> str:
    """Medians, and ratios to the raw loop of the same kind."""
    rows = [
        "",
        "nodes  who               pods/s  ÷ raw   CPU/pod us  apiserver us  etcd us   MB  busy  faults",
    ]
    for size in sorted({each.nodes for each in turns}):
        of_size = [each for each in turns if each.nodes == size]
        raw = {
            KINDS[name].own: statistics.median(each.per_s for each in of_size if each.who == name)
            for name in ("raw", "raw-own")
            if any(each.who == name for each in of_size)
        }
        for who in dict.fromkeys(each.who for each in of_size):
            mine = [each for each in of_size if each.who == who]
            rate = statistics.median(each.per_s for each in mine)
            base = raw.get(KINDS[who].own)
            middle = [
                statistics.median(getattr(each, field) for each in mine)
                for field in ("cpu_us", "server_cpu_us", "etcd_cpu_us", "memory_mb", "busy")
            ]
            ratio = f"{rate / base:5.2f}" if base else "    -"
            faults = sum(len(each.faults) for each in mine)
            rows.append(
                f"{size:>5}  {who:<16} {rate:7.0f}  {ratio}  {middle[0]:10.0f}  {middle[1]:12.0f}  {middle[2]:7.0f} "
                f"{middle[3]:5.0f}  {middle[4]:4.2f}  {faults or 'none'}"
            )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--nodes", type=lambda text: sorted(map(int, text.split(","))), default=[100, 1000, 5000]
    )
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=loads.SHAPES, default="plain")
    parser.add_argument("--who", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--shared", action="store_true", help="no cores of their own")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.shared = given.shared or (os.cpu_count() or 1) < 2
    turns = asyncio.run(measure(given))
    print(json.dumps([asdict(each) for each in turns]) if given.json else table(turns))
    if any(each.faults for each in turns):
        raise SystemExit("a check has failed")


if __name__ == "__main__":
    main()
