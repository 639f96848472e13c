"""Nodes as the engine sees them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.objects.core import Node
from flowsched.cluster.kubernetes.objects.nodes import images_of, node_info
from flowsched.executor.nodes import NodeInfo

READY = {"type": "Ready", "status": "True"}
ALLOCATABLE = {
    "cpu": "3920m",
    "memory": "15Gi",
    "ephemeral-storage": "47093746742",
    "pods": "110",
    "hugepages-2Mi": "0",
    "nvidia.com/gpu": "2",
    "example.org/fpga": "1",
}


def node(
    allocatable: dict[str, Any] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    images: list[dict[str, Any]] | None = None,
    spec: dict[str, Any] | None = None,
    **metadata: Any,
) -> Node:
    raw = {
        "metadata": {"name": "n1", **metadata},
        "spec": spec or {},
        "status": {
            "allocatable": ALLOCATABLE if allocatable is None else allocatable,
            "conditions": [READY] if conditions is None else conditions,
            "images": images or [],
        },
    }
    return msgspec.convert(raw, Node)


def test_what_a_node_has() -> None:
    """Its allocatable in our units; places for pods and devices of any kind are extended resources."""
    labels = {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "a"}
    assert node_info(node(labels=labels)) == NodeInfo(
        name="n1",
        cpu_millicores=3920,
        memory_bytes=15 << 30,
        disk_bytes=47_093_746_742,
        gpu_millis=2000,
        extended={"example.org/fpga": 1, "pods": 110},
        labels=labels,
        rack="a",
        ready=True,
        start_ms=800,
    )


def test_gpus_of_another_maker() -> None:
    """They have the name the installation gives them."""
    info = node_info(node({"amd.com/gpu": "4", "nvidia.com/gpu": "2"}), "amd.com/gpu")
    assert (info.gpu_millis, info.extended) == (4000, {"nvidia.com/gpu": 2})


@pytest.mark.parametrize(
    ("labels", "rack"),
    [
        (
            {
                "flowsched.io/rack": "r1",
                "topology.kubernetes.io/rack": "r2",
                "topology.kubernetes.io/zone": "a",
            },
            "r1",
        ),
        ({"topology.kubernetes.io/rack": "r2", "topology.kubernetes.io/zone": "a"}, "r2"),
        ({"topology.kubernetes.io/zone": "a"}, "a"),
        ({"flowsched.io/rack": "", "topology.kubernetes.io/zone": "a"}, "a"),
        ({}, ""),
    ],
)
def test_racks(labels: dict[str, str], rack: str) -> None:
    """By the first label that says one; a zone is the next best thing."""
    assert node_info(node(labels=labels)).rack == rack


def test_taints() -> None:
    """A cordoned node is tainted at once, not when a controller has come round to it."""
    gpu = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    unschedulable = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
    assert node_info(node(spec={"taints": [gpu, gpu]})).taints == (("gpu", "yes", "NoSchedule"),)
    assert node_info(node(spec={"unschedulable": True})).taints == (unschedulable,)
    assert node_info(node(spec={"unschedulable": True, "taints": [cordon]})).taints == (unschedulable,)
    assert node_info(node(spec={"unschedulable": True})).ready


@pytest.mark.parametrize(
    ("conditions", "metadata", "ready"),
    [
        ([READY], {}, True),
        ([{"type": "Ready", "status": "False"}], {}, False),
        ([{"type": "Ready", "status": "Unknown"}], {}, False),
        ([{"type": "DiskPressure", "status": "True"}], {}, False),
        ([], {}, False),
        ([READY], {"deletionTimestamp": "2026-11-21T12:00:00Z"}, False),
    ],
)
def test_readiness(conditions: list[dict[str, str]], metadata: dict[str, str], ready: bool) -> None:
    """Only a node that says so, and stays."""
    assert node_info(node(conditions=conditions, **metadata)).ready is ready


@pytest.mark.parametrize(("said", "start_ms"), [("0", 0), ("250ms", 250), ("2s", 2_000), ("soon", 800)])
def test_how_long_starts_take(said: str, start_ms: int) -> None:
    """An annotation says it; one that cannot be understood counts as none."""
    told = node(annotations={"flowsched.io/start-time": said})
    assert node_info(told).start_ms == start_ms


def test_a_node_that_is_not_ready_says_why() -> None:
    """In its kubelet's words, or those of the controller that misses it: its pods may go on, or not. A cordoned node reports."""
    words = "Kubelet stopped posting node status."
    gone = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": words}
    info = node_info(node(conditions=[gone]))
    assert (info.silent, info.trouble) == (True, "Kubelet stopped posting node status")
    cordoned = node_info(node(spec={"unschedulable": True}))
    assert (cordoned.silent, cordoned.trouble) == (False, "")


def test_rates() -> None:
    """Both ways at once or one by one, the special one wins; the cache's size beside them."""
    annotations = {
        "flowsched.io/disk-rate": "2Gi/s",
        "flowsched.io/nic-rate": "1.25G",
        "flowsched.io/nic-out-rate": "100M",
        "flowsched.io/cache": "500Gi",
        "flowsched.io/other": "x",
    }
    info = node_info(node(annotations=annotations))
    assert (info.disk_rate, info.nic_in_rate, info.nic_out_rate) == (2 << 30, 1_250_000_000, 100_000_000)
    assert info.cache_bytes == 500 << 30
    one_way = node_info(node(annotations={"flowsched.io/nic-in-rate": "10M"}))
    assert (one_way.nic_in_rate, one_way.nic_out_rate) == (10_000_000, 117_000_000)


def test_what_cannot_be_understood_is_not_said() -> None:
    """The defaults stand."""
    annotations = {"flowsched.io/disk-rate": "fast", "flowsched.io/cache": "-1"}
    odd = node({"cpu": "4", "memory": "much", "pods": "110"}, annotations=annotations)
    info = node_info(odd)
    assert (info.disk_rate, info.cache_bytes) == (500_000_000, 0)
    assert (info.cpu_millicores, info.memory_bytes, info.extended) == (4000, 0, {"pods": 110})


def test_images_are_datasets() -> None:
    """Under every name by which a pod may ask for them."""
    images = [
        {"names": ["docker.io/library/ubuntu@sha256:0a", "docker.io/library/ubuntu:latest"], "sizeBytes": 30},
        {"names": ["docker.io/biocontainers/bwa:0.7.17"], "sizeBytes": 200},
        {"names": ["registry.k8s.io/pause:3.9"], "sizeBytes": -1},
        {"names": [], "sizeBytes": 5},
    ]
    assert dict(images_of(node(images=images))) == {
        "image:docker.io/library/ubuntu@sha256:0a": 30,
        "image:library/ubuntu@sha256:0a": 30,
        "image:ubuntu@sha256:0a": 30,
        "image:docker.io/library/ubuntu:latest": 30,
        "image:docker.io/library/ubuntu": 30,
        "image:library/ubuntu:latest": 30,
        "image:library/ubuntu": 30,
        "image:ubuntu:latest": 30,
        "image:ubuntu": 30,
        "image:docker.io/biocontainers/bwa:0.7.17": 200,
        "image:biocontainers/bwa:0.7.17": 200,
        "image:registry.k8s.io/pause:3.9": 0,
    }


names = st.sampled_from(["disk-rate", "nic-in-rate", "nic-out-rate", "nic-rate", "cache"]).map(
    "flowsched.io/".__add__
)
texts = st.text() | st.from_regex(r"[-+0-9.eEkMGTPi/s ]{0,80}")


@given(
    st.dictionaries(names, texts), st.dictionaries(st.text(), texts), st.dictionaries(st.text(), st.text())
)
def test_fault_28_no_node_breaks_us(
    annotations: dict[str, str], allocatable: dict[str, str], labels: dict[str, str]
) -> None:
    """Whatever it says of itself, it is a node with amounts that can be added up."""
    info = node_info(node(allocatable, annotations=annotations, labels=labels))
    amounts = [
        info.cpu_millicores,
        info.memory_bytes,
        info.disk_bytes,
        info.gpu_millis,
        *info.extended.values(),
    ]
    amounts += [info.disk_rate, info.nic_in_rate, info.nic_out_rate, info.cache_bytes]
    assert all(0 <= amount <= 1 << 52 for amount in amounts)
