"""Objects of a gang beside its pods: the PodGroup, the Service by which members find each other, the Secret, and group statuses.

Our own loop does not need a PodGroup to keep a gang together. Others do: a scheduler that gangs are handed over to, a
controller that waits for `Inqueue`, a person with kubectl. flowsched writes the status of every group that it schedules, since
no other controller does: kube-scheduler leaves alone what names another scheduler.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from flowsched.background import BackgroundTasks, Backoff, Explain
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Malformed, Permanent, Refused, Unreachable, judge
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata
from flowsched.cluster.kubernetes.objects.labels import (
    GROUP,
    STAGE,
    WORKFLOW,
    common_labels,
    ours,
    owner_reference,
)
from flowsched.cluster.kubernetes.objects.names import group_name, label_value
from flowsched.cluster.kubernetes.objects.podgroup import Form, group_path, volcano_queue
from flowsched.cluster.kubernetes.objects.release import GroupRef, Owner, ReleaseSettings
from flowsched.cluster.kubernetes.pods.container_task import TOKEN_KEY
from flowsched.cluster.kubernetes.pods.manifest import quantities
from flowsched.cluster.node.container_paths import Refusal
from flowsched.executor.protocol import Pod
from flowsched.log_lines import get_logger
from flowsched.workflow.spec import Resources

Json = dict[str, Any]


def group_manifest(
    form: Form,
    name: str,
    pod: Pod,
    settings: ReleaseSettings,
) -> bytes:
    """The PodGroup of one of our gangs: all members that were given seats, or none.

    Args:
        form: Which; never NONE.
        name: Of the group.
        pod: Any of its members.
        settings: Of the installation.
    """
    roles = Counter(member.role for member in pod.gang.roster.members()) if pod.gang else Counter({"task": 1})
    amounts: dict[str, str] = {}
    if len(roles) == 1:  # else roles may ask for different things, and one member does not know of the others
        one = Resources(pod.cpu_millicores, pod.memory_bytes, pod.disk_bytes, pod.gpu_millis, pod.extended)
        amounts = quantities(one, settings.gpu.resource, roles.total())
    spec: Json
    match form:
        case Form.NATIVE_ALPHA | Form.NATIVE_BETA:
            spec = {"schedulingPolicy": {"gang": {"minCount": roles.total()}}}
            # In v1alpha2 all but the policy is forbidden unless further gates are open.
            spec |= {"disruptionMode": {"all": {}}} if form is Form.NATIVE_BETA else {}
        case Form.SCHEDULER_PLUGINS:
            spec = {"minMember": roles.total(), "minResources": amounts}
        case Form.VOLCANO:
            spec = _volcano_spec(roles, amounts, pod)
        case Form.NONE:
            raise ValueError("a group without a form has no PodGroup")
    metadata: Json = {
        "name": name,
        "namespace": settings.namespace,
        "labels": common_labels(settings, "gang")
        | {GROUP: label_value(name), WORKFLOW: label_value(pod.workflow), STAGE: label_value(pod.stage)},
    }
    return msgspec.json.encode(
        {
            "apiVersion": form.value,
            "kind": "PodGroup",
            "metadata": metadata,
            "spec": {key: value for key, value in spec.items() if value},
        }
    )


def _volcano_spec(roles: Mapping[str, int], amounts: Json, pod: Pod) -> Json:
    rack = pod.rules.rack if pod.rules else None
    modes = {"required": "hard", "preferred": "soft"}
    return {
        "minMember": sum(roles.values()),
        "minTaskMember": dict(roles),
        "minResources": amounts,
        "queue": volcano_queue(pod.queue),
        # Tier 1 is what hangs on one switch, as near to a rack as Volcano's words come.
        "networkTopology": {"mode": modes[rack], "highestTierAllowed": 1} if rack else {},
    }


# ---- the objects of our own gangs ----
#
# All three belong to one generation of one shard, are made before its first pod and removed after its last. Making them twice
# is making them once. The PodGroup owns the Service, and the Service owns the Secret. A create that comes late, of a leader that
# does not lead any more, therefore leaves a root, which the next sweep finds, or an object without its owner, which the garbage
# collector removes. flowsched has no right to list Secrets.


log = get_logger(__name__)

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
    """The API server will never accept an object that a gang needs."""


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
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._tasks = BackgroundTasks("a gang")

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

    def left(self, pod: Pod) -> None:
        """A pod is no more; with the last one the rest goes."""
        gang = self._gangs.get(self.name_of(pod) or "")
        if gang is None:
            return
        gang.members.discard(pod.name)
        if not gang.members:
            del self._gangs[gang.name]
            if gang.made is not None:
                gang.made.cancel()
            self._start_removing(gang.name)

    async def sweep(self, living: Set[str]) -> None:
        """Remove what is left of gangs that do not live: an earlier leader could not, or its creates came late.

        Args:
            living: Gangs that still have pods.
        """
        space = self._settings.namespace
        paths = [f"/api/v1/namespaces/{space}/services"]
        if self.form is not Form.NONE:
            paths.append(group_path(self.form, space))
        found: set[str] = set()
        try:
            for path in paths:
                roots, _ = await self._client.list(
                    path, OnlyMetadata, params={"labelSelector": f"{ours(self._settings)},{GROUP}"}
                )
                found |= {root.metadata.name for root in roots}
        except (Refused, Unreachable, Malformed) as error:
            log.warning("objects of gangs that ended are not looked for, tried again", error=str(error))
        for name in sorted(found - living - self._gangs.keys() - self._removing.keys()):
            self._start_removing(name)

    def _start_removing(self, name: str) -> None:
        task = self._removing[name] = self._tasks.begin(self._remove(name), name=f"remove {name}")
        task.add_done_callback(lambda _: self._removing.pop(name, None))

    async def close(self) -> None:
        """Stop working."""
        await self._tasks.close()
        tasks = [gang.made for gang in self._gangs.values() if gang.made is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ready(self, pod: Pod, explain: Explain) -> GroupRef | Refusal | None:
        """See to it that a pod's group is there; a Refusal if it never will be.

        Args:
            pod: One of its members.
            explain: Takes why it is not there yet.
        """
        if pod.gang is None:
            return None
        self.member(pod)
        gang = self._gangs[self.name_of(pod) or ""]
        if gang.made is None:
            gang.made = asyncio.create_task(self._make(gang, pod, explain), name=f"make {gang.name}")
        return await asyncio.shield(gang.made)

    async def _make(self, gang: _Gang, pod: Pod, explain: Explain) -> GroupRef | Refusal:
        assert pod.gang is not None
        if gang.name in self._removing:  # it had lost its last member
            await asyncio.wait({self._removing[gang.name]})
        settings, space = self._settings, self._settings.namespace
        owner = None
        core = f"/api/v1/namespaces/{space}"
        try:
            if self.form is not Form.NONE:
                body = group_manifest(self.form, gang.name, pod, settings)
                meta = await self._create(group_path(self.form, space), gang.name, body, explain)
                owner = Owner(self.form.value, "PodGroup", gang.name, meta.metadata.uid)
            service = gang_service(gang.name, settings, owner)
            meta = await self._create(f"{core}/services", gang.name, service, explain)
            root = Owner("v1", "Service", gang.name, meta.metadata.uid)
            secret = gang_secret(gang.name, pod.gang.token, settings, root)
            await self._create(f"{core}/secrets", gang.name, secret, explain)
        except _Denied as denied:
            return Refusal("StartFailed", str(denied))
        return GroupRef(gang.name, self.form, owner, pod.queue)

    async def _create(self, path: str, name: str, body: bytes, explain: Explain) -> OnlyMetadata:
        """Create an object, or find it there. Tries until it is so.

        Raises:
            _Denied: It will never be: a policy forbids it, or it is not valid.
        """
        backoff = Backoff(_LONGEST_PAUSE_S)
        while True:
            answer = await self._client.try_call("POST", path, body, explain=explain)
            if answer is not None and answer.reason == "AlreadyExists":
                if path.endswith("/secrets"):
                    return OnlyMetadata()  # it may be made, and not read
                answer = await self._client.try_call("GET", f"{path}/{name}", explain=explain)
            if answer is not None and answer.ok:
                return decoded(answer.body, OnlyMetadata, path)
            if answer is not None:
                verdict = judge(answer)
                if isinstance(verdict, Permanent):
                    raise _Denied(f"{path}: {verdict.message}")
                explain(verdict.reason, f"{path}: {answer.message}")
            await backoff.wait()

    async def _remove(self, name: str) -> None:
        """Delete the objects of a gang, each once: the next sweep deletes the rest, as long as it finds the Service."""
        space = self._settings.namespace
        paths = [f"/api/v1/namespaces/{space}/secrets/{name}", f"/api/v1/namespaces/{space}/services/{name}"]
        if self.form is not Form.NONE:
            paths.insert(1, group_path(self.form, space, name))
        for path in paths:
            answer = await self._client.try_call("DELETE", path)
            if answer is None or not (answer.ok or answer.status == 404):
                why = "no answer" if answer is None else answer.message
                log.warning("not removed, tried again", path=path, why=why)
                return
