"""Quotas: limits of all pods that flowsched makes, together, whatever room nodes have."""

from __future__ import annotations

import msgspec


class QuotaLimit(msgspec.Struct, frozen=True):
    """The limit of a quota for one resource, in the unit of its axis.

    Args:
        resource: As the quota names it: pods, requests.cpu, limits.memory.
        axis: The axis (`Snapshot.axes`) on which pods ask for it.
        hard: All pods under the quota may have so much.
        others: The amount of pods that flowsched did not make, and of its own pods that its claims do not count any more.
    """

    resource: str
    axis: str
    hard: int
    others: int


class QuotaChanged(msgspec.Struct, frozen=True):
    """A quota as it is now. No limits: there is no quota of this name (any more)."""

    name: str
    limits: tuple[QuotaLimit, ...] = ()
