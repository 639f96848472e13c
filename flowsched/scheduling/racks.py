"""A gang that has to be in one rack: the one where it is cheapest. Axes as in `placement`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import (
    NEVER,
    Ints,
    Packing,
    RoleTable,
    Spots,
    copies_of,
    place_gang,
)
from flowsched.scheduling.plugins.topology import feasible_racks
from flowsched.scheduling.spots import gang_cost


def place_in_one_rack(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    tables: Sequence[RoleTable],
    packing: Packing,
    rack: NDArray[np.int32],
    one_per_node: bool = False,
) -> tuple[Spots, ...] | None:
    """As `place_gang`, all in the rack where the gang is cheapest.

    A gang costs its slowest member; then the sum decides, then the lower rack id.
    """
    limit = 1 if one_per_node else NEVER
    copies = [copies_of(room, table, min(limit, max(table.minimum, 1))) for table in tables]
    best: tuple[int, int] | None = None
    chosen: tuple[Spots, ...] | None = None
    for members in feasible_racks(rack, copies, [table.minimum for table in tables]):
        local = place_gang(
            [have[members] for have in room],
            [have[members] for have in allocatable],
            [_within(table, members) for table in tables],
            packing,
            one_per_node,
        )
        if local is None:
            continue
        cost = (gang_cost(local), sum(int(spots.costs.sum()) for spots in local))
        if best is None or cost < best:
            best = cost
            chosen = tuple(spots._replace(nodes=members[spots.nodes].astype(np.int64)) for spots in local)
    return chosen


def _within(table: RoleTable, members: NDArray[np.intp]) -> RoleTable:
    """The table of some nodes only."""

    def part(values: Ints | None) -> Ints | None:
        return None if values is None else values[members]

    return RoleTable(
        needs=tuple(need if isinstance(need, int) else need[members] for need in table.needs),
        packs=table.packs,
        allowed=table.allowed[members],
        count=table.count,
        minimum=table.minimum,
        each=part(table.each),
        first=part(table.first),
        step=part(table.step),
        most=part(table.most),
    )
