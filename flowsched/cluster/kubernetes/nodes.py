"""A Node object as the engine's NodeInfo, and the images on its disk. Pure; whatever a node says, nothing here raises.

What Kubernetes does not know of a node is said by annotations, in bytes or bytes a second ("500M", "1.25G", "2Gi/s"):

    flowsched.io/disk-rate                             what its disk carries
    flowsched.io/nic-rate, nic-in-rate, nic-out-rate   what its network carries, both ways or one
    flowsched.io/cache                                 what the agent's cache folder may hold
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from flowsched.cluster.kubernetes.metadata import condition_of
from flowsched.cluster.kubernetes.objects import Node
from flowsched.cluster.kubernetes.podspec import DEFAULT_GPU, resources_of
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import NodeInfo
from flowsched.workflow.resources import parse_bytes
from flowsched.workflow.spec import Resources

#: The node labels whose values are racks, the first that a node has; a zone is the next best thing.
RACK_LABELS: Final = ("flowsched.io/rack", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
UNSCHEDULABLE: Final = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
IMAGE: Final = "image:"

_PREFIX: Final = "flowsched.io/"
#: Annotation -> the fields of NodeInfo that it says. The special ones come last, so that they win.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "disk-rate": ("disk_rate",),
    "nic-rate": ("nic_in_rate", "nic_out_rate"),
    "nic-in-rate": ("nic_in_rate",),
    "nic-out-rate": ("nic_out_rate",),
    "cache": ("cache_bytes",),
}
#: What a registry's names may leave out, the longest first.
_DEFAULT_REGISTRIES: Final = ("docker.io/library/", "docker.io/")


def node_info(node: Node, gpu_resource: str = DEFAULT_GPU) -> NodeInfo:
    """A node as it is now. What it says in a way that cannot be understood counts as not said; see `complaints`."""
    return _read(node, gpu_resource)[0]


def complaints(node: Node, gpu_resource: str = DEFAULT_GPU) -> tuple[str, ...]:
    """What a node says that cannot be understood, for whoever wrote it."""
    return _read(node, gpu_resource)[1]


def images_of(node: Node) -> Iterator[tuple[str, int]]:
    """(uri, bytes) of the images on a node's disk, under every name that a pod may give them."""
    for image in node.status.images:
        for name in dict.fromkeys(alias for given in image.names for alias in image_aliases(given)):
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


def _read(node: Node, gpu_resource: str) -> tuple[NodeInfo, tuple[str, ...]]:
    wrong: list[str] = []
    has = _allocatable(node, gpu_resource, wrong)
    ready = condition_of(node.status.conditions, "Ready")
    info = NodeInfo(
        name=node.metadata.name,
        cpu_millicores=has.cpu_millicores,
        memory_bytes=has.memory_bytes,
        disk_bytes=has.disk_bytes,
        gpu_millis=has.gpu_millis,
        extended=has.extended,
        labels=dict(node.metadata.labels),
        taints=_taints(node),
        rack=next((node.metadata.labels[key] for key in RACK_LABELS if node.metadata.labels.get(key)), ""),
        ready=ready is not None and ready.status == "True" and node.metadata.deletion_timestamp is None,
        zones=(),
        trouble="",
        **_rates(node, wrong),
    )
    return info, tuple(wrong)


def _allocatable(node: Node, gpu_resource: str, wrong: list[str]) -> Resources:
    """What pods may take, each amount by itself: one that is none is 0."""
    amounts = {}
    for name, value in node.status.allocatable.items():
        try:
            resources_of({name: value}, gpu_resource)
        except InvalidRequest as error:
            wrong.append(f"allocatable {name}: {error}")
        else:
            amounts[name] = value
    return resources_of(amounts, gpu_resource)


def _taints(node: Node) -> tuple[tuple[str, str, str], ...]:
    """Its taints; `unschedulable` is one of them, also before the controller that writes it has come round."""
    taints = [(each.key, each.value, each.effect) for each in node.spec.taints]
    if node.spec.unschedulable and not any(key == UNSCHEDULABLE[0] for key, _, _ in taints):
        taints.append(UNSCHEDULABLE)
    return tuple(dict.fromkeys(taints))


def _rates(node: Node, wrong: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, fields in _RATES.items():
        text = node.metadata.annotations.get(_PREFIX + name)
        if text is None:
            continue
        try:
            amount = parse_bytes(text.removesuffix("/s"))
        except InvalidRequest as error:
            wrong.append(f"annotation {_PREFIX}{name}: {error}")
        else:
            found |= dict.fromkeys(fields, amount)
    return found
