"""Nodes, and the load of their disks and network cards, as executors report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from flowsched.values import replace

#: The axis of a pod that a kubelet aligns to one NUMA zone: each takes 1 of it. The axis exists where nodes report zones.
ALIGNED: Final = "aligned"
#: A node's capacity on that axis: more than any number of pods.
PLENTY: Final = 1 << 30
#: Images are datasets of this kind: those that a node has are its replicas.
IMAGE: Final = "image:"


class Zone(msgspec.Struct, frozen=True):
    """A NUMA zone of a node: its capacity for pods, and its reported free part. By axis (`Snapshot.axes`), in its unit."""

    has: Mapping[str, int]
    free: Mapping[str, int]


#: The key of the taint of a node that `kubectl cordon` has closed.
CORDONED: Final = "node.kubernetes.io/unschedulable"


class NodeInfo(msgspec.Struct, frozen=True):
    """A node as it is now. Amounts as in `Resources`; rates in bytes/s."""

    name: str
    cpu_millicores: int
    memory_bytes: int
    disk_bytes: int = 0
    gpu_millis: int = 0
    extended: Mapping[str, int] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()  #: (key, value, effect)
    rack: str = ""
    disk_rate: int = 500_000_000
    disk_busy_rate: int = 0  #: of that, the measured use by others; set by the engine, not by executors
    nic_in_rate: int = 117_000_000
    nic_out_rate: int = 117_000_000
    nic_in_busy_rate: int = 0  #: of that, the measured use by others than our copies; the engine's, too
    nic_out_busy_rate: int = 0
    cache_bytes: int = 0  #: how much the cache folder may hold
    start_ms: int = (
        0  #: how much longer a pod takes to start for each other pod that the node is starting; 0 = no matter
    )
    ready: bool = True
    trouble: str = (
        ""  #: why it is not ready, or when the engine will close it, in words; "" = its executor reports none
    )
    silent: bool = False  #: it reports nothing about its pods: they may go on, or not
    zones: tuple[
        Zone, ...
    ] = ()  #: where its kubelet gives a pod with whole cores all it asks for in one zone, or refuses it

    @property
    def disk_budget(self) -> int:
        """Bytes/s of its disk that our pods may ask for together: the rest after others, and a tenth in any case."""
        return max(self.disk_rate // 10, self.disk_rate - self.disk_busy_rate)

    @property
    def nic_in_left(self) -> int:
        """Bytes/s that may come for our copies: the rest of its network card after others, and a tenth in any case."""
        return max(self.nic_in_rate // 10, self.nic_in_rate - self.nic_in_busy_rate)

    @property
    def nic_out_left(self) -> int:
        """Bytes/s that may go for our copies."""
        return max(self.nic_out_rate // 10, self.nic_out_rate - self.nic_out_busy_rate)

    def measured_as(self, known: NodeInfo) -> NodeInfo:
        """The same node with the earlier measurements of it: executors do not report them."""
        return replace(
            self,
            disk_busy_rate=known.disk_busy_rate,
            nic_in_busy_rate=known.nic_in_busy_rate,
            nic_out_busy_rate=known.nic_out_busy_rate,
        )


class Load(msgspec.Struct, frozen=True):
    """Bytes/s at one place since the last measurement: a node's disk (by its name), one way of its network card (name/in,
    name/out), or a shared storage (name/read, name/write; by its `name` or its `source`).

    `ours`: the part of `rate` of our pods, on a network card of our copies; -1 = unknown.
    """

    name: str
    rate: int
    ours: int = -1


class LoadMeasured(msgspec.Struct, frozen=True):
    """The measured traffic of disks and network cards of nodes, and of shared storages.

    An executor that can measure it reports it every few seconds.
    """

    nodes: tuple[Load, ...] = ()
    storages: tuple[Load, ...] = ()
    links: tuple[Load, ...] = ()
