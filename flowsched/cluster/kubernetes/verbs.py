"""What a request is called in RBAC: a verb and a resource. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_VERBS: Final[Mapping[str, str]] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def named(method: str, path: str, params: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The verb and the resource of a request, as RBAC names them.

    A path outside /api and /apis, or one that names no resource, is its own name.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return method.lower(), path
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    resource = f"{rest[0]}.{group}" if group else rest[0]
    if len(rest) > 2:
        resource = f"{resource}/{rest[2]}"
    if method == "GET":
        watched = params is not None and params.get("watch") in ("1", "true")
        verb = "watch" if watched else "list" if len(rest) == 1 else "get"
    elif method == "DELETE" and len(rest) == 1:
        verb = "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return verb, resource
