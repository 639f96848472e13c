"""Random nodes and pods of few words each, so that their rules often meet, as an API server takes them."""

from __future__ import annotations

import random
from typing import Any, Final

Json = dict[str, Any]

ZONE: Final = "topology.kubernetes.io/zone"
RACK: Final = "example.com/rack"
HOST: Final = "kubernetes.io/hostname"
WIDGET: Final = "example.com/widget"
NAMESPACES: Final[dict[str, dict[str, str]]] = {
    "red": {"team": "x", "stage": "prod"},
    "blue": {"team": "y", "stage": "prod"},
    "grey": {"team": "x"},
}
LABELS: Final = {
    "app": ("web", "db", "job"),
    "tier": ("1", "2"),
    "pod-template-hash": ("p", "q"),
    "group": ("g1", "g2", "g3", "g4"),
}
TAINTS: Final = (("dedicated", "a"), ("dedicated", "b"), ("flaky", ""))
VOLUMES: Final = 12  #: claims per namespace
#: With more of everything nothing would ever fit: each kind of rule comes with this probability, spread (which has the
#: most to it) with twice as much.
OFTEN: Final = 0.17


def node(rng: random.Random, at: int) -> Json:
    """A node that takes 4 to 16 pods."""
    name = f"n{at:02}"
    labels = {HOST: name} if rng.random() < 0.95 else {}
    if rng.random() < 0.9:
        labels[ZONE] = f"z{rng.randrange(4)}"
    if rng.random() < 0.7:
        labels[RACK] = f"r{rng.randrange(6)}"
    if rng.random() < 0.6:
        labels["disk"] = rng.choice(["ssd", "hdd", ""])
    if rng.random() < 0.6:
        labels["generation"] = rng.choice(["1", "2", "10", "x", "007"])
    taints = {}  # a node has one of a key and effect at most
    for key, value in TAINTS:
        effect = rng.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
        if rng.random() < 0.12:
            taints[key, effect] = {"key": key, "value": value, "effect": effect}
    spec: Json = {}
    if rng.random() < 0.07:
        spec["unschedulable"] = True
        away = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        taints[away["key"], away["effect"]] = away
    amounts = {
        "cpu": rng.choice(["2", "4", "7500m"]),
        "memory": rng.choice(["2Gi", "8Gi"]),
        "ephemeral-storage": rng.choice(["10Gi", "50Gi"]),
        "pods": str(rng.choice([4, 8, 16])),
    }
    if rng.random() < 0.5:
        amounts[WIDGET] = str(rng.choice([1, 4]))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {**spec, "taints": list(taints.values())},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def volume(rng: random.Random, namespace: str, at: int) -> tuple[Json, Json]:
    """A bound pair: a PersistentVolume, half of them tied to nodes, and its claim."""
    name = f"{namespace}-{at}"
    spec: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/volumes/{name}"},
        "claimRef": {"namespace": namespace, "name": f"claim-{at}"},
    }
    if rng.random() < 0.7:
        terms = [_node_term(rng) for _ in range(rng.randint(1, 2))]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    claim_spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": name,
    }
    done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    pv = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"claim-{at}", "namespace": namespace, "annotations": done},
        "spec": claim_spec,
    }
    return pv, claim


def pod(rng: random.Random, name: str, node_names: list[str]) -> Json:
    """A pod with some of all the rules there are; one in 15 is bound by its author."""
    namespace = rng.choice(sorted(NAMESPACES))
    labels = {key: rng.choice(values) for key, values in LABELS.items() if rng.random() < 0.7}
    spec: Json = {
        "terminationGracePeriodSeconds": 3600,
        "containers": [_container(rng, "main")],
        "affinity": _affinity(rng, labels),
        "tolerations": [_toleration(rng) for _ in range(rng.choice([0, 0, 1, 2]))],
        "topologySpreadConstraints": _spread(rng, labels),
    }
    if rng.random() < 0.2:
        spec["containers"].append(_container(rng, "other", ports=False))
    if rng.random() < 0.15:
        first = _container(rng, "first", ports=False)
        spec["initContainers"] = [first | ({"restartPolicy": "Always"} if rng.random() < 0.5 else {})]
    if rng.random() < OFTEN / 2:
        key, value = rng.choice([(ZONE, f"z{rng.randrange(4)}"), ("disk", "ssd"), ("disk", "")])
        spec["nodeSelector"] = {key: value}
    if rng.random() < OFTEN:
        claims = rng.sample(range(VOLUMES), rng.randint(1, 2))
        spec["volumes"] = [
            {"name": f"v{at}", "persistentVolumeClaim": {"claimName": f"claim-{at}"}} for at in claims
        ]
    if rng.random() < 0.07:
        spec["nodeName"] = rng.choice(node_names)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def _container(rng: random.Random, name: str, ports: bool = True) -> Json:
    requests = {
        "cpu": rng.choice(["0", "100m", "250m", "1", "1500m"]),
        "memory": rng.choice(["0", "64Mi", "1Gi"]),
    }
    if rng.random() < 0.15:
        requests["ephemeral-storage"] = rng.choice(["1Gi", "8Gi"])
    limits = {}
    if rng.random() < 0.1:
        requests[WIDGET] = limits[WIDGET] = "1"
    container: Json = {
        "name": name,
        "image": "none",
        "resources": {"requests": requests, "limits": limits},
    }
    if ports and rng.random() < OFTEN:
        container["ports"] = [_port(rng)]
    return container


def _port(rng: random.Random) -> Json:
    number = rng.choice([80, 443])
    port: Json = {"containerPort": number, "hostPort": number}
    if rng.random() < 0.3:
        port["protocol"] = "UDP"
    if rng.random() < 0.4:
        port["hostIP"] = rng.choice(["10.0.0.1", "10.0.0.2", "0.0.0.0"])
    return port


def _toleration(rng: random.Random) -> Json:
    effect = rng.choice(["", "", "NoSchedule", "NoExecute"])
    kind = rng.random()
    if kind < 0.2:
        key, value = "", ""
    elif kind < 0.3:
        key, value = "node.kubernetes.io/unschedulable", ""
    else:
        key, value = rng.choice(TAINTS)
    operator = "Exists" if not key else rng.choice(["Equal", "Exists", ""])
    told = {"key": key, "operator": operator, "effect": effect}
    if operator != "Exists":
        told["value"] = value
    return {name: what for name, what in told.items() if what}


def _affinity(rng: random.Random, labels: dict[str, str]) -> Json:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity: Json = {}
    if rng.random() < OFTEN:
        terms = [_node_term(rng) for _ in range(rng.randint(1, 3))]
        affinity["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
    if rng.random() < OFTEN:
        affinity["podAffinity"] = {required: [_pod_term(rng, labels) for _ in range(rng.choice([1, 1, 2]))]}
    if rng.random() < OFTEN:
        affinity["podAntiAffinity"] = {
            required: [_pod_term(rng, labels) for _ in range(rng.choice([1, 1, 2]))]
        }
    return affinity


def _node_term(rng: random.Random) -> Json:
    expressions = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        if rng.random() < 0.2:
            bound = rng.choice(["1", "5", "0"])
            expressions.append({"key": "generation", "operator": rng.choice(["Gt", "Lt"]), "values": [bound]})
            continue
        key, values = rng.choice(
            [
                (ZONE, ["z0", "z1", "z2", "z3"]),
                ("disk", ["ssd", "hdd", ""]),
                (RACK, ["r0", "r1", "r2"]),
            ]
        )
        expressions.append(_requirement(rng, key, values, ["In", "In", "NotIn", "Exists", "DoesNotExist"]))
    term: Json = {"matchExpressions": expressions}
    if rng.random() < 0.15:
        name = f"n{rng.randrange(35):02}"
        field = {"key": "metadata.name", "operator": rng.choice(["In", "NotIn", "NotIn"]), "values": [name]}
        term["matchFields"] = [field]
    return term


def _requirement(rng: random.Random, key: str, values: list[str], operators: list[str]) -> Json:
    operator = rng.choice(operators)
    told: Json = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        told["values"] = rng.sample(values, rng.randint(1, min(2, len(values))))
    return told


def _selector(rng: random.Random, without: tuple[str, ...] = ()) -> Json | None:
    """Mostly something of one or two labels, sometimes {} (everything), sometimes nothing at all."""
    kind = rng.random()
    if kind < 0.04:
        return None
    if kind < 0.08:
        return {}
    keys = [key for key in LABELS if key not in without]
    if kind < 0.5:
        key = rng.choice(keys)
        return {"matchLabels": {key: rng.choice(LABELS[key])}}
    operators = ["In", "In", "NotIn", "Exists", "DoesNotExist"]
    chosen = rng.sample(keys, rng.choice([1, 1, 2]))
    return {"matchExpressions": [_requirement(rng, key, list(LABELS[key]), operators) for key in chosen]}


def _pod_term(rng: random.Random, labels: dict[str, str]) -> Json:
    term: Json = {"topologyKey": rng.choice([ZONE, RACK, RACK, HOST, HOST, HOST])}
    keys = rng.random()
    if keys < 0.12:
        term["labelSelector"] = _selector(rng, without=("pod-template-hash",)) or {}
        term["matchLabelKeys" if keys < 0.07 else "mismatchLabelKeys"] = ["pod-template-hash"]
    else:
        selector = _selector(rng)
        if selector is not None:
            term["labelSelector"] = selector
    where = rng.random()
    if where < 0.2:
        term["namespaces"] = rng.sample(sorted(NAMESPACES), rng.randint(1, 2))
    if 0.15 < where < 0.25:
        term["namespaceSelector"] = {}
    elif 0.25 < where < 0.4:
        label = rng.choice([("team", ["x", "y"]), ("stage", ["prod"])])
        wanted = _requirement(rng, label[0], label[1], ["In", "NotIn", "Exists", "DoesNotExist"])
        term["namespaceSelector"] = {"matchExpressions": [wanted]}
    return term


def _spread(rng: random.Random, labels: dict[str, str]) -> list[Json]:
    if rng.random() > 2 * OFTEN:
        return []
    constraints = []
    for key in rng.sample([ZONE, RACK, HOST], rng.choice([1, 1, 2])):
        constraint: Json = {
            "topologyKey": key,
            "maxSkew": rng.choice([1, 1, 2, 4]),
            "whenUnsatisfiable": "DoNotSchedule" if rng.random() < 0.85 else "ScheduleAnyway",
        }
        if rng.random() < 0.2:
            constraint["labelSelector"] = _selector(rng, without=("pod-template-hash",)) or {}
            constraint["matchLabelKeys"] = ["pod-template-hash"]
        else:
            selector = _selector(rng)
            if selector is not None:
                constraint["labelSelector"] = selector
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and rng.random() < 0.3:
            constraint["minDomains"] = rng.choice([2, 3, 5])
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if rng.random() < 0.4:
                constraint[policy] = rng.choice(["Honor", "Ignore"])
        constraints.append(constraint)
    return constraints
