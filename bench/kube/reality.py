"""The simulator against reality: three real traces, time scaled down, on a real API server with hollow nodes.

    python bench/kube/reality.py [--data ../shared/data/wfinstances] [--only mag,smrnaseq,srasearch] [--seconds 45] [--repeats 1]

For each trace and policy, `flowsched serve --cluster kubernetes` gets the document that the simulator makes of the trace, creates
and binds its pods through a real kube-apiserver and etcd, and hollow nodes let each pod run for its compute seconds times the
scale. The simulator lets the same document run on the same nodes under the same profile.

Only the order of tasks and where there is room for them are compared, not the moving of data: hollow nodes have no data plane,
so all files are of no bytes on both sides. Nor do pods compute: how long they run is the trace's. Real are the service, its
database, the API server, bindings, watches, and the time that these take.

A pod takes a while to be bound, reported as ended and seen. Before each run a chain of ten tasks of 0.2 s measures how long;
the simulator is asked twice, with pods that start at once and with this as `startup` (the median over a trace's runs).
Makespans are from the submission to the end, as the service tells users. Policies whose simulated makespans differ by less than
3 % count as equal; the others must come in the same order in reality. It fails where they do not, and where a task ran more than
once or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from processes import Service

from bench.synthetic.document import critical_path
from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.labels import INDEX, STAGE
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload, from_trace
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.formats.wfformat import read_trace
from flowsched.workflow.spec import WorkflowSpec
from tests.kubernetes.hollow.binaries import missing
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.templates import NodeTemplate

FOLDER: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "wfinstances"
#: Trace -> its file, and nodes of four cores: so few that policies differ in the simulator, or there is no order to compare.
TRACES: Final[Mapping[str, tuple[str, int]]] = {
    "mag": ("mag-dirt02-001.json.gz", 2),
    "smrnaseq": ("smrnaseq-dirt02-001.json.gz", 2),
    "srasearch": ("srasearch-chameleon-20a-001.json", 3),
}
CORES: Final = 4
CHAIN, CHAIN_S = 10, 0.2
EQUAL: Final = 0.03
ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(slots=True)
class Fates:
    """How long pods run, and which have come to a node."""

    seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    came: list[tuple[str, int]] = field(default_factory=list)

    def of(self, pod: Pod) -> Fate:
        """What becomes of a pod, by the labels that the service gave it."""
        task = (pod.metadata.labels[STAGE], int(pod.metadata.labels[INDEX]))
        self.came.append(task)
        return Fate(runtime_s=self.seconds[task])


def scaled(raw: bytes, name: str, nodes: int, seconds: float) -> tuple[Workload, SimulatedCluster, float]:
    """A trace without data whose bound (cores, critical path) is so many seconds; where it runs; and the scale."""
    trace = read_trace(raw)
    trace = replace(trace, files=tuple(replace(each, size_bytes=0) for each in trace.files))
    cluster = SimulatedCluster(tuple(SimulatedNode(f"{name}-{at}", CORES) for at in range(nodes)))
    jobs = from_trace(trace, name, name, cluster).jobs
    area = sum(job.cores * job.compute_s for job in jobs) / (nodes * CORES)
    scale = seconds / max(area, critical_path(trace, [job.compute_s for job in jobs]))
    trace = replace(
        trace, tasks=tuple(replace(task, runtime_s=task.runtime_s * scale) for task in trace.tasks)
    )
    return from_trace(trace, name, name, cluster), cluster, scale


def document(spec: WorkflowSpec) -> dict[str, Any]:
    """The document that the simulator's engine is given, as one to be submitted."""
    stages = []
    for stage in spec.stages:
        (role,) = stage.roles
        told: dict[str, Any] = {"runtime": f"{stage.estimate.runtime_ms}ms"}
        if stage.estimate.output_bytes is not None:
            told["output"] = stage.estimate.output_bytes
        made = {
            "name": stage.name,
            "scatter": {"count": stage.width},
            "command": ["true"],
            "resources": {"cpu": role.resources.cpu_millicores / 1000},
            "estimate": told,
        }
        stages.append(made | ({"needs": list(stage.needs)} if stage.needs else {}))
    written = {"name": spec.name, "stages": stages}
    if check_workflow(written) != spec:
        raise SystemExit(f"{spec.name}: the document to submit is not the one that is simulated")
    return written


def simulated(workload: Workload, cluster: SimulatedCluster, policy: str, startup_s: float) -> float:
    """Makespan (s) in the simulator, under the very profile of the service."""
    world = Simulation(replace(cluster, startup=startup_s), [workload], PROFILES[policy]).run()
    if world.unfinished:
        raise SystemExit(f"{policy} left tasks undone: {'; '.join(world.unfinished)}")
    return world.now


async def ran(service: Service, written: dict[str, Any], fates: Fates, tasks: int) -> float:
    """Makespan (s) in reality."""
    fates.came.clear()
    ident = (await service.ask("POST", "/api/v1/workflows", written))["id"]
    while (  # noqa: ASYNC110 - it is another process
        view := await service.ask("GET", f"/api/v1/workflows/{ident}")
    )["state"] not in ENDED:
        await asyncio.sleep(0.5)
    if view["state"] != "SUCCEEDED":
        raise SystemExit(f"{written['name']}: {view['state']}: {view.get('reason')}; {service.tail()}")
    if len(fates.came) != tasks or len(set(fates.came)) != tasks:
        raise SystemExit(
            f"{written['name']}: {len(fates.came)} pods came to nodes, of {tasks} tasks, each once"
        )
    return (
        datetime.fromisoformat(view["ended_at"]) - datetime.fromisoformat(view["created_at"])
    ).total_seconds()


async def real(
    plane: ControlPlane, client: Client, workload: Workload, policy: str, fates: Fates, turn: str
) -> tuple[float, float]:
    """(makespan, what a pod takes beside running) in s, of a service of its own in a namespace of its own."""
    body = f'{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{turn}"}}}}'
    answer = await client.call("POST", "/api/v1/namespaces", body=body.encode())
    if not answer.ok:
        raise SystemExit(f"no namespace {turn}: {answer.status} {answer.message}")
    chain = {
        "name": "chain",
        "stages": [
            {
                "name": f"c{at}",
                "command": ["true"],
                "resources": {"cpu": 1},
                "needs": [f"c{at - 1}"] if at else [],
            }
            for at in range(CHAIN)
        ],
    }
    with tempfile.TemporaryDirectory(prefix="flowsched-reality-") as folder:
        service = Service(
            plane.kubeconfig(), Path(folder), namespace=turn, environment={"FLOWSCHED_INSTANCE": turn}
        )
        service.command += ["--policy", policy]
        with service:
            await service.ready()
            fates.seconds = {(f"c{at}", 0): CHAIN_S for at in range(CHAIN)}
            beside = await ran(service, chain, fates, CHAIN) / CHAIN - CHAIN_S
            fates.seconds = {task: workload.jobs[at].compute_s for task, at in workload.numbers.items()}
            return await ran(service, document(workload.spec), fates, len(workload.jobs)), beside


def order(makespans: Mapping[str, float]) -> str:
    """Policies, the fastest first."""
    return " < ".join(sorted(makespans, key=lambda policy: makespans[policy]))


def disagreeing(simulator: Mapping[str, float], reality: Mapping[str, float]) -> list[str]:
    """Pairs that the simulator tells apart and reality has the other way round."""
    found = []
    for one, other in itertools.permutations(simulator, 2):
        if simulator[one] < simulator[other] * (1 - EQUAL) and reality[one] >= reality[other]:
            found.append(f"{one} before {other}")
    return found


def table(
    name: str, at_once: Mapping[str, float], started: Mapping[str, float], runs: Mapping[str, list[float]]
) -> None:
    """Print a trace."""
    for policy, each in runs.items():
        reality = statistics.median(each)
        told = "" if len(each) == 1 else f" ({min(each):.1f} to {max(each):.1f})"
        print(
            f"| {name} | {policy} | {reality:.1f}{told} | {at_once[policy]:.1f} | {at_once[policy] / reality:.3f} "
            f"| {started[policy]:.1f} | {started[policy] / reality:.3f} |",
            flush=True,
        )


async def measure(options: argparse.Namespace, found: Mapping[str, tuple[bytes, int]]) -> list[str]:
    """All traces; what disagrees."""
    wrong: list[str] = []
    async with ControlPlane() as plane, Client(plane.connection()) as client:
        for name, (raw, nodes) in found.items():
            workload, cluster, scale = scaled(raw, name, nodes, options.seconds)
            print(
                f"\n{name}: {len(workload.jobs)} tasks, {nodes} nodes of {CORES} cores, time x {scale:.4f}\n"
            )
            fates, runs, beside = Fates(), {policy: [] for policy in PROFILES}, []
            templates = [
                NodeTemplate(node.name, cpu=str(node.cores), memory=str(node.memory))
                for node in cluster.nodes
            ]
            async with HollowNodes(client, templates, heartbeat_s=None, fate=fates.of):
                for turn, policy in itertools.product(range(options.repeats), PROFILES):
                    begun = time.monotonic()
                    took, more = await real(plane, client, workload, policy, fates, f"{name}-{policy}-{turn}")
                    runs[policy].append(took)
                    beside.append(more)
                    print(
                        f"  {policy}: {took:.1f} s, {more:.3f} s beside each pod ({time.monotonic() - begun:.0f} s)",
                        flush=True,
                    )
            wrong += compared(name, workload, cluster, runs, statistics.median(beside))
    return wrong


def compared(
    name: str, workload: Workload, cluster: SimulatedCluster, runs: dict[str, list[float]], startup_s: float
) -> list[str]:
    """Print simulator and reality side by side; pairs that disagree."""
    at_once, started = (
        {policy: simulated(workload, cluster, policy, each) for policy in runs} for each in (0.0, startup_s)
    )
    reality = {policy: statistics.median(each) for policy, each in runs.items()}
    print(
        f"\n| trace | policy | reality, s | simulator, s | ÷ reality | with {startup_s:.3f} s startup | ÷ reality |\n"
        "|---|---|---|---|---|---|---|"
    )
    table(name, at_once, started, runs)
    wrong = []
    print(f"\nreality: {order(reality)}")
    for how, simulator in (("at once", at_once), ("with startup", started)):
        against = disagreeing(simulator, reality)
        wrong += [f"{name} ({how}): {each}" for each in against]
        print(
            f"simulator, {how}: {order(simulator)}: {'NOT so: ' + ', '.join(against) if against else 'agrees'}",
            flush=True,
        )
    return wrong


def load(folder: Path, names: Sequence[str]) -> dict[str, tuple[bytes, int]]:
    """The traces that are there; says which are not."""
    found = {}
    for name in names:
        path = folder / TRACES[name][0]
        if path.exists():
            raw = path.read_bytes()
            found[name] = (gzip.decompress(raw) if path.suffix == ".gz" else raw, TRACES[name][1])
        else:
            print(f"{name} is left out: there is no {path.name} in the folder of the traces (--data)")
    return found


def main() -> None:
    """Print the comparison; fail where the order is another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder with the WfInstances traces")
    parser.add_argument("--only", default=",".join(TRACES), help="traces, with commas")
    parser.add_argument("--seconds", type=float, default=45.0, help="the bound of each trace, scaled")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in TRACES]:
        parser.error(f"no trace {unknown[0]!r}; there are {', '.join(TRACES)}")
    found = load(options.data, names)
    if not found:
        print("the real traces are not on this machine: nothing is measured")
        return
    if why := missing():
        print(f"no Kubernetes: {why}; nothing is measured")
        return
    wrong = asyncio.run(measure(options, found))
    if wrong:
        raise SystemExit("the order is not that of the simulator: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
