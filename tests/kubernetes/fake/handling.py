"""What the fake does with a request that is not a watch. No HTTP here: a request in, a reply out."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.kubernetes.fake import budgets, deleting, pods, quotas
from tests.kubernetes.fake.kinds import BUILT_IN, NATIVE_GANGS, Kind, discovery, kinds_of
from tests.kubernetes.fake.patching import merged, strategically_merged
from tests.kubernetes.fake.replies import (
    Refusal,
    Reply,
    already_exists,
    invalid,
    modified,
    no_such_path,
    not_found,
    refusal,
    success,
)
from tests.kubernetes.fake.requests import Request
from tests.kubernetes.fake.rules import Rules
from tests.kubernetes.fake.selectors import field_test, label_test
from tests.kubernetes.fake.store import Document, Entry, Store

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "linux/amd64"}
_PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merged,
    "application/strategic-merge-patch+json": strategically_merged,
}


class Api:
    """The API, without a network.

    Args:
        history: So many events of a kind are remembered for watches.
        native_gangs: Whether scheduling.k8s.io/v1alpha2 PodGroups are served and `spec.schedulingGroup` is kept.
        now: Wall-clock seconds.
    """

    def __init__(
        self, *, history: int = 20_000, native_gangs: bool = False, now: Callable[[], float] = time.time
    ) -> None:
        self.store = Store(history, now)
        self.frozen: dict[tuple[str, str], tuple[list[Entry], int]] | None = None
        self.frozen_lists: int | None = None  #: so many more lists are answered frozen; None = all
        self.store.register(BUILT_IN + (NATIVE_GANGS if native_gangs else ()))
        self._rules = Rules(self.store, native_gangs)
        self._subresources: dict[str, Callable[[Request, Kind, Document], Reply]] = {
            "binding": self._bind,
            "eviction": self._evict,
        }
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.add({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})
        for name, value in (
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000),
        ):
            level = {
                "kind": "PriorityClass",
                "apiVersion": "scheduling.k8s.io/v1",
                "metadata": {"name": name},
            }
            self.add(level | {"value": value})

    def add(self, document: Document) -> Document:
        """Create an object, as if a client had; returns it as it is now.

        Raises:
            Refusal: As the API would.
        """
        group, _, version = document["apiVersion"].rpartition("/")
        kind = next(
            each
            for each in self.store.kinds.values()
            if (each.group, each.version, each.name) == (group, version, document["kind"])
        )
        namespace = document["metadata"].get("namespace", "default") if kind.namespaced else ""
        return self.store.put(kind, self._rules.new(kind, namespace, document)).document()

    def objects(self, plural: str, group: str = "") -> list[Document]:
        """All objects of a kind, as they are now, in order."""
        return [entry.document() for entry in self.store.collections[group, plural].sorted_entries()]

    def handle(self, request: Request) -> Reply:
        """Carry out a request."""
        try:
            return self._handle(request)
        except Refusal as refused:
            return refused.reply

    def kind_of(self, request: Request) -> Kind:
        """What a request is about.

        Raises:
            Refusal: Nothing that is served.
        """
        kind = self.store.kinds.get((request.group, request.version, request.plural))
        if kind is None:
            if request.group:
                raise no_such_path()
            raise refusal(404, "the server could not find the requested resource", details={})
        if not kind.namespaced and request.namespace:
            raise refusal(404, "the server could not find the requested resource", details={})
        return kind

    def _handle(self, request: Request) -> Reply:
        if not request.plural:
            return self._about_itself(request)
        if request.plural == "bindings" and request.method == "POST":
            return self._bind_by_body(request)
        kind = self.kind_of(request)
        match request.verb:
            case "get":
                return self._get(request, kind)
            case "list":
                return self._list(request, kind)
            case "create":
                return self._create(request, kind)
            case "update":
                return self._update(request, kind)
            case "patch":
                return self._patch(request, kind)
            case "delete":
                return deleting.delete(self.store, kind, self._entry(request, kind), request)
            case "deletecollection":
                return deleting.delete_all(self.store, kind, self._selected(request, kind), request)
            case _:
                raise refusal(
                    405, "the server does not allow this method on the requested resource", details={}
                )

    def _about_itself(self, request: Request) -> Reply:
        if request.path in ("/readyz", "/livez", "/healthz"):
            return Reply(200, b"ok", content_type="text/plain")
        if request.path == "/version":
            return Reply(200, msgspec.json.encode(_VERSION))
        found = discovery(request.path.strip("/").split("/"), self.store.kinds.values())
        if found is None:
            raise no_such_path()
        return Reply(200, found)

    def _entry(self, request: Request, kind: Kind) -> Entry:
        found = self.store.collection(kind).entries.get((request.namespace, request.name))
        if found is None:
            raise not_found(kind, request.name)
        return found

    def _get(self, request: Request, kind: Kind) -> Reply:
        entry = self._entry(request, kind)
        if request.subresource == "log":
            return Reply(204, b"")  # as of a pod that has no node
        return Reply(200, entry.body)

    def _selected(self, request: Request, kind: Kind) -> list[Entry]:
        """What a list or a delete of many is about, in order."""
        found = self.store.collection(kind).sorted_entries()
        if self.frozen is not None and request.method == "GET":
            found = self.frozen.get((kind.group, kind.plural), ([], 0))[0]
        if request.namespace:
            found = [entry for entry in found if entry.key[0] == request.namespace]
        if labels := request.query.get("labelSelector"):
            chosen = label_test(labels)
            found = [entry for entry in found if chosen(entry.labels)]
        if fields := request.query.get("fieldSelector"):
            chosen = field_test(fields, kind)
            found = [entry for entry in found if chosen(entry.fields)]
        return found

    def _list(self, request: Request, kind: Kind) -> Reply:
        version, limit = self.store.version, int(request.query.get("limit") or 0)
        if self.frozen is not None:
            version = self.frozen.get((kind.group, kind.plural), ([], 0))[1]
        start = 0
        if token := request.query.get("continue"):
            name, version, start = self._continued(token)
            entries = self.store.snapshots[name]
        else:
            entries, name = self._selected(request, kind), ""
        page = entries[start : start + limit] if limit else entries[start:]
        if self.frozen_lists is not None:
            self.frozen_lists -= 1
            if self.frozen_lists == 0:
                self.frozen = self.frozen_lists = None
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if left := len(entries) - start - len(page):
            name = name or self.store.snapshot(entries)
            told = msgspec.json.encode([name, version, start + len(page)])
            metadata |= {"continue": base64.urlsafe_b64encode(told).decode(), "remainingItemCount": left}
        return Reply(200, _list_body(kind, metadata, page))

    def _continued(self, token: str) -> tuple[str, int, int]:
        try:
            name, version, start = msgspec.json.decode(
                base64.urlsafe_b64decode(token), type=tuple[str, int, int]
            )
        except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise refusal(400, f"invalid continue token: continue key is not valid: {error}") from None
        if name not in self.store.snapshots:
            why = "The provided continue parameter is too old to display a consistent list result."
            raise refusal(410, why)
        return name, version, start

    def _create(self, request: Request, kind: Kind) -> Reply:
        if request.subresource in self._subresources:
            return self._subresources[request.subresource](request, kind, document_of(request, kind))
        if request.name or (kind.namespaced and not request.namespace):
            raise refusal(405, "the server does not allow this method on the requested resource", details={})
        document = self._rules.new(kind, request.namespace, document_of(request, kind))
        key = (document["metadata"].get("namespace", ""), document["metadata"]["name"])
        if key in self.store.collection(kind).entries:
            raise already_exists(kind, key[1])
        if kind.plural == "pods":
            quotas.admit(self.store, document)
        return Reply(201, self._write(request, kind, document))

    def _write(self, request: Request, kind: Kind, document: Document, before: Entry | None = None) -> bytes:
        if request.query.get("dryRun") == "All":
            return msgspec.json.encode(document)
        if before is None:
            entry = self.store.put(kind, document)
        else:
            entry = self.store.put_if_changed(kind, document, before)
        if kind.plural == "customresourcedefinitions":
            self.store.register(kinds_of(document))
        return entry.body

    def _update(self, request: Request, kind: Kind) -> Reply:
        given = document_of(request, kind)
        found = self.store.collection(kind).entries.get((request.namespace, request.name))
        if found is None and kind.upsert:
            document = self._rules.new(kind, request.namespace, given)
            return Reply(201, self._write(request, kind, document))
        if found is None:
            raise not_found(kind, request.name)
        version = (given.get("metadata") or {}).get("resourceVersion")
        if kind.strict and version in (None, "", "0"):
            why = "Invalid value: 0: must be specified for an update"
            raise invalid(kind, request.name, "metadata.resourceVersion", "FieldValueInvalid", why)
        return self._replace(request, kind, found, given)

    def _patch(self, request: Request, kind: Kind) -> Reply:
        apply = _PATCHES.get(request.content_type)
        strategic = request.content_type == "application/strategic-merge-patch+json"
        if apply is None or (kind.custom and strategic):
            raise refusal(415, "the body of the request was in an unknown format", details={})
        found = self._entry(request, kind)
        return self._replace(request, kind, found, apply(found.document(), document_of(request, kind)))

    def _replace(self, request: Request, kind: Kind, found: Entry, new: Document) -> Reply:
        version = (new.get("metadata") or {}).get("resourceVersion")
        if version not in (None, "", str(found.version)):
            raise modified(kind, request.name)
        old = found.document()
        if request.subresource == "status" and kind.status:
            document = self._rules.with_status(kind, old, new)
        elif request.subresource == "finalize" and kind.plural == "namespaces":
            document = old | {"spec": new.get("spec") or {}}
        elif request.subresource:
            raise refusal(404, "the server could not find the requested resource", details={})
        else:
            document = self._rules.changed(kind, old, new)
        metadata = document["metadata"]
        over = metadata.get("deletionTimestamp") and not metadata.get("deletionGracePeriodSeconds")
        held = metadata.get("finalizers") or (
            kind.plural == "namespaces" and document["spec"].get("finalizers")
        )
        if over and not held:
            metadata["resourceVersion"] = str(found.version)
            body = msgspec.json.encode(document)
            self.store.remove(kind, found, document)
            return Reply(200, body)
        return Reply(200, self._write(request, kind, document, found))

    def _bind_by_body(self, request: Request) -> Reply:
        binding = document_of(request, None)
        request.plural, request.subresource = "pods", "binding"
        request.name = (binding.get("metadata") or {}).get("name", "")
        return self._bind(request, self.kind_of(request), binding)

    def _bind(self, request: Request, kind: Kind, binding: Document) -> Reply:
        if (binding.get("metadata") or {}).get("name", request.name) != request.name:
            raise refusal(400, "name in URL does not match name in Binding object")
        target = binding.get("target") or {}
        if target.get("kind") not in (None, "", "Node"):
            why = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
            raise refusal(500, why, reason="")
        if not target.get("name"):
            raise refusal(500, "target.name: Required value", reason="")
        entry = self._entry(request, kind)
        pods.bind(self.store, kind, entry, binding, request.query.get("dryRun") == "All")
        return success(201)

    def _evict(self, request: Request, kind: Kind, eviction: Document) -> Reply:
        options = eviction.get("deleteOptions") or {}
        entry = self._entry(request, kind)
        budgets.spend(self.store, entry.document())
        deleting.check(kind, entry, options.get("preconditions") or {})
        entry = self.store.put_if_changed(kind, budgets.marked(entry.document()), entry)
        deleting.end(self.store, kind, entry, options)
        return success(201)


def document_of(request: Request, kind: Kind | None) -> Document:
    """The JSON object in a body."""
    try:
        found = msgspec.json.decode(request.body)
    except msgspec.MsgspecError as error:
        what = "an object" if kind is None else kind.name
        raise refusal(
            400, f"the object provided is unrecognized (must be of type {what}): json parse error: {error}"
        ) from None
    if not isinstance(found, dict):
        raise refusal(400, "the object provided is unrecognized")
    return found


def _list_body(kind: Kind, metadata: dict[str, Any], page: list[Entry]) -> bytes:
    """Items of built-in kinds have neither kind nor apiVersion, those of custom resources have both."""
    head = b'{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":[' % (
        kind.name.encode(),
        kind.api_version.encode(),
        msgspec.json.encode(metadata),
    )
    cut = (
        0
        if kind.custom
        else len(b'"kind":"%s","apiVersion":"%s",' % (kind.name.encode(), kind.api_version.encode()))
    )
    items = b",".join(b"{" + entry.body[1 + cut :] for entry in page)
    return head + items + b"]}"
