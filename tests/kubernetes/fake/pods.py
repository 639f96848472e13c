"""What the API server does to pods: defaults, what may be changed, binding, the end. As measured on 1.36."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import conflict, forbidden, invalid, refusal
from tests.kubernetes.fake.store import Document, Entry, Store

TOLERATED_S = 300
ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_UPDATES = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def prepare(store: Store, kind: Kind, pod: Document, native_gangs: bool) -> None:
    """Check a new pod and fill in what it leaves out."""
    name, spec = pod["metadata"]["name"], pod.setdefault("spec", {})
    if not isinstance(spec.get("containers", []), list):
        raise refusal(400, 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal')
    if not spec.get("containers"):
        raise invalid(kind, name, "spec.containers", "FieldValueRequired", "Required value")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        why = "Forbidden: cannot be set until all schedulingGates have been cleared"
        raise invalid(kind, name, "spec.nodeName", "FieldValueForbidden", why)
    for at, container in enumerate(spec["containers"]):
        _default_container(kind, name, at, container)
    for container in spec.get("initContainers") or ():
        container.setdefault("resources", {})
    if not native_gangs:
        spec.pop("schedulingGroup", None)
    _prioritise(store, kind, name, spec)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            each.get("key") in (key, None) and each.get("effect") != "NoSchedule" for each in tolerations
        ):
            told = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_S}
            tolerations.append(told)
    pod["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    if spec.get("schedulingGates"):
        message = "Scheduling is blocked due to non-empty scheduling gates"
        gated = _condition(store, "False") | {"reason": "SchedulingGated", "message": message}
        pod["status"] = {"phase": "Pending", "conditions": [gated], "qosClass": _qos(spec)}
    if spec.get("nodeName"):
        _copy_zones(store, pod, spec["nodeName"])


def _default_container(kind: Kind, name: str, at: int, container: Document) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    tag = container.get("image", "").rpartition("/")[2]
    container.setdefault(
        "imagePullPolicy", "IfNotPresent" if ":" in tag and ":latest" not in tag else "Always"
    )
    resources = container["resources"]
    for part in ("limits", "requests"):
        if part in resources:
            resources[part] = {key: str(value) for key, value in resources[part].items()}
    if resources.get("limits"):
        resources["requests"] = resources["limits"] | resources.get("requests", {})


def _prioritise(store: Store, kind: Kind, name: str, spec: Document) -> None:
    wanted = spec.get("priorityClassName")
    if wanted:
        found = store.find("priorityclasses", wanted, group="scheduling.k8s.io")
        if found is None:
            raise forbidden(kind, name, f"no PriorityClass with name {wanted} was found")
        level = found.document()
        spec["priority"] = level["value"]
        spec.setdefault("preemptionPolicy", level.get("preemptionPolicy", "PreemptLowerPriority"))
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _qos(spec: Document) -> str:
    resources = [container["resources"] for container in spec["containers"]]
    if all(not each.get("requests") and not each.get("limits") for each in resources):
        return "BestEffort"
    for each in resources:
        limits, requests = each.get("limits", {}), each.get("requests", {})
        if any(key not in limits or limits[key] != requests.get(key) for key in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def check_update(kind: Kind, old: Document, new: Document) -> None:
    """Refuse what may not be changed in a pod's spec."""
    name, before, after = old["metadata"]["name"], old["spec"], new["spec"]
    if before == after:
        return
    gates = {gate["name"] for gate in before.get("schedulingGates") or ()}
    for at, gate in enumerate(after.get("schedulingGates") or ()):
        if gate["name"] not in gates:
            why = f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            raise invalid(kind, name, f"spec.schedulingGates[{at}].name", "FieldValueForbidden", why)
    left = _without_changeable(after)
    if gates:
        selector = after.get("nodeSelector") or {}
        if (before.get("nodeSelector") or {}).items() - selector.items():
            why = f"Invalid value: {selector}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            raise invalid(kind, name, "spec.nodeSelector", "FieldValueInvalid", why)
        left["nodeSelector"] = before.get("nodeSelector")
        left["affinity"] = before.get("affinity")
    untouched = _without_changeable(before) | (
        {"nodeSelector": before.get("nodeSelector"), "affinity": before.get("affinity")} if gates else {}
    )
    more = [each for each in before.get("tolerations", ()) if each not in after.get("tolerations", ())]
    if left != untouched or more:
        raise invalid(kind, name, "spec", "FieldValueForbidden", _UPDATES)


def _without_changeable(spec: Document) -> Document:
    left = {
        key: value
        for key, value in spec.items()
        if key
        not in ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")
    }
    for part in ("containers", "initContainers"):
        if part in left:
            left[part] = [{k: v for k, v in each.items() if k != "image"} for each in left[part]]
    return left


def check_status(kind: Kind, old: Document, new: Document) -> None:
    """Refuse that a container that has ended for good runs again; write the moments that nobody gave as null."""
    spec = old["spec"]
    for condition in new.get("status", {}).get("conditions") or ():
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)
    if spec.get("restartPolicy") != "Never":
        return
    ended = {
        each["name"]
        for each in old.get("status", {}).get("containerStatuses") or ()
        if (each.get("state") or {}).get("terminated")
    }
    for at, each in enumerate(new.get("status", {}).get("containerStatuses") or ()):
        if each["name"] in ended and not (each.get("state") or {}).get("terminated"):
            field = f"status.containerStatuses[{at}].state"
            why = "Forbidden: may not be transitioned to non-terminated state"
            raise invalid(kind, old["metadata"]["name"], field, "FieldValueForbidden", why)


def bind(store: Store, kind: Kind, entry: Entry, binding: Document, dry_run: bool) -> None:
    """Assign a pod to a node. Whether there is such a node, and whether it has room, is not checked."""
    metadata, name = binding.get("metadata") or {}, entry.key[1]
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if uid and uid != entry.uid:
        raise _precondition(entry, f"UID in precondition: {uid}, UID in object meta: {entry.uid}")
    if version and version != str(entry.version):
        told = f"ResourceVersion in precondition: {version}, ResourceVersion in object meta: {entry.version}"
        raise _precondition(entry, told)
    pod = entry.document()
    spec, about = pod["spec"], {"name": name, "kind": "pods/binding"}
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", name, why, about)
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("pods/binding", name, why, about)
    if spec.get("schedulingGates"):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates", about)
    if dry_run:
        return
    spec["nodeName"] = binding["target"]["name"]
    for part in ("annotations", "labels"):
        if metadata.get(part):
            pod["metadata"][part] = (pod["metadata"].get(part) or {}) | metadata[part]
    _copy_zones(store, pod, spec["nodeName"])
    status = pod["status"]
    status.pop("nominatedNodeName", None)
    others = [each for each in status.get("conditions") or () if each["type"] != "PodScheduled"]
    status["conditions"] = [*others, _condition(store, "True")]
    store.put(kind, pod)


def _precondition(entry: Entry, told: str) -> Exception:
    namespace, name = entry.key
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: {told}"
    )
    return conflict("pods", name, why, {"name": name, "kind": "pods"})


def _condition(store: Store, status: str) -> dict[str, Any]:
    return {
        "type": "PodScheduled",
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": store.timestamp(),
    }


def _copy_zones(store: Store, pod: Document, node: str) -> None:
    found = store.find("nodes", node)
    zones = {} if found is None else {key: found.labels[key] for key in ZONES if key in found.labels}
    if zones:
        pod["metadata"]["labels"] = (pod["metadata"].get("labels") or {}) | zones


def grace_s(pod: Document, asked: int | None) -> int:
    """How long a pod may go on after its DELETE: one that no kubelet has, or that has ended, not at all."""
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return asked
    told = spec.get("terminationGracePeriodSeconds")
    return 30 if told is None else int(told)
