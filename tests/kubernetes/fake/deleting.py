"""How objects end: preconditions, finalizers, a pod's grace. As measured on 1.36."""

from __future__ import annotations

import msgspec

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.pods import grace_s
from tests.kubernetes.fake.replies import Reply, conflict, refusal, success
from tests.kubernetes.fake.requests import Request
from tests.kubernetes.fake.store import Document, Entry, Store

_PROPAGATION = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def delete(store: Store, kind: Kind, entry: Entry, request: Request) -> Reply:
    """Carry out a DELETE of one object."""
    last = end(store, kind, entry, _options(request), dry_run=request.query.get("dryRun") == "All")
    still_there = store.collection(kind).entries.get(entry.key) is not None
    if kind.plural in ("pods", "namespaces", "resourceclaims") or still_there:
        return Reply(200, last.body)
    return success(200, {**kind.details(entry.key[1]), "uid": entry.uid})


def delete_all(store: Store, kind: Kind, entries: list[Entry], request: Request) -> Reply:
    """Carry out a DELETE of many."""
    options = _options(request)
    items = b",".join(end(store, kind, entry, options).body for entry in entries)
    head = b'{"kind":"%sList","apiVersion":"%s"' % (kind.name.encode(), kind.api_version.encode())
    metadata = msgspec.json.encode({"resourceVersion": str(store.version)})
    return Reply(200, head + b',"metadata":' + metadata + b',"items":[' + items + b"]}")


def end(store: Store, kind: Kind, entry: Entry, options: Document, dry_run: bool = False) -> Entry:
    """End an object, now or later; returns its last state for the present."""
    check(kind, entry, options.get("preconditions") or {})
    if dry_run:
        return entry
    document = entry.document()
    metadata = document["metadata"]
    if extra := _PROPAGATION.get(options.get("propagationPolicy", "")):
        metadata["finalizers"] = [*metadata.get("finalizers", ()), extra]
    grace = grace_s(document, options.get("gracePeriodSeconds")) if kind.plural == "pods" else 0
    if kind.plural == "namespaces":
        metadata.setdefault("deletionTimestamp", store.timestamp())
        document["status"] = {**document.get("status", {}), "phase": "Terminating"}
        return store.put_if_changed(kind, document, entry)
    before = metadata.get("deletionGracePeriodSeconds")
    marked = "deletionTimestamp" in metadata
    if not marked or (options.get("gracePeriodSeconds") is not None and grace < (before or 0)):
        metadata["deletionTimestamp"] = store.timestamp(grace if not marked else grace - (before or 0))
        metadata["deletionGracePeriodSeconds"] = grace
        if kind.generation and not marked:
            metadata["generation"] = metadata.get("generation", 0) + 1
    waits = bool(metadata.get("finalizers")) or metadata["deletionGracePeriodSeconds"] > 0
    if waits:
        return store.put_if_changed(kind, document, entry)
    if kind.plural == "pods":
        entry = store.put_if_changed(kind, document, entry)
    if kind.plural == "customresourcedefinitions":
        spec = document["spec"]
        store.unregister(spec["group"], spec["names"]["plural"])
    return store.remove(kind, entry, document)


def check(kind: Kind, entry: Entry, preconditions: Document) -> None:
    """Compare uid and version.

    Raises:
        Refusal: It is another object, or another version of it.
    """
    name, about = entry.key[1], {**kind.details(entry.key[1]), "kind": kind.name}
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if uid is not None and uid != entry.uid:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({entry.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(kind.name, name, why, about)
    if version is not None and version != str(entry.version):
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({entry.version}). The object might have been modified"
        )
        raise conflict(kind.name, name, why, about)


def _options(request: Request) -> Document:
    options: Document = {}
    if request.body:
        try:
            options = msgspec.json.decode(request.body)
        except msgspec.MsgspecError as error:
            raise refusal(400, f"couldn't parse the delete options: {error}") from None
    if grace := request.query.get("gracePeriodSeconds"):
        options["gracePeriodSeconds"] = int(grace)
    if policy := request.query.get("propagationPolicy"):
        options["propagationPolicy"] = policy
    return options
