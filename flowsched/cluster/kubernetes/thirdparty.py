"""Others' gangs: to which group a pod belongs, in which role, who pays; and what the rule of a group is. Pure.

Six projects link pods to groups in six ways; the order in which they are asked is that of `LINKS`. Three of them have a
PodGroup that we read. Kueue and YuniKorn write the rule on the pods themselves (`rule_in`). KAI's PodGroups are not read: its
pods wait, and are told so.

What is written by people is data: nothing here raises, and what cannot be understood makes a group that says why it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from flowsched.cluster.kubernetes.forms import (
    GROUP_ANNOTATION,
    PLUGINS_LABEL,
    QUEUE_ANNOTATION,
    TASK_SPEC,
    Form,
)
from flowsched.cluster.kubernetes.grouprules import PodGroupObject, read_policy
from flowsched.cluster.kubernetes.metadata import moment_ms
from flowsched.cluster.kubernetes.pod import Pod
from flowsched.cluster.kubernetes.podspec import DEFAULT_GPU
from flowsched.executor.foreign import ForeignGroup

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


def _native(pod: Pod) -> str | None:
    return pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else None


def _annotation(key: str) -> Callable[[Pod], str | None]:
    return lambda pod: pod.metadata.annotations.get(key)


def _label(key: str) -> Callable[[Pod], str | None]:
    return lambda pod: pod.metadata.labels.get(key)


def _yunikorn(pod: Pod) -> str | None:
    """The application, for pods that name a task group: an application without groups is no gang."""
    if not pod.metadata.annotations.get(_TASK_GROUP):
        return None
    return _said(pod, _YUNIKORN_APPS)


#: (kind, form, how the group's name is found), in the order in which they are asked.
LINKS: Final[tuple[tuple[str, Form, Callable[[Pod], str | None]], ...]] = (
    ("native", Form.NATIVE_BETA, _native),
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
        pod: Anybody's.
        native: The version of native PodGroups that this cluster serves: a pod does not say it.
    """
    for kind, form, find in LINKS:
        name = find(pod)
        if name:
            return GroupLink(kind, name, native if form is Form.NATIVE_BETA else form)
    return None


def role_of(pod: Pod) -> str:
    """Its role in its group: Volcano's task, KAI's sub group, YuniKorn's task group; "" where it has none."""
    metadata = pod.metadata
    said = (
        metadata.annotations.get(TASK_SPEC),
        metadata.labels.get(TASK_SPEC),
        metadata.labels.get(_KAI_SUBGROUP),
        metadata.annotations.get(_TASK_GROUP),
    )
    return next((role for role in said if role), "")


def queue_of(pod: Pod) -> str:
    """Who pays, as the pod says it; "" = it does not.

    The bare label `queue` is YuniKorn's on pods of its applications, and anybody's elsewhere.
    """
    said = _said(pod, _QUEUES)
    if said is None and _said(pod, _YUNIKORN_APPS) is not None:
        said = pod.metadata.labels.get("queue")
    return said or ""


def priority_of(pod: Pod) -> int:
    """Its priority: Volcano's annotation for pods of a group, else the one its class gave it."""
    text = pod.metadata.annotations.get(_TASK_PRIORITY, "")
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 11:
        priority = int(text)
        if -_PRIORITY_LIMIT <= priority < _PRIORITY_LIMIT:
            return priority
    return pod.spec.priority or 0


def read_group(form: Form, group: PodGroupObject, key: str, gpu_resource: str = DEFAULT_GPU) -> ForeignGroup:
    """The rule of a group, from one version of its object.

    Args:
        form: Of the object; the object knows it too.
        group: The object.
        key: Under which the engine knows it.
        gpu_resource: What whole GPUs are called in its amounts.
    """
    policy = read_policy(group, gpu_resource)
    return ForeignGroup(
        key=key,
        namespace=policy.namespace,
        name=policy.name,
        queue=policy.queue or "default",
        gang=policy.gang,
        minimum=max(1, policy.min_member),
        role_minimums=policy.role_minimums,
        min_resources=policy.min_resources,
        rack=policy.rack,
        created_ms=policy.created_ms,
        version=policy.resource_version,
        problem=policy.problem,
    )


def rule_in(pod: Pod, key: str) -> ForeignGroup | None:
    """The rule of a group that has no object, as one of its pods says it; None = there is an object, or no group.

    Pods of one group should say the same. Whose word counts is the caller's affair: the first one's, say, since a rule must not
    change while members arrive.
    """
    link = link_of(pod)
    if link is None or link.form is not Form.NONE:
        return None
    rules = {"kueue": _kueue_rule, "yunikorn": _yunikorn_rule}
    gang, minimum, roles, problem = rules.get(link.kind, _kai_rule)(pod)
    return ForeignGroup(
        key=key,
        namespace=pod.metadata.namespace,
        name=link.name,
        queue=queue_of(pod) or "default",
        gang=gang,
        minimum=max(1, minimum),
        role_minimums=roles,
        created_ms=moment_ms(pod.metadata.creation_timestamp) or 0,
        problem=problem,
    )


_Rule = tuple[bool, int, Mapping[str, int], str]


def _kueue_rule(pod: Pod) -> _Rule:
    """All of so many pods. Kueue has admitted them when its gate is gone; that they start together is our part."""
    text = pod.metadata.annotations.get(_KUEUE_TOTAL, "")
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 6 and int(text) > 0):
        return True, 1, {}, f"annotation {_KUEUE_TOTAL}: {text[:40]!r} is no number of pods"
    return True, int(text), {}, ""


class _TaskGroup(msgspec.Struct, rename="camel"):
    """One of YuniKorn's task groups; what its pods ask for is said by the pods too."""

    name: str
    min_member: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


def _yunikorn_rule(pod: Pod) -> _Rule:
    """So many pods of each task group. Whether it is a Soft or a Hard gang is no matter: a soft one may wait as well."""
    try:
        groups = msgspec.json.decode(pod.metadata.annotations.get(_TASK_GROUPS, ""), type=list[_TaskGroup])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return True, 1, {}, f"annotation {_TASK_GROUPS}: {error}"
    roles = {group.name: group.min_member for group in groups}
    return True, sum(roles.values()), roles, ""


def _kai_rule(pod: Pod) -> _Rule:
    return True, 1, {}, "its PodGroup is KAI's (scheduling.run.ai), which flowsched does not read"


def _said(pod: Pod, keys: tuple[str, ...]) -> str | None:
    """The first of these that the pod says, as annotation or label."""
    metadata = pod.metadata
    for key in keys:
        said = metadata.annotations.get(key) or metadata.labels.get(key)
        if said:
            return said
    return None
