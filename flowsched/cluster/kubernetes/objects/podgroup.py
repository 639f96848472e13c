"""PodGroups in the three forms that we schedule, which of them a server serves, their status, and Volcano queues. Pure.

Fields are as in PEERS.md. Operators and people write these objects, so what may be left out may also be null.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.objects.metadata import Amounts, Condition, Metadata, Read
from flowsched.cluster.kubernetes.objects.names import dns_label, label_value
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE, STRATEGIC
from flowsched.errors import ConfigurationError


class GangPolicy(Read, frozen=True):
    """So many pods at once, or none."""

    min_count: int = 0


class SchedulingPolicy(Read, frozen=True):
    """Of a native PodGroup: a gang, or (basic) pod by pod."""

    gang: GangPolicy | None = None


class TopologyConstraint(Read, frozen=True):
    """All pods in one domain of a node label."""

    key: str = ""


class SchedulingConstraints(Read, frozen=True):
    """Of a native PodGroup."""

    topology: tuple[TopologyConstraint, ...] | None = None


class NativePodGroupSpec(Read, frozen=True):
    """The needs of the group."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    parent_composite_pod_group_name: str | None = None


class NativePodGroupStatus(Read, frozen=True):
    """PodGroupScheduled in v1alpha2, PodGroupInitiallyScheduled in v1beta1."""

    conditions: tuple[Condition, ...] | None = None


class NativePodGroup(Read, frozen=True):
    """`podgroups.scheduling.k8s.io`, v1alpha2 and v1beta1."""

    metadata: Metadata = Metadata()
    spec: NativePodGroupSpec = NativePodGroupSpec()
    status: NativePodGroupStatus | None = None


class CoschedulingPodGroupSpec(Read, frozen=True):
    """The needs of the group."""

    min_member: int | None = None
    min_resources: Amounts | None = None


class CoschedulingPodGroupStatus(Read, frozen=True):
    """Pending, Scheduling, Running, Unknown, Finished, Failed."""

    phase: str | None = None


class CoschedulingPodGroup(Read, frozen=True):
    """`podgroups.scheduling.x-k8s.io` v1alpha1, of scheduler-plugins."""

    metadata: Metadata = Metadata()
    spec: CoschedulingPodGroupSpec = CoschedulingPodGroupSpec()
    status: CoschedulingPodGroupStatus | None = None


class NetworkTopology(Read, frozen=True):
    """How near to each other (by tier) the pods must (hard) or should (soft) be."""

    mode: str | None = None
    highest_tier_allowed: int | None = None
    highest_tier_name: str | None = None


class SubGroupPolicy(Read, frozen=True):
    """Pods of a group that belong together more closely."""

    name: str = ""
    network_topology: NetworkTopology | None = None
    min_sub_groups: int | None = None


class VolcanoPodGroupSpec(Read, frozen=True):
    """The needs of the group. Without `min_resources` Volcano checks no quota before it lets the group in."""

    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    queue: str | None = None
    min_resources: Amounts | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] | None = None


class VolcanoPodGroupStatus(Read, frozen=True):
    """Pending, Inqueue (its pods may be created), Running, Unknown, Completed."""

    phase: str | None = None


class VolcanoPodGroup(Read, frozen=True):
    """`podgroups.scheduling.volcano.sh` v1beta1. Its status is no subresource: patch the object."""

    metadata: Metadata = Metadata()
    spec: VolcanoPodGroupSpec = VolcanoPodGroupSpec()
    status: VolcanoPodGroupStatus | None = None


# ---- the forms, and which of them an API server serves ----
#
# Four resources are called `podgroups`: paths and discovery go by group and version, never by the short name.


#: The annotation Volcano's scheduler reads. Written beside the native field too: an API server with the feature gate off
#: silently drops that field.
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
PLUGINS_LABEL: Final = "scheduling.x-k8s.io/pod-group"
TASK_SPEC: Final = "volcano.sh/task-spec"
QUEUE_ANNOTATION: Final = "scheduling.volcano.sh/queue-name"


class Form(StrEnum):
    """The apiVersion of a PodGroup; NONE = the cluster knows none, and our own loop alone keeps a gang together."""

    NATIVE_BETA = "scheduling.k8s.io/v1beta1"
    NATIVE_ALPHA = "scheduling.k8s.io/v1alpha2"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io/v1alpha1"
    VOLCANO = "scheduling.volcano.sh/v1beta1"
    NONE = ""

    @property
    def native(self) -> bool:
        """Whether Kubernetes itself defines it."""
        return self in (Form.NATIVE_BETA, Form.NATIVE_ALPHA)


#: The values of the setting, and the forms that each allows, the preferred first.
WISHES: Final[Mapping[str, tuple[Form, ...]]] = {
    "auto": (Form.NATIVE_BETA, Form.NATIVE_ALPHA, Form.SCHEDULER_PLUGINS, Form.VOLCANO, Form.NONE),
    "native": (Form.NATIVE_BETA, Form.NATIVE_ALPHA),
    "scheduler-plugins": (Form.SCHEDULER_PLUGINS,),
    "volcano": (Form.VOLCANO,),
    "none": (Form.NONE,),
}


@dataclass(frozen=True, slots=True)
class PodLink:
    """The labels, annotations and spec fields by which a pod belongs to a PodGroup."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def choose_form(discovered: Mapping[str, Set[str]], wanted: str = "auto") -> Form:
    """The form our own gangs get.

    Args:
        discovered: Group and version (`scheduling.k8s.io/v1alpha2`) -> kinds that the API server serves in it. The
            kinds matter: `scheduling.k8s.io/v1beta1` once was PriorityClass alone.
        wanted: A key of `WISHES`.

    Raises:
        ConfigurationError: There is no such wish, or the cluster does not serve what is wished for.
    """
    if wanted not in WISHES:
        raise ConfigurationError(f"PodGroups cannot be {wanted!r}: one of {', '.join(WISHES)}")
    for form in WISHES[wanted]:
        if form is Form.NONE or "PodGroup" in discovered.get(form.value, ()):
            return form
    versions = " or ".join(form.value for form in WISHES[wanted])
    raise ConfigurationError(
        f"the API server serves no PodGroup of {versions}, which {wanted!r} means: install it, or choose another form"
    )


def group_path(form: Form, namespace: str, name: str = "") -> str:
    """Where PodGroups of a form are, or one of them."""
    where = f"/apis/{form.value}/namespaces/{namespace}/podgroups"
    return f"{where}/{name}" if name else where


def volcano_queue(queue: str) -> str:
    """A queue's name as Volcano allows it (no capitals, no `_`); "" stays ""."""
    return dns_label(queue) if queue else ""


def pod_link(form: Form, group: str, role: str = "", queue: str = "") -> PodLink:
    """The fields of a pod that link it to its group, by the form of the group.

    Args:
        form: Of the group.
        group: Its name.
        role: Of the pod, if it has one.
        queue: Of the group, if it says one.
    """
    match form:
        case Form.NONE:
            return PodLink()
        case Form.SCHEDULER_PLUGINS:
            return PodLink(labels={PLUGINS_LABEL: label_value(group)})
        case Form.VOLCANO:
            marks = {GROUP_ANNOTATION: group, TASK_SPEC: role, QUEUE_ANNOTATION: volcano_queue(queue)}
            return PodLink(annotations={key: value for key, value in marks.items() if value})
    marks = {GROUP_ANNOTATION: group, TASK_SPEC: role}
    return PodLink(
        spec={"schedulingGroup": {"podGroupName": group}},
        annotations={key: value for key, value in marks.items() if value},
    )


# ---- the status of a group ----
#
# flowsched writes the status of every group that it schedules.


#: Kubernetes takes no longer message in a condition.
LONGEST_MESSAGE: Final = 32_768

Json = dict[str, Any]


class Life(StrEnum):
    """How far a group has got, as its scheduler sees it."""

    ACCEPTED = "accepted"  #: seen; nothing decided
    ADMITTED = "admitted"  #: its pods may be created (what Volcano calls Inqueue)
    UNSCHEDULABLE = "unschedulable"  #: there is no room for its minimum
    SCHEDULED = "scheduled"  #: its minimum is bound
    RUNNING = "running"  #: its minimum runs
    PARTIAL = "partial"  #: some of its minimum run, the rest cannot
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"  #: about to be taken away for others


_VOLCANO_PHASES: Final[Mapping[Life, str]] = {
    Life.ACCEPTED: "Pending",
    Life.ADMITTED: "Inqueue",
    Life.UNSCHEDULABLE: "Inqueue",  # it stays admitted: its controller may go on creating pods
    Life.SCHEDULED: "Running",  # bound pods count, as in Volcano
    Life.RUNNING: "Running",
    Life.PARTIAL: "Unknown",
    Life.FINISHED: "Completed",
    Life.FAILED: "Completed",  # Volcano counts what ended, however it ended
}
_PLUGINS_PHASES: Final[Mapping[Life, str]] = {
    Life.ACCEPTED: "Pending",
    Life.ADMITTED: "Pending",
    Life.UNSCHEDULABLE: "Pending",
    Life.SCHEDULED: "Scheduling",  # enough are bound, not enough run
    Life.RUNNING: "Running",
    Life.PARTIAL: "Unknown",
    Life.FINISHED: "Finished",
    Life.FAILED: "Failed",
}
#: Condition type, status, and the reason where none is given.
_VOLCANO_CONDITIONS: Final[Mapping[Life, tuple[str, str, str]]] = {
    Life.UNSCHEDULABLE: ("Unschedulable", "True", "NotEnoughResources"),
    Life.PARTIAL: ("Unschedulable", "True", "NotEnoughResources"),
    Life.FAILED: ("Unschedulable", "True", "PodFailed"),
    Life.SCHEDULED: ("Scheduled", "True", "Scheduled"),
    Life.RUNNING: ("Scheduled", "True", "Scheduled"),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """A group's state, to be written into its status.

    Args:
        life: How far it has got.
        at: Since when, as the API writes moments.
        reason: One CamelCase word; "" = the form's usual one.
        message: For people.
        running, succeeded, failed: Pods.
        transition: The id of the decision (Volcano's transitionID).
        started: Whether its minimum was bound before: then a native group stays "scheduled" for ever.
    """

    life: Life
    at: str
    reason: str = ""
    message: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    transition: str = ""
    started: bool = False


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """A PATCH of a group's status: `suffix` goes behind the object's path."""

    suffix: str
    content_type: str
    body: bytes


def status_patch(form: Form, observed: Observed) -> StatusPatch | None:
    """The status of a group; None where its form has no word for this.

    Volcano's status is no subresource, and a merge patch replaces its list of conditions as a whole: it is ours alone to
    write for groups that we schedule. Expect conflicts all the same.
    """
    match form:
        case Form.VOLCANO:
            return _volcano_status(observed)
        case Form.SCHEDULER_PLUGINS:
            return _plugins_status(observed)
        case Form.NATIVE_ALPHA | Form.NATIVE_BETA:
            return _native_status(form, observed)
        case Form.NONE:
            return None


def _volcano_status(observed: Observed) -> StatusPatch | None:
    if observed.life not in _VOLCANO_PHASES:
        return None
    status: Json = {"phase": _VOLCANO_PHASES[observed.life], **_counts(observed)}
    if observed.life in _VOLCANO_CONDITIONS:
        kind, value, reason = _VOLCANO_CONDITIONS[observed.life]
        condition = {
            "type": kind,
            "status": value,
            "transitionID": observed.transition,
            "lastTransitionTime": observed.at,
            "reason": observed.reason or reason,
            "message": observed.message[:LONGEST_MESSAGE],
        }
        status["conditions"] = [condition]
    return StatusPatch("", MERGE, msgspec.json.encode({"status": status}))


def _plugins_status(observed: Observed) -> StatusPatch | None:
    if observed.life not in _PLUGINS_PHASES:
        return None
    status: Json = {"phase": _PLUGINS_PHASES[observed.life], **_counts(observed)}
    if observed.life is Life.SCHEDULED:
        status["scheduleStartTime"] = observed.at
    return StatusPatch("/status", MERGE, msgspec.json.encode({"status": status}))


def _counts(observed: Observed) -> Json:
    return {"running": observed.running, "succeeded": observed.succeeded, "failed": observed.failed}


def _native_status(form: Form, observed: Observed) -> StatusPatch | None:
    """Conditions are merged by type, so only this one is said."""
    kind = "PodGroupScheduled" if form is Form.NATIVE_ALPHA else "PodGroupInitiallyScheduled"
    match observed.life:
        case Life.UNSCHEDULABLE | Life.PARTIAL if not observed.started:
            kind, status, reason = (kind, "False", observed.reason or "Unschedulable")
        case Life.SCHEDULED | Life.RUNNING:
            kind, status, reason = (kind, "True", observed.reason or "Scheduled")
        case Life.PREEMPTED:
            kind, status, reason = ("DisruptionTarget", "True", observed.reason or "PreemptionByScheduler")
        case _:
            return None
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": observed.message[:LONGEST_MESSAGE],
        "lastTransitionTime": observed.at,
    }
    body = msgspec.json.encode({"status": {"conditions": [condition]}})
    return StatusPatch("/status", STRATEGIC, body)
