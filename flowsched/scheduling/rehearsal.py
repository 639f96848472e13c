"""A profile's plugins asked once, about a small made-up cluster: one that fails at once never comes into force. Pure."""

from __future__ import annotations

from typing import Final

from flowsched.errors import Fault, InvalidDocument
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.extension import Guard
from flowsched.scheduling.podgroup import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy import Policies, plugin_fields
from flowsched.scheduling.snapshot import Claim, ClaimKind, Snapshot
from flowsched.statement import Statement

_GIB: Final = 1 << 30
_NOW: Final = 1_000_000_000


def rehearse(policies: Policies) -> None:
    """Let every plugin of every profile answer once.

    Raises:
        InvalidDocument: With each plugin that failed, where it is named and how it failed.
    """
    faults = []
    for name, profile in policies.named.items():
        for path, guard in plugin_fields(profile, policies.paths[name]):
            _try(guard)
            if guard.trouble.times:
                found = f"plugin {guard.name}, which fails: {guard.trouble.last}"
                faults.append(Fault(path, found, "a plugin that answers"))
    if faults:
        raise InvalidDocument(faults)


def _try(guard: Guard) -> None:
    snapshot, catalogue = Snapshot(), Catalogue()
    for at in range(3):
        snapshot.put_node(NodeInfo(f"rehearsal-{at}", 8_000, 32 * _GIB, labels={"rehearsal": str(at)}))
    claim = Claim("rehearsal", 0, (1_000, _GIB), ClaimKind.RUNNING, "default", 0, None)
    snapshot.claim(claim, Statement())
    catalogue.add_replica(catalogue.intern("rehearsal://input", _GIB, True), 0)
    guard.rehearse(snapshot, catalogue, [_group(1, gang=True), _group(2, gang=False)], _NOW)


def _group(key: int, *, gang: bool) -> PodGroup:
    role = RoleRequest("worker", Shape((1_000, _GIB)), 2, 2 if gang else 1)
    return PodGroup(key, f"rehearsal-{key}", "default", "rehearsal", 0, 0, _NOW - key, gang, (role,))
