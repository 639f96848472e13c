"""What the fake answers: replies, and refusals in the words of the real one (Kubernetes 1.36)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.kubernetes.fake.kinds import Kind

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: status, JSON, further headers."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Refusal(Exception):
    """An answer that ends the handling of a request."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply


def status_body(
    code: int, message: str, *, reason: str | None = None, details: Mapping[str, Any] | None = None
) -> bytes:
    """A Status that says no."""
    told = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, "") if reason is None else reason,
        "details": None if details is None else dict(details),
        "code": code,
    }
    return msgspec.json.encode({key: value for key, value in told.items() if value not in (None, "")})


def refusal(code: int, message: str, **more: Any) -> Refusal:
    """A refusal without further words."""
    return Refusal(Reply(code, status_body(code, message, **more)))


def success(code: int = 200, details: Mapping[str, Any] | None = None) -> Reply:
    """A Status that says yes."""
    told: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    told |= {"details": dict(details)} if details is not None else {}
    return Reply(code, msgspec.json.encode(told | ({"code": code} if code != 200 else {})))


def no_such_path() -> Refusal:
    """What lies outside all groups that are served."""
    return Refusal(Reply(404, b"404 page not found\n", content_type="text/plain"))


def not_found(kind: Kind, name: str) -> Refusal:
    """There is no object of the name."""
    return refusal(404, f'{kind.qualified} "{name}" not found', details=kind.details(name))


def already_exists(kind: Kind, name: str) -> Refusal:
    """There is one."""
    message = f'{kind.qualified} "{name}" already exists'
    return refusal(409, message, reason="AlreadyExists", details=kind.details(name))


def conflict(what: str, name: str, why: str, details: Mapping[str, Any]) -> Refusal:
    """The object is not as the request supposes."""
    return refusal(409, f'Operation cannot be fulfilled on {what} "{name}": {why}', details=details)


def modified(kind: Kind, name: str) -> Refusal:
    """It has another resourceVersion."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind.qualified, name, why, kind.details(name))


def invalid(kind: Kind, name: str, field_path: str, cause: str, message: str) -> Refusal:
    """A field is not as it may be."""
    told = kind.name if not kind.custom else kind.qualified
    about = {
        **kind.details(name),
        "kind": told,
        "causes": [{"reason": cause, "message": message, "field": field_path}],
    }
    return refusal(422, f'{told} "{name}" is invalid: {field_path}: {message}', details=about)


def forbidden(kind: Kind, name: str, why: str, **details: Any) -> Refusal:
    """Admission says no."""
    return refusal(
        403, f'{kind.qualified} "{name}" is forbidden: {why}', details=kind.details(name) | details
    )
