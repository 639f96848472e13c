"""Small builders for scheduling tests: clusters, groups, claims, in whole cores and GiB."""

from __future__ import annotations

import numpy as np

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

GIB = 1 << 30
SECOND = 1_000


def node(name: str, cores: int = 4, memory: int = 16, **more: object) -> NodeInfo:
    values: dict[str, object] = {"disk_bytes": 100 * GIB, **more}
    return NodeInfo(name, cores * 1000, memory * GIB, **values)  # type: ignore[arg-type]


def cluster(*cores: int, **more: object) -> Snapshot:
    """Nodes n0, n1, … of so many cores."""
    snapshot = Snapshot()
    for at, count in enumerate(cores):
        snapshot.put_node(node(f"n{at}", count, **more))
    return snapshot


def shape(cores: float = 1, memory: int = 1, io: int = 0, **more: object) -> Shape:
    return Shape((int(cores * 1000), memory * GIB, 0, 0, io), **more)  # type: ignore[arg-type]


def role(name: str, count: int, minimum: int | None = None, what: Shape | None = None) -> RoleRequest:
    return RoleRequest(name, what or shape(), count, count if minimum is None else minimum)


def gang(key: int, count: int, what: Shape | None = None, **more: object) -> PodGroup:
    """A gang of one role, all of whose members are needed."""
    return group(key, [role("worker", count, what=what)], gang=True, **more)


def bag(key: int, count: int = 1, what: Shape | None = None, **more: object) -> PodGroup:
    return group(key, [role("task", count, 1, what)], gang=False, **more)


def group(key: int, roles: list[RoleRequest], **more: object) -> PodGroup:
    values: dict[str, object] = {
        "name": f"g{key}",
        "queue": "default",
        "workflow": "w",
        "priority": 0,
        "rank_ms": 0,
        "ready_ms": 0,
        "gang": True,
        **more,
    }
    return PodGroup(key=key, roles=tuple(roles), **values)  # type: ignore[arg-type]


def run(
    snapshot: Snapshot, owner: str, at: int, cores: float, until_ms: int | None = None, **more: object
) -> None:
    """Something that runs on node `at`."""
    claim(snapshot, owner, at, cores, ClaimKind.RUNNING, until_ms, **more)


def stage(snapshot: Snapshot, owner: str, at: int, cores: float) -> None:
    """Something whose inputs are being copied to node `at`."""
    claim(snapshot, owner, at, cores, ClaimKind.STAGING)


def claim(
    snapshot: Snapshot,
    owner: str,
    at: int,
    cores: float,
    kind: ClaimKind,
    until_ms: int | None = None,
    queue: str = "default",
    since_ms: int = 0,
    **more: object,
) -> None:
    amount = (int(cores * 1000),)
    snapshot.claim(
        Claim(owner, at, amount, kind, queue, since_ms, until_ms, **more),  # type: ignore[arg-type]
        Statement(),
    )


def frozen(snapshot: Snapshot) -> dict[str, bytes]:
    """Every array of a snapshot, byte by byte."""
    names = ("allocatable", "used", "staging", "ready", "rack", "disk_rate", "nic_in", "nic_out", "io_tasks")
    arrays = {name: getattr(snapshot, name) for name in (*names, "inbound", "version")}
    ledger = snapshot.ledger
    rows = {f"ledger.{name}": getattr(ledger, name) for name in ("node", "amount", "since", "until", "kind")}
    return {name: np.ascontiguousarray(array).tobytes() for name, array in {**arrays, **rows}.items()}
