"""Third-party plugins: what is one, and that one that fails loses nothing but its own say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from scheduling_cases import bag, cluster, run, shape

from flowsched.errors import ConfigurationError
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.extension import Kind, guarded, offered, plugin
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.values import replace

NOW = 1_000_000


def answering(kind: str, answer: Any) -> Any:
    """A plugin of a kind that answers so (or raises it)."""

    def reply() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    two, three, four = (lambda a, b: reply()), (lambda a, b, c: reply()), (lambda a, b, c, d: reply())
    function: Callable[..., Any] = {"filter": two, "queue-order": two, "victim": three, "cost": four}[kind]
    return guarded(offered("odd", plugin(kind)(function)), {})


def decided(snapshot: Snapshot, profile: Profile, *groups: PodGroup) -> Plan:
    return cycle(snapshot, Catalogue(), QueueTree(), groups, profile, NOW)


def placed(plan: Plan) -> dict[int, list[int]]:
    return {each.group: each.nodes[0].tolist() for each in plan.placements}


def test_a_filter_keeps_pods_from_nodes_and_says_why() -> None:
    """As the built-in ones do."""

    @plugin("filter")
    def only(snapshot: Snapshot, what: Any, *, disk: str = "ssd") -> Any:
        mask = np.array([labels.get("disk") == disk for labels in snapshot.labels])
        return mask, f"lack {disk}"

    found = offered("only", only, "lab 1.0")
    assert (found.kind, found.origin) == (Kind.FILTER, "lab 1.0")
    snapshot = cluster(1, 1, 1, labels={"disk": "hdd"})
    fast = Profile(filters=(guarded(found, {}),))  # type: ignore[arg-type]
    slow = Profile(filters=(guarded(found, {"disk": "hdd"}),))  # type: ignore[arg-type]
    plan = decided(snapshot, fast, bag(1))
    assert plan.reasons[0].message == "no node allows task: of 3 ready nodes 3 nodes lack ssd"
    assert placed(decided(snapshot, slow, bag(1))) == {1: [0]}


def test_costs_decide_between_nodes() -> None:
    """Each pod takes the cheapest; a first cost is paid once a node, a step cost for each neighbour of the group."""
    prices = np.array([50_000, 9_000, 20_000])
    snapshot = cluster(4, 4, 4)
    each = Profile(costs=(answering("cost", prices),))
    assert placed(decided(snapshot, each, bag(1, 5))) == {1: [1, 1, 1, 1, 2]}
    step = Profile(step_costs=(answering("cost", np.full(3, 1_000)),))
    assert sorted(placed(decided(snapshot, step, bag(1, 3)))[1]) == [0, 1, 2]
    first = Profile(first_costs=(answering("cost", prices),))
    assert placed(decided(snapshot, first, bag(1, 3))) == {1: [1, 1, 1]}


def test_an_order_decides_inside_a_queue_but_never_against_priority() -> None:
    """The lowest row goes first; who has waited long enough goes before it all the same."""

    @plugin("queue-order")
    def backwards(groups: Any, now: int) -> Any:
        return np.array([[0, -group.key] for group in groups], dtype=np.int64).reshape(-1, 2)

    profile = Profile(queue_order=guarded(offered("backwards", backwards), {}))  # type: ignore[arg-type]
    groups = [bag(key, ready_ms=NOW) for key in (1, 2, 3)]
    assert placed(decided(cluster(1), profile, *groups)) == {3: [0]}
    waited = structs.replace(groups[0], ready_ms=NOW - profile.promote_ms)
    assert placed(decided(cluster(1), profile, waited, *groups[1:])) == {1: [0]}


@pytest.mark.parametrize(
    ("kind", "answer", "told"),
    [
        ("filter", ValueError("bad"), "ValueError: bad (test_extension.py:"),
        ("filter", np.ones(2, dtype=np.bool_), "a filter answers (mask, why), this one with an array (2,) of bool"),
        ("filter", (np.ones(3, dtype=np.bool_), "x"), "an array of 2 bool is asked for, this is an array (3,) of bool"),
        ("filter", (np.ones(2, dtype=np.int64), "x"), "this is an array (2,) of int64"),
        ("filter", ([True, True], "x"), "this is a list"),
        ("filter", (np.ones(2, dtype=np.bool_), None), "says why in a text, this one in a NoneType"),
        ("cost", ZeroDivisionError("x"), "ZeroDivisionError: x"),
        ("cost", np.array([1.5, 2.0]), "an array of 2 int64 is asked for, this is an array (2,) of float64"),
        ("cost", np.array([-1, 0]), "costs are 0 to 1099511627776 ms, these -1 to 0"),
        ("cost", np.array([1 << 62, 0]), "these 0 to 4611686018427387904"),
        ("cost", np.zeros((2, 1), dtype=np.int64), "this is an array (2, 1) of int64"),
        ("queue-order", KeyError("x"), "KeyError: 'x'"),
        ("queue-order", np.array([1.0, 2.0]), "this is an array (2,) of float64"),
        ("queue-order", np.zeros((1, 2), dtype=np.int64), "an array of 2 int64 is asked for"),
    ],
)  # fmt: skip
def test_a_plugin_that_fails_loses_only_its_own_say(kind: str, answer: Any, told: str) -> None:
    """A filter lets nobody anywhere and is named in the reason; the others count for nothing. All of it is told."""
    guard = answering(kind, answer)
    field = {"filter": "filters", "cost": "costs", "queue-order": "queue_order"}[kind]
    value = guard if kind == "queue-order" else (guard,)
    profile = replace(Profile(), **{field: value})
    groups = [bag(1, 1), bag(2, 1)]
    snapshot = cluster(1, 1)
    plan = decided(snapshot, profile, *groups)
    if kind == "filter":
        assert placed(plan) == {}
        assert {reason.message for reason in plan.reasons} == {
            "no node allows task: of 2 ready nodes 2 nodes are not judged: plugin odd failed"
        }
    else:
        assert placed(plan) == placed(decided(snapshot, Profile(), *groups)) == {1: [0], 2: [1]}
    assert told in guard.trouble.last
    assert guard.trouble.times >= 1
    assert guard.trouble.first == guard.trouble.last


def test_the_order_of_victims_falls_back_too() -> None:
    """All alike: then the built-in order decides."""
    good = answering("victim", np.array([3, 1], dtype=np.int32))
    assert good(Snapshot(), [(), ()], NOW).tolist() == [3, 1]
    bad = answering("victim", RuntimeError("x"))
    assert bad(Snapshot(), [(), ()], NOW).tolist() == [0, 0]
    assert (good.trouble.times, bad.trouble.times) == (0, 1)


def test_guards_are_equal_when_they_answer_alike() -> None:
    """Whatever trouble they had: a mask that was kept for one is good for the other."""

    def judge(snapshot: Any, what: Any, *, most: int = 1) -> Any: ...

    found = offered("a", plugin("filter")(judge))
    one, same, other = guarded(found, {}), guarded(found, {"most": 1}), guarded(found, {"most": 2})
    one.trouble.note(ValueError("x"))
    assert (one == same, hash(one) == hash(same), one == other) == (True, True, False)


def plain(snapshot: Any, what: Any) -> Any: ...
def short(snapshot: Any) -> Any: ...
def open_ended(snapshot: Any, what: Any, **more: Any) -> Any: ...
def needy(snapshot: Any, what: Any, *, key: str) -> Any: ...
def lying(snapshot: Any, what: Any, *, key: int = "x") -> Any: ...  # type: ignore[assignment]
def odd(snapshot: Any, what: Any, *, keys: tuple[str, ...] = ()) -> Any: ...


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (plain, "is not marked as a plugin: put @plugin"),
        (7, "7 is not marked"),
        (plugin("filter")(short), "it takes 1 arguments, a filter takes 2"),
        (plugin("filter")(open_ended), "parameters come after a"),
        (plugin("filter")(needy), "its parameter key has no default"),
        (plugin("filter")(lying), "its parameter key is 'x', not a bool, int or str"),
        (plugin("filter")(odd), r"its parameter keys is \(\), not a bool"),
    ],
)
def test_what_is_no_plugin_is_refused_with_the_reason(found: object, told: str) -> None:
    """Before any profile can name it."""
    with pytest.raises(ConfigurationError, match=told):
        offered("x", found)


def test_there_are_four_kinds() -> None:
    """Another word is refused where it is written."""
    with pytest.raises(ConfigurationError, match="no kind of plugin 'score'; there are filter, cost,"):
        plugin("score")


def test_each_queue_has_its_own_profile() -> None:
    """Its filters, its packing; and a refusal under one profile says nothing of another."""
    nowhere = answering("filter", (np.zeros(2, dtype=np.bool_), "are nowhere"))
    strict = Profile(name="strict", filters=(nowhere,))
    wide = Profile(name="wide", packing="spread")
    profile = Profile(queues={"a": strict, "b": wide})
    groups = [bag(1, 2, queue="a"), bag(2, 2, queue="b"), bag(3, 2, queue="c")]
    plan = decided(cluster(8, 8), profile, *groups)
    assert {key: sorted(nodes) for key, nodes in placed(plan).items()} == {2: [0, 1], 3: [0, 0]}
    assert [reason.group for reason in plan.reasons] == [1]


def test_queues_have_profiles_pod_by_pod_too() -> None:
    """Where the default profile knows no gangs."""
    nowhere = answering("filter", (np.zeros(1, dtype=np.bool_), "are nowhere"))
    base = Profile(gang=False, backfill="none")
    profile = replace(base, queues={"a": replace(base, name="strict", filters=(nowhere,))})
    plan = decided(cluster(8), profile, bag(1, queue="a"), bag(2, queue="b"))
    assert placed(plan) == {2: [0]}


def test_a_queue_orders_its_groups_by_its_own_profile() -> None:
    """The longest path first, or who came first."""
    profile = Profile(queues={"a": Profile(name="fifo", order="fifo")})
    groups = [
        bag(key, what=shape(4), queue=queue, rank_ms=key * 1000, ready_ms=NOW - 10 + key)
        for key, queue in ((1, "a"), (2, "a"), (3, "b"), (4, "b"))
    ]
    assert placed(decided(cluster(4, 4), profile, *groups)) == {1: [0], 4: [1]}


def test_a_plugin_changes_nothing() -> None:
    """The arrays are read-only while it runs, and writeable again after it; its answer is a copy."""

    @plugin("cost")
    def greedy(snapshot: Snapshot, catalogue: Any, group: Any, role: Any) -> Any:
        snapshot.used[:] = 0
        return None

    @plugin("cost")
    def live(snapshot: Snapshot, catalogue: Any, group: Any, role: Any) -> Any:
        return snapshot.inbound

    snapshot = cluster(2, 2)
    run(snapshot, "r", 0, 2)
    profile = Profile(costs=(guarded(offered("greedy", greedy), {}),))  # type: ignore[arg-type]
    assert placed(decided(snapshot, profile, bag(1))) == {1: [1]}
    (guard,) = profile.costs
    assert "ValueError: assignment destination is read-only (test_extension.py:" in guard.trouble.last  # type: ignore[attr-defined]
    assert snapshot.used[0, 0] == 2000
    run(snapshot, "s", 1, 1)
    assert snapshot.used[1, 0] == 1000
    answer = guarded(offered("live", live), {})(snapshot, Catalogue(), bag(1), bag(1).roles[0])  # type: ignore[operator]
    assert not np.shares_memory(answer, snapshot.inbound)


def test_an_order_of_victims_decides_who_goes() -> None:
    """Among those of equal priority; lower priority goes first all the same."""

    @plugin("victim")
    def first_node_first(snapshot: Snapshot, victims: Any, now: int) -> Any:
        return np.array([min(claim.node for claim in unit) for unit in victims], dtype=np.int64)

    def taken(profile: Profile, *priorities: int) -> list[tuple[str, ...]]:
        snapshot = cluster(2, 2, 2)
        for at, priority in enumerate(priorities):
            run(snapshot, f"p{at}", at, 2, unit=f"u{at}", started_ms=NOW - 1000, priority=priority)
        return [
            each.owners for each in decided(snapshot, profile, bag(1, what=shape(2), priority=9)).evictions
        ]

    guard = guarded(offered("first", first_node_first), {})
    profile = Profile(victim_order=guard)  # type: ignore[arg-type]
    assert taken(Profile(), 0, 0, 0) == [("p2",)]
    assert taken(profile, 0, 0, 0) == [("p0",)]
    assert taken(profile, 1, 0, 0) == [("p1",)]
    assert guard.trouble.times == 0
    broken = Profile(victim_order=answering("victim", np.array([1.5])))
    assert taken(broken, 0, 0, 0) == [("p2",)]
    assert "float64" in broken.victim_order.trouble.last  # type: ignore[union-attr]
