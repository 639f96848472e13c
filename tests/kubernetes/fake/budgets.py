"""Disruption budgets, as an eviction meets them. As measured on 1.36."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.fake.replies import refusal
from tests.kubernetes.fake.store import Document, Entry, Store

#: Pods in these phases serve nobody: budgets do not protect them.
_IDLE = ("Pending", "Succeeded", "Failed")


def spend(store: Store, pod: Document) -> None:
    """Take one disruption from the budget that covers a pod.

    It is taken before the eviction's preconditions are looked at: what they refuse has cost a disruption all the same.

    Raises:
        Refusal: The budget has none left, or is still to be worked out, or there are several.
    """
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") or pod.get("status", {}).get("phase", "Pending") in _IDLE:
        return
    kind = store.kinds["policy", "v1", "poddisruptionbudgets"]
    found = [
        entry
        for entry in store.collection(kind).sorted_entries()
        if entry.key[0] == metadata["namespace"] and _covers(entry, metadata.get("labels") or {})
    ]
    if len(found) > 1:
        why = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise refusal(500, why)
    if not found:
        return
    document = found[0].document()
    status: dict[str, Any] = document.setdefault("status", {})
    name, allowed = document["metadata"]["name"], status.get("disruptionsAllowed", 0)
    if status.get("observedGeneration", 0) < document["metadata"].get("generation", 0):
        raise _no(f"The disruption budget {name} is still being processed by the server.")
    if allowed <= 0:
        raise _no(f"The disruption budget {name} does not allow evicting pods currently")
    status["disruptionsAllowed"] = allowed - 1
    status.setdefault("disruptedPods", {})[metadata["name"]] = store.timestamp()
    store.put_if_changed(kind, document, found[0])


def marked(pod: Document) -> Document:
    """The pod with the condition that an eviction writes, over whatever it said before."""
    fresh = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    status = pod.setdefault("status", {})
    others = [each for each in status.get("conditions", []) if each["type"] != "DisruptionTarget"]
    status["conditions"] = [*others, fresh]
    return pod


def _covers(budget: Entry, labels: dict[str, str]) -> bool:
    selector = budget.document()["spec"].get("selector")
    wanted = (selector or {}).get("matchLabels") or {}
    return selector is not None and all(labels.get(key) == value for key, value in wanted.items())


def _no(why: str) -> Exception:
    causes = [{"reason": "DisruptionBudget", "message": why}]
    return refusal(
        429, "Cannot evict pod as it would violate the pod's disruption budget.", details={"causes": causes}
    )
