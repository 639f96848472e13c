"""PodGroups as we write them: our own gangs' in the form that the cluster serves, and the status of anybody's. Pure.

Our own loop does not need a PodGroup to keep a gang together; others do: a scheduler that gangs are handed over to, a
controller that waits for `Inqueue`, a person with kubectl. Status is written for every group that we schedule, since nobody
else will: kube-scheduler leaves alone whatever names another scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.amounts import quantities
from flowsched.cluster.kubernetes.forms import Form, volcano_queue
from flowsched.cluster.kubernetes.marks import GROUP, STAGE, WORKFLOW, common_labels, owner_reference
from flowsched.cluster.kubernetes.names import label_value
from flowsched.cluster.kubernetes.release import Owner, ReleaseSettings
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Resources

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
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
        transition: What the decision belongs to (Volcano's transitionID).
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
    """What to PATCH: `suffix` goes behind the object's path."""

    suffix: str
    content_type: str
    body: bytes


def group_manifest(
    form: Form,
    name: str,
    pod: Pod,
    settings: ReleaseSettings,
    min_resources: Resources | None = None,
    owner: Owner | None = None,
) -> bytes:
    """The PodGroup of one of our gangs: all members that were given seats, or none.

    Args:
        form: Which; never NONE.
        name: Of the group.
        pod: Any of its members.
        settings: Of the installation.
        min_resources: What all members ask for together. None = left out where roles may ask for different things, since one
            member does not know of the others.
        owner: With which the group goes.
    """
    roles = Counter(pod.gang.roles) if pod.gang else Counter({"task": 1})
    amounts = _min_resources(pod, roles, min_resources, settings)
    spec: Json
    match form:
        case Form.NATIVE_ALPHA | Form.NATIVE_BETA:
            spec = _native_spec(form, roles.total(), settings)
        case Form.SCHEDULER_PLUGINS:
            spec = {"minMember": roles.total(), "minResources": amounts}
        case Form.VOLCANO:
            spec = _volcano_spec(roles, amounts, pod, settings)
        case Form.NONE:
            raise ValueError("a group without a form has no PodGroup")
    metadata: Json = {
        "name": name,
        "namespace": settings.namespace,
        "labels": common_labels(settings, "gang")
        | {GROUP: label_value(name), WORKFLOW: label_value(pod.workflow), STAGE: label_value(pod.stage)},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return msgspec.json.encode(
        {
            "apiVersion": form.value,
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": {key: value for key, value in spec.items() if value},
        }
    )


def _native_spec(form: Form, members: int, settings: ReleaseSettings) -> Json:
    """In v1alpha2 all but the policy is forbidden unless further gates are open."""
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": members}}}
    if form is Form.NATIVE_BETA:
        spec |= {"disruptionMode": {"all": {}}, "priorityClassName": settings.priority_class}
    return spec


def _volcano_spec(roles: Mapping[str, int], amounts: Json, pod: Pod, settings: ReleaseSettings) -> Json:
    rack = pod.rules.rack if pod.rules else None
    modes = {"required": "hard", "preferred": "soft"}
    return {
        "minMember": sum(roles.values()),
        "minTaskMember": dict(roles),
        "minResources": amounts,
        "queue": volcano_queue(pod.queue),
        "priorityClassName": settings.priority_class,
        # Tier 1 is what hangs on one switch, as near to a rack as Volcano's words come.
        "networkTopology": {"mode": modes[rack], "highestTierAllowed": 1} if rack else {},
    }


def _min_resources(
    pod: Pod, roles: Mapping[str, int], told: Resources | None, settings: ReleaseSettings
) -> dict[str, str]:
    if told is not None:
        return quantities(told, settings.gpu_resource)
    if len(roles) > 1:
        return {}
    one = Resources(pod.cpu_millicores, pod.memory_bytes, pod.disk_bytes, pod.gpu_millis, pod.extended)
    return quantities(one, settings.gpu_resource, sum(roles.values()))


def status_patch(form: Form, seen: Observed) -> StatusPatch | None:
    """The status of a group; None where its form has no word for this.

    Volcano's status is no subresource, and a merge patch replaces its list of conditions as a whole: it is ours alone to
    write for groups that we schedule. Expect conflicts all the same.
    """
    match form:
        case Form.VOLCANO:
            return _volcano_status(seen)
        case Form.SCHEDULER_PLUGINS:
            return _plugins_status(seen)
        case Form.NATIVE_ALPHA | Form.NATIVE_BETA:
            return _native_status(form, seen)
        case Form.NONE:
            return None


def _volcano_status(seen: Observed) -> StatusPatch | None:
    if seen.life not in _VOLCANO_PHASES:
        return None
    status: Json = {"phase": _VOLCANO_PHASES[seen.life], **_counts(seen)}
    if seen.life in _VOLCANO_CONDITIONS:
        kind, value, reason = _VOLCANO_CONDITIONS[seen.life]
        condition = {
            "type": kind,
            "status": value,
            "transitionID": seen.transition,
            "lastTransitionTime": seen.at,
            "reason": seen.reason or reason,
            "message": seen.message[:LONGEST_MESSAGE],
        }
        status["conditions"] = [condition]
    return StatusPatch("", MERGE, msgspec.json.encode({"status": status}))


def _plugins_status(seen: Observed) -> StatusPatch | None:
    if seen.life not in _PLUGINS_PHASES:
        return None
    status: Json = {"phase": _PLUGINS_PHASES[seen.life], **_counts(seen)}
    if seen.life is Life.SCHEDULED:
        status["scheduleStartTime"] = seen.at
    return StatusPatch("/status", MERGE, msgspec.json.encode({"status": status}))


def _counts(seen: Observed) -> Json:
    return {"running": seen.running, "succeeded": seen.succeeded, "failed": seen.failed}


def _native_status(form: Form, seen: Observed) -> StatusPatch | None:
    """Conditions are merged by type, so only this one is said."""
    kind = "PodGroupScheduled" if form is Form.NATIVE_ALPHA else "PodGroupInitiallyScheduled"
    match seen.life:
        case Life.UNSCHEDULABLE | Life.PARTIAL if not seen.started:
            told = (kind, "False", seen.reason or "Unschedulable")
        case Life.SCHEDULED | Life.RUNNING:
            told = (kind, "True", seen.reason or "Scheduled")
        case Life.PREEMPTED:
            told = ("DisruptionTarget", "True", seen.reason or "PreemptionByScheduler")
        case _:
            return None
    condition = {
        "type": told[0],
        "status": told[1],
        "reason": told[2],
        "message": seen.message[:LONGEST_MESSAGE],
        "lastTransitionTime": seen.at,
    }
    body = msgspec.json.encode({"status": {"conditions": [condition]}})
    return StatusPatch("/status", STRATEGIC, body)
