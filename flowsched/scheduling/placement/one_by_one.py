"""Placement one by one, for a group with rules between its members: each pod's place limits the places of the next.

Each pod gets the node that `gang` would choose under the mask of that moment: the cheapest node for one pod, roles in the order
given, minimums first. A gang that asks for affinity to itself may be led into a domain that is too small for
all of it; it is then tried domain by domain.

Axes as in `gang`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.feasibility import InterPodAffinity, Mask, Refusals, beside_others
from flowsched.scheduling.placement.gang import (
    NEVER,
    CostTable,
    Ints,
    NodeChoice,
    Packing,
    Trial,
    copies_of,
    gang_cost,
    place_role,
)
from flowsched.scheduling.policy.plugins.topology import feasible_racks
from flowsched.scheduling.policy.plugins.wishes import wish_ms
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.topology import domains_of
from flowsched.statement import Statement

#: How many domains a gang is tried in, at most.
_DOMAINS: Final = 64


class Problem(msgspec.Struct, frozen=True, eq=False):
    """A group to be placed pod by pod.

    Args:
        snapshot: Nodes, and the pods on them. Unchanged in the end.
        room: For each axis, (N,) what is free. Not modified.
        allocatable: For each axis, (N,) what nodes have in all.
        tables: The roles.
        affinity: Their shapes, in the same order.
        packing: The tie-breaker.
        one_per_node: No two of its pods on one node.
    """

    snapshot: Snapshot
    room: Sequence[Ints]
    allocatable: Sequence[Ints]
    tables: Sequence[CostTable]
    affinity: InterPodAffinity
    packing: Packing
    one_per_node: bool


class Reached(msgspec.Struct, frozen=True, eq=False):
    """How far a group got.

    Args:
        node_choices: For each role, where its pods go.
        stuck: The first role that did not get its minimum; None = all did.
        refusals: The reasons that kept its next pod off nodes that allow it, each with the number of nodes.
    """

    node_choices: tuple[NodeChoice, ...]
    stuck: int | None = None
    refusals: Refusals = ()


def place_one_by_one(problem: Problem) -> tuple[NodeChoice, ...] | None:
    """Choose nodes for all roles, or for none: for each role, minimum..count nodes; or None."""
    reached = reach(problem)
    if reached.stuck is None:
        return reached.node_choices
    key = _own_affinity(problem)
    if key is None:
        return None
    ids = domains_of(problem.snapshot, key).ids
    return _best(problem, ids, _DOMAINS)


def place_in_one_rack_one_by_one(problem: Problem) -> tuple[NodeChoice, ...] | None:
    """As `place_one_by_one`, all in the rack where the group is cheapest."""
    return _best(problem, problem.snapshot.rack, NEVER)


def reach(problem: Problem, among: Mask | None = None) -> Reached:
    """Place pods until a role does not get its minimum, or all have what they can get.

    Args:
        problem: The group.
        among: (N,) the nodes to choose from; None = all.
    """
    statement = Statement()
    try:
        return _Walk(problem, among, statement).run()
    finally:
        statement.rollback()


class _Walk:
    """One attempt: the nodes taken so far, in the room and among the peers."""

    def __init__(self, problem: Problem, among: Mask | None, statement: Statement) -> None:
        self.problem, self.among, self.statement = problem, among, statement
        self.trial = Trial(problem.room, single=False)
        self.nodes: list[list[int]] = [[] for _ in problem.tables]
        self.costs: list[list[int]] = [[] for _ in problem.tables]
        self.devices: list[list[Ints]] = [[] for _ in problem.tables]
        #: For each role, (N,) ms of its wishes when it was priced: part of its table.
        self.priced = [wish_ms(problem.snapshot, shape) for shape in problem.affinity.shapes]

    def run(self) -> Reached:
        for extras in (False, True):
            for at, table in enumerate(self.problem.tables):
                wanted = table.count if extras else min(table.minimum, table.count)
                while len(self.nodes[at]) < wanted:
                    refusals = self.step(at)
                    if refusals is None:
                        continue
                    if not extras:
                        return Reached(self.node_choices(), at, refusals)
                    break
        return Reached(self.node_choices())

    def step(self, at: int) -> Refusals | None:
        """Place the next pod of a role: None if it has a node, else the reasons that kept it off the others."""
        problem = self.problem
        shape = problem.affinity.shapes[at]
        table = self.trial.table(problem.tables[at], problem.one_per_node)
        if self.among is not None:
            table = structs.replace(table, allowed=table.allowed & self.among)
        mask, refusals = beside_others(problem.snapshot, shape, table.allowed)
        each, priced, wished = table.each, self.priced[at], wish_ms(problem.snapshot, shape)
        if each is not None and priced is not None and wished is not None:
            each = each + (wished - priced)
        table = structs.replace(table, allowed=mask, each=each)
        chosen = place_role(self.trial.room, problem.allocatable, table, 1, problem.packing, NEVER)
        if not len(chosen.nodes):
            return refusals
        seated = self.trial.allocate(table, chosen).devices
        if seated is not None:
            self.devices[at].append(seated)
        self.nodes[at].append(int(chosen.nodes[0]))
        self.costs[at].append(int(chosen.costs[0]))
        if shape.rules is not None:
            problem.snapshot.peers.put(shape.rules, self.nodes[at][-1:], self.statement)
        return None

    def node_choices(self) -> tuple[NodeChoice, ...]:
        room = self.problem.room
        none = room[-1][:0] if room and room[-1].ndim == 2 else None  # GPUs by device
        return tuple(
            NodeChoice(
                np.array(nodes, dtype=np.int64),
                np.array(costs, dtype=np.int64),
                np.concatenate([none, *devices]) if none is not None else None,
            )
            for nodes, costs, devices in zip(self.nodes, self.costs, self.devices, strict=True)
        )


def _own_affinity(problem: Problem) -> str | None:
    """The topology key of a gang's first affinity term; None if it has none, or is no gang."""
    if sum(table.minimum for table in problem.tables) <= 1:
        return None
    rules = [shape.rules for shape in problem.affinity.shapes if shape.rules is not None]
    return next((term.topology_key for demands in rules for term in demands.affinity), None)


def _best(problem: Problem, ids: NDArray[np.int32], most: int) -> tuple[NodeChoice, ...] | None:
    """All in the one domain where the group is cheapest: its slowest member, then the sum, then the lower id."""
    best: tuple[int, int] | None = None
    chosen: tuple[NodeChoice, ...] | None = None
    for tried, among in enumerate(_regions(problem, ids)):
        if tried >= most:
            break
        reached = reach(problem, among)
        if reached.stuck is not None:
            continue
        cost = (gang_cost(reached.node_choices), sum(int(each.costs.sum()) for each in reached.node_choices))
        if best is None or cost < best:
            best, chosen = cost, reached.node_choices
    return chosen


def _regions(problem: Problem, ids: NDArray[np.int32]) -> Iterator[Mask]:
    """The domains with room for every role's minimum: (N,) each, in order of their ids."""
    limit = 1 if problem.one_per_node else NEVER
    copies = [copies_of(problem.room, table, min(limit, max(table.minimum, 1))) for table in problem.tables]
    for members in feasible_racks(ids, copies, [table.minimum for table in problem.tables]):
        among = np.zeros(len(ids), dtype=np.bool_)
        among[members] = True
        yield among
