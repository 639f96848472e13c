"""What the API server does to native PodGroups (scheduling.k8s.io/v1alpha2). As measured on 1.36."""

from __future__ import annotations

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import invalid
from tests.kubernetes.fake.store import Document

#: Taken away by a controller when the group has no pods any more: without a controller manager it stays.
PROTECTION = "scheduling.k8s.io/podgroup-protection"


def is_native(kind: Kind) -> bool:
    """Whether this is about such groups."""
    return (kind.group, kind.plural) == ("scheduling.k8s.io", "podgroups")


def prepare(kind: Kind, group: Document) -> None:
    """Check a new group and fill in what it leaves out. Without WorkloadAwarePreemption there is one disruption mode."""
    name, spec = group["metadata"]["name"], group.setdefault("spec", {})
    policy = spec.get("schedulingPolicy") or {}
    where = "spec.schedulingPolicy"
    if len(policy.keys() & {"basic", "gang"}) != 1:
        why = 'Invalid value: "": must specify one of: `basic`, `gang`'
        raise invalid(kind, name, where, "FieldValueInvalid", why)
    if "gang" in policy and not policy["gang"].get("minCount"):
        raise invalid(kind, name, f"{where}.gang.minCount", "FieldValueRequired", "Required value")
    spec.setdefault("podGroupTemplateRef", None)
    spec["disruptionMode"] = "Pod"
    metadata = group["metadata"]
    metadata["finalizers"] = [*metadata.get("finalizers", ()), PROTECTION]
    group["status"] = {}


def check_update(kind: Kind, old: Document, new: Document) -> None:
    """Refuse another policy."""
    new["spec"] = {"podGroupTemplateRef": None, **new.get("spec", {}), "disruptionMode": "Pod"}
    if old["spec"]["schedulingPolicy"] != new["spec"].get("schedulingPolicy"):
        why = "Invalid value: null: field is immutable"
        raise invalid(kind, old["metadata"]["name"], "spec.schedulingPolicy", "FieldValueInvalid", why)


def check_status(kind: Kind, new: Document) -> None:
    """Refuse a condition without its moment."""
    for at, condition in enumerate(new["status"].get("conditions") or ()):
        if not condition.get("lastTransitionTime"):
            where = f"status.conditions[{at}].lastTransitionTime"
            raise invalid(kind, new["metadata"]["name"], where, "FieldValueRequired", "Required value")
