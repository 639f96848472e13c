"""What is placed: pods of a few controllers or of gangs, and Node objects to place them on. Documents only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from tests.kubernetes.hollow.templates import NodeTemplate, node_document

Json = dict[str, Any]

NAMESPACE: Final = "bench"
OWNERS: Final = 10
GANG: Final = 8
PLUGINS: Final = "scheduling.x-k8s.io/v1alpha1"
VOLCANO: Final = "scheduling.volcano.sh/v1beta1"
SHAPES: Final = ("plain", "gangs")


def node(number: int) -> Json:
    """A node of 32 cores in one of eight zones; nobody heartbeats for it."""
    labels = {"topology.kubernetes.io/zone": f"z{number % 8}"}
    template = NodeTemplate(f"node-{number:05}", cpu="32", memory="128Gi", pods=110, labels=labels)
    address = f"127.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    return node_document(template, address, 0, datetime.now(UTC))


def member(number: int, shape: str, scheduler: str, run: str) -> Json:
    """One pod, about as large as real ones are on the wire."""
    group = f"{run}-{number // GANG if shape == 'gangs' else number % OWNERS}"
    metadata: Json = {
        "name": f"{group}-{number:06}",
        "labels": {"app.kubernetes.io/name": group, "app.kubernetes.io/part-of": run},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": group, "uid": _uid(group), "controller": True}
        ],
    }
    if scheduler == "volcano":  # it places no pod without a group
        metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
    elif shape == "gangs":
        metadata["labels"]["scheduling.x-k8s.io/pod-group"] = group
    container = {
        "name": "main",
        "image": "registry.example/tools/align:1.4.2",
        "command": ["/usr/local/bin/align", "--index", str(number)],
        "env": [{"name": f"SETTING_{each}", "value": f"value-{each}"} for each in range(8)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    spec = {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def groups(count: int, shape: str, scheduler: str, run: str) -> Iterator[tuple[str, Json]]:
    """PodGroups of so many pods: (apiVersion, document). Stock kube-scheduler reads none; ours needs none for plain pods."""
    gangs = shape == "gangs"
    if scheduler == "volcano":
        for number in range(-(-count // GANG) if gangs else OWNERS):
            spec = {"minMember": GANG if gangs else 1, "queue": "default"}
            yield VOLCANO, _group(VOLCANO, f"{run}-{number}", spec)
    elif gangs and scheduler == "flowsched":
        for number in range(-(-count // GANG)):
            yield PLUGINS, _group(PLUGINS, f"{run}-{number}", {"minMember": GANG})


def workflow(count: int) -> Json:
    """One stage of so many tasks."""
    stage = {
        "name": "wide",
        "scatter": {"count": count},
        "command": ["/usr/local/bin/align"],
        "resources": {"cpu": "100m", "memory": "128Mi"},
    }
    return {"name": "bench", "stages": [stage]}


def _group(version: str, name: str, spec: Json) -> Json:
    return {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def _uid(name: str) -> str:
    number = sum(ord(letter) * 131**place for place, letter in enumerate(name)) % (1 << 48)
    return f"00000000-0000-4000-8000-{number:012x}"
