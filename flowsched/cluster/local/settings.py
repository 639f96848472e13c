"""Settings of the local cluster, and the executor that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.images import ContainerSettings
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.virtual_nodes import cache_limit, labelled, virtual_nodes
from flowsched.cluster.node.origins import Origins
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import ServiceContext
from flowsched.workflow.resources import parse_bytes, parse_cpu, parse_option

if TYPE_CHECKING:
    from flowsched.cluster.node.space import Space

#: Of each node. No meter watches how much disk a task of this machine takes, so what a task asks for never lets it wait.
_ANY_DISK: Final = 1 << 50
#: What plans count with where nothing is said: a SATA SSD, and a network of 1 Gbit/s.
DISK_RATE: Final = "500M"
NIC_RATE: Final = "125M"


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """See `flowsched serve --help`. Quantities as in workflow documents.

    Args:
        bounds: Which paths of this machine may be inputs and outputs.
        nodes: Virtual nodes on this machine.
        cpu, memory: Of each node; None = this machine's, divided by the nodes.
        gpus: Of each node.
        disk_rate, nic_rate: Bytes/s of each node's disk and network card, simulated; None for both = tasks read files
            of this machine where they lie, and plans count with `DISK_RATE` and `NIC_RATE`.
        cache: What each node may keep of datasets: bytes, or a part of the disk, divided by the nodes; 0 = all.
        racks: Nodes are spread over so many racks.
        labels: Of nodes: `node-1:disktype=ssd`.
        containers: How tasks that name an image run.
        stores: How object stores are reached: options of fsspec's file systems by scheme. Secret.
        beside: Further folders that must have room before anything is started.
    """

    bounds: Bounds
    nodes: int = 1
    cpu: str | None = None
    memory: str | None = None
    gpus: int = 0
    disk_rate: str | None = None
    nic_rate: str | None = None
    cache: str = "80%"
    racks: int = 1
    labels: tuple[str, ...] = ()
    containers: ContainerSettings = field(default_factory=ContainerSettings)
    stores: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = field(default=(), repr=False)
    beside: tuple[Space, ...] = ()


async def open_cluster(settings: LocalSettings, service: ServiceContext) -> LocalCluster:
    """Make the executor `local`; it has not been started yet.

    Raises:
        ConfigurationError: There cannot be such nodes.
        InvalidRequest: A quantity is none.
    """
    cache_bytes, cache_percent = cache_limit(settings.cache)
    nodes = virtual_nodes(
        settings.nodes,
        cpu_millicores=_some("--cpu", parse_cpu, settings.cpu),
        memory_bytes=_some("--memory", parse_bytes, settings.memory),
        disk_bytes=_ANY_DISK,
        gpus=settings.gpus,
        disk_rate=parse_option("--disk-rate", parse_bytes, settings.disk_rate or DISK_RATE),
        nic_rate=parse_option("--nic-rate", parse_bytes, settings.nic_rate or NIC_RATE),
        racks=settings.racks,
        cache_bytes=cache_bytes,
    )
    return LocalCluster(
        Path(service.root),
        labelled(nodes, settings.labels),
        clock=service.clock,
        failpoint=service.failpoint_now,
        origins=Origins(options=settings.stores, bounds=settings.bounds),
        containers=settings.containers,
        cache_percent=cache_percent,
        in_place=settings.disk_rate is None and settings.nic_rate is None,
        beside=settings.beside,
    )


def _some(option: str, parse: Callable[[object], int], said: str | None) -> int | None:
    """What each node has of a resource; None if nothing is said."""
    if not said:
        return None
    amount = parse_option(option, parse, said)
    if amount <= 0:
        raise ConfigurationError(f"{option} {said}: a node needs more than that to run a task")
    return amount
