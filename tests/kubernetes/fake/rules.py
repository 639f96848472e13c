"""What the API server checks and fills in when an object is created or changed."""

from __future__ import annotations

import re
from typing import Any

from tests.kubernetes.fake import claims, groups, pods
from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import forbidden, invalid, not_found, refusal
from tests.kubernetes.fake.store import Document, Store

_LABEL_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL_NAME)
_SUBDOMAIN = re.compile(rf"{_LABEL_NAME}(\.{_LABEL_NAME})*")
_LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NOTE_CHARACTERS = 1024

#: What only the server writes.
_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "managedFields",
)


class Rules:
    """The rules of one server.

    Args:
        store: What there is.
        native_gangs: Whether the feature gates for native PodGroups are on.
    """

    def __init__(self, store: Store, native_gangs: bool) -> None:
        self._store = store
        self._native_gangs = native_gangs

    def new(self, kind: Kind, namespace: str, given: Document) -> Document:
        """The object that a create makes of a document."""
        document = self._typed(kind, given)
        metadata = self._named(kind, namespace, document)
        name = metadata["name"]
        if kind.plural == "namespaces" and not _DNS_LABEL.fullmatch(name):
            raise _bad_name(kind, name, "label")
        if not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
            raise _bad_name(kind, name, "subdomain")
        self._check_metadata(kind, metadata)
        for key in _OWNED:
            metadata.pop(key, None)
        if metadata.pop("resourceVersion", None):
            raise refusal(400, "resourceVersion should not be set on objects to be created")
        metadata["uid"] = self._store.new_uid()
        metadata["creationTimestamp"] = self._store.timestamp()
        if kind.generation:
            metadata["generation"] = 1
        if kind.status and not kind.keeps_status:
            document.pop("status", None)
        self._fill(kind, document)
        return document

    def changed(self, kind: Kind, old: Document, new: Document) -> Document:
        """The object that an update or a patch makes, without its status."""
        if claims.is_claim(kind):
            claims.check_update(kind, old, new)
        self._keep_owned(kind, old, new)
        self._check_metadata(kind, new["metadata"])
        if kind.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if kind.plural == "pods":
            pods.check_update(kind, old, new)
        if groups.is_native(kind):
            groups.check_update(kind, old, new)
        if kind.generation and _content(old) != _content(new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return new

    def with_status(self, kind: Kind, old: Document, new: Document) -> Document:
        """The object that an update or a patch of `/status` makes: of custom resources not even labels change."""
        self._keep_owned(kind, old, new)
        if claims.is_claim(kind):
            return claims.with_status(kind, old, new)
        merged = {**old, "status": new.get("status", {})}
        if not kind.custom:
            self._check_metadata(kind, new["metadata"])
            merged["metadata"] = {
                **new["metadata"],
                "ownerReferences": old["metadata"].get("ownerReferences", []),
            }
            if not merged["metadata"]["ownerReferences"]:
                del merged["metadata"]["ownerReferences"]
        if kind.plural == "pods":
            pods.check_status(kind, old, merged)
        if groups.is_native(kind):
            groups.check_status(kind, merged)
        if kind.plural == "nodes":
            for condition in merged["status"].get("conditions") or ():
                condition.setdefault("lastHeartbeatTime", None)
                condition.setdefault("lastTransitionTime", None)
        return merged

    def _typed(self, kind: Kind, given: Document) -> Document:
        told = given.get("kind")
        if kind.custom and not (told and given.get("apiVersion")):
            raise refusal(
                400,
                f"the object provided is unrecognized (must be of type {kind.name}): Object 'Kind' is missing",
            )
        if told not in (None, kind.name):
            version = given.get("apiVersion", kind.version)
            why = f"converting ({version}.{told}) to (core.{kind.name}): unknown conversion"
            raise refusal(400, f'{told} in version "{version}" cannot be handled as a {kind.name}: {why}')
        rest = {key: value for key, value in given.items() if key not in ("kind", "apiVersion", "metadata")}
        metadata = dict(given.get("metadata") or {})
        return {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata, **rest}

    def _named(self, kind: Kind, namespace: str, document: Document) -> Document:
        metadata: Document = document["metadata"]
        if kind.namespaced:
            if metadata.get("namespace", namespace) != namespace:
                raise refusal(
                    400,
                    "the namespace of the provided object does not match the namespace sent on the request",
                )
            metadata["namespace"] = namespace
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(
                    kind,
                    "",
                    "metadata.name",
                    "FieldValueRequired",
                    "Required value: name or generateName is required",
                )
            if metadata["generateName"].endswith("."):
                why = f'Invalid value: "{metadata["generateName"]}": a lowercase RFC 1123 subdomain must consist of …'
                raise invalid(kind, "", "metadata.generateName", "FieldValueInvalid", why)
            metadata["name"] = f"{metadata['generateName']}{self._store.version:05x}"
        if kind.namespaced:
            self._check_namespace(kind, namespace, metadata["name"])
        return metadata

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        found = self._store.find("namespaces", namespace)
        if found is None:
            raise not_found(self._store.kinds["", "v1", "namespaces"], namespace)
        if found.fields.get("status.phase") == "Terminating":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(kind, name, why, causes=[cause])

    def _check_metadata(self, kind: Kind, metadata: Document) -> None:
        name = metadata["name"]
        for key, value in (metadata.get("labels") or {}).items():
            for text, pattern in ((key, _LABEL_KEY), (value, _LABEL_VALUE)):
                if (
                    not isinstance(text, str)
                    or not pattern.fullmatch(text)
                    or len(text.rpartition("/")[2]) > 63
                ):
                    why = f'Invalid value: "{text}": a valid label must consist of alphanumeric characters'
                    raise invalid(kind, name, "metadata.labels", "FieldValueInvalid", why)
        for owner in metadata.get("ownerReferences") or ():
            if not owner.get("uid"):
                why = 'Invalid value: "": must not be empty'
                raise invalid(kind, name, "metadata.ownerReferences.uid", "FieldValueInvalid", why)

    def _keep_owned(self, kind: Kind, old: Document, new: Document) -> None:
        """Refuse another identity, and take the server's own fields from the old object."""
        before, after = old["metadata"], new.setdefault("metadata", {})
        uid = after.get("uid")
        if uid and uid != before["uid"]:
            why = f'Invalid value: "{uid}": field is immutable'
            raise invalid(kind, before["name"], "metadata.uid", "FieldValueInvalid", why)
        new["kind"], new["apiVersion"] = kind.name, kind.api_version
        for key in (*_OWNED, "name", "namespace"):
            after.pop(key, None)
            if key in before:
                after[key] = before[key]

    def _fill(self, kind: Kind, document: Document) -> None:
        """What single kinds need."""
        match kind.group, kind.plural:
            case "", "pods":
                pods.prepare(self._store, kind, document, self._native_gangs)
            case "", "namespaces":
                labels = document["metadata"].setdefault("labels", {})
                labels["kubernetes.io/metadata.name"] = document["metadata"]["name"]
                document["spec"] = {"finalizers": ["kubernetes"]}
                document["status"] = {"phase": "Active"}
            case "", "nodes":
                document.setdefault("spec", {})
                document.setdefault("status", {})
            case "", ("persistentvolumes" | "persistentvolumeclaims"):
                document["status"] = {"phase": "Pending"}
            case "events.k8s.io", _:
                _check_event(kind, document)
            case "scheduling.k8s.io", "podgroups":
                groups.prepare(kind, document)
            case _, "priorityclasses":
                document.setdefault("preemptionPolicy", "PreemptLowerPriority")
            case _, "customresourcedefinitions":
                conditions = [{"type": each, "status": "True"} for each in ("NamesAccepted", "Established")]
                document["status"] = {"conditions": conditions}


def _check_event(kind: Kind, event: Document) -> None:
    name = event["metadata"]["name"]
    for key in ("action", "reason", "eventTime", "reportingController", "reportingInstance"):
        if not event.get(key):
            raise invalid(kind, name, key, "FieldValueRequired", "Required value")
    if len(event.get("note", "").encode()) > NOTE_CHARACTERS:
        why = f'Invalid value: "": can have at most {NOTE_CHARACTERS} characters'
        raise invalid(kind, name, "message", "FieldValueInvalid", why)


def _bad_name(kind: Kind, name: str, what: str) -> Exception:
    why = f'Invalid value: "{name}": a lowercase RFC 1123 {what} must consist of lower case alphanumeric characters'
    return invalid(kind, name, "metadata.name", "FieldValueInvalid", why)


def _content(document: Document) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("metadata", "status")}
