"""What a refusal of the API server means for a pod: wait, or give up. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from flowsched.cluster.kubernetes.answers import Answer

_DENIED: Final = re.compile(r"admission webhook .* denied the request", re.DOTALL)
_QUOTA: Final = ("exceeded quota", "failed quota")


@dataclass(frozen=True, slots=True)
class Transient:
    """It may be accepted later. `reason` is one word for programs, `message` the server's words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Permanent:
    """It will not be accepted, however often it is sent: the object itself is wrong, or a policy forbids it."""

    reason: str
    message: str


def judge(answer: Answer) -> Transient | Permanent:
    """What to think of a refusal.

    A quota, a missing right and a missing namespace are an administrator's to change, so the pod waits; a denial by a policy
    (an admission webhook, Pod Security) or a fault in the object is about the pod.
    """
    message = answer.message
    if answer.status == 403 and any(words in message for words in _QUOTA):
        return Transient("QuotaExceeded", message)
    if _DENIED.search(message) or "violates PodSecurity" in message:
        return Permanent("Denied", message)
    if answer.status in (400, 413, 422):
        return Permanent("Invalid", message)
    if answer.status in (401, 403):
        return Transient("Forbidden", message)
    if answer.status == 404:
        return Transient("NotFound", message)
    if answer.status == 409:
        return Transient("Conflict", message)
    return Transient("APIServerError", message or f"HTTP {answer.status}")
