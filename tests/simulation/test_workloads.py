"""Documents, clusters and bounds: what a simulation is given, and what it is compared with."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from bench.rivals import simulated
from flowsched.errors import InvalidDocument
from flowsched.simulation.clusters import REFERENCE, SimulatedCluster, SimulatedNode, cluster_from
from flowsched.simulation.documents import from_document
from flowsched.simulation.figures import figures_of, lower_bound
from flowsched.simulation.workload import from_trace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.formats.wfformat import read_trace
from tests.simulation.small import CLUSTER, document, workload

DOCUMENT = {
    "name": "germline",
    "stages": [
        {
            "name": "align",
            "scatter": {"count": 4},
            "command": ["align"],
            "resources": {"cpu": "500m"},
            "inputs": [{"name": "reads", "uri": "s3://lab/{index}.fq", "size": 200_000_000}],
            "outputs": [{"name": "bam", "path": "bam"}],
            "estimate": {"runtime": "10s", "output": 50_000_000},
        },
        {
            "name": "call",
            "command": ["call"],
            "inputs": [{"name": "bams", "from": "align.bam", "match": "all"}],
            "estimate": {"runtime": "5s"},
        },
    ],
}


def test_a_document_takes_the_time_it_estimates() -> None:
    """Four alignments of ten seconds, then a call of five; nodes with a second of start-up make it two more at least."""
    cluster = SimulatedCluster((SimulatedNode("n0", 4), SimulatedNode("n1", 4)), startup=1.0)
    made = from_document(check_workflow(DOCUMENT), "germline", "germline.json")
    assert [(job.name, job.cores, job.compute_s) for job in made.jobs] == [
        ("align/0", 0.5, 10.0), ("align/1", 0.5, 10.0), ("align/2", 0.5, 10.0), ("align/3", 0.5, 10.0), ("call/0", 1.0, 5.0),
    ]  # fmt: skip
    told = figures_of(simulated("flowsched", cluster, [made]), lower_bound(cluster, [made]))
    assert (told.tasks, told.lost) == (5, 0)
    assert told.makespan_s >= 17.0
    assert told.storage_bytes == 4 * 200_000_000


@pytest.mark.parametrize("policy", ["flowsched", "heft", "wow"])
def test_a_file_without_a_byte_is_no_final_that_could_be_lost(policy: str) -> None:
    """Nobody moves it, so it never arrives on the storage: it is not counted as missing there."""
    said = json.loads(document())
    specification = said["workflow"]["specification"]
    specification["files"].append({"id": "done", "sizeInBytes": 0})
    specification["tasks"][-1]["outputFiles"].append("done")
    work = from_trace(read_trace(json.dumps(said).encode()), "small", "small.json", CLUSTER)
    world = simulated(policy, CLUSTER, [work])
    assert figures_of(world, lower_bound(CLUSTER, [work])).undelivered == 0


def test_the_bound_is_the_longest_of_path_work_and_bytes() -> None:
    """800 MB from a storage that sends 100 MB/s take 8 s; a path of 15 s of computing is longer, and its bytes come before it."""
    made = from_document(check_workflow(DOCUMENT), "germline", "g.json")
    # 2 s for 200 MB over a link of 100 MB/s, 10 s, 0.5 s to write 50 MB to a disk of 100 MB/s, 5 s
    assert lower_bound(CLUSTER, [made]) == pytest.approx(17.5)


@pytest.mark.parametrize("policy", ["kube-like", "heft", "wow", "flowsched"])
def test_no_policy_beats_the_bound(policy: str) -> None:
    """The bound holds for whoever decides."""
    made = workload()
    bound = lower_bound(CLUSTER, [made])
    assert figures_of(simulated(policy, CLUSTER, [made]), bound).makespan_s >= bound * 0.999


def test_gangs_of_a_document_are_simulated_whole() -> None:
    """Two servers and two workers; the servers are taken away when the workers have ended."""
    gang = {
        "name": "train",
        "stages": [
            {
                "name": "train",
                "gang": True,
                "roles": {
                    "ps": {"replicas": 2, "command": ["ps"], "completes": False},
                    "worker": {"replicas": 2, "command": ["worker"]},
                },
                "outputs": [{"name": "model", "path": "model"}],
                "estimate": {"runtime": "30s"},
            }
        ],
    }
    made = from_document(check_workflow(gang), "train", "train.json")
    world = simulated("flowsched", CLUSTER, [made])
    assert sorted((line["task"], line["outcome"]) for line in world.lines if "task" in line)[2:] == [
        ("train/0/worker2", "succeeded"), ("train/0/worker3", "succeeded"),
    ]  # fmt: skip


def test_a_trace_may_have_more_stages_than_a_document_that_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """26 lanes of chains, each task a stage of its own: 10,455, where a sent document may have 10,000."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))  # benches import each other by name
    rounds = import_module("bench.rounds")
    found = from_trace(read_trace(rounds.document("epi", 10_500, 1)), "epi", "epi", CLUSTER)
    assert len(found.spec.stages) == len(found.jobs) > 10_000


def test_a_cluster_in_yaml_has_kinds_of_nodes() -> None:
    """`count` makes numbered nodes; what is not said is as on the reference clusters."""
    cluster = cluster_from(
        {
            "startup": "2s",
            "storage": {"nic": 10**9},
            "nodes": [
                {"name": "n", "count": 2, "cores": 16},
                {"name": "big", "cores": 64, "gpus": 8, "rack": "r2"},
            ],
        }
    )
    assert [(node.name, node.cores, node.gpus, node.rack) for node in cluster.nodes] == [
        ("n0", 16, 0, ""), ("n1", 16, 0, ""), ("big", 64, 8, "r2"),
    ]  # fmt: skip
    assert (cluster.startup, cluster.storage.nic_in, cluster.storage.nic_out) == (2.0, 10**9, 10**9)
    assert cluster.nodes[0].disk == REFERENCE["8x16-1g"].nodes[0].disk


def test_a_wrong_cluster_is_told_every_fault() -> None:
    """Each with its path."""
    with pytest.raises(InvalidDocument) as raised:
        cluster_from({"nodes": [{"name": "n", "count": 0, "cores": 4}, {"naem": "x"}], "startup": "soon"})
    assert [fault.path for fault in raised.value.faults] == [
        "$.nodes[0].count", "$.nodes[1].naem", "$.nodes[1].cores", "$.startup",
    ]  # fmt: skip
