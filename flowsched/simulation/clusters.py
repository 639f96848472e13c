"""Simulated clusters: nodes and storage, the reference cluster, clusters read from YAML, and nodes that are lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import NodeInfo
from flowsched.values import replace
from flowsched.workflow.document import keys
from flowsched.workflow.document.keys import Key, Section, Table
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import Reader
from flowsched.workflow.resources import parse_bytes, parse_duration

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
        """As an executor would report it."""
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

    def header(self) -> dict[str, Any]:
        """The node's values, for the header of a trace."""
        values = {
            "name": self.name, "cores": self.cores, "memory": self.memory, "gpus": self.gpus, "disk": self.disk,
            "nic_in": self.nic_in, "nic_out": self.nic_out, "cache": self.cache, "rack": self.rack,
        }  # fmt: skip
        return values | ({"datasets": self.datasets} if self.datasets else {})


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

    def header(self) -> dict[str, Any]:
        """The storage's values, for the header of a trace."""
        return {"name": self.name, "disk": self.disk, "nic_in": self.nic_in, "nic_out": self.nic_out}


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Nodes and a storage. `reference` is the name under which others know it; `startup` is what a pod takes to start (s)."""

    nodes: tuple[SimulatedNode, ...]
    storage: SimulatedStorage = SimulatedStorage()
    startup: float = 0.0
    reference: str | None = None

    def header(self) -> dict[str, Any]:
        """The cluster's values, for the header of a trace."""
        return {
            "nodes": [node.header() for node in self.nodes],
            "storage": [self.storage.header()],
            "startup": self.startup,
        }

    @property
    def uniform_cores(self) -> int:
        """Cores of the first node: the reference's limit for a task."""
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


# ---- clusters in YAML ----


_NAME: Final = keys.text(keys.Form("a name", re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")))
_AMOUNT: Final = keys.amount(parse_bytes, 'bytes, as "16G" or "64Gi" (of rates: a second)')
_COUNT: Final = keys.number(1, 100_000)
_CARRIER: Final[Mapping[str, Key]] = {
    "disk": Key(_AMOUNT, "Bytes that its disk reads and writes a second"),
    "nic": Key(_AMOUNT, "`nic_in` and `nic_out`"),
    "nic_in": Key(_AMOUNT, "Bytes that its network receives a second"),
    "nic_out": Key(_AMOUNT, "Bytes that its network sends a second"),
    "seek_percent": Key(keys.number(0, 1_000), "Percent that each further stream costs its disk", default=0),
}
_NODE: Final = Table(
    "Nodes of one kind.",
    {
        "name": Key(_NAME, "Its name; with a number behind it of several", default="n"),
        "count": Key(_COUNT, "How many there are", default=1),
        "cores": Key(_COUNT, "Of one node", required="how many cores a node has"),
        "memory": Key(_AMOUNT, "Of one node"),
        "gpus": Key(keys.number(0, 100_000), "Of one node", default=0),
        "cache": Key(_AMOUNT, "Memory that keeps what was read last"),
        "rack": Key(_NAME, "Its rack"),
        "datasets": Key(_AMOUNT, "Bytes of datasets that its disk may hold"),
        **_CARRIER,
    },
)
_STORAGE: Final = Table(
    "The shared storage.", {"name": Key(_NAME, "Its name", default="storage"), **_CARRIER}
)
_CLUSTER: Final = Table(
    "A cluster.",
    {
        "nodes": Key(
            keys.list_of(_NODE, 100_000, 1), "Its nodes", required="an array of at least one kind of node"
        ),
        "storage": Key(_STORAGE, "Its shared storage"),
        "startup": Key(keys.amount(parse_duration, 'a time, as "3s"'), "The time that a pod takes to start"),
    },
)


def cluster_from(document: object, limits: Limits = DEFAULT) -> SimulatedCluster:
    """A cluster from what was read of YAML or JSON: `nodes` (with `count` of each kind), `storage`, `startup` of a pod.

    Raises:
        InvalidDocument: With everything that is wrong, each with its path.
    """
    reader = Reader(limits)
    root = _CLUSTER.open(reader, document, "$")
    nodes: list[SimulatedNode] = []
    storage, startup = SimulatedStorage(), 0
    if root is not None:
        startup = root["startup"] or 0
        storage = storage if root["storage"] is None else _storage(root["storage"])
        for section in root["nodes"] or ():
            nodes += [] if section is None else _nodes(section)
        names = [node.name for node in nodes]
        if not reader.faults and (len(set(names)) != len(names) or storage.name in names):
            reader.fault("$.nodes", "a name twice", "other names for each kind of node and for the storage")
    reader.finish()
    return SimulatedCluster(tuple(nodes), storage, startup / 1000)


def _rates(section: Section) -> dict[str, int]:
    """The rates of a network, and the cost that each further stream has for a disk."""
    nic = section["nic"] or GBIT
    rates = {key: section[key] or nic for key in ("nic_in", "nic_out")}
    return {**rates, "seek_percent": section["seek_percent"]}


def _storage(section: Section) -> SimulatedStorage:
    return SimulatedStorage(section["name"], section["disk"] or 1_000_000_000, **_rates(section))


def _nodes(section: Section) -> list[SimulatedNode]:
    name, count = section["name"], section["count"]
    made = SimulatedNode(
        name=name,
        cores=section["cores"] or 1,
        memory=section["memory"] or 64_000_000_000,
        gpus=section["gpus"],
        disk=section["disk"] or 500_000_000,
        cache=section["cache"] or 16_000_000_000,
        rack=section["rack"] or "",
        datasets=section["datasets"] or 0,
        **_rates(section),
    )
    if count == 1:
        return [made]
    return [replace(made, name=f"{name}{at}") for at in range(count)]


# ---- lost nodes: which, and when (`n3@600`, `n3@600-1200`) ----


_ASKED: Final = re.compile(r"(?P<node>.+)@(?P<at>\d+(?:\.\d+)?)(?:-(?P<back>\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Loss:
    """A node (its number) is lost at a moment, with all that runs and lies on it. Seconds; it comes back empty, or never (None)."""

    node: int
    at_s: float
    back_s: float | None = None


def losses_of(asked: Sequence[str], cluster: SimulatedCluster) -> tuple[Loss, ...]:
    """Read the loss of a node: `NODE@SECONDS`, or `NODE@SECONDS-SECONDS` if the node comes back.

    Raises:
        InvalidRequest: One cannot be read, its node is not in the cluster, or it is lost while it is gone.
    """
    numbers = {node.name: number for number, node in enumerate(cluster.nodes)}
    losses = [_loss(text, numbers) for text in asked]
    losses.sort(key=lambda loss: (loss.node, loss.at_s))
    for first, second in pairwise(losses):
        if first.node == second.node and (first.back_s is None or first.back_s >= second.at_s):
            name = cluster.nodes[first.node].name
            raise InvalidRequest(
                f"--lose: {name} cannot be lost at {second.at_s:g} s, it is gone since {first.at_s:g} s"
            )
    return tuple(losses)


def _loss(text: str, numbers: dict[str, int]) -> Loss:
    found = _ASKED.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"--lose {text!r}: NODE@SECONDS was expected, as n3@600, or n3@600-1200 if it comes back"
        )
    if found["node"] not in numbers:
        some = ", ".join(list(numbers)[:8])
        raise InvalidRequest(
            f"--lose {text!r}: the cluster has no node {found['node']!r}; it has {some} ({len(numbers)} in all)"
        )
    at, back = float(found["at"]), None if found["back"] is None else float(found["back"])
    if back is not None and back <= at:
        raise InvalidRequest(f"--lose {text!r}: it comes back at {back:g} s, which is not after {at:g} s")
    return Loss(numbers[found["node"]], at, back)
