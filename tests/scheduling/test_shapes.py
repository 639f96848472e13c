"""Equal shapes get equal masks and costs, and every field of a shape that matters changes something."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scheduling_cases import GIB, bag, cluster, gang, node, shape

from flowsched.executor import constraints as demands
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.feasibility import allowed_nodes, shape_of
from flowsched.scheduling.placement.cost_table import PlacementRequest, price
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Storage
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.spec import Resources, Rules, Toleration
from tests.soak import worlds

OURS = PROFILES["flowsched"]
SHARING = replace(OURS, storages=(Storage("nfs", read_rate=1_000),))


def random_cluster(rng: np.random.Generator) -> tuple[Snapshot, Catalogue]:
    snapshot, catalogue = Snapshot(), Catalogue()
    for at in range(int(rng.integers(1, 12))):
        effect = str(rng.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"]))
        snapshot.put_node(
            node(
                f"n{at}",
                int(rng.integers(1, 9)),
                labels={"disk": str(rng.choice(["ssd", "hdd"])), "zone": str(rng.integers(3))},
                taints=(("key", str(rng.integers(2)), effect),) if rng.random() < 0.4 else (),
                rack=f"r{at % 2}",
                disk_rate=int(rng.choice([0, 1, 5])) * 100_000_000,
                ready=bool(rng.random() < 0.9),
            )
        )
        if rng.random() < 0.5:
            claim = Claim(f"c{at}", at, (500, GIB), ClaimKind.RUNNING, "q", 0, None, int(rng.integers(2)))
            snapshot.claim(claim, Statement())
    image = catalogue.intern("image:tool:1", GIB, origin=True)
    for at in range(len(snapshot)):
        if rng.random() < 0.5:
            catalogue.add_replica(image, at)
    return snapshot, catalogue


def submitted(rng: np.random.Generator) -> tuple[Resources, Rules, dict[str, object]]:
    selector = {key: value for key, value in (("disk", "ssd"), ("zone", "1")) if rng.random() < 0.4}
    tolerations = [
        Toleration(
            "key",
            str(rng.choice(["Exists", "Equal"])),
            str(rng.integers(2)),
            str(rng.choice(["", "NoSchedule"])),
        )
        for _ in range(int(rng.integers(0, 3)))
    ]
    rules = Rules(selector, tuple(tolerations), None, bool(rng.random() < 0.2))
    return (
        Resources(int(rng.integers(0, 4)) * 500, GIB),
        rules,
        {
            "io": int(rng.choice([0, 200_000_000])),
            "io_bytes": int(rng.choice([0, GIB])),
            "image": [None, "tool:1", "tool:2"][int(rng.integers(3))],
        },
    )


def arrays(request: PlacementRequest) -> list[object]:
    return [
        [None if value is None else np.asarray(value).tolist() for value in row]
        for table in request.tables
        for row in ([table.allowed, table.each, table.first, table.step], list(table.needs))
    ]


@given(st.integers(0, 2**40))
@pytest.mark.soak
@settings(max_examples=worlds(80, 1000), deadline=None)
def test_the_same_wishes_in_another_order_make_the_same_shape_and_the_same_costs(seed: int) -> None:
    """Selectors and tolerations are sorted, repeats and values that do not matter are dropped; masks and costs agree."""
    rng = np.random.default_rng(seed)
    snapshot, catalogue = random_cluster(rng)
    resources, rules, more = submitted(rng)
    other = replace(
        rules,
        selector=dict(reversed(rules.selector.items())),
        tolerations=tuple(
            replace(t, value="ignored") if t.operator == "Exists" else t for t in reversed(rules.tolerations)
        )
        * 2,
    )
    first = shape_of(snapshot, resources, rules, **more)  # type: ignore[arg-type]
    second = shape_of(snapshot, resources, other, **more)  # type: ignore[arg-type]
    assert first == second
    assert hash(first) == hash(second)
    one = arrays(price(bag(1, what=first), snapshot, catalogue, OURS))
    snapshot.cache.clear()
    assert arrays(price(bag(1, what=second), snapshot, catalogue, OURS)) == one


@given(st.integers(0, 2**40))
@pytest.mark.soak
@settings(max_examples=worlds(80, 1000), deadline=None)
def test_a_mask_is_what_the_rules_say_node_by_node(seed: int) -> None:
    """Against Kubernetes' rules, read off one node at a time; and again after a node has changed."""
    rng = np.random.default_rng(seed)
    snapshot, _ = random_cluster(rng)
    resources, rules, _ = submitted(rng)
    what = shape_of(snapshot, resources, rules)
    for _ in range(2):
        mask = allowed_nodes(snapshot, what, OURS.all_filters()).mask
        assert mask.tolist() == [allowed(snapshot, at, rules) for at in range(len(snapshot))]
        snapshot.put_node(node("n0", labels={"disk": "ssd", "zone": "1"}))


def allowed(snapshot: Snapshot, at: int, rules: Rules) -> bool:
    if not snapshot.ready[at] or any(snapshot.labels[at].get(k) != v for k, v in rules.selector.items()):
        return False
    for key, value, effect in snapshot.taints[at]:
        tolerated = any(
            t.key == key and (t.operator == "Exists" or t.value == value) and t.effect in ("", effect)
            for t in rules.tolerations
        )
        if effect != "PreferNoSchedule" and not tolerated:
            return False
    return True


def test_an_empty_key_with_exists_tolerates_everything() -> None:
    """As in Kubernetes; with Equal it tolerates nothing."""
    snapshot = Snapshot()
    snapshot.put_node(node("n", taints=(("gpu", "yes", "NoExecute"),)))
    for operator, expected in (("Exists", True), ("Equal", False)):
        what = shape_of(snapshot, Resources(), Rules(tolerations=(Toleration(operator=operator),)))
        assert allowed_nodes(snapshot, what, OURS.all_filters()).mask.tolist() == [expected]


def decided(what: Shape) -> object:
    """What a gang of three of a shape gets, on a cluster where everything makes a difference."""
    snapshot, catalogue = Snapshot(), Catalogue()
    snapshot.put_node(node("n0", 3, labels={"disk": "hdd"}, rack="a"))
    snapshot.put_node(node("n1", 8, labels={"disk": "ssd"}, rack="b"))
    snapshot.put_node(node("n2", 9, labels={"disk": "hdd"}, rack="b"))
    snapshot.put_node(node("n3", 2, 2, taints=(("gpu", "", "NoSchedule"),), rack="a"))
    there = Claim("r", 0, (1000,), ClaimKind.RUNNING, "q", 0, None, 1, direct=(("nfs/read", 500),))
    snapshot.claim(there, Statement())
    catalogue.add_replica(catalogue.intern("image:tool:1", 50 * GIB, origin=True), 2)
    plan: Plan = cycle(snapshot, catalogue, QueueTree(), [gang(1, 3, what)], SHARING, 0)
    return [[where.tolist() for where in p.nodes] for p in plan.placements], [r.code for r in plan.reasons]


CHANGES = {
    "requests": (2500, GIB, 0, 0, 0),
    "selector": (("disk", "ssd"),),
    "tolerations": (("gpu", "Exists", "", ""),),
    "io_bytes": 200 * GIB,
    "image": "tool:1",
    "rack": "required",
    "direct": (("nfs/read", 200),),
    "one_per_node": True,
    "rules": demands.Rules(node_name="n2"),
}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_every_field_of_a_shape_that_matters_changes_the_decision(field: str) -> None:
    """One field at a time against the same plain shape."""
    assert decided(structs.replace(shape(), **{field: CHANGES[field]})) != decided(shape())  # type: ignore[arg-type]


def test_no_field_is_forgotten_here() -> None:
    """A new field of Shape must say which decision it changes (`unknown` only keeps pods apart)."""
    assert {*Shape.__struct_fields__} == {*CHANGES, "unknown"}


def test_an_unknown_resource_fits_nowhere_until_a_node_offers_it() -> None:
    """Its axis exists from the first wish on, so the shape stays right when a node with it comes."""
    snapshot = cluster(4)
    what = shape_of(snapshot, Resources(extended={"example.com/fpga": 1}), Rules())

    def plan() -> Plan:
        group: PodGroup = bag(1, what=what)
        return cycle(snapshot, Catalogue(), QueueTree(), [group], OURS, 0)

    assert plan().reasons[0].code.value == "LargerThanNode"
    snapshot.put_node(node("with", extended={"example.com/fpga": 1, "example.com/another": 2}))
    assert [p.nodes[0].tolist() for p in plan().placements] == [[1]]
    assert snapshot.axes[5:] == ("example.com/fpga", "example.com/another")


def test_strangers_cannot_grow_the_arrays_without_bound() -> None:
    """Beyond 64 axes a pod that asks for yet another resource fits nowhere, and no axis is added."""
    snapshot = cluster(4)
    for number in range(200):
        asked = snapshot.vector(Resources(extended={f"x/{number}": 1}))
    assert len(snapshot.axes) == 64
    assert (
        cycle(snapshot, Catalogue(), QueueTree(), [bag(1, what=Shape(asked))], OURS, 0).reasons[0].code.value
        == "LargerThanNode"
    )
