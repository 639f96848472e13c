"""The kinds that the fake serves, and the documents by which clients discover them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind in one version.

    Args:
        group: "" for the core.
        version: "v1".
        plural: As in paths.
        name: As in documents.
        namespaced: Or of the cluster.
        status: Whether `/status` is a subresource, so that nothing else writes the status.
        custom: Defined by a CustomResourceDefinition.
        generation: Whether the spec's changes are counted.
        keeps_status: Whether a status that comes with a create is kept.
        fields: What field selectors may name, beside metadata.name and metadata.namespace.
        upsert: Whether a PUT may create.
        strict: Whether a PUT must carry a resourceVersion.
    """

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    generation: bool = False
    keeps_status: bool = False
    fields: tuple[str, ...] = ()
    upsert: bool = False
    strict: bool = False

    @property
    def api_version(self) -> str:
        """As in documents."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str) -> dict[str, Any]:
        """Of a Status about an object."""
        return {"name": name, **({"group": self.group} if self.group else {}), "kind": self.plural}


_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "reason",
    "type",
    "reportingController",
    "involvedObject.kind",
    "involvedObject.name",
    "involvedObject.uid",
    "regarding.kind",
    "regarding.name",
)

BUILT_IN = (
    Kind("", "v1", "pods", "Pod", status=True, generation=True, fields=_POD_FIELDS),
    Kind(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        status=True,
        keeps_status=True,
        fields=("spec.unschedulable",),
    ),
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True, fields=("status.phase",)),
    Kind("", "v1", "services", "Service", status=True),
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "secrets", "Secret", fields=("type",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("", "v1", "events", "Event", fields=_EVENT_FIELDS),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, status=True),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", status=True),
    Kind("", "v1", "resourcequotas", "ResourceQuota", status=True),
    Kind("apps", "v1", "daemonsets", "DaemonSet", status=True, generation=True),
    Kind("apps", "v1", "deployments", "Deployment", status=True, generation=True),
    Kind("batch", "v1", "jobs", "Job", status=True, generation=True),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", status=True, generation=True),
    Kind("events.k8s.io", "v1", "events", "Event", fields=_EVENT_FIELDS),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", upsert=True, strict=True),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, generation=True),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True),
    Kind(
        "resource.k8s.io",
        "v1",
        "resourceslices",
        "ResourceSlice",
        namespaced=False,
        generation=True,
        fields=("spec.nodeName", "spec.driver"),
    ),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, generation=True),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        status=True,
        generation=True,
    ),
)
#: Served where the feature gates GenericWorkload and GangScheduling are on.
NATIVE_GANGS = (
    Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", status=True),
    Kind("scheduling.k8s.io", "v1alpha2", "workloads", "Workload"),
)


def kinds_of(definition: Mapping[str, Any]) -> list[Kind]:
    """The kinds that a CustomResourceDefinition defines: one per version that is served."""
    spec = definition["spec"]
    return [
        Kind(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            namespaced=spec.get("scope") == "Namespaced",
            status="status" in (version.get("subresources") or {}),
            custom=True,
            generation=True,
            strict=True,
        )
        for version in spec["versions"]
        if version.get("served", True)
    ]


def discovery(parts: list[str], kinds: Iterable[Kind]) -> bytes | None:
    """The document at /api, /apis, /api/v1, /apis/<group> or /apis/<group>/<version>; None if nothing is served there."""
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        versions = groups.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    match parts:
        case ["api"]:
            found: Any = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            told = [_group(name, versions) for name, versions in groups.items() if name]
            found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": told}
        case ["apis", name] if name in groups:
            found = {"kind": "APIGroup", "apiVersion": "v1", **_group(name, groups[name])}
        case ["api", "v1"]:
            found = _resources("", "v1", kinds)
        case ["apis", name, version] if version in groups.get(name, ()):
            found = _resources(name, version, kinds)
        case _:
            return None
    return msgspec.json.encode(found)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    told = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": told, "preferredVersion": told[0]}


def _resources(group: str, version: str, kinds: Iterable[Kind]) -> dict[str, Any]:
    resources: list[dict[str, Any]] = []
    for kind in kinds:
        if (kind.group, kind.version) != (group, version):
            continue
        about = {"singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
        resources.append({"name": kind.plural, **about, "verbs": VERBS})
        if kind.status:
            status = {"name": f"{kind.plural}/status", **about, "singularName": ""}
            resources.append({**status, "verbs": ["get", "patch", "update"]})
    told = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": told, "resources": resources}
