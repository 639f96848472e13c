"""Settings of the local cluster, and the executor that follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.node.space import Space
from flowsched.errors import ConfigurationError
from flowsched.options import Option

if TYPE_CHECKING:
    from flowsched.cluster.local.executor import LocalCluster
    from flowsched.executor.protocol import ServiceContext

#: Of each node. No meter watches how much disk a task of this machine takes, so what a task asks for never lets it wait.
_ANY_DISK: Final = 1 << 50
#: The rates of plans where no option states them: a SATA SSD, and a network of 1 Gbit/s.
DISK_RATE: Final = "500M"
NIC_RATE: Final = "125M"


def folders(text: str) -> tuple[Path, ...]:
    """Read folders that are separated by colons.

    Raises:
        ValueError: One is not absolute, or is no folder.
    """
    found = tuple(Path(each).expanduser() for each in text.split(os.pathsep) if each)
    for folder in found:
        if not folder.is_absolute() or not folder.is_dir():
            raise ValueError(f"{folder} is no folder with an absolute path")
    return found


_Quantity = str | None


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How this machine runs tasks. Quantities as in workflow documents.

    With neither `disk_rate` nor `nic_rate`, tasks read files of this machine where they lie, and plans count with `DISK_RATE` and
    `NIC_RATE`.

    Args:
        stores: How object stores are reached: options of fsspec's file systems by scheme. Secret.
        beside: Further folders that must have room before anything is started.
    """

    nodes: Annotated[int, Option("Virtual nodes on this machine.", least=1)] = 1
    cpu: Annotated[_Quantity, Option("Cores of each node, such as 4 or 500m. [the machine's, divided]")] = (
        None
    )
    memory: Annotated[_Quantity, Option("Memory of each node, such as 8Gi. [the machine's, divided]")] = None
    gpus: Annotated[int, Option("GPUs of each node.", least=0)] = 0
    disk_rate: Annotated[
        _Quantity, Option("Simulate disks of so many bytes a second: each node gets copies of its inputs.")
    ] = None
    nic_rate: Annotated[
        _Quantity,
        Option("Simulate network cards of so many bytes a second: each node gets copies of its inputs."),
    ] = None
    cache: Annotated[
        str,
        Option(
            "What each node may keep of datasets: 50G, or a part of the disk; 0 = all that comes.",
            metavar="SIZE",
        ),
    ] = "80%"
    racks: Annotated[int, Option("The nodes are spread over so many racks.", least=1)] = 1
    labels: Annotated[
        tuple[str, ...],
        Option(
            "Label a node of this machine. Repeatable.", "--label", metavar="NODE:KEY=VALUE", repeated=True
        ),
    ] = ()
    containers: Annotated[
        str,
        Option(
            "What runs images on this machine: auto, podman, docker, apptainer or none.",
            variable="FLOWSCHED_CONTAINERS",
        ),
    ] = "auto"
    images: Annotated[
        str,
        Option(
            "Tasks that name a container image: use it, or ignore it and take this machine's programs.",
            variable="FLOWSCHED_IMAGES",
        ),
    ] = "use"
    container_network: Annotated[
        str, Option("The network of containers: host, none, or a name that their engine knows.")
    ] = "host"
    allow_paths: Annotated[
        tuple[Path, ...] | None,
        Option(
            "Inputs come from these folders alone, and outputs go there, by colons. [everywhere but /etc, /usr …]",
            variable="FLOWSCHED_ALLOW_PATHS", metavar="FOLDERS", parse=folders,
        ),
    ] = None  # fmt: skip
    stores: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = field(default=(), repr=False)
    beside: tuple[Space, ...] = ()

    def bounds(self, root: str) -> Bounds:
        """Which paths of this machine may be inputs and outputs of a service with this root."""
        allowed = None if self.allow_paths is None else [str(path.absolute()) for path in self.allow_paths]
        return Bounds(root, allowed)


async def open_cluster(settings: LocalSettings, service: ServiceContext) -> LocalCluster:
    """Make the executor `local`; it has not been started yet.

    Raises:
        ConfigurationError: There cannot be such nodes.
        InvalidRequest: A quantity is none.
    """
    from flowsched.cluster.local.executor import LocalCluster
    from flowsched.cluster.local.images import ContainerSettings
    from flowsched.cluster.local.virtual_nodes import cache_limit, labelled, virtual_nodes
    from flowsched.cluster.node.origins import Origins
    from flowsched.workflow.resources import parse_bytes, parse_cpu, parse_option

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
        origins=Origins(options=settings.stores, bounds=settings.bounds(service.root)),
        containers=ContainerSettings(
            settings.containers,
            "ignore" if settings.images == "ignore" else "use",
            settings.container_network,
        ),
        cache_percent=cache_percent,
        in_place=settings.disk_rate is None and settings.nic_rate is None,
        beside=settings.beside,
    )


def _some(option: str, parse: Callable[[object], int], text: str | None) -> int | None:
    """Each node's amount of a resource; None if no option states it."""
    from flowsched.workflow.resources import parse_option

    if not text:
        return None
    amount = parse_option(option, parse, text)
    if amount <= 0:
        raise ConfigurationError(f"{option} {text}: a node needs more than that to run a task")
    return amount
