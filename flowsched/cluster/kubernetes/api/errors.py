"""Answers of an API server that are errors: refusals, malformed answers, and no answer at all. Pure: no HTTP here.

Unavailable
└── Unreachable     no answer: whether the request was carried out is not known, unless it was never sent
FlowschedError
├── Refused         an answer that is a refusal, where the caller has no use for refusals
└── Malformed       an answer that says "done" and cannot be understood
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from flowsched.cluster.kubernetes.objects.core import Status
from flowsched.errors import FlowschedError, Unavailable

#: After these the server may have carried out the request all the same (etcd timed out, a proxy gave up …).
_UNDECIDED: Final = frozenset({500, 502, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of the server, of any status."""

    status: int
    body: bytes
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def undecided(self) -> bool:
        """Whether a refusal is none: the server failed, perhaps after it had done what was asked. Only a look tells."""
        return self.status in _UNDECIDED

    @property
    def about(self) -> Status:
        """The Status in the body; an empty one if the body is something else."""
        try:
            found = msgspec.json.decode(self.body, type=Status)
        except msgspec.MsgspecError:
            return Status()
        return found if found.kind == "Status" else Status()

    @property
    def reason(self) -> str:
        """One word for programs: AlreadyExists, Conflict, NotFound, Forbidden, Invalid … "" where there is none."""
        return self.about.reason

    @property
    def message(self) -> str:
        """Why not, for people: the server's words, or the beginning of whatever a proxy sent in their place."""
        about = self.about
        if self.ok or about.kind:
            return about.message
        return self.body[:500].decode(errors="replace").strip()


class Unreachable(Unavailable):
    """No answer. Unless `sent` is False the request may have been carried out: look before anything is repeated."""

    def __init__(self, message: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(message)


class Refused(FlowschedError):
    """The server answered with a refusal."""

    title = "The API server refuses"

    def __init__(self, asked: str, answer: Answer) -> None:
        self.answer = answer
        detail = " ".join(part for part in (answer.reason, answer.message) if part)
        super().__init__(f"{asked}: {answer.status} {detail}".rstrip())


class Malformed(FlowschedError):
    """The server's answer is not what it should be."""

    title = "The API server's answer cannot be understood"


# ---- what a refusal means for a pod: wait, or give up ----


_DENIED: Final = re.compile(r"admission webhook .* denied the request", re.DOTALL)
_QUOTA: Final = ("exceeded quota", "failed quota")
#: The reason of a refusal by a ResourceQuota.
QUOTA_EXCEEDED: Final = "QuotaExceeded"


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
    """Decide whether a refusal is transient or permanent.

    A quota, a missing right and a missing namespace are an administrator's to change, so the pod waits; a denial by a policy
    (an admission webhook, Pod Security) or a fault in the object is about the pod.
    """
    message = answer.message
    if answer.status == 403 and any(words in message for words in _QUOTA):
        return Transient(QUOTA_EXCEEDED, message)
    if _DENIED.search(message) or "violates PodSecurity" in message:
        return Permanent("Denied", message)
    if answer.status in (400, 413, 422):
        return Permanent("Invalid", message)
    if answer.status == 403 and "because it is being terminated" in message:
        return Transient("NamespaceTerminating", message)
    if answer.status in (401, 403):
        return Transient("Forbidden", message)
    if answer.status == 404:
        return Transient("NotFound", message)
    if answer.status == 409:
        return Transient("Conflict", message)
    return Transient("APIServerError", message or f"HTTP {answer.status}")
