"""What the fake knows: objects as bytes, one counter of versions for all, and what has happened, for watches."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.selectors import Labels

Document: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]  # namespace ("" of the cluster), name

#: Paged lists that can be continued at a time; older continue tokens have expired.
SNAPSHOTS = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """An object at one version. Never changed: a write makes another."""

    key: Key
    version: int
    uid: str
    body: bytes
    labels: Labels
    fields: Labels

    def document(self) -> Document:
        """A copy that may be changed."""
        found: Document = msgspec.json.decode(self.body)
        return found


@dataclass(slots=True)
class Event:
    """Something that happened to an object."""

    version: int
    type: str
    entry: Entry
    before: Entry | None
    _line: bytes | None = None

    @property
    def line(self) -> bytes:
        """As all watches without a selector are told."""
        if self._line is None:
            self._line = line(self.type, self.entry.body)
        return self._line


@dataclass(slots=True)
class Collection:
    """All objects of a kind, whatever the version of its API.

    `floor` is the oldest version that a watch may begin from.
    """

    kind: Kind
    entries: dict[Key, Entry] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dropped: int = 0  #: how many events are no longer in `events`
    floor: int = 0
    watchers: set[asyncio.Event] = field(default_factory=set)

    def sorted_entries(self) -> list[Entry]:
        """By namespace and name, as the real one lists them."""
        return [self.entries[key] for key in sorted(self.entries)]


class Store:
    """The objects.

    Args:
        history: So many events of a kind are remembered.
        now: Wall-clock seconds.
    """

    def __init__(self, history: int = 20_000, now: Callable[[], float] = time.time) -> None:
        self.version = 0
        self.collections: dict[tuple[str, str], Collection] = {}
        self.kinds: dict[tuple[str, str, str], Kind] = {}  #: (group, version, plural)
        self.snapshots: OrderedDict[str, list[Entry]] = OrderedDict()
        self._history = history
        self._now = now
        self._second = (-1, "")
        self._uids = 0
        self._lists = 0

    def register(self, kinds: Iterable[Kind]) -> None:
        """Serve kinds from now on."""
        for kind in kinds:
            self.kinds[kind.group, kind.version, kind.plural] = kind
            self.collections.setdefault(
                (kind.group, kind.plural), Collection(kind, floor=self.version if kind.custom else 0)
            )

    def unregister(self, group: str, plural: str) -> None:
        """Serve a kind no more; its objects are gone."""
        self.kinds = {key: kind for key, kind in self.kinds.items() if (key[0], key[2]) != (group, plural)}
        self.collections.pop((group, plural), None)

    def collection(self, kind: Kind) -> Collection:
        """The objects of a kind."""
        return self.collections[kind.group, kind.plural]

    def find(self, plural: str, name: str, namespace: str = "", group: str = "") -> Entry | None:
        """One object."""
        collection = self.collections.get((group, plural))
        return None if collection is None else collection.entries.get((namespace, name))

    def timestamp(self, in_s: int = 0) -> str:
        """Now, or in so many seconds, as the API writes moments."""
        second = int(self._now()) + in_s
        if self._second[0] != second:
            self._second = (second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        return self._second[1]

    def new_uid(self) -> str:
        """The next uid: the same in every run."""
        self._uids += 1
        return f"{self._uids:08x}-0000-4000-8000-{self._uids:012x}"

    def put(self, kind: Kind, document: Document) -> Entry:
        """Write an object: a new one, or a new version."""
        collection = self.collection(kind)
        self.version += 1
        entry = self._entry(kind, document, self.version)
        before = collection.entries.get(entry.key)
        collection.entries[entry.key] = entry
        self._tell(collection, Event(self.version, "ADDED" if before is None else "MODIFIED", entry, before))
        return entry

    def put_if_changed(self, kind: Kind, document: Document, before: Entry) -> Entry:
        """Write a new version, unless it equals the old one: then nothing happens, as in the real one."""
        document["metadata"]["resourceVersion"] = str(before.version)
        return before if document == before.document() else self.put(kind, document)

    def remove(self, kind: Kind, entry: Entry, document: Document | None = None) -> Entry:
        """Delete an object; returns its last state, whose version is that of the deletion."""
        collection = self.collection(kind)
        self.version += 1
        last = self._entry(kind, document or entry.document(), self.version)
        del collection.entries[entry.key]
        self._tell(collection, Event(self.version, "DELETED", last, entry))
        return last

    def compact(self) -> None:
        """Forget the past: a watch from before now, or a list that was begun before, is answered by 410."""
        for collection in self.collections.values():
            collection.dropped += len(collection.events)
            collection.events.clear()
            collection.floor = self.version
        self.snapshots.clear()

    def snapshot(self, entries: list[Entry]) -> str:
        """Keep a list to be continued; returns its name."""
        self._lists += 1
        name = str(self._lists)
        self.snapshots[name] = entries
        while len(self.snapshots) > SNAPSHOTS:
            self.snapshots.popitem(last=False)
        return name

    def _entry(self, kind: Kind, document: Document, version: int) -> Entry:
        metadata = document["metadata"]
        metadata["resourceVersion"] = str(version)
        key = (metadata.get("namespace", ""), metadata["name"])
        labels = metadata.get("labels") or {}
        return Entry(
            key, version, metadata["uid"], msgspec.json.encode(document), labels, _fields(kind, document, key)
        )

    def _tell(self, collection: Collection, event: Event) -> None:
        collection.events.append(event)
        if len(collection.events) > 2 * self._history:
            collection.floor = collection.events[-self._history - 1].version
            collection.dropped += len(collection.events) - self._history
            del collection.events[: -self._history]
        for watcher in collection.watchers:
            watcher.set()


def line(type_: str, body: bytes) -> bytes:
    """A line of a watch."""
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), body)


def _fields(kind: Kind, document: Document, key: Key) -> Labels:
    found = {"metadata.name": key[1], "metadata.namespace": key[0]}
    for path in kind.fields:
        value: Any = document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool):
            found[path] = "true" if value else "false"
        elif value is not None:
            found[path] = str(value)
        elif path in ("spec.unschedulable", "spec.hostNetwork"):
            found[path] = "false"
    return found
