"""Random clusters and pods with rules, few words each, so that rules often meet."""

from __future__ import annotations

import random
from collections.abc import Mapping

from plain_rules import PlainNode, PlainPod, World

from flowsched.executor import constraints as r
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import Shape
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

ZONE, RACK, HOST = "zone", "rack", "host"
NAMESPACES: Mapping[str, Mapping[str, str]] = {"a": {"team": "x"}, "b": {"team": "y"}, "c": {}}
KEYS = {"app": ("web", "db", "job"), "tier": ("1", "2"), "hash": ("p", "q")}


def node(rng: random.Random, at: int) -> PlainNode:
    labels = {}
    if rng.random() < 0.9:
        labels[ZONE] = f"z{rng.randrange(3)}"
    if rng.random() < 0.7:
        labels[RACK] = f"r{rng.randrange(4)}"
    if rng.random() < 0.95:
        labels[HOST] = f"n{at}"
    if rng.random() < 0.5:
        labels["disk"] = rng.choice(["ssd", "hdd", ""])
    if rng.random() < 0.5:
        labels["gen"] = rng.choice(["1", "2", "10", "x", "-3", "+4"])
    taints = []
    if rng.random() < 0.3:
        effect = rng.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
        taints.append(("only", rng.choice(["a", "b"]), effect))
    room = {"cpu": rng.choice([2000, 4000, 8000]), "pods": rng.choice([2, 4, 110])}
    return PlainNode(f"n{at}", labels, tuple(taints), room)


def label_requirement(rng: random.Random) -> r.Requirement:
    key = rng.choice(list(KEYS))
    operator = rng.choice(["In", "In", "In", "NotIn", "Exists", "DoesNotExist"])
    some = rng.sample(KEYS[key], rng.randint(1, 2)) if operator in ("In", "NotIn") else ()
    return r.requirement(key, operator, some)


def selector(rng: random.Random) -> r.Selector | None:
    kind = rng.random()
    if kind < 0.05:
        return None
    if kind < 0.12:
        return ()
    return r.selector_of({}, [label_requirement(rng) for _ in range(rng.choice([1, 1, 1, 2]))])


def pod_term(rng: random.Random, namespace: str) -> r.PodTerm:
    choice = rng.random()
    named = rng.sample(sorted(NAMESPACES), rng.randint(1, 2)) if choice > 0.7 else ()
    by_labels: r.Selector | None = None
    if choice < 0.1:
        by_labels = ()
    elif choice < 0.25:
        by_labels = (r.requirement("team", rng.choice(["In", "NotIn"]), (rng.choice(["x", "y"]),)),)
    return r.pod_term(rng.choice([ZONE, RACK, HOST]), selector(rng), namespace, named, by_labels)


def node_term(rng: random.Random, names: int) -> r.NodeTerm:
    labels, fields = [], []
    for _ in range(rng.choice([0, 1, 1, 2])):
        key, some = rng.choice(
            [(ZONE, ("z0", "z1", "z2")), ("disk", ("ssd", "hdd", "")), (RACK, ("r0", "r1"))]
        )
        operator = rng.choice(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        if operator in ("Gt", "Lt"):
            labels.append(r.requirement("gen", operator, (rng.choice(["1", "5", "x", "-4"]),)))
        else:
            values = rng.sample(some, rng.randint(1, 2)) if operator in ("In", "NotIn") else ()
            labels.append(r.requirement(key, operator, values))
    if rng.random() < 0.2:
        field = r.requirement("metadata.name", rng.choice(["In", "NotIn"]), (f"n{rng.randrange(names + 1)}",))
        fields.append(field)
    return r.node_term(labels, fields)


def spread(rng: random.Random) -> r.Spread:
    return r.Spread(
        rng.choice([ZONE, RACK, HOST]),
        rng.choice([1, 1, 2, 5]),
        selector(rng),
        rng.choice([1, 1, 1, 2, 4]),
        honor_affinity=rng.random() < 0.7,
        honor_taints=rng.random() < 0.3,
    )


def port(rng: random.Random) -> r.HostPort:
    return r.host_port(
        rng.choice([80, 443]), rng.choice(["", "TCP", "UDP"]), rng.choice(["", "10.0.0.1", "10.0.0.2"])
    )


def rules(rng: random.Random, names: int, much: float = 0.25) -> r.Rules:
    """Random rules; each kind of rule with probability `much`."""
    namespace = rng.choice(sorted(NAMESPACES))

    def some(make: object, most: int = 2) -> tuple[object, ...]:
        count = rng.randint(1, most) if rng.random() < much else 0
        return tuple(make() for _ in range(count))  # type: ignore[operator]

    def distinct_spread() -> tuple[r.Spread, ...]:
        found = some(lambda: spread(rng))
        return tuple({constraint.topology_key: constraint for constraint in found}.values())  # type: ignore[attr-defined]

    return r.canonical(
        r.Rules(
            namespace=namespace,
            labels=tuple((key, rng.choice(some)) for key, some in KEYS.items() if rng.random() < 0.7),
            node_name=f"n{rng.randrange(names + 1)}" if rng.random() < 0.03 else None,
            nodes=some(lambda: node_term(rng, names), 3) or (() if rng.random() < 0.02 else None),  # type: ignore[arg-type]
            volumes=some(lambda: some(lambda: node_term(rng, names), 3), 1),  # type: ignore[arg-type]
            ports=some(lambda: port(rng)),  # type: ignore[arg-type]
            affinity=some(lambda: pod_term(rng, namespace)),  # type: ignore[arg-type]
            anti_affinity=some(lambda: pod_term(rng, namespace)),  # type: ignore[arg-type]
            spread=distinct_spread(),
        )
    )


def pod(rng: random.Random, names: int, much: float = 0.25) -> PlainPod:
    selector = {ZONE: f"z{rng.randrange(3)}"} if rng.random() < 0.15 else {}
    tolerations = []
    if rng.random() < 0.4:
        key = rng.choice(["only", "only", ""])
        operator = "Exists" if not key else rng.choice(["", "Equal", "Exists", "Gt"])
        value = rng.choice(["a", "b"]) if operator != "Exists" else ""
        tolerations.append((key, operator, value, rng.choice(["", "NoSchedule", "NoExecute"])))
    requests = {"cpu": rng.choice([0, 500, 1000]), "pods": 1}
    return PlainPod(rules(rng, names, much), selector, tuple(tolerations), requests)


def world(rng: random.Random, nodes: int, pods: int) -> World:
    """Nodes, and pods somewhere on them (not necessarily where rules would have let them)."""
    made = [node(rng, at) for at in range(nodes)]
    found = World(made, [], NAMESPACES)
    for _ in range(pods):
        one = pod(rng, nodes, much=0.1)
        found.pods.append(replace(one, node=rng.choice(made), leaving=rng.random() < 0.1))
    return found


# ---- the same for flowsched ----


def snapshot_of(world: World) -> Snapshot:
    snapshot = Snapshot(extended=("pods",))
    for name, labels in world.namespaces.items():
        snapshot.peers.set_namespace(name, labels)
    for one in world.nodes:
        info = NodeInfo(
            one.name,
            one.room["cpu"],
            0,
            extended={"pods": one.room["pods"]},
            labels=one.labels,
            taints=tuple(one.taints),
        )
        snapshot.put_node(info)
    for at, one_pod in enumerate(world.pods):
        kind = ClaimKind.RELEASING if one_pod.leaving else ClaimKind.RUNNING
        put(snapshot, f"pod-{at}", one_pod, kind)
    return snapshot


def put(snapshot: Snapshot, owner: str, one: PlainPod, kind: ClaimKind = ClaimKind.RUNNING) -> None:
    assert one.node is not None
    amount = (one.requests["cpu"], 0, 0, 0, 0, one.requests["pods"])
    at = snapshot.index[one.node.name]
    snapshot.claim(Claim(owner, at, amount, kind, "default", 0, None, rules=one.rules), Statement())


def shape_of(one: PlainPod) -> Shape:
    return Shape(
        (one.requests["cpu"], 0, 0, 0, 0, one.requests["pods"]),
        tuple(sorted(one.selector.items())),
        tuple(sorted(set(one.tolerations))),
        rules=one.rules,
    )
