"""Nodes: a Node object as the engine's NodeInfo, the images on its disk, and its NUMA zones. Pure; no content of an object raises.

Annotations state the capacities of a node that Kubernetes does not know, in bytes or bytes a second ("500M", "1.25G", "2Gi/s"):

    flowsched.io/disk-rate                             what its disk carries
    flowsched.io/nic-rate, nic-in-rate, nic-out-rate   what its network carries, both ways or one
    flowsched.io/cache                                 what the agent's cache folder may hold
    flowsched.io/start-time                            what each pod adds to the start of the next ("800ms"; "0" = nothing)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from flowsched.cluster.kubernetes.objects.core import Node
from flowsched.cluster.kubernetes.objects.metadata import Condition, Metadata, Read, condition_of
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_requests import (
    DEFAULT_GPU,
    qos_class,
    resources_of,
    whole_cores,
)
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import CORDONED, IMAGE, NodeInfo, Zone
from flowsched.workflow.resources import parse_bytes, parse_duration
from flowsched.workflow.spec import Resources

#: Node labels that name the rack; the first that a node has counts. A zone stands in where there is no rack label.
RACK_LABELS: Final = ("flowsched.io/rack", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
UNSCHEDULABLE: Final = (CORDONED, "", "NoSchedule")

_PREFIX: Final = "flowsched.io/"
#: A kubelet with containerd starts 1.2 small pods a second on two busy cores. Between nodes that are alike, any other figure
#: gives the same choice; it counts against copies of data, which take seconds.
START_MS: Final = 800
#: Of what a node says of itself so much is passed on.
_LONGEST_TROUBLE: Final = 200
#: Annotation -> the fields of NodeInfo that it says. The special ones come last, so that they win.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "disk-rate": ("disk_rate",),
    "nic-rate": ("nic_in_rate", "nic_out_rate"),
    "nic-in-rate": ("nic_in_rate",),
    "nic-out-rate": ("nic_out_rate",),
    "cache": ("cache_bytes",),
}
#: The prefixes that an image's name may leave out, the longest first.
_DEFAULT_REGISTRIES: Final = ("docker.io/library/", "docker.io/")


def node_info(node: Node, gpu_resource: str = DEFAULT_GPU) -> NodeInfo:
    """A node as it is now. An entry that cannot be understood counts as absent."""
    has = _allocatable(node, gpu_resource)
    ready = condition_of(node.status.conditions, "Ready")
    is_ready = ready is not None and ready.status == "True"
    start_ms = _annotation(node, "start-time", lambda text: 0 if text == "0" else parse_duration(text))
    rates: dict[str, int] = {}
    for name, fields in _RATES.items():
        amount = _annotation(node, name, lambda text: parse_bytes(text.removesuffix("/s")))
        rates |= dict.fromkeys(fields, amount) if amount is not None else {}
    return NodeInfo(
        name=node.metadata.name,
        cpu_millicores=has.cpu_millicores,
        memory_bytes=has.memory_bytes,
        disk_bytes=has.disk_bytes,
        gpu_millis=has.gpu_millis,
        extended=has.extended,
        labels=dict(node.metadata.labels),
        taints=_taints(node),
        rack=next((node.metadata.labels[key] for key in RACK_LABELS if node.metadata.labels.get(key)), ""),
        ready=is_ready and node.metadata.deletion_timestamp is None,
        trouble=_trouble(ready),
        silent=not is_ready,
        zones=(),
        start_ms=START_MS if start_ms is None else start_ms,
        **rates,
    )


def images_of(node: Node) -> Iterator[tuple[str, int]]:
    """(uri, bytes) of the images on a node's disk, under every name that a pod may give them."""
    for image in node.status.images:
        for name in dict.fromkeys(alias for known in image.names for alias in image_aliases(known)):
            yield IMAGE + name, max(0, image.size_bytes)


def image_aliases(name: str) -> Iterator[str]:
    """The names of an image that mean the same: the default registry and the tag `latest` may be left out."""
    names = [name]
    for registry in _DEFAULT_REGISTRIES:
        if name.startswith(registry):
            names.append(name.removeprefix(registry))
    for each in names:
        yield each
        if each.endswith(":latest"):
            yield each.removesuffix(":latest")


def _trouble(ready: Condition | None) -> str:
    """Why a node is not ready, in its own words or those of the controller that misses it."""
    if ready is None or ready.status == "True":
        return ""
    return (ready.message or ready.reason)[:_LONGEST_TROUBLE].strip().rstrip(".")


def _allocatable(node: Node, gpu_resource: str) -> Resources:
    """The resources that pods may take. An amount that cannot be parsed is 0."""
    try:
        return resources_of(node.status.allocatable, gpu_resource)
    except InvalidRequest:
        pass  # which of them?
    amounts = {}
    for name, value in node.status.allocatable.items():
        with suppress(InvalidRequest):
            resources_of({name: value}, gpu_resource)
            amounts[name] = value
    return resources_of(amounts, gpu_resource)


def _taints(node: Node) -> tuple[tuple[str, str, str], ...]:
    """The taints of a node. `unschedulable` counts as one, even before the node controller has written that taint."""
    taints = [(each.key, each.value, each.effect) for each in node.spec.taints]
    if node.spec.unschedulable and not any(key == UNSCHEDULABLE[0] for key, _, _ in taints):
        taints.append(UNSCHEDULABLE)
    return tuple(dict.fromkeys(taints))


def _annotation(node: Node, name: str, parse: Callable[[str], int]) -> int | None:
    """The value of an annotation; None if it is absent, or cannot be understood."""
    text = node.metadata.annotations.get(_PREFIX + name)
    try:
        return None if text is None else parse(text)
    except InvalidRequest:
        return None


# ---- NUMA zones (NodeResourceTopology), and which pods a kubelet keeps within one ----
#
# An exporter on each node writes them (node feature discovery's topology updater, or the resource topology exporter), in
# `topology.node.k8s.io/v1alpha2`. Zones bind only where the kubelet's topology manager has the policy `single-numa-node`: under
# any other it takes a pod all the same.
#
# A pod is bound to zones if it is Guaranteed and one of its containers asks for whole cores. It is taken to need all of what it
# asks for in one zone, which is what the scope `pod` means; the scope `container` may be content with less. Devices of pods
# that are not Guaranteed are left to the kubelet.


GROUP: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"
PATH: Final = f"/apis/{GROUP}/noderesourcetopologies"

_POLICY: Final = "topologyManagerPolicy"
_SINGLE: Final = "single-numa-node"
#: The same as older exporters say it, with the scope.
_SINGLES: Final = frozenset({"SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel", "SingleNUMANode"})
_AXES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "disk"}


class ZoneResource(Read, frozen=True):
    """The amount of one resource in a zone: for pods in all, and free."""

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


def zones_of(topology: NodeResourceTopology, gpu_resource: str) -> tuple[Zone, ...]:
    """The zones that bind pods; () where the kubelet does not insist. An entry that cannot be understood is left out."""
    single = any(each.name == _POLICY and each.value == _SINGLE for each in topology.attributes)
    if not single and not _SINGLES & set(topology.topology_policies):
        return ()
    zones = []
    for zone in topology.zones:
        if zone.type != "Node":
            continue
        has: dict[str, int] = {}
        free: dict[str, int] = {}
        for each in zone.resources:
            axis = "gpu" if gpu_resource and each.name == gpu_resource else _AXES.get(each.name, each.name)
            try:
                amounts = [
                    _amount(each.name, amount, gpu_resource) for amount in (each.allocatable, each.available)
                ]
            except InvalidRequest:
                continue
            has[axis], free[axis] = amounts
        zones.append(Zone(has, free))
    return tuple(zones)


def is_aligned(pod: Pod) -> bool:
    """Whether a kubelet that aligns pods gives this one cores of its own."""
    return whole_cores(pod) and qos_class(pod) == "Guaranteed"


def _amount(name: str, quantity: str | int, gpu_resource: str) -> int:
    found = resources_of({name: str(quantity)}, gpu_resource)
    known = found.cpu_millicores or found.memory_bytes or found.disk_bytes or found.gpu_millis
    return known or found.extended.get(name, 0)
