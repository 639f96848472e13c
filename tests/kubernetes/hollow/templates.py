"""What a hollow node looks like to the API server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from flowsched import __version__
from tests.kubernetes.hollow.statuses import micro_stamp, stamp

#: On every hollow node, so that they can be told from real ones.
LABEL: Final = "flowsched.io/hollow"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_S: Final = 40
_PRESSURES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node to be.

    Args:
        name: Its name.
        cpu: Quantity.
        memory: Quantity.
        disk: Quantity, as `ephemeral-storage`.
        pods: At most so many at a time.
        extended: Other resources: `{"nvidia.com/gpu": "2"}`.
        labels: Besides the host name, architecture and `flowsched.io/hollow`.
        annotations: Of the node, beside that its pods start at once.
        taints: `{"key": …, "value": …, "effect": …}`.
        images: Name -> bytes: what `status.images` says is on its disk.
    """

    name: str
    cpu: str = "4"
    memory: str = "8Gi"
    disk: str = "100Gi"
    pods: int = 110
    extended: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    images: Mapping[str, int] = field(default_factory=dict)

    @property
    def allocatable(self) -> dict[str, str]:
        """Resource -> quantity."""
        own = {"cpu": self.cpu, "memory": self.memory, "ephemeral-storage": self.disk, "pods": str(self.pods)}
        return {**own, **self.extended}

    @property
    def all_labels(self) -> dict[str, str]:
        """Those that were given and those that every node has."""
        common = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            LABEL: "true",
        }
        return {**common, **self.labels}


def node_document(template: NodeTemplate, address: str, port: int, now: datetime) -> dict[str, Any]:
    """The Node, ready at once.

    Args:
        template: What it has.
        address: Its InternalIP.
        port: Of its kubelet; 0 = none.
        now: Since when it has been ready.
    """
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": template.name,
            "labels": template.all_labels,
            "annotations": {"flowsched.io/start-time": "0", **template.annotations},
        },
        "spec": {"taints": [dict(taint) for taint in template.taints]},
        "status": node_status(template, address, port, now),
    }


def node_status(template: NodeTemplate, address: str, port: int, now: datetime) -> dict[str, Any]:
    """The `status` of a node that is well."""
    return {
        "capacity": template.allocatable,
        "allocatable": template.allocatable,
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": template.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": conditions(now, ready=True),
        "images": [{"names": [name], "sizeBytes": size} for name, size in template.images.items()],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": f"hollow://{__version__}",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": f"v0.0.0-hollow-{__version__}",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "flowsched hollow node",
            "systemUUID": "",
        },
    }


def conditions(now: datetime, *, ready: bool) -> list[dict[str, str]]:
    """A node's conditions; one that is not ready has been given up, as node-lifecycle-controller does after silence."""
    moment = stamp(now)
    beat = {"lastHeartbeatTime": moment, "lastTransitionTime": moment}
    if ready:
        said = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "hollow kubelet is ready",
        }
    else:
        said = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }
    well = [
        {"type": kind, "status": "False", "reason": "KubeletHasNoPressure", "message": "", **beat}
        for kind in _PRESSURES
    ]
    return [*well, {**said, **beat}]


def lease_document(name: str, uid: str, now: datetime) -> bytes:
    """The heartbeat of a node: a Lease of its name that goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return msgspec.json.encode(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": _LEASE_S, "renewTime": micro_stamp(now)},
        }
    )
