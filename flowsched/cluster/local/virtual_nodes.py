"""Virtual nodes: this machine divided, each part with its own budgets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flowsched.errors import ConfigurationError, InvalidRequest
from flowsched.executor.nodes import NodeInfo
from flowsched.values import replace
from flowsched.workflow.resources import parse_bytes

#: Left to the system and the service when memory is divided.
_MEMORY_SHARE_PERCENT = 90


def virtual_nodes(
    count: int = 1,
    *,
    cpu_millicores: int | None = None,
    memory_bytes: int | None = None,
    disk_bytes: int = 0,
    gpus: int = 0,
    disk_rate: int = 500_000_000,
    nic_rate: int = 117_000_000,
    cache_bytes: int = 0,
    racks: int = 1,
) -> tuple[NodeInfo, ...]:
    """Nodes for `LocalCluster`.

    Args:
        count: How many.
        cpu_millicores: Of each node; None divides the machine's cores. More than there are may be said.
        memory_bytes: Of each node; None divides nine tenths of the machine's memory.
        disk_bytes: Of each node.
        gpus: Whole devices of each node.
        disk_rate: Bytes/s of each node's disk.
        nic_rate: Bytes/s of each node's network, in each direction.
        cache_bytes: The limit of each node's cache; 0 = no limit.
        racks: Nodes are dealt to racks in equal runs: `rack-0`, `rack-1` …

    Raises:
        ConfigurationError: Fewer than one node, or more racks than nodes.
    """
    if not 1 <= racks <= count:
        raise ConfigurationError(
            f"{count} nodes in {racks} racks: need at least one node, and no more racks than nodes"
        )
    return tuple(
        NodeInfo(
            name=f"node-{number}",
            cpu_millicores=cpu_millicores or machine_cores() * 1000 // count,
            memory_bytes=memory_bytes or machine_memory_bytes() * _MEMORY_SHARE_PERCENT // 100 // count,
            disk_bytes=disk_bytes,
            gpu_millis=gpus * 1000,
            labels={"kubernetes.io/hostname": f"node-{number}"},
            rack=f"rack-{number * racks // count}",
            disk_rate=disk_rate,
            nic_in_rate=nic_rate,
            nic_out_rate=nic_rate,
            cache_bytes=cache_bytes,
        )
        for number in range(count)
    )


def cache_limit(text: str) -> tuple[int, int]:
    """The limit of each node's cache: an amount (`50G`), or a part (`80%`) of the disk, which all nodes share.

    Returns:
        (bytes, percent); (0, 0) = no limit.

    Raises:
        ConfigurationError: It is neither.
    """
    if not text.endswith("%"):
        try:
            return parse_bytes(text), 0
        except InvalidRequest as error:
            raise ConfigurationError(
                f"--cache {text!r}: 50G, 80% or 0 (no limit) was expected: {error}"
            ) from error
    part = text.removesuffix("%").strip()
    if not part.isdecimal() or not 0 < int(part) <= 100:
        raise ConfigurationError(f"--cache {text!r}: a part of the disk between 1% and 100% was expected")
    return 0, int(part)


def labelled(nodes: tuple[NodeInfo, ...], labels: Sequence[str]) -> tuple[NodeInfo, ...]:
    """Nodes with more labels, each said as `NODE:KEY=VALUE`.

    Raises:
        ConfigurationError: One is said otherwise, or of no such node.
    """
    more: dict[str, dict[str, str]] = {node.name: {} for node in nodes}
    for label in labels:
        name, _, pair = label.partition(":")
        key, equals, value = pair.partition("=")
        if name not in more or not key or not equals:
            raise ConfigurationError(
                f"--label {label!r}: expected NODE:KEY=VALUE, such as {next(iter(more), 'node-0')}:disktype=ssd; "
                f"the nodes: {', '.join(list(more)[:10])}"
            )
        more[name][key] = value
    return tuple(replace(node, labels={**node.labels, **more[node.name]}) for node in nodes)


def machine_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes() -> int:
    """Physical memory, or the limit of this control group if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(physical, int(file.read()))
    except (OSError, ValueError):
        return physical
