"""Bodies of the other calls: bindings, deletions, tombstones, events, a gang's Service and Secret. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.manifests import CONFINED, TASK
from flowsched.cluster.kubernetes.marks import (
    ENGINE_NAME,
    GROUP,
    REASON,
    VOID,
    common_labels,
    owner_reference,
)
from flowsched.cluster.kubernetes.metadata import micro_timestamp
from flowsched.cluster.kubernetes.names import label_value, pod_name
from flowsched.cluster.kubernetes.podenv import TOKEN_KEY
from flowsched.cluster.kubernetes.release import Owner, ReleaseSettings

_NOTHING: Final[Mapping[str, str]] = {}


def binding(
    name: str,
    namespace: str,
    uid: str,
    node: str,
    resource_version: str = "",
    annotations: Mapping[str, str] = _NOTHING,
) -> bytes:
    """Bind a pod, and only this one: another of its name is refused.

    Args:
        name, namespace: Where to call it.
        uid: Its identity, a precondition.
        node: Where it shall run.
        resource_version: The version that was looked at, a precondition too; "" = any.
        annotations: Put on the pod in the same write.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if annotations:
        metadata["annotations"] = dict(annotations)
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


def deletion(uid: str, grace_s: int | None = None, resource_version: str = "") -> bytes:
    """Delete an object, and only this one.

    Args:
        uid: Its identity, a precondition.
        grace_s: Between SIGTERM and SIGKILL; 0 = at once and for good, None = what the pod says.
        resource_version: The version that was looked at, a precondition too; "" = any.
    """
    preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": preconditions,
        "propagationPolicy": "Background",
    }
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return msgspec.json.encode(options)


@dataclass(frozen=True, slots=True)
class Told:
    """What an event says. `kind`: Normal or Warning."""

    action: str
    reason: str
    note: str
    kind: str


def event(told: Told, regarding: Mapping[str, Any], now: int, instance: str = "flowsched") -> bytes:
    """An event about an object, for `kubectl describe`."""
    # The name that is generated from must be a whole one by itself but for its last "-".
    name = str(regarding["name"])[:50].rstrip(".-")
    return msgspec.json.encode(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}-", "namespace": regarding["namespace"]},
            "eventTime": micro_timestamp(now),
            "reportingController": "flowsched.io/scheduler",
            "reportingInstance": instance,
            "action": told.action,
            "reason": told.reason,
            "regarding": regarding,
            "note": told.note,
            "type": told.kind,
        }
    )


def tombstone(engine_name: str, settings: ReleaseSettings, reason: str) -> bytes:
    """A pod that takes a name and never runs: whoever comes late with the same name is told that it exists.

    It is gated, so nobody schedules it, and asks for nothing.
    """
    nothing = {"cpu": "0", "memory": "0"}
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod_name(engine_name),
                "namespace": settings.namespace,
                "labels": common_labels(settings, "tombstone") | {VOID: "true"},
                "annotations": {ENGINE_NAME: engine_name, REASON: reason},
            },
            "spec": {
                "schedulerName": settings.scheduler_name,
                "schedulingGates": [{"name": VOID}],
                "restartPolicy": "Never",
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": TASK,
                        "image": settings.our_image,
                        "command": ["false"],
                        "resources": {"requests": nothing, "limits": nothing},
                        "securityContext": CONFINED,
                    }
                ],
            },
        }
    )


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
