"""The clusters that are simulated: nodes with cores, memory, disks and network, and one shared storage.

Rates in bytes/s, amounts in bytes, times in seconds. The reference clusters are those of LOCALITY and TRACE (eight nodes of 16
cores with one server of files, and so on), so that figures can be compared with what others measured on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flowsched.executor.nodes import NodeInfo

GBIT: Final = 117_000_000  #: bytes/s of a 1 Gbit/s network as files see it


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node. `disk` is one capacity for reads and writes together; `cache` is memory that keeps what was read last; `datasets`
    is what its disk may hold of them, 0 = all that comes.
    """

    name: str
    cores: int
    memory: int = 64_000_000_000
    gpus: int = 0
    disk: int = 500_000_000
    nic_in: int = GBIT
    nic_out: int = GBIT
    cache: int = 16_000_000_000
    rack: str = ""
    datasets: int = 0
    seek_percent: int = 0  #: see `SimulatedStorage`

    def info(self) -> NodeInfo:
        """As an executor would tell it."""
        return NodeInfo(
            name=self.name,
            cpu_millicores=self.cores * 1000,
            memory_bytes=self.memory,
            disk_bytes=1 << 60,
            gpu_millis=self.gpus * 1000,
            rack=self.rack,
            disk_rate=self.disk,
            nic_in_rate=self.nic_in,
            nic_out_rate=self.nic_out,
            cache_bytes=self.datasets,
        )

    def told(self) -> dict[str, Any]:
        """As the header of a trace tells it."""
        told = {
            "name": self.name, "cores": self.cores, "memory": self.memory, "gpus": self.gpus, "disk": self.disk,
            "nic_in": self.nic_in, "nic_out": self.nic_out, "cache": self.cache, "rack": self.rack,
        }  # fmt: skip
        return told | ({"datasets": self.datasets} if self.datasets else {})


@dataclass(frozen=True, slots=True)
class SimulatedStorage:
    """A shared storage: what all nodes together can read (`nic_out`) and write (`nic_in`).

    `seek_percent`: with n at once its disk carries disk / (1 + (n - 1) * seek_percent / 100) in all; 0 = it loses nothing.
    """

    name: str = "storage"
    disk: int = 1_000_000_000
    nic_in: int = GBIT
    nic_out: int = GBIT
    seek_percent: int = 0

    def told(self) -> dict[str, Any]:
        """As the header of a trace tells it."""
        return {"name": self.name, "disk": self.disk, "nic_in": self.nic_in, "nic_out": self.nic_out}


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Nodes and a storage. `reference` is the name under which others know it; `startup` is what a pod takes to start (s)."""

    nodes: tuple[SimulatedNode, ...]
    storage: SimulatedStorage = SimulatedStorage()
    startup: float = 0.0
    reference: str | None = None

    def told(self) -> dict[str, Any]:
        """As the header of a trace tells it."""
        return {
            "nodes": [node.told() for node in self.nodes],
            "storage": [self.storage.told()],
            "startup": self.startup,
        }

    @property
    def uniform_cores(self) -> int:
        """Cores of the first node: what the reference takes as a task's most."""
        return self.nodes[0].cores


def _cluster(name: str, cores: int, memory: int, cache: int, nic: int, startup: float) -> SimulatedCluster:
    nodes = tuple(
        SimulatedNode(f"n{number}", cores, memory, 0, 500_000_000, nic, nic, cache) for number in range(8)
    )
    return SimulatedCluster(nodes, SimulatedStorage(nic_in=nic, nic_out=nic), startup, name)


def _ceph(cluster: SimulatedCluster) -> SimulatedCluster:
    """The same nodes with a storage spread over them instead of one server."""
    count, node = len(cluster.nodes), cluster.nodes[0]
    storage = SimulatedStorage(
        disk=count * node.disk // 2,
        nic_out=count * node.nic_out * 9 // 10,
        nic_in=count * node.nic_in * 45 // 100,
    )
    return replace(cluster, storage=storage, reference=f"{cluster.reference}-ceph")


def _reference() -> dict[str, SimulatedCluster]:
    made = [
        _cluster("8x16-1g", 16, 64_000_000_000, 16_000_000_000, GBIT, 0.0),
        _cluster("8x16-10g", 16, 64_000_000_000, 16_000_000_000, 10 * GBIT, 0.0),
        _cluster("8x32-1g", 32, 134_000_000_000, 64_000_000_000, GBIT, 3.0),
        _cluster("8x32-10g", 32, 134_000_000_000, 64_000_000_000, 10 * GBIT, 3.0),
    ]
    return {str(each.reference): each for each in [*made, *map(_ceph, made)]}


#: The reference clusters by name.
REFERENCE: Final[Mapping[str, SimulatedCluster]] = _reference()
