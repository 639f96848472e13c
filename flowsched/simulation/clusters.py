"""Clusters of one's own, as people write them in YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flowsched.simulation.reference import GBIT, SimulatedCluster, SimulatedNode, SimulatedStorage
from flowsched.workflow.limits import DEFAULT, Limits
from flowsched.workflow.reader import Reader, Section
from flowsched.workflow.resources import parse_bytes, parse_duration

_CLUSTER: Final[Mapping[str, str]] = dict.fromkeys(("nodes", "storage", "startup"), "")
_NODE: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "name",
        "count",
        "cores",
        "memory",
        "gpus",
        "disk",
        "nic",
        "nic_in",
        "nic_out",
        "cache",
        "rack",
        "datasets",
    ),
    "",
)
_STORAGE: Final[Mapping[str, str]] = dict.fromkeys(("name", "disk", "nic", "nic_in", "nic_out"), "")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_BYTES: Final = 'bytes, as "16G" or "64Gi" (of rates: a second)'
_MOST: Final = 100_000


def cluster_from(document: object, limits: Limits = DEFAULT) -> SimulatedCluster:
    """A cluster from what was read of YAML or JSON: `nodes` (with `count` of each kind), `storage`, `startup` of a pod.

    Raises:
        InvalidDocument: With everything that is wrong, each with its path.
    """
    reader = Reader(limits)
    root = reader.section(document, "$", _CLUSTER)
    nodes: list[SimulatedNode] = []
    storage, startup = SimulatedStorage(), 0
    if root is not None:
        startup = root.amount("startup", parse_duration, 'a time, as "3s"') or 0
        told = root.section("storage", _STORAGE) if "storage" in root else None
        storage = storage if told is None else _storage(told)
        listed = root.array("nodes", empty=False)
        if "nodes" not in root:
            root.fault("nodes", "an array of at least one kind of node")
        for number, entry in enumerate(listed or ()):
            section = reader.section(entry, f"$.nodes[{number}]", _NODE)
            nodes += [] if section is None else _nodes(section)
        names = [node.name for node in nodes]
        if not reader.faults and (len(set(names)) != len(names) or storage.name in names):
            reader.fault("$.nodes", "a name twice", "other names for each kind of node and for the storage")
    reader.finish()
    return SimulatedCluster(tuple(nodes), storage, startup / 1000)


def _rate(section: Section, key: str, other: str | None, default: int) -> int:
    if key in section or other is None or other not in section:
        return section.amount(key, parse_bytes, _BYTES) or default
    return section.amount(other, parse_bytes, _BYTES) or default


def _storage(section: Section) -> SimulatedStorage:
    return SimulatedStorage(
        name=section.text("name", _NAME, "a name") or "storage",
        disk=_rate(section, "disk", None, 1_000_000_000),
        nic_in=_rate(section, "nic_in", "nic", GBIT),
        nic_out=_rate(section, "nic_out", "nic", GBIT),
    )


def _nodes(section: Section) -> list[SimulatedNode]:
    name = section.text("name", _NAME, "a name") or "n"
    count = section.whole("count", 1, _MOST) or 1
    if "cores" not in section:
        section.fault("cores", "how many cores a node has")
    made = SimulatedNode(
        name=name,
        cores=section.whole("cores", 1, _MOST) or 1,
        memory=_rate(section, "memory", None, 64_000_000_000),
        gpus=section.whole("gpus", 0, _MOST) or 0,
        disk=_rate(section, "disk", None, 500_000_000),
        nic_in=_rate(section, "nic_in", "nic", GBIT),
        nic_out=_rate(section, "nic_out", "nic", GBIT),
        cache=_rate(section, "cache", None, 16_000_000_000),
        rack=section.text("rack", _NAME, "a name") or "",
        datasets=_rate(section, "datasets", None, 0),
    )
    if count == 1:
        return [made]
    return [replace(made, name=f"{name}{at}") for at in range(count)]
