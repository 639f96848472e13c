"""What a hollow node says of a pod: its containers' states, and the `status` that a kubelet would write. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tests.kubernetes.hollow.spec import ENDED, Container, Pod, is_sidecar

#: What each container used, as a JSON object by container: a real kubelet does not write this.
USAGE: Final = "flowsched.io/usage"

#: In a list of a strategic merge patch: what was in it before goes.
_REPLACE: Final = {"$patch": "replace"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not started, or not yet again."""

    reason: str
    message: str = ""

    def document(self) -> dict[str, Any]:
        """As in a container's status."""
        return {"waiting": {"reason": self.reason, "message": self.message}}


@dataclass(frozen=True, slots=True)
class Running:
    """Started then."""

    started: datetime

    def document(self) -> dict[str, Any]:
        """As in a container's status."""
        return {"running": {"startedAt": stamp(self.started)}}


@dataclass(frozen=True, slots=True)
class Terminated:
    """Ended. `message` is what it left in its termination log."""

    code: int
    reason: str
    message: str
    started: datetime
    finished: datetime

    def document(self) -> dict[str, Any]:
        """As in a container's status."""
        return {
            "terminated": {
                "exitCode": self.code,
                "reason": self.reason,
                "message": self.message,
                "startedAt": stamp(self.started),
                "finishedAt": stamp(self.finished),
            }
        }


State = Waiting | Running | Terminated


@dataclass(slots=True)
class ContainerRecord:
    """One container and what became of it."""

    container: Container
    init: bool
    state: State
    last: Terminated | None = None
    started: bool = False  #: it runs, and its startup probe has succeeded
    restarts: int = 0

    @property
    def sidecar(self) -> bool:
        """Whether it is a native sidecar."""
        return self.init and is_sidecar(self.container)

    @property
    def has_run(self) -> bool:
        """Whether it runs or has done so."""
        return self.last is not None or not isinstance(self.state, Waiting)

    @property
    def ready(self) -> bool:
        """What its readiness probe would say: an init container is ready once it is done."""
        if self.init and not self.sidecar:
            return isinstance(self.state, Terminated) and self.state.code == 0
        return self.started

    def document(self, uid: str) -> dict[str, Any]:
        """Its `containerStatuses` entry."""
        return {
            "name": self.container.name,
            "image": self.container.image,
            "imageID": "",
            "containerID": ""
            if isinstance(self.state, Waiting)
            else f"hollow://{uid}/{self.container.name}/{self.restarts}",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state.document(),
            "lastState": self.last.document() if self.last is not None else {},
        }


@dataclass(slots=True)
class PodRecord:
    """A pod and what became of it on its node."""

    pod: Pod
    host_ip: str
    pod_ip: str
    accepted: datetime
    containers: list[ContainerRecord] = field(default_factory=list)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    _conditions: dict[str, tuple[bool, datetime]] = field(default_factory=dict)

    @classmethod
    def fresh(cls, pod: Pod, host_ip: str, pod_ip: str, now: datetime) -> PodRecord:
        """Of a pod that the node has just accepted."""
        reason = "PodInitializing" if pod.spec.init_containers else "ContainerCreating"
        records = [ContainerRecord(one, True, Waiting(reason)) for one in pod.spec.init_containers]
        records += [ContainerRecord(one, False, Waiting(reason)) for one in pod.spec.containers]
        return cls(pod, host_ip, pod_ip, now, records)

    @property
    def mains(self) -> list[ContainerRecord]:
        """The containers proper."""
        return [record for record in self.containers if not record.init]

    @property
    def inits(self) -> list[ContainerRecord]:
        """The init containers, native sidecars among them, in order."""
        return [record for record in self.containers if record.init]

    def patch(self, now: datetime) -> bytes:
        """The strategic merge patch of the pod's /status; refused by the server if another pod has the name by now."""
        document: dict[str, Any] = {"metadata": {"uid": self.pod.metadata.uid}, "status": self._status(now)}
        if self.usage:
            document["metadata"]["annotations"] = {USAGE: msgspec.json.encode(self.usage).decode()}
        return msgspec.json.encode(document)

    def _status(self, now: datetime) -> dict[str, Any]:
        status: dict[str, Any] = {
            "phase": self.phase,
            "hostIP": self.host_ip,
            "hostIPs": [_REPLACE, {"ip": self.host_ip}],
            "startTime": stamp(self.accepted),
            "conditions": self._all_conditions(now),
        }
        if self.pod_ip:
            status |= {"podIP": self.pod_ip, "podIPs": [_REPLACE, {"ip": self.pod_ip}]}
        if self.reason:
            status |= {"reason": self.reason, "message": self.message}
        uid = self.pod.metadata.uid
        if self.inits:
            status["initContainerStatuses"] = [record.document(uid) for record in self.inits]
        if self.mains:
            status["containerStatuses"] = [record.document(uid) for record in self.mains]
        return status

    def _all_conditions(self, now: datetime) -> list[dict[str, Any]]:
        ended = self.phase in ENDED
        ready = bool(self.mains) and all(record.ready for record in (*self.mains, *self._sidecars()))
        initialized = all(
            record.ready or (not isinstance(record.state, Waiting) and record.sidecar)
            for record in self.inits
        )
        why = "PodCompleted" if self.phase == "Succeeded" else "PodFailed" if ended else "ContainersNotReady"
        said = (
            ("PodReadyToStartContainers", bool(self.pod_ip) and not ended, ""),
            (
                "Initialized",
                initialized,
                "PodCompleted" if self.phase == "Succeeded" else "ContainersNotInitialized",
            ),
            ("Ready", ready and not ended, why),
            ("ContainersReady", ready and not ended, why),
        )
        return [self._condition(kind, holds, reason, now) for kind, holds, reason in said]

    def _sidecars(self) -> list[ContainerRecord]:
        return [record for record in self.containers if record.sidecar]

    def _condition(self, kind: str, holds: bool, reason: str, now: datetime) -> dict[str, Any]:
        before = self._conditions.get(kind)
        since = before[1] if before is not None and before[0] is holds else now
        self._conditions[kind] = (holds, since)
        why = None if holds else reason or None  # null, or the patch would leave the old one
        return {"type": kind, "status": str(holds), "lastTransitionTime": stamp(since), "reason": why}


def stamp(moment: datetime) -> str:
    """A moment as the API server writes it, in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(moment: datetime) -> str:
    """A moment as Leases have it, in microseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
