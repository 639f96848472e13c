"""What one watch is told."""

from __future__ import annotations

import msgspec

from tests.kubernetes.fake.handling import Api
from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import refusal, status_body
from tests.kubernetes.fake.requests import Request
from tests.kubernetes.fake.selectors import field_test, label_test
from tests.kubernetes.fake.store import Entry, Event, line


class Feed:
    """The lines of one watch, taken as they come.

    Attributes:
        over: Whether the last line was an ERROR, after which nothing comes.

    Raises:
        Refusal: The selectors or the version cannot be understood.
    """

    def __init__(self, api: Api, request: Request) -> None:
        self.kind: Kind = api.kind_of(request)
        self.over = False
        self._store = api.store
        self._collection = api.store.collection(self.kind)
        self._namespace = request.namespace
        self._name = request.name
        labels, fields = request.query.get("labelSelector"), request.query.get("fieldSelector")
        self._labels = label_test(labels) if labels else None
        self._fields = field_test(fields, self.kind) if fields else None
        self._plain = not (self._namespace or self._name or self._labels or self._fields)
        self._first: list[bytes] = []
        told = request.query.get("resourceVersion", "")
        if told and not told.isdigit():
            why = f'resourceVersion: Invalid value: "{told}": strconv.ParseUint: parsing "{told}": invalid syntax'
            raise refusal(500, why, reason="")
        self._after = int(told or 0)
        self._at = self._collection.dropped + len(self._collection.events)
        if not self._after:
            entries = [entry for entry in self._collection.sorted_entries() if self._takes(entry)]
            self._first = [line("ADDED", entry.body) for entry in entries]
            if request.query.get("sendInitialEvents") == "true":
                self._first.append(self.bookmark(initial=True))
        elif self._after < self._collection.floor:
            self._expire()
        else:
            behind = sum(event.version > self._after for event in self._collection.events)
            self._at -= behind

    def take(self) -> list[bytes]:
        """What has happened since the last call."""
        first, self._first = self._first, []
        if self.over:
            return first
        if self._at < self._collection.dropped:
            self._expire()
            last, self._first = self._first, []
            return first + last
        events = self._collection.events[self._at - self._collection.dropped :]
        self._at += len(events)
        if self._plain:
            return first + [event.line for event in events if event.version > self._after]
        told = (self._told(event) for event in events if event.version > self._after)
        return first + [each for each in told if each is not None]

    def bookmark(self, initial: bool = False) -> bytes:
        """Where the watch is, for clients that have seen nothing for long."""
        metadata: dict[str, object] = {"resourceVersion": str(self._store.version)}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        body = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        if self.kind.plural == "pods":
            body |= {"spec": {"containers": None}, "status": {}}
        return line("BOOKMARK", msgspec.json.encode(body))

    def _expire(self) -> None:
        """As measured: HTTP 200, an ERROR event with code 410, and the end."""
        why = f"too old resource version: {self._after} ({self._collection.floor})"
        self._first = [line("ERROR", status_body(410, why))]
        self.over = True

    def _takes(self, entry: Entry) -> bool:
        namespace, name = entry.key
        return (
            (not self._namespace or namespace == self._namespace)
            and (not self._name or name == self._name)
            and (self._labels is None or self._labels(entry.labels))
            and (self._fields is None or self._fields(entry.fields))
        )

    def _told(self, event: Event) -> bytes | None:
        """An event through the selectors: what begins to match is ADDED, what no longer does is DELETED."""
        before = event.before is not None and self._takes(event.before)
        if event.type == "DELETED":
            return event.line if before else None
        now = self._takes(event.entry)
        if before and now:
            return event.line
        if now:
            return line("ADDED", event.entry.body)
        if before and event.before is not None:
            last = event.before.document()
            last["metadata"]["resourceVersion"] = str(event.version)
            return line("DELETED", msgspec.json.encode(last))
        return None
