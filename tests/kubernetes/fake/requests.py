"""A request to the fake, read: which verb on which resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(slots=True)
class Request:
    """A request. `group` to `subresource` are empty for paths such as /version.

    Args:
        method: As in HTTP.
        path: Without the query.
        query: The query.
        body: JSON.
        content_type: Of the body.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def __post_init__(self) -> None:
        parts = (unquote(self.path) if "%" in self.path else self.path).strip("/").split("/")
        if parts[0] == "api" and len(parts) > 2:
            self.version, rest = parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            self.group, self.version, rest = parts[1], parts[2], parts[3:]
        else:
            return
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            self.namespace, rest = rest[1], rest[2:]
        self.plural, self.name, self.subresource = ([*rest[:3], "", ""])[:3]

    @property
    def watching(self) -> bool:
        """Whether a watch is asked for."""
        return self.query.get("watch") in ("1", "true")

    @property
    def verb(self) -> str:
        """As RBAC names it."""
        if not self.plural:
            return self.method.lower()
        if self.method == "GET":
            return "watch" if self.watching else "get" if self.name else "list"
        if self.method == "DELETE" and not self.name:
            return "deletecollection"
        return _VERBS.get(self.method, self.method.lower())

    @property
    def resource(self) -> str:
        """As `kubectl` names it: pods/binding, podgroups.scheduling.volcano.sh/status."""
        told = f"{self.plural}.{self.group}" if self.group else self.plural
        return f"{told}/{self.subresource}" if self.subresource else told
