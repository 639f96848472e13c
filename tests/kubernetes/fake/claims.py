"""What the API server does to claims on devices (resource.k8s.io/v1). As measured on 1.36."""

from __future__ import annotations

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import invalid
from tests.kubernetes.fake.store import Document

MOST_USERS = 256


def is_claim(kind: Kind) -> bool:
    """Whether this is about claims."""
    return (kind.group, kind.plural) == ("resource.k8s.io", "resourceclaims")


def check_update(kind: Kind, old: Document, new: Document) -> None:
    """What is asked for never changes."""
    if old.get("spec") != new.get("spec"):
        why = "Invalid value: field is immutable"
        raise invalid(kind, old["metadata"]["name"], "spec", "FieldValueInvalid", why)


def with_status(kind: Kind, old: Document, new: Document) -> Document:
    """The claim with another status, and nothing else changed."""
    name, before, after = old["metadata"]["name"], old.get("status", {}), new.get("status") or {}
    users, had = after.get("reservedFor") or [], before.get("reservedFor") or []
    where = "status.reservedFor"
    if len(users) > MOST_USERS:
        why = f"Too many: {len(users)}: must have at most {MOST_USERS} items"
        raise invalid(kind, name, where, "FieldValueTooMany", why)
    for at, user in enumerate(users):
        if user["uid"] in [each["uid"] for each in users[:at]]:
            raise invalid(kind, name, f"{where}[{at}]", "FieldValueDuplicate", "Duplicate value")
    if users and not after.get("allocation"):
        why = "Forbidden: may not be specified when `allocated` is not set"
        raise invalid(kind, name, where, "FieldValueForbidden", why)
    if "deletionTimestamp" in old["metadata"] and any(user not in had for user in users):
        why = "Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        raise invalid(kind, name, where, "FieldValueForbidden", why)
    if before.get("allocation") and after.get("allocation") not in (None, before["allocation"]):
        why = "Invalid value: field is immutable"
        raise invalid(kind, name, "status.allocation", "FieldValueInvalid", why)
    return {**old, "status": {key: value for key, value in after.items() if value}}
