"""Whether a pod that was bound to a node fits there: the checks that a kubelet makes, with its reasons. Pure.

The API server binds a pod to a full node, or to one that its selector excludes, without a word. It is the kubelet that says
no, by a failed pod with a reason such as OutOfcpu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowsched.cluster.kubernetes.objects.metadata import quantity
from tests.kubernetes.hollow.spec import Container, Pod, is_sidecar


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod may not run on a node."""

    reason: str
    message: str


@dataclass(slots=True)
class Room:
    """What a node has, and who holds how much of it.

    Args:
        allocatable: Resource -> amount; cpu in thousandths of a core.
        labels: Of the node.
    """

    allocatable: dict[str, int]
    labels: Mapping[str, str]
    _held: dict[str, dict[str, int]] = field(default_factory=dict)
    _ports: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)

    def admit(self, pod: Pod) -> Refusal | None:
        """Let a pod in, or say why not."""
        wanted = {
            label: value for label, value in pod.spec.node_selector.items() if self.labels.get(label) != value
        }
        if wanted:
            return Refusal(
                "NodeAffinity",
                "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            )
        requests = requested(pod)
        for name, amount in requests.items():
            room = self.allocatable.get(name)
            if (
                room is None
            ):  # a resource that this node never heard of is somebody else's affair, as in a kubelet
                continue
            used = self.used(name)
            if amount and used + amount > room:
                return Refusal(
                    f"OutOf{name}",
                    f"Node didn't have enough resource: {name}, requested: {amount}, used: {used}, capacity: {room}",
                )
        ports = _host_ports(pod)
        if any(ports & taken for taken in self._ports.values()):
            return Refusal(
                "NodePorts",
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            )
        self._held[pod.metadata.uid] = requests
        if ports:
            self._ports[pod.metadata.uid] = ports
        return None

    def used(self, name: str) -> int:
        """How much of a resource is held."""
        return sum(held.get(name, 0) for held in self._held.values())

    def leave(self, uid: str) -> None:
        """A pod has ended or is gone."""
        self._held.pop(uid, None)
        self._ports.pop(uid, None)


def amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    """Quantities as whole numbers; cpu in thousandths of a core, all else in its own unit."""
    return {name: quantity(text, 1000 if name == "cpu" else 1) for name, text in quantities.items()}


def requested(pod: Pod) -> dict[str, int]:
    """What the pod as a whole asks for.

    Its containers and sidecars together, or the neediest init container with the sidecars that run by then, whichever
    is more; what the pod says as a whole counts instead; then the overhead of its runtime class.
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        own = _asks(container)
        if is_sidecar(container):
            sidecars = _sum((sidecars, own))
            peak = _largest(peak, sidecars)
        else:
            peak = _largest(peak, _sum((sidecars, own)))
    together = _sum((sidecars, *map(_asks, pod.spec.containers)))
    said = amounts({**pod.spec.resources.limits, **pod.spec.resources.requests})
    total = _sum((_largest(peak, together) | said, amounts(pod.spec.overhead)))
    total["pods"] = 1
    return total


def _asks(container: Container) -> dict[str, int]:
    return amounts({**container.resources.limits, **container.resources.requests})


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _host_ports(pod: Pod) -> frozenset[tuple[str, int]]:
    return frozenset(
        (port.protocol, port.host_port or port.container_port)
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port or pod.spec.host_network
    )
