"""Bodies of requests: bindings, deletions and events; content types of patches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.objects.metadata import micro_timestamp

#: Content types of patches.
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
_NOTHING: Final[Mapping[str, str]] = {}


def binding(
    name: str,
    namespace: str,
    uid: str,
    node: str,
    resource_version: str = "",
) -> bytes:
    """Bind a pod, and only this one: another of its name is refused.

    Args:
        name, namespace: Where to call it.
        uid: Its identity, a precondition.
        node: Where it shall run.
        resource_version: The version that was looked at, a precondition too; "" = any.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


def opened_gate(uid: str, gate: str) -> bytes:
    """Take one scheduling gate from a pod, and only from this one: a strategic merge patch."""
    return msgspec.json.encode(
        {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"$patch": "delete", "name": gate}]}}
    )


def eviction(name: str, namespace: str, uid: str) -> bytes:
    """Evict a pod, and only this one, as far as its disruption budgets let it go."""
    return msgspec.json.encode(
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
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
class EventText:
    """The words of an event. `kind`: Normal or Warning."""

    action: str
    reason: str
    note: str
    kind: str


def event(text: EventText, regarding: Mapping[str, Any], now: int) -> bytes:
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
            "reportingInstance": "flowsched",
            "action": text.action,
            "reason": text.reason,
            "regarding": regarding,
            "note": text.note,
            "type": text.kind,
        }
    )
