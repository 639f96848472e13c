"""The plan of one scheduling cycle, as values: placements, reservations, evictions, reasons."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, islice, repeat
from typing import Final, NamedTuple, TypeAlias, overload

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup


class ReasonCode(StrEnum):
    """Why something does not run. The list is fixed: programs may rely on it."""

    WAITING_FOR_PARENTS = "WaitingForParents"  #: a stage it needs has not succeeded yet
    PAUSED = "Paused"  #: the workflow or the queue is paused
    NO_NODES = "NoNodes"  #: the cluster has no ready node
    NO_MATCHING_NODE = "NoMatchingNode"  #: selector, taints or image policy exclude every node
    LARGER_THAN_NODE = "LargerThanNode"  #: one pod asks for more than any matching node has in all
    LARGER_THAN_CLUSTER = "LargerThanCluster"  #: the gang asks for more than all matching nodes have in all
    LARGER_THAN_QUEUE = (
        "LargerThanQueue"  #: its smallest start asks for more than the cap of its queue, or of one above it
    )
    LARGER_THAN_QUOTA = (
        "LargerThanQuota"  #: its smallest start asks for more than a quota of its namespace allows
    )
    INSUFFICIENT = "Insufficient"  #: no room now; the numbers say of what and how much is missing
    GANG_INCOMPLETE = "GangIncomplete"  #: some members fit, not all
    RACK = "RackInsufficient"  #: it fits the cluster, but no single rack
    NEIGHBOURS = "KeptApart"  #: there is room, but affinity, spread or host ports keep it from there
    ZONES = "NumaZones"  #: there is room, but no single NUMA zone has room for one pod
    NOMINATED = "WaitingForVictims"  #: its victims are being taken away; their room belongs to it
    RESERVED = "HeldForReservation"  #: it would fit, but would delay a reserved gang
    QUEUE_LIMIT = "QueueLimit"  #: its queue's cap is reached
    USER_LIMIT = "UserLimit"  #: its user has as many cores or running tasks as one user of its queue may have
    QUOTA_EXCEEDED = "QuotaExceeded"  #: a quota of its namespace has no room for it now
    QUEUE_ORDER = "QueueOrder"  #: its queue is first in, first out, and a group before it waits
    IO_BUDGET = "IoBudget"  #: cores and memory are free, the disk's bandwidth is spoken for
    CACHE_FULL = "CacheFull"  #: the caches of nodes with room are full of what other tasks read, or of what must not be lost
    MAINTENANCE = "Maintenance"  #: nodes with room are drained before it would have ended
    STORAGE_BUDGET = "StorageBudget"  #: a shared storage carries no more than what running pods read from it and write to it
    WAITING_FOR_DATA = "WaitingForData"  #: its inputs are being copied to where it shall run
    WAITING_FOR_LOCALITY = "WaitingForLocality"  #: the node with its data is nearly free, a copy takes longer
    BACKLOG_WINDOW = "BacklogWindow"  #: not looked at in this cycle: more important work was
    WAITING_FOR_MEMBERS = "WaitingForMembers"  #: pods or the PodGroup of a foreign gang do not exist yet
    GANG_GOES_ON = (
        "GangGoesOn"  #: its gang has its minimum and goes on; it joins when room comes, or stays out
    )
    BACKOFF = "BackOff"  #: waits before its next attempt
    NODE_NOT_READY = "NodeNotReady"  #: it was started on a node that no longer reports on its pods


#: Reasons that no waiting ends: the cluster has no such node, the queue or namespace may never have so much, or the document must
#: ask for less.
PERMANENT: Final = frozenset(
    {
        ReasonCode.NO_MATCHING_NODE,
        ReasonCode.LARGER_THAN_NODE,
        ReasonCode.LARGER_THAN_CLUSTER,
        ReasonCode.LARGER_THAN_QUEUE,
        ReasonCode.LARGER_THAN_QUOTA,
    }
)


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why one group is not placed, with the numbers.

    Args:
        group: Key of the group.
        code: The fixed code.
        message: For people: which resource is missing where, and which change would help.
        numbers: The numbers behind the message, in the units of their names.
        start_ms: Its reserved start, if it has one.
        start_low_ms, start_high_ms: It starts between them eight times of ten. Computed when a client asks
            (`explain.forecast`), not in each cycle.
    """

    group: int
    code: ReasonCode
    message: str
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)
    start_ms: int | None = None
    start_low_ms: int | None = None
    start_high_ms: int | None = None

    def of(self, group: int) -> Reason:
        """The same reason for another group."""
        return structs.replace(self, group=group)


class Alike(NamedTuple):
    """Groups that the same lack of room refuses, and the reason of one of them."""

    reason: Reason
    groups: Sequence[PodGroup]


class Reasons(Sequence[Reason]):
    """Why groups wait, in the order in which the cycle came to them. The reasons of groups that are alike are made when a client
    reads them: a cycle passes thousands of such groups by.

    Args:
        parts: The reasons of single groups, and of many at once.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Reason | Alike] = ()) -> None:
        self.parts = tuple(parts)

    def __iter__(self) -> Iterator[Reason]:
        """One of each group."""
        for part in self.parts:
            if isinstance(part, Reason):
                yield part
            else:
                yield from (part.reason.of(group.key) for group in part.groups)

    def __len__(self) -> int:
        """How many groups wait."""
        return sum([1 if isinstance(part, Reason) else len(part.groups) for part in self.parts])

    @overload
    def __getitem__(self, at: int) -> Reason: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Reason]: ...
    def __getitem__(self, at: int | slice) -> Reason | Sequence[Reason]:
        """The reason of one group, or of some."""
        if isinstance(at, int) and at >= 0:
            for reason in islice(self, at, None):
                return reason
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        """Whether they are the same reasons of the same groups in the same order."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """As the tuple of them."""
        return repr(tuple(self))

    def distinct(self) -> Iterator[Reason]:
        """One of each group, or of many that are alike."""
        return (part if isinstance(part, Reason) else part.reason for part in self.parts)


#: The cost terms of a pod on a node, by name: ("stage-in", ms), ("slowdown", ms), or the name of a plug-in.
CostTerms: TypeAlias = tuple[tuple[str, int], ...]


class NodeCost(NamedTuple):
    """A node that was not chosen, by index. `full`: it had no room then."""

    node: int
    terms: CostTerms
    full: bool = False


class Choice(msgspec.Struct, frozen=True):
    """Why the pods of one role went to their nodes.

    Args:
        nodes: The chosen nodes by index, with what the first pod of the group cost there.
        others: The nodes that would have been chosen next, the cheapest first.
    """

    nodes: Mapping[int, CostTerms]
    others: tuple[NodeCost, ...]

    def then(self, later: Choice) -> Choice:
        """Add a later choice of the same role: its facts about a node hold for both."""
        known = {each.node: each for each in (*self.others, *later.others)}
        return Choice({**later.nodes, **self.nodes}, tuple(known.values()))

    def cheapest(self, most: int) -> list[NodeCost]:
        """The cheapest nodes that it knows, chosen or not: a pod's next best node is often one that a sibling went to."""
        known = {each: NodeCost(each, terms) for each, terms in self.nodes.items()}
        known |= {each.node: each for each in self.others}
        return heapq.nsmallest(most, known.values(), key=lambda each: sum(ms for _, ms in each.terms))


class Placement(msgspec.Struct, frozen=True):
    """Where pods of one group go.

    Args:
        group: Key of the group.
        nodes: For each role, (k,) node index of its next k pods in replica order. A gang: k >= minimum for
            every role.
        missing_bytes: For each role, (k,) bytes of inputs that are not on that node yet (0 = may bind at
            once).
        cost_ms: The dearest pod's cost in ms, as explain shows it.
        held: (node, (R,) amounts) that `min_resources` keeps beside its pods.
        devices: For each role, (k, D) thousandths of each GPU of its node that a pod gets; empty where parts of GPUs are not
            about.
        choices: For each role, why its nodes; None where no cost but packing was weighed. Decides nothing.
        promoted: Steps of priority that waiting has given each queue on its path, from the root down, then its user, then the
            group in its queue. Empty = none.
    """

    group: int
    nodes: tuple[NDArray[np.int64], ...]
    missing_bytes: tuple[NDArray[np.int64], ...]
    cost_ms: int = 0
    held: tuple[tuple[int, tuple[int, ...]], ...] = ()
    devices: tuple[NDArray[np.int64], ...] = ()
    choices: tuple[Choice | None, ...] = ()
    promoted: tuple[int, ...] = ()

    def steps(self, pods: int, *, gang: bool) -> Iterable[tuple[int, ...]]:
        """(pods,) how far waiting has promoted each pod, as in `Claim`. Queues and users promote a gang, or one pod of a bag."""
        if not self.promoted:
            return repeat((), pods)
        *queues, user, own = self.promoted
        first, others = (*queues, max(user, own)), (own,) if own else ()
        return repeat(first, pods) if gang else chain((first,), repeat(others, pods - 1))


class Reservation(msgspec.Struct, frozen=True):
    """Room reserved for the first gang that does not fit: on these nodes (and devices, as in `Placement`), from `start_ms`."""

    group: int
    start_ms: int
    nodes: tuple[NDArray[np.int64], ...]
    devices: tuple[NDArray[np.int64], ...] = ()


class Eviction(msgspec.Struct, frozen=True):
    """Claims to be taken away for a group, all of a gang or a single pod.

    Args:
        owners: Their owners, sorted.
        taker: Key of the group that gets the room.
        reason: "Preempted" (its priority is higher) or "Reclaimed" (its queue has less than it may).
        message: For people: which group takes the room, and why.
        part: They are members that their gang can spare: it goes on without them.
    """

    owners: tuple[str, ...]
    taker: int
    reason: str
    message: str
    part: bool = False


class Nomination(msgspec.Struct, frozen=True):
    """Room that belongs to a group as soon as the pods that are leaving it have left.

    Args:
        group: Key of the group.
        queue: The queue that will pay.
        pods: How many of its pods it is for.
        room: (node, (R,) amounts) it waits for, free parts included.
        victims: Owners of the claims that were taken away for it; none where it waits for others that leave anyway.
        until_ms: After this it is given up, whatever happens.
        devices: (node, (D,) thousandths of each GPU) of it, where parts of GPUs are about.
    """

    group: int
    queue: str
    pods: int
    room: tuple[tuple[int, tuple[int, ...]], ...]
    victims: tuple[str, ...]
    until_ms: int
    devices: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def holder(self, node: int) -> str:
        """Owner of the claim that holds what is free of it on a node."""
        return f"nominated/{self.group}/{node}"


class Plan(msgspec.Struct, frozen=True):
    """All that one cycle decided, in the order in which it decided."""

    placements: tuple[Placement, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reasons: Reasons = msgspec.field(default_factory=Reasons)
    looked_at: int = 0  #: groups that were considered (the bound on a cycle is this count, never a clock)
    ahead: tuple[
        tuple[int, int], ...
    ] = ()  #: (group, node): where groups that wait will probably run, soonest first
    evictions: tuple[Eviction, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    look_at: int | None = None  #: when to look again although nothing happens
