"""Foreign pods, which other controllers made for our scheduler, and the room that strangers' pods take. An executor reports both.

A *foreign* pod names our scheduler; its group is a PodGroup of whatever kind, or all pods of one owner. A *stranger* is a pod
that another scheduler placed: it only takes room. Keys are UIDs, never names: a later pod may have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from flowsched.executor.constraints import Rules
from flowsched.workflow.spec import Resources


@dataclass(frozen=True, slots=True, eq=True)
class PodTemplate:
    """The properties of foreign pods that decide where they may go: equal templates are one shape.

    Args:
        resources: The request of one pod, as the API server's own scheduler adds it up.
        selector: (label, value) pairs a node must carry, sorted.
        tolerations: (key, operator, value, effect) rows, sorted.
        rules: Affinity, spread, ports and the like; None where it has none.
        image: Of its largest container.
        problem: Why such a pod cannot be placed anywhere at present; "" = nothing is wrong.
    """

    resources: Resources
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    rules: Rules | None = None
    image: str | None = None
    problem: str = ""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash once: it is a key wherever pods are counted."""
        has = self.resources
        amounts = (has.cpu_millicores, has.memory_bytes, has.disk_bytes, has.gpu_millis)
        more = tuple(sorted(has.extended.items()))
        rest = (self.selector, self.tolerations, self.rules, self.image, self.problem)
        object.__setattr__(self, "_hash", hash((amounts, more, rest)))

    def __hash__(self) -> int:
        """Of everything."""
        return self._hash


class ForeignPod(msgspec.Struct, frozen=True):
    """One pod that waits for a node.

    Args:
        uid: Its identity.
        namespace, name: Where to call it.
        version: Its resourceVersion, a precondition of the binding.
        group: Key of its group.
        role: Its role in the group, "" where it has none.
        template: Its request and its constraints.
        priority: Higher goes first.
        created_ms: When it was made (wall-clock ms).
        owned: Whether a controller would make it again if it were deleted.
        within: Which of its group goes first, if that is stated beside its priority; None = by its priority.
        preempts: Whether it may take others' room (`preemptionPolicy`).
    """

    uid: str
    namespace: str
    name: str
    version: str
    group: str
    role: str
    template: PodTemplate
    priority: int = 0
    created_ms: int = 0
    owned: bool = False
    within: int | None = None
    preempts: bool = True


class ForeignGroup(msgspec.Struct, frozen=True):
    """The rule of a group, from one version of one object.

    Args:
        key: UID of the PodGroup, or a key for the owner of plain pods.
        namespace, name: For people and for writing its status.
        queue: The queue that pays.
        gang: All or nothing, at least `minimum` pods.
        minimum: Pods that must have room together; 1 where there is no gang.
        role_minimums: By role, as far as the group states them.
        min_resources: Room that must be there before the first pod starts, and is held until its pods have come.
        rack: None, "required" or "preferred".
        created_ms: When it was made.
        version: Of the object the rule was read from.
        problem: Why nothing of it can be placed; "" = nothing is wrong.
        started: Its minimum has been on nodes once, by its status.
        preemptible: Whether it says that it may be taken away for others; None = it does not say.
    """

    key: str
    namespace: str
    name: str
    queue: str = "default"
    gang: bool = False
    minimum: int = 1
    role_minimums: Mapping[str, int] = msgspec.field(default_factory=dict)
    min_resources: Resources | None = None
    rack: str | None = None
    created_ms: int = 0
    version: str = ""
    problem: str = ""
    started: bool = False
    preemptible: bool | None = None


class Stake(msgspec.Struct, frozen=True, gc=False):
    """How a pod that has a node stands when others ask for its room.

    Args:
        priority: As its PriorityClass gave it.
        qos: `QosClass`.
        created_ms: When it was made.
        started_ms: Since when its containers run; None = they do not yet.
        preemptible: Whether it says that it may be taken away for others; None = it does not say.
        budgets: Names of the disruption budgets that cover it, sorted.
        marked: Its condition shows that it is to be preempted, and no more: an earlier leader had decided so.
    """

    priority: int = 0
    qos: int = 0
    created_ms: int = 0
    started_ms: int | None = None
    preemptible: bool | None = None
    budgets: tuple[str, ...] = ()
    marked: bool = False


NO_STAKE: Final = Stake()


class GroupSeen(msgspec.Struct, frozen=True):
    """A group's rule, new or changed."""

    group: ForeignGroup


class GroupGone(msgspec.Struct, frozen=True):
    """The group's object is gone. Its pods, if any are left, wait for it to come back."""

    key: str


class PodWaits(msgspec.Struct, frozen=True):
    """A foreign pod waits for a node (new, or changed)."""

    pod: ForeignPod


class RoomTaken(msgspec.Struct, frozen=True, gc=False):
    """A pod is on a node and takes room there.

    Args:
        owner: The engine's name of one of our own pods, else the pod's UID.
        node: Where.
        resources: Its request.
        queue: The queue that pays.
        group: Key of its group if it is a foreign pod that we placed (or would have).
        role: Its role there.
        rules: Properties that others' rules may look at: its namespace, labels, anti-affinity, ports.
        leaving: Whether it is being deleted.
        since_ms: Since when.
        owned: Whether a controller would make it again.
        namespace, name: Where to call it.
        stake: How it stands when others ask for its room, if it is one that we placed.
    """

    owner: str
    node: str
    resources: Resources
    queue: str = ""
    group: str = ""
    role: str = ""
    rules: Rules | None = None
    leaving: bool = False
    since_ms: int = 0
    owned: bool = False
    namespace: str = ""
    name: str = ""
    stake: Stake = NO_STAKE


class PodLeft(msgspec.Struct, frozen=True):
    """A foreign or a stranger's pod has ended or is no more: it neither waits nor takes room.

    `succeeded`: it ended well, and still counts for the minimum of its `group`, in this `role`.
    """

    owner: str
    succeeded: bool = False
    group: str = ""
    role: str = ""


class BindRefused(msgspec.Struct, frozen=True):
    """A binding did not take place: the pod waits again. `message` says why."""

    uid: str
    node: str
    message: str = ""


class NamespaceSeen(msgspec.Struct, frozen=True):
    """Labels of a namespace, for rules that select namespaces. None = it is gone."""

    name: str
    labels: Mapping[str, str] | None


class BudgetSeen(msgspec.Struct, frozen=True):
    """How many pods that a disruption budget covers may go now. None = there is no such budget (any more)."""

    name: str
    allowed: int | None


class EvictionRefused(msgspec.Struct, frozen=True):
    """Pods that were to make way stay, all of a unit: nothing of it has gone. `message` says why."""

    uids: tuple[str, ...]
    message: str = ""


ForeignEvent = (
    GroupSeen
    | GroupGone
    | PodWaits
    | RoomTaken
    | PodLeft
    | BindRefused
    | NamespaceSeen
    | BudgetSeen
    | EvictionRefused
)


class Bind(msgspec.Struct, frozen=True):
    """A foreign pod shall go to a node. Committed before it is asked for.

    `epoch`: of the leader that decided it; `group`: key of its group.
    """

    uid: str
    namespace: str
    name: str
    version: str
    node: str
    group: str
    epoch: int


class Evict(msgspec.Struct, frozen=True):
    """A foreign pod shall be taken away; its controller makes it again.

    Args:
        uid, namespace, name: The pod.
        reason: For people.
        unit: It makes way for others, together with all that carry the same word: all of them go, or none. "" = its gang did not
            come together, or its node is being emptied.
        begun: Others of its unit have gone already: it follows them, as often as it has to be asked.
    """

    uid: str
    namespace: str
    name: str
    reason: str
    unit: str = ""
    begun: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """Why a foreign group was not placed, for its status and its pods' conditions.

    Args:
        group: Key of the group.
        uids: Its pods that wait.
        code: The fixed reason code.
        message: For people.
        start_ms: Its expected start, if that is known.
        placed: Whether its minimum has room now: then `code` is "".
    """

    group: str
    uids: tuple[str, ...]
    code: str
    message: str
    start_ms: int | None = None
    placed: bool = False


class Hold(msgspec.Struct, frozen=True):
    """Room on a node that is promised to pods that do not exist yet. All that is held there, in one."""

    node: str
    resources: Resources
