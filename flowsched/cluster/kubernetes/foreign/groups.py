"""Pod groups of other projects: to which group a pod belongs, in which role, which queue pays, and the rule of the group. Pure.

Six projects link pods to groups in six ways; `LINKS` gives the order in which they are tried. Three of them have a PodGroup
that we read. Kueue and YuniKorn write the rule on the pods themselves (`rule_in`). KAI's PodGroups are not read: its pods wait,
with that reason.

These objects are written by people: nothing here raises, and what cannot be understood makes a group that says why it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from flowsched.cluster.kubernetes.api.watch import Batch, taken
from flowsched.cluster.kubernetes.foreign.eviction import preemptible_of
from flowsched.cluster.kubernetes.objects.labels import INSTANCE, MANAGED_BY
from flowsched.cluster.kubernetes.objects.metadata import Amounts, moment_ms
from flowsched.cluster.kubernetes.objects.names import label_value
from flowsched.cluster.kubernetes.objects.nodes import RACK_LABELS
from flowsched.cluster.kubernetes.objects.pod import Pod, controller_of
from flowsched.cluster.kubernetes.objects.pod_requests import resources_of
from flowsched.cluster.kubernetes.objects.podgroup import (
    GROUP_ANNOTATION,
    PLUGINS_LABEL,
    QUEUE_ANNOTATION,
    TASK_SPEC,
    CoschedulingPodGroup,
    Form,
    Life,
    NativePodGroup,
    NetworkTopology,
    VolcanoPodGroup,
)
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.errors import InvalidRequest
from flowsched.executor.foreign import ForeignGroup, GroupGone, GroupSeen
from flowsched.executor.protocol import ClusterEvent
from flowsched.values import replace
from flowsched.workflow.spec import Resources

PodGroupObject = NativePodGroup | CoschedulingPodGroup | VolcanoPodGroup
#: Fields of a `ForeignGroup`.
Json = dict[str, Any]

#: Volcano's controllers write a quota's words beside the amounts themselves: `requests.cpu`, `limits.cpu`, `count/pods`.
_QUOTA_WORDS: Final = ("requests.", "limits.", "count/")
#: Where a PodGroup's metadata may say its queue, for forms that have no field for it.
_QUEUE_KEYS: Final = (
    "flowsched.io/queue",
    QUEUE_ANNOTATION,
    "volcano.sh/queue-name",
    "kueue.x-k8s.io/queue-name",
)


def _native(group: NativePodGroup) -> Json:
    spec = group.spec
    gang = spec.scheduling_policy.gang
    topology = spec.scheduling_constraints.topology if spec.scheduling_constraints else None
    keys = [each.key for each in topology or ()]
    problem = ""
    if spec.parent_composite_pod_group_name:
        problem = f"it is a part of the CompositePodGroup {spec.parent_composite_pod_group_name!r}, which is not read"
    elif any(key not in RACK_LABELS for key in keys):
        problem = f"schedulingConstraints.topology: of {keys}, only {', '.join(RACK_LABELS)} can be kept"
    minimum = gang.min_count if gang else 1
    return {
        "gang": gang is not None, "minimum": minimum, "rack": "required" if keys else None, "problem": problem
    }  # fmt: skip


def _coscheduling(group: CoschedulingPodGroup) -> Json:
    amounts, problem = _amounts(group.spec.min_resources)
    minimum = group.spec.min_member or 1
    return {"gang": True, "minimum": minimum, "min_resources": amounts, "problem": problem}


def _volcano(group: VolcanoPodGroup) -> Json:
    spec = group.spec
    minimum = spec.min_member or 0
    roles = {role: count for role, count in (spec.min_task_member or {}).items() if count > 0}
    amounts, problem = _amounts(spec.min_resources)
    for each in spec.sub_group_policy or ():
        if (each.min_sub_groups or 0) > 0 or _rack(each.network_topology) == "required":
            problem = problem or f"subGroupPolicy {each.name!r}: groups inside of groups are not read"
    return {
        "gang": minimum > 0,
        "minimum": minimum,
        "role_minimums": roles
        if sum(roles.values()) <= minimum
        else {},  # else Volcano leaves them out of account
        "min_resources": amounts,
        "queue": spec.queue or "",
        "rack": _rack(spec.network_topology),
        "problem": problem,
    }


def _rack(topology: NetworkTopology | None) -> str | None:
    """Volcano's tiers as racks: tier 1 hangs on one switch; a group that may cross into higher tiers only prefers one rack."""
    if topology is None:
        return None
    crosses = (topology.highest_tier_allowed or 1) > 1 or bool(topology.highest_tier_name)
    return "preferred" if topology.mode == "soft" or crosses else "required"


def _amounts(quantities: Amounts | None) -> tuple[Resources | None, str]:
    """`minResources`, and what is wrong with it."""
    amounts = {name: value for name, value in (quantities or {}).items() if not name.startswith(_QUOTA_WORDS)}
    if not amounts:
        return None, ""
    try:
        return resources_of(amounts), ""
    except InvalidRequest as error:
        return None, f"minResources: {error}"


# ---- links: from a pod to its group ----


_VOLCANO_CONSTANT: Final = "scheduling.volcano.sh/group-name"
_KAI_GROUP: Final = "pod-group-name"
_KAI_SUBGROUP: Final = "kai.scheduler/subgroup-name"
_KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
_KUEUE_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_YUNIKORN: Final = "yunikorn.apache.org/"
_YUNIKORN_APPS: Final = (f"{_YUNIKORN}app-id", "applicationId")
_TASK_GROUP: Final = f"{_YUNIKORN}task-group-name"
_TASK_GROUPS: Final = f"{_YUNIKORN}task-groups"
_TASK_PRIORITY: Final = "volcano.sh/task-priority"
_PRIORITY_LIMIT: Final = 1 << 31
#: Where a pod may say its queue, the first that does: our own word, then each project's.
_QUEUES: Final = (
    "flowsched.io/queue",
    QUEUE_ANNOTATION,
    "volcano.sh/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
    "kueue.x-k8s.io/queue-name",
    f"{_YUNIKORN}queue",
)


#: A pod with none of these labels and annotations belongs to no group, unless it is a native one.
_LINKED: Final = frozenset(
    {GROUP_ANNOTATION, _VOLCANO_CONSTANT, PLUGINS_LABEL, _KAI_GROUP, _KUEUE_GROUP, _TASK_GROUP}
)


@dataclass(frozen=True, slots=True)
class GroupLink:
    """To which group a pod belongs, in its own namespace.

    Args:
        kind: "native", "volcano", "scheduler-plugins", "kai", "kueue" or "yunikorn".
        name: Of the group.
        form: Of its PodGroup; NONE = there is none that we read.
    """

    kind: str
    name: str
    form: Form


def _native_group_of(pod: Pod) -> str | None:
    return pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else None


def _annotation(key: str) -> Callable[[Pod], str | None]:
    return lambda pod: pod.metadata.annotations.get(key)


def _label(key: str) -> Callable[[Pod], str | None]:
    return lambda pod: pod.metadata.labels.get(key)


def _yunikorn(pod: Pod) -> str | None:
    """The application, for pods that name a task group: an application without groups is no gang."""
    if not pod.metadata.annotations.get(_TASK_GROUP):
        return None
    return _first_value(pod, _YUNIKORN_APPS)


#: (kind, form, how the group's name is found), in the order in which they are asked.
LINKS: Final[tuple[tuple[str, Form, Callable[[Pod], str | None]], ...]] = (
    ("native", Form.NATIVE_BETA, _native_group_of),
    ("volcano", Form.VOLCANO, _annotation(GROUP_ANNOTATION)),
    ("volcano", Form.VOLCANO, _annotation(_VOLCANO_CONSTANT)),
    ("scheduler-plugins", Form.SCHEDULER_PLUGINS, _label(PLUGINS_LABEL)),
    ("kai", Form.NONE, _annotation(_KAI_GROUP)),
    ("kueue", Form.NONE, _label(_KUEUE_GROUP)),
    ("yunikorn", Form.NONE, _yunikorn),
)


def link_of(pod: Pod, native: Form = Form.NATIVE_BETA) -> GroupLink | None:
    """The group a pod belongs to; None = it is alone.

    Args:
        pod: Any pod, foreign or ours.
        native: The version of native PodGroups that this cluster serves: a pod does not say it.
    """
    meta = pod.metadata
    if (
        pod.spec.scheduling_group is None
        and _LINKED.isdisjoint(meta.annotations)
        and _LINKED.isdisjoint(meta.labels)
    ):
        return None
    for kind, form, find in LINKS:
        name = find(pod)
        if name:
            return GroupLink(kind, name, native if form is Form.NATIVE_BETA else form)
    return None


def role_of(pod: Pod) -> str:
    """Its role in its group: Volcano's task, KAI's sub group, YuniKorn's task group; "" where it has none."""
    metadata = pod.metadata
    candidates = (
        metadata.annotations.get(TASK_SPEC),
        metadata.labels.get(TASK_SPEC),
        metadata.labels.get(_KAI_SUBGROUP),
        metadata.annotations.get(_TASK_GROUP),
    )
    return next((role for role in candidates if role), "")


def queue_of(pod: Pod) -> str:
    """The queue that the pod names; "" = it names none.

    The bare label `queue` is YuniKorn's on pods of its applications; on other pods it may mean anything, and is ignored.
    """
    queue = _first_value(pod, _QUEUES)
    if queue is None and _first_value(pod, _YUNIKORN_APPS) is not None:
        queue = pod.metadata.labels.get("queue")
    return queue or ""


def priority_of(pod: Pod) -> int:
    """Its priority: Volcano's annotation for pods of a group, else the one its class gave it."""
    text = pod.metadata.annotations.get(_TASK_PRIORITY, "")
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 11:
        priority = int(text)
        if -_PRIORITY_LIMIT <= priority < _PRIORITY_LIMIT:
            return priority
    return pod.spec.priority or 0


def read_group(group: PodGroupObject, key: str) -> ForeignGroup:
    """The rule of a group, from one version of its object.

    Args:
        group: The object, of any form.
        key: Under which the engine knows it.
    """
    match group:
        case NativePodGroup():
            rule = _native(group)
        case CoschedulingPodGroup():
            rule = _coscheduling(group)
        case VolcanoPodGroup():
            rule = _volcano(group)
    metadata = group.metadata
    queues = (metadata.annotations.get(each) or metadata.labels.get(each) for each in _QUEUE_KEYS)
    rule["queue"] = rule.get("queue") or next((each for each in queues if each), "default")
    rule["minimum"] = max(1, rule["minimum"])
    return ForeignGroup(
        key=key,
        namespace=metadata.namespace,
        name=metadata.name,
        created_ms=moment_ms(metadata.creation_timestamp) or 0,
        version=metadata.resource_version,
        **rule,
    )


def rule_in(pod: Pod, key: str) -> ForeignGroup | None:
    """The rule of a group that has no object, as one of its pods says it; None = there is an object, or no group.

    Pods of one group should say the same. The caller decides which pod counts: the first, say, since a rule must not
    change while members arrive.
    """
    link = link_of(pod)
    if link is None or link.form is not Form.NONE:
        return None
    match link.kind:
        case "kueue":
            minimum, roles, problem = _kueue_rule(pod)
        case "yunikorn":
            minimum, roles, problem = _yunikorn_rule(pod)
        case _:
            minimum, roles, problem = (
                1,
                {},
                "its PodGroup is KAI's (scheduling.run.ai), which flowsched does not read",
            )
    return ForeignGroup(
        key=key,
        namespace=pod.metadata.namespace,
        name=link.name,
        queue=queue_of(pod) or "default",
        gang=True,
        minimum=max(1, minimum),
        role_minimums=roles,
        created_ms=moment_ms(pod.metadata.creation_timestamp) or 0,
        problem=problem,
    )


_Rule = tuple[int, Mapping[str, int], str]


def _kueue_rule(pod: Pod) -> _Rule:
    """All of so many pods. Kueue has admitted them when its gate is gone; that they start together is our part."""
    text = pod.metadata.annotations.get(_KUEUE_TOTAL, "")
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 6 and int(text) > 0):
        return 1, {}, f"annotation {_KUEUE_TOTAL}: {text[:40]!r} is no number of pods"
    return int(text), {}, ""


class _TaskGroup(msgspec.Struct, rename="camel"):
    """One of YuniKorn's task groups; its pods state their requests themselves, too."""

    name: str
    min_member: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


def _yunikorn_rule(pod: Pod) -> _Rule:
    """So many pods of each task group. Whether it is a Soft or a Hard gang is no matter: a soft one may wait as well."""
    try:
        groups = msgspec.json.decode(pod.metadata.annotations.get(_TASK_GROUPS, ""), type=list[_TaskGroup])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return 1, {}, f"annotation {_TASK_GROUPS}: {error}"
    roles = {group.name: group.min_member for group in groups}
    return sum(roles.values()), roles, ""


def _first_value(pod: Pod, keys: tuple[str, ...]) -> str | None:
    """The first of these that the pod says, as annotation or label."""
    metadata = pod.metadata
    for key in keys:
        value = metadata.annotations.get(key) or metadata.labels.get(key)
        if value:
            return value
    return None


# ---- groups of every form, and what stands for a group where pods have none. No I/O ----
#
# The engine gets the rule of a group once for each version of its object, and rules are never mixed: membership is read from
# pods, the minimum from one object (FAULTS.md row 33). Plain pods of one owner are one group, so that a Job's thousand pods are
# one item.


_ENDED = ("Succeeded", "Failed")


@dataclass(slots=True)
class Group:
    """One group.

    Attributes:
        key: Under which the engine knows it.
        form: Of its object; NONE where pods of one owner stand for a group.
        namespace, name: Of its object.
        reported: The rule as it was told last; None = its object is not there.
        pods: uid -> phase of its pods ("" = not bound yet).
        started: Whether its minimum was on nodes once.
        verdict: Why it waits: (code, message), as last published.
        life: As its status says it.
        written: (life, running, succeeded, failed) as its status says them.
        written_ms: When.
    """

    key: str
    form: Form
    namespace: str
    name: str
    reported: ForeignGroup | None = None
    uid: str = ""
    pods: dict[str, str] = field(default_factory=dict)
    started: bool = False
    verdict: tuple[str, str] = ("", "")
    life: Life | None = None
    written: tuple[Life, int, int, int] | None = None
    written_ms: int = 0

    @property
    def counts(self) -> Counter[str]:
        """Pods by phase."""
        return Counter(self.pods.values())


class GroupBook:
    """All of them.

    Args:
        settings: Which PodGroups are ours: only their status is looked after here.
        report: Takes events.
        native: The version of native PodGroups that this cluster serves.
    """

    def __init__(
        self,
        settings: ReleaseSettings,
        report: Callable[[ClusterEvent], None],
        native: Form = Form.NATIVE_BETA,
    ) -> None:
        self._settings = settings
        self._native = native
        self._report = report
        self.groups: dict[str, Group] = {}
        self._own: dict[str, Group] = {}  #: of our own gangs: the engine knows these itself
        self.dirty: set[str] = set()  #: keys of groups with a status that may have changed

    def everything(self) -> Iterator[ClusterEvent]:
        """All rules once more."""
        return (GroupSeen(group.reported) for group in self.groups.values() if group.reported is not None)

    def find(self, key: str) -> Group | None:
        """A group by its key, our own included."""
        return self.groups.get(key) or self._own.get(key)

    # --- objects ---------------------------------------------------------------------------------------------

    def changed(self, form: Form, batch: Batch[Any]) -> None:
        """PodGroups of a form came, changed or went."""
        if batch.replaced is not None:
            here = {_key(form, each.metadata.namespace, each.metadata.name) for each in batch.replaced}
            known = {**self.groups, **self._own}
            for key in [key for key, group in known.items() if group.form is form and key not in here]:
                self._gone(key)
        for change, each in batch.items():
            if change == "DELETED":
                self._gone(_key(form, each.metadata.namespace, each.metadata.name))
            else:
                taken(partial(self._apply, form), each)

    def _apply(self, form: Form, each: Any) -> None:
        meta = each.metadata
        labels = meta.labels
        key = _key(form, meta.namespace, meta.name)
        if labels.get(MANAGED_BY) == "flowsched" and labels.get(INSTANCE) == label_value(
            self._settings.instance
        ):
            own = self._own.setdefault(key, Group(key, form, meta.namespace, meta.name))
            own.uid, own.reported = meta.uid, read_group(each, key)
            self.dirty.add(key)
            return
        group = self.groups.setdefault(key, Group(key, form, meta.namespace, meta.name))
        started, may_go = _has_started(form, each), preemptible_of(meta)
        rule = replace(read_group(each, key), started=started, preemptible=may_go)
        if group.uid and group.uid != meta.uid:  # another object of the same name
            self._report(GroupGone(key))
            group.started, group.life, group.verdict, group.written = False, None, ("", ""), None
        group.uid = meta.uid
        if group.reported is None or replace(group.reported, version="") != replace(rule, version=""):
            self._report(GroupSeen(rule))
        group.reported = rule
        self.dirty.add(key)

    def _gone(self, key: str) -> None:
        self._own.pop(key, None)
        group = self.groups.get(key)
        if group is None or group.form is Form.NONE:
            return
        if group.reported is not None:
            self._report(GroupGone(key))
        group.reported, group.uid, group.life, group.written = None, "", None, None
        if not group.pods:
            del self.groups[key]

    # --- pods ------------------------------------------------------------------------------------------------

    def place_of(self, pod: Pod) -> tuple[str, str]:
        """(key of its group, role in it)."""
        link = link_of(pod, self._native)
        if link is None:
            return _owner_key(pod), ""
        if link.form is Form.NONE:
            return f"{link.kind}/{pod.metadata.namespace}/{link.name}", role_of(pod)
        return _key(link.form, pod.metadata.namespace, link.name), role_of(pod)

    def queue_of(self, pod: Pod, key: str) -> str:
        """The queue that is charged for a pod: its group's, else the one that it names itself."""
        group = self.groups.get(key)
        if group is not None and group.reported is not None and group.reported.queue:
            return group.reported.queue
        return queue_of(pod) or "default"

    def observe(self, pod: Pod, key: str) -> None:
        """A pod of a group that we schedule, or have scheduled."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._implied_group(pod, key, link_of(pod, self._native))
        self._note(group, pod)

    def observe_own(self, pod: Pod) -> None:
        """A pod of a gang of ours, for the status of its PodGroup. One that has ended counts until the group is removed."""
        link = link_of(pod, self._native)
        if link is None or link.form is Form.NONE or pod.metadata.labels.get(MANAGED_BY) != "flowsched":
            return
        key = _key(link.form, pod.metadata.namespace, link.name)
        if key not in self._own and (pod.metadata.deletion_timestamp or pod.status.phase in _ENDED):
            return  # its group is gone
        self._note(self._own.setdefault(key, Group(key, link.form, pod.metadata.namespace, link.name)), pod)

    def _note(self, group: Group, pod: Pod) -> None:
        phase = pod.status.phase if pod.spec.node_name or pod.status.phase in _ENDED else ""
        if group.pods.get(pod.metadata.uid) != phase:
            group.pods[pod.metadata.uid] = phase
            self.dirty.add(group.key)

    def lost(self, uid: str, key: str) -> None:
        """A pod is no more."""
        group = self.groups.get(key)
        if group is None:
            return
        group.pods.pop(uid, None)
        self.dirty.add(key)
        if not group.pods and (group.form is Form.NONE or group.reported is None):
            if group.reported is not None:
                self._report(GroupGone(key))
            del self.groups[key]

    def _implied_group(self, pod: Pod, key: str, link: GroupLink | None) -> Group:
        """A group that has no PodGroup object, or one that has not been seen yet."""
        meta = pod.metadata
        if link is not None:
            stated = rule_in(pod, key)
            if stated is not None:
                self._report(GroupSeen(stated))
            return Group(key, link.form, meta.namespace, link.name, reported=stated)
        owner = controller_of(pod)
        name = owner.name if owner is not None else meta.name
        rule = ForeignGroup(
            key=key,
            namespace=meta.namespace,
            name=name,
            queue=queue_of(pod) or "default",
            created_ms=moment_ms(meta.creation_timestamp) or 0,
        )
        self._report(GroupSeen(rule))
        return Group(key, Form.NONE, meta.namespace, name, reported=rule)


def _has_started(form: Form, each: Any) -> bool:
    """Whether a group's status, which only its scheduler writes, says that its minimum was on nodes once."""
    status = each.status
    if status is None:
        return False
    if form.native:
        types = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
        return any(c.type in types and c.status == "True" for c in status.conditions or ())
    return (status.phase or "") in ("Scheduling", "Running", "Unknown", "Completed", "Finished", "Failed")


def _key(form: Form, namespace: str, name: str) -> str:
    return f"{form.value}/{namespace}/{name}"


def _owner_key(pod: Pod) -> str:
    """Pods of one controller are one group; a pod without is one by itself."""
    owner = controller_of(pod)
    return f"pods/{pod.metadata.namespace}/{pod.metadata.uid if owner is None else owner.uid}"
