"""Alibaba's GPU trace: its two lists as a cluster and as workflows of one task."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.alibaba import cluster_of_nodes, workloads_of_pods
from bench.rivals import simulated
from flowsched.errors import InvalidRequest

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
a,32000,65536,0,
b,16000,65536,2,T4
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,4000,1024,1,1000,,LS,Running,0,100,0
p1,4000,1024,1,600,,LS,Running,5,105,5
p2,4000,1024,1,600,,LS,Running,10,110,10
p3,24000,1024,0,0,,BE,Succeeded,10,40,20
p4,1000,1024,1,400,,BE,Failed,20,50,20
p5,1000,1024,1,400,,BE,Pending,30,50,
p6,1000,1024,2,1000,,BE,Running,30,60,40
"""
DATA = Path(__file__).parents[3] / "shared" / "data" / "alibaba"


def test_nodes_are_a_cluster() -> None:
    """Cores, bytes of memory and GPUs, by name."""
    nodes = cluster_of_nodes(NODES, "n.csv").nodes
    told = [(node.name, node.cores, node.memory, node.gpus) for node in nodes]
    assert told == [("a", 32, 68_719_476_736, 0), ("b", 16, 68_719_476_736, 2)]


def test_pods_are_workflows_of_one_task() -> None:
    """Each arrives when it was created and runs as long as then, which nobody is told; who never ran is left out."""
    works = workloads_of_pods(PODS, "p.csv")
    told = [(work.name, work.arrival_s, work.jobs[0].compute_s, work.jobs[0].cores) for work in works]
    assert told == [
        ("p0", 0.0, 100.0, 4.0), ("p1", 5.0, 100.0, 4.0), ("p2", 10.0, 100.0, 4.0), ("p3", 10.0, 20.0, 24.0),
        ("p4", 20.0, 30.0, 1.0), ("p6", 30.0, 20.0, 1.0),
    ]  # fmt: skip
    asked = [work.spec.stages[0].roles[0].resources.gpu_millis for work in works]
    assert asked == [1000, 600, 600, 0, 400, 2000]
    assert {work.spec.stages[0].estimate.runtime_ms for work in works} == {None}


def test_gpus_are_shared_and_never_taken_twice() -> None:
    """p0 has one GPU, p1 six tenths of the other: p4 takes the four tenths left; p2 goes before the larger p6: of
    unknown runtime, it is taken to end before p1 does.
    """
    cluster = cluster_of_nodes(NODES, "n.csv")
    world = simulated("flowsched", cluster, workloads_of_pods(PODS, "p.csv"))
    starts = {line["task"]: (line["node"], line["start"]) for line in world.lines}
    assert starts == {
        "p0": ("b", 0.0), "p1": ("b", 5.0), "p2": ("b", 100.0), "p3": ("a", 10.0), "p4": ("b", 20.0), "p6": ("b", 200.0),
    }  # fmt: skip


def test_a_pod_goes_to_the_node_that_has_a_device_for_it() -> None:
    """0.6, 0.6 and 0.3 leave 0.1 + 0.4 of the fuller node; 0.5 goes to the other one, and waits no second for a sum of pieces."""
    cluster = cluster_of_nodes("sn,cpu_milli,memory_mib,gpu\na,8000,65536,2\nb,8000,65536,2\n", "n.csv")
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    rows = (
        f"p{at},1000,1024,1,{part},,{at},{at + 100},{at}\n" for at, part in enumerate((600, 600, 300, 500))
    )
    world = simulated("flowsched", cluster, workloads_of_pods(head + "".join(rows), "p.csv"))
    starts = {line["task"]: (line["node"], line["start"]) for line in world.lines}
    assert starts == {"p0": ("a", 0.0), "p1": ("a", 1.0), "p2": ("a", 2.0), "p3": ("b", 3.0)}


def test_a_limit_takes_the_first_that_ran() -> None:
    """Two of six."""
    works = workloads_of_pods(PODS, "p.csv", 2)
    assert [work.name for work in works] == ["p0", "p1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NODES, "p.csv: a CSV with the columns name, cpu_milli"),
        (
            PODS.replace("p1,4000", "p1,four"),
            "p.csv, line 3: cpu_milli is 'four', a whole number was expected",
        ),
        (PODS.replace("0,100,0", "0,100,101"), "p.csv, line 2: deletion_time is before scheduled_time"),
        (PODS.replace("600,,LS", "600,T4,LS"), "p.csv, line 3: gpu_spec 'T4'"),
        (PODS.replace("p1", "p0"), "p.csv: no name of a pod twice"),
        (PODS + "p7,1000", "p.csv, line 9: fewer values than columns"),
    ],
)
def test_what_is_no_list_of_pods_is_refused(text: str, said: str) -> None:
    """With the line and what was expected."""
    with pytest.raises(InvalidRequest) as caught:
        workloads_of_pods(text, "p.csv")
    assert said in str(caught.value)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA.name} trace beside this checkout")
def test_the_trace_itself_is_read() -> None:
    """1,523 nodes with 6,212 GPUs; 7,255 of 8,152 pods ran."""
    cluster = cluster_of_nodes((DATA / "openb_node_list_all_node.csv").read_text(), "nodes")
    works = workloads_of_pods((DATA / "openb_pod_list_default.csv").read_text(), "pods")
    assert (len(cluster.nodes), sum(node.gpus for node in cluster.nodes), len(works)) == (1523, 6212, 7255)
