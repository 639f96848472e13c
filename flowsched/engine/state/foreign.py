"""The state of foreign pods."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from flowsched.executor.foreign import NO_STAKE, ForeignGroup, ForeignPod, PodTemplate, Stake
from flowsched.scheduling.pod_group import Shape


class ClassKey(NamedTuple):
    """Pods of a group that are alike."""

    role: str
    priority: int
    template: PodTemplate
    within: int | None = None  #: as in `ForeignPod`
    preempts: bool = True

    @property
    def first(self) -> int:
        """Higher goes first inside the group."""
        return self.priority if self.within is None else self.within


class ForeignKey(NamedTuple):
    """The key of a backlog item of foreign pods: a group as a whole, or (part) its pods of one class."""

    group: str
    part: ClassKey | None


class Placed(NamedTuple):
    """A pod of a group that has a node, or is assumed to get it."""

    role: str
    pod: ForeignPod | None  #: as it waited; None where it was found on its node
    namespace: str
    name: str
    owned: bool
    node: int
    confirmed: bool  #: it was seen there
    stake: Stake = NO_STAKE
    leaving: bool = False  #: it is being deleted, or was asked to make way


class ForeignWork(msgspec.Struct):
    """One group: its rule, and its pods.

    Attributes:
        group: The rule; None until it has been seen, or after it has gone.
        waiting: Pods without a node, by class, in the order in which they came.
        placed: Pods with a node, by uid.
        done: Pods that ended well, by uid: they count for the minimum.
        short_since: Since when it stands half placed; None = it does not.
        complete: Once its minimum was seen on nodes: from then on pods that end are its controller's business.
        reserved_until: Room of `min_resources` is reserved for it until then; None = none is.
        reserved_on: The nodes of this room.
    """

    group: ForeignGroup | None = None
    waiting: dict[ClassKey, dict[str, ForeignPod]] = msgspec.field(default_factory=dict)
    placed: dict[str, Placed] = msgspec.field(default_factory=dict)
    done: dict[str, str] = msgspec.field(default_factory=dict)
    short_since: int | None = None
    complete: bool = False
    reserved_until: int | None = None
    reserved_on: tuple[int, ...] = ()

    @property
    def staying(self) -> dict[str, Placed]:
        """Pods with a node that are not leaving it, by uid."""
        return {uid: placed for uid, placed in self.placed.items() if not placed.leaving}

    def lacking(self) -> int:
        """How many pods more its minimum asks for."""
        if self.group is None or not self.group.gang:
            return 0
        return max(0, self.group.minimum - len(self.staying) - len(self.done))

    @property
    def empty(self) -> bool:
        """Whether nothing is known of it."""
        return self.group is None and not self.waiting and not self.placed


class ForeignState(msgspec.Struct):
    """Groups of foreign pods, and which of the pods may be evicted.

    Attributes:
        groups: The groups, by key.
        pods: Uid -> key of its group, waiting or placed.
        shapes: The shapes of waiting pods.
        assumed: Uid of a pod that is being bound -> since (ms).
        halved: Gangs that stand half placed.
        holding: Groups for which room is reserved.
        making_way: Uid of a pod that was asked to make way -> its unit.
        spared: Unit that could not be evicted -> (group, until ms).
        budgets: Disruption budget -> how many of its pods may go now.
        covered: Uid of a pod with a node that a budget covers -> key of its group.
        guarded: Units that budgets keep where they are.
    """

    groups: dict[str, ForeignWork] = msgspec.field(default_factory=dict)
    pods: dict[str, str] = msgspec.field(default_factory=dict)
    shapes: dict[tuple[PodTemplate, str | None], Shape] = msgspec.field(default_factory=dict)
    assumed: dict[str, int] = msgspec.field(default_factory=dict)
    halved: set[str] = msgspec.field(default_factory=set)
    holding: set[str] = msgspec.field(default_factory=set)
    making_way: dict[str, str] = msgspec.field(default_factory=dict)
    spared: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    budgets: dict[str, int] = msgspec.field(default_factory=dict)
    covered: dict[str, str] = msgspec.field(default_factory=dict)
    guarded: frozenset[str] = frozenset()
