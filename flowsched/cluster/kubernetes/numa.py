"""NodeResourceTopology objects as the NUMA zones of nodes, and which pods a kubelet keeps within one. Pure.

They are written by an exporter on each node (node feature discovery's topology updater, or the resource topology exporter), in
`topology.node.k8s.io/v1alpha2`. Zones bind only where the kubelet's topology manager has the policy `single-numa-node`: under any
other it takes a pod all the same.

A pod is bound to zones if it is Guaranteed and one of its containers asks for whole cores. It is taken to need all of what it
asks for in one zone, which is what the scope `pod` means; the scope `container` may be content with less. Devices of pods that are
not Guaranteed are left to the kubelet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flowsched.cluster.kubernetes.metadata import Metadata, Read
from flowsched.cluster.kubernetes.pod import Pod
from flowsched.cluster.kubernetes.podspec import qos_class, resources_of, whole_cores
from flowsched.cluster.kubernetes.watch import Batch
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone

GROUP: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"
PATH: Final = f"/apis/{GROUP}/noderesourcetopologies"

_POLICY: Final = "topologyManagerPolicy"
_SINGLE: Final = "single-numa-node"
#: The same as older exporters say it, with the scope.
_SINGLES: Final = frozenset({"SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel", "SingleNUMANode"})
_AXES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "disk"}


class ZoneResource(Read, frozen=True):
    """What a zone has of one resource: for pods in all, and free."""

    name: str = ""
    allocatable: str | int = "0"
    available: str | int = "0"


class ZoneObject(Read, frozen=True):
    """A zone; those of type Node are NUMA zones."""

    name: str = ""
    type: str = ""
    resources: tuple[ZoneResource, ...] = ()


class Attribute(Read, frozen=True):
    """Something the exporter says of the node."""

    name: str = ""
    value: str = ""


class NodeResourceTopology(Read, frozen=True):
    """The zones of the node of the same name."""

    metadata: Metadata = Metadata()
    attributes: tuple[Attribute, ...] = ()
    topology_policies: tuple[str, ...] = ()
    zones: tuple[ZoneObject, ...] = ()


class Topologies:
    """The zones of all nodes, as far as they are told.

    Args:
        gpu_resource: What whole GPUs are called.
    """

    def __init__(self, gpu_resource: str) -> None:
        self._gpu_resource = gpu_resource
        self._zones: dict[str, tuple[Zone, ...]] = {}

    def changed(self, batch: Batch[NodeResourceTopology]) -> set[str]:
        """Objects came, changed or went: the nodes whose zones are others now."""
        before = dict(self._zones)
        if batch.replaced is not None:
            self._zones.clear()
        for change, each in (*(("ADDED", one) for one in batch.replaced or ()), *batch.changed):
            zones = () if change == "DELETED" else zones_of(each, self._gpu_resource)
            if zones:
                self._zones[each.metadata.name] = zones
            else:
                self._zones.pop(each.metadata.name, None)
        names = before.keys() | self._zones.keys()
        return {name for name in names if before.get(name) != self._zones.get(name)}

    def dressed(self, info: NodeInfo) -> NodeInfo:
        """A node with its zones, and with room for the mark of pods that they bind."""
        return replace(
            info, zones=self._zones.get(info.name, ()), extended={**info.extended, ALIGNED: PLENTY}
        )


def zones_of(told: NodeResourceTopology, gpu_resource: str) -> tuple[Zone, ...]:
    """The zones that bind pods; () where the kubelet does not insist. What cannot be understood counts as not listed."""
    single = any(each.name == _POLICY and each.value == _SINGLE for each in told.attributes)
    if not single and not _SINGLES & set(told.topology_policies):
        return ()
    zones = []
    for zone in told.zones:
        if zone.type != "Node":
            continue
        has: dict[str, int] = {}
        free: dict[str, int] = {}
        for each in zone.resources:
            axis = "gpu" if gpu_resource and each.name == gpu_resource else _AXES.get(each.name, each.name)
            try:
                amounts = [
                    _amount(each.name, said, gpu_resource) for said in (each.allocatable, each.available)
                ]
            except InvalidRequest:
                continue
            has[axis], free[axis] = amounts
        zones.append(Zone(has, free))
    return tuple(zones)


def is_aligned(pod: Pod) -> bool:
    """Whether a kubelet that aligns pods gives this one cores of its own."""
    return whole_cores(pod) and qos_class(pod) == "Guaranteed"


def _amount(name: str, said: str | int, gpu_resource: str) -> int:
    found = resources_of({name: str(said)}, gpu_resource)
    known = found.cpu_millicores or found.memory_bytes or found.disk_bytes or found.gpu_millis
    return known or found.extended.get(name, 0)
