"""Objects of a gang beside its pods: the PodGroup, the Service by which members find each other, the Secret, and group statuses.

Our own loop does not need a PodGroup to keep a gang together. Others do: a scheduler that gangs are handed over to, a
controller that waits for `Inqueue`, a person with kubectl. flowsched writes the status of every group that it schedules, since
no other controller does: kube-scheduler leaves alone what names another scheduler.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
import structlog

from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Permanent, Unreachable, judge
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata
from flowsched.cluster.kubernetes.objects.podgroup import Form, group_path, volcano_queue
from flowsched.cluster.kubernetes.pods.container_task import TOKEN_KEY
from flowsched.cluster.kubernetes.pods.labels import GROUP, STAGE, WORKFLOW, common_labels, owner_reference
from flowsched.cluster.kubernetes.pods.manifest import quantities
from flowsched.cluster.kubernetes.pods.names import dns_label, group_name, label_value
from flowsched.cluster.kubernetes.pods.release import GroupRef, Owner, Refusal, ReleaseSettings
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


# ---- the objects of our own gangs ----
#
# All three belong to one generation of one shard, are made before its first pod and removed after its last. Making them twice
# is making them once.


log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0


def gang_service(group: str, settings: ReleaseSettings, owner: Owner | None = None) -> bytes:
    """The headless Service by which a gang's members find each other, also before they are ready."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(group, settings, owner),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {GROUP: label_value(group)},
            },
        }
    )


def gang_secret(group: str, token: str, settings: ReleaseSettings, owner: Owner | None = None) -> bytes:
    """The Secret that holds what a gang's members share, so that it stands in no pod."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(group, settings, owner),
            "type": "Opaque",
            "immutable": True,
            "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
        }
    )


def _metadata(group: str, settings: ReleaseSettings, owner: Owner | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": group,
        "namespace": settings.namespace,
        "labels": common_labels(settings, "gang") | {GROUP: label_value(group)},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return metadata


class _Denied(Exception):
    """What a gang needs will never be made."""


@dataclass(slots=True, eq=False)
class _Gang:
    """One generation of one shard."""

    name: str
    members: set[str] = field(default_factory=set)
    made: asyncio.Task[GroupRef | Refusal] | None = None


class GangObjects:
    """The gangs that live.

    Args:
        client: Of the API server.
        settings: How pods are released.
        form: Of their PodGroups.
    """

    def __init__(self, client: Client, settings: ReleaseSettings, form: Form) -> None:
        self._client = client
        self._settings = settings
        self.form = form
        self._gangs: dict[str, _Gang] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def name_of(self, pod: Pod) -> str | None:
        """The name of a pod's group; None if it is alone."""
        if pod.gang is None:
            return None
        return group_name(pod.workflow, pod.stage, pod.shard, pod.gang.generation)

    def member(self, pod: Pod) -> None:
        """A pod of a gang lives (it was found there)."""
        name = self.name_of(pod)
        if name is not None:
            self._gangs.setdefault(name, _Gang(name)).members.add(pod.name)

    def left(self, pod: Pod) -> asyncio.Task[None] | None:
        """A pod is no more; with the last one the rest goes: that is what is returned then."""
        name = self.name_of(pod)
        gang = self._gangs.get(name) if name is not None else None
        if gang is None:
            return None
        gang.members.discard(pod.name)
        if gang.members:
            return None
        del self._gangs[gang.name]
        return self._start_removing(gang)

    def stray(self, name: str) -> asyncio.Task[None] | None:
        """The last pod of a gang that is known by its name alone is to go: the rest goes before it."""
        return None if name in self._gangs else self._start_removing(_Gang(name))

    def _start_removing(self, gang: _Gang) -> asyncio.Task[None]:
        task = asyncio.create_task(self._remove(gang), name=f"remove {gang.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stop working."""
        tasks = [*self._tasks, *(gang.made for gang in self._gangs.values() if gang.made is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ready(self, pod: Pod, told: Callable[[str], None]) -> GroupRef | Refusal | None:
        """See to it that a pod's group is there; a Refusal if it never will be.

        Args:
            pod: One of its members.
            told: Is told why it takes long.
        """
        if pod.gang is None:
            return None
        self.member(pod)
        gang = self._gangs[self.name_of(pod) or ""]
        if gang.made is None:
            gang.made = asyncio.create_task(self._make(gang, pod, told), name=f"make {gang.name}")
        return await asyncio.shield(gang.made)

    async def _make(self, gang: _Gang, pod: Pod, told: Callable[[str], None]) -> GroupRef | Refusal:
        try:
            return await self._make_all(gang, pod, told)
        except _Denied as denied:
            return Refusal("StartFailed", str(denied))

    async def _make_all(self, gang: _Gang, pod: Pod, told: Callable[[str], None]) -> GroupRef:
        assert pod.gang is not None
        settings, space = self._settings, self._settings.namespace
        owner = None
        if self.form is not Form.NONE:
            body = group_manifest(self.form, gang.name, pod, settings)
            meta = await self._create(group_path(self.form, space), gang.name, body, told)
            owner = Owner(self.form.value, "PodGroup", gang.name, meta.metadata.uid)
        core = f"/api/v1/namespaces/{space}"
        name = dns_label(gang.name)
        await self._create(f"{core}/services", name, gang_service(gang.name, settings, owner), told)
        secret = gang_secret(gang.name, pod.gang.token, settings, owner)
        await self._create(f"{core}/secrets", name, secret, told)
        return GroupRef(gang.name, self.form, owner, pod.queue)

    async def _create(self, path: str, name: str, body: bytes, told: Callable[[str], None]) -> OnlyMetadata:
        """Create an object, or find it there. Tries until it is so.

        Raises:
            _Denied: It will never be: a policy forbids it, or it is not valid.
        """
        pause = _FIRST_PAUSE_S
        while True:
            try:
                answer = await self._client.call("POST", path, body=body)
                if answer.ok:
                    return decoded(answer.body, OnlyMetadata, path)
                if answer.reason == "AlreadyExists":
                    if path.endswith("/secrets"):
                        return OnlyMetadata()  # it may be made, and not read
                    found = await self._client.get(f"{path}/{name}", OnlyMetadata)
                    if found is not None:
                        return found
                verdict = judge(answer)
                if isinstance(verdict, Permanent):
                    raise _Denied(f"{path}: {verdict.message}")
                told(f"{path}: {verdict.reason}: {answer.message}")
            except Unreachable as silence:
                told(str(silence))
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    async def _remove(self, gang: _Gang) -> None:
        """What is left of a gang; the garbage collector would do it too where there is a PodGroup that owns the rest."""
        if gang.made is not None and not gang.made.done():
            gang.made.cancel()
            await asyncio.gather(gang.made, return_exceptions=True)
        space, name = self._settings.namespace, dns_label(gang.name)
        paths = [f"/api/v1/namespaces/{space}/services/{name}", f"/api/v1/namespaces/{space}/secrets/{name}"]
        if self.form is not Form.NONE:
            paths.append(group_path(self.form, space, gang.name))
        for path in paths:
            pause = _FIRST_PAUSE_S
            while True:
                try:
                    answer = await self._client.call("DELETE", path, body=None)
                    if answer.ok or answer.status in (403, 404):
                        break
                    log.warning("not removed", path=path, why=answer.message)
                except Unreachable:
                    pass
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE_S, pause * 2)
