"""The node of one pod whose cost is how full a node is, and nothing else, in as few passes over all nodes as can be.

An approximate cost of all nodes (`Scale`) leaves the few that may be the cheapest, and those are compared exactly. What is
chosen is what `placement.place_role` chooses; tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Along, Scale
from flowsched.scheduling.placement.gang import FEW, Ints, Packing, RoleTable, cost_on, one_costs

#: (1,) a node, and what the pod costs there.
Found: TypeAlias = tuple[Ints, int]
#: More than the shares of all axes together.
_TOP: Final = 1 << 62
_SIGN: Final = 63


def barred(mask: NDArray[np.bool_]) -> Ints:
    """(N,) negative where a mask is not."""
    refused: Ints = np.where(mask, 0, -1)
    return refused


def cheapest(
    rows: Sequence[Ints], along: Along, table: RoleTable, refused: Ints, packing: Packing
) -> Found | None:
    """The node of one pod; None where there is no room for it.

    A cost is floor(sum of floors / axes): less than 2 below the mean of the true shares, and never above it. So the cheapest
    node's sum of shares lies within 2 per mille an axis of the least one.

    Args:
        rows: For each axis of the table's needs, (N,) what is free there. Not modified.
        along: Of the same axes.
        table: A role of a plain offer (`Offer.plain`).
        refused: (N,) negative where its pods may not be. Not modified.
        packing: The tie-breaker.
    """
    if not len(refused):
        return None
    signs, shares, slack = refused, None, 0  # negative, too, where any axis has no room
    for row, need, packs, scale in zip(rows, table.needs, table.packs, along.scales, strict=True):
        if not need:
            continue
        left = row - need
        if signs is refused:
            signs = signs | left
        else:
            signs |= left
        if not packs:
            continue
        slack += 2 + 2 * scale.slack
        if scale.shift:
            left >>= scale.shift
        left *= scale.factors
        if shares is None:
            shares = left
        else:
            shares += left
    if shares is None:
        first = (signs >= 0).nonzero()[0][:1]
        return (first, 0) if len(first) else None
    if packing == "binpack":
        shares = _TOP - shares
    signs >>= _SIGN
    shares |= signs  # the more the better; -1 where there is no room
    node = int(shares.argmax())
    most = shares.item(node)
    if most < 0:
        return None
    least = max(most - slack * Scale.UNIT, 0)
    shares[node] = -1
    if shares.item(shares.argmax()) < least:  # nobody comes near it
        return np.array([node]), cost_on(rows, along.whole, table, packing, node, 1)
    shares[node] = most
    near = (shares >= least).nonzero()[0]
    if len(near) <= FEW:
        return best_of(near.tolist(), rows, along.whole, table, packing)
    costs = one_costs(rows, along.whole, table, packing, near)
    best = int(costs.argmin())
    return near[best : best + 1], costs.item(best)


def best_of(
    nodes: Collection[int], rows: Sequence[Ints], whole: Sequence[Ints], table: RoleTable, packing: Packing
) -> Found | None:
    """As `cheapest`, of a few nodes, one after the other. `whole`: for each axis, (N,) what nodes have in all."""
    best: tuple[int, int] | None = None
    for node in nodes:
        if not table.allowed.item(node):
            continue
        for row, need in zip(rows, table.needs, strict=True):
            if row.item(node) < need:
                break
        else:
            found = cost_on(rows, whole, table, packing, node, 1), node
            if best is None or found < best:
                best = found
    return None if best is None else (np.array([best[1]]), best[0])
