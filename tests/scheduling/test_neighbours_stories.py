"""What rules between pods decide, in small literal cases, and how a wait is explained."""

from __future__ import annotations

import pytest
from scheduling_cases import GIB, bag, cluster, gang, group, node, role, shape

from flowsched.executor.constraints import (
    HostPort,
    NodeTerm,
    PodTerm,
    Rules,
    Spread,
    host_port,
    narrowed,
    pod_term,
    requirement,
    selector_of,
    watched_by,
    with_label_keys,
)
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.feasibility import allowed_nodes, beside_others
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state import pod_index
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

OURS = PROFILES["flowsched"]
WEB, DB = selector_of({"app": "web"}), selector_of({"app": "db"})


def app(name: str, **more: object) -> Rules:
    """A pod of an application in namespace `ns`."""
    return Rules("ns", (("app", name),), **more)  # type: ignore[arg-type]


def term(selector: tuple[object, ...] | None, key: str = "zone") -> PodTerm:
    return pod_term(key, selector, "ns")  # type: ignore[arg-type]


def zones(*where: str | None, cores: int = 4) -> Snapshot:
    """Nodes n0, n1, … in these zones; None = no zone."""
    snapshot = Snapshot()
    for at, zone in enumerate(where):
        labels = {"host": f"n{at}"} | ({} if zone is None else {"zone": zone})
        snapshot.put_node(node(f"n{at}", cores, labels=labels))
    return snapshot


def put(snapshot: Snapshot, at: int, rules: Rules, kind: ClaimKind = ClaimKind.RUNNING) -> str:
    owner = f"pod-{len(snapshot.claims)}"
    snapshot.claim(Claim(owner, at, (1000,), kind, "q", 0, None, rules=rules), Statement())
    return owner


def may(snapshot: Snapshot, rules: Rules, **more: object) -> list[int]:
    """Where a pod may run, resources aside."""
    what = shape(rules=rules, **more)
    mask = allowed_nodes(snapshot, what, OURS.all_filters()).mask
    return [at for at, yes in enumerate(beside_others(snapshot, what, mask)[0].tolist()) if yes]


def decide(snapshot: Snapshot, *backlog: PodGroup) -> Plan:
    return cycle(snapshot, Catalogue(), QueueTree(), backlog, OURS, 0)


def nodes_of(plan: Plan) -> list[list[list[int]]]:
    return [[where.tolist() for where in placement.nodes] for placement in plan.placements]


# ---- where one pod may run ----


def test_a_pod_goes_where_its_friend_is() -> None:
    """Into its zone; a node without a zone is nowhere."""
    snapshot = zones("a", "a", "b", None)
    assert may(snapshot, app("web", affinity=(term(DB),))) == []
    put(snapshot, 1, app("db"))
    assert may(snapshot, app("web", affinity=(term(DB),))) == [0, 1]


def test_one_friend_must_match_all_terms() -> None:
    """Two pods that match a term each do not make a friend."""
    snapshot = zones("a", "a", "b")
    both = (term(DB), term(selector_of({"tier": "1"})))
    put(snapshot, 0, app("db"))
    put(snapshot, 0, Rules("ns", (("tier", "1"),)))
    assert may(snapshot, app("web", affinity=both)) == []
    put(snapshot, 2, Rules("ns", (("app", "db"), ("tier", "1"))))
    assert may(snapshot, app("web", affinity=both)) == [2]


def test_the_first_of_a_series_may_go_anywhere_with_the_key() -> None:
    """A pod that its own affinity selects does not wait for itself, but for others of its kind once there are any."""
    snapshot = zones("a", "b", None)
    rules = app("web", affinity=(term(WEB),))
    assert may(snapshot, rules) == [0, 1]
    put(snapshot, 2, app("web"))  # on a node without the key: nobody's neighbour, and it does not count
    assert may(snapshot, rules) == [0, 1]
    put(snapshot, 1, app("web"))
    assert may(snapshot, rules) == [1]


def test_anti_affinity_holds_both_ways() -> None:
    """A pod keeps away from whom it names, and everybody it names keeps away from it."""
    snapshot = zones("a", "b", None)
    guard = app("web", anti_affinity=(term(DB),))
    at = put(snapshot, 0, app("db"))
    assert may(snapshot, guard) == [1, 2]
    assert may(snapshot, app("db")) == [0, 1, 2]
    snapshot.unclaim(at, Statement())
    put(snapshot, 1, guard)
    assert may(snapshot, app("db")) == [0, 2]
    assert may(snapshot, app("web")) == [0, 1, 2]
    assert may(snapshot, Rules("other", (("app", "db"),))) == [0, 1, 2]


def test_namespaces_are_chosen_by_name_or_by_labels() -> None:
    """An empty namespace selector means all; a changed label counts at once."""
    snapshot = zones("a", "b")
    put(snapshot, 0, Rules("else", (("app", "db"),)))
    put(snapshot, 1, app("db"))
    by_label = pod_term("zone", DB, "ns", namespace_selector=selector_of({"team": "x"}))
    assert may(snapshot, app("web", affinity=(pod_term("zone", DB, "ns", ["else"]),))) == [0]
    assert may(snapshot, app("web", affinity=(pod_term("zone", DB, "ns", namespace_selector=()),))) == [0, 1]
    assert may(snapshot, app("web", affinity=(by_label,))) == []
    snapshot.peers.set_namespace("else", {"team": "x"})
    assert may(snapshot, app("web", affinity=(by_label,))) == [0]
    snapshot.peers.set_namespace("else", None)
    assert may(snapshot, app("web", affinity=(by_label,))) == []


def test_a_selector_that_is_not_there_selects_nothing_and_an_empty_one_everything() -> None:
    """Null and {} differ, as in Kubernetes."""
    snapshot = zones("a", "b")
    put(snapshot, 0, Rules("ns"))
    assert may(snapshot, app("web", anti_affinity=(term(None),))) == [0, 1]
    assert may(snapshot, app("web", anti_affinity=(term(()),))) == [1]


def test_a_pod_that_is_leaving_still_keeps_others_away_but_is_not_spread_from() -> None:
    """Until it is gone it holds its port and its neighbours; spread looks at those that stay."""
    snapshot = zones("a", "b")
    put(snapshot, 0, app("web", ports=(host_port(80),), anti_affinity=(term(DB),)), ClaimKind.RELEASING)
    assert may(snapshot, app("db")) == [1]
    assert may(snapshot, app("job", ports=(host_port(80),))) == [1]
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB),))) == [0, 1]
    put(snapshot, 0, app("web"))
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB),))) == [1]


def test_targets_of_staging_are_nobodys_neighbours() -> None:
    """A target may still change; only who holds room counts."""
    snapshot = zones("a", "b")
    put(snapshot, 0, app("db"), ClaimKind.STAGING)
    assert may(snapshot, app("web", anti_affinity=(term(DB),))) == [0, 1]


def test_spread_counts_from_the_least_domain() -> None:
    """2, 1 and 0 with a skew of 1: only the empty zone; a skew of 2 lets the second in; nodes without a zone never."""
    snapshot = zones("a", "b", "c", None)
    for at in (0, 0, 1):
        put(snapshot, at, app("web"))
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB),))) == [2]
    assert may(snapshot, app("web", spread=(Spread("zone", 2, WEB),))) == [1, 2]
    assert may(snapshot, app("db", spread=(Spread("zone", 1, WEB),))) == [1, 2]


def test_spread_with_too_few_domains_counts_from_nothing() -> None:
    """MinDomains 3 of 2 zones with one pod each: no more until there is a third."""
    snapshot = zones("a", "b")
    put(snapshot, 0, app("web"))
    put(snapshot, 1, app("web"))
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB, min_domains=3),))) == []
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB, min_domains=2),))) == [0, 1]


def test_spread_looks_at_nodes_that_its_policies_let_in() -> None:
    """An empty zone whose nodes the pod may not use counts as the least one, unless the policy leaves it out."""
    snapshot = zones("a", "b")
    snapshot.put_node(node("n2", labels={"zone": "c", "disk": "hdd"}, taints=(("only", "x", "NoSchedule"),)))
    put(snapshot, 0, app("web"))
    put(snapshot, 1, app("web"))
    counts = Spread("zone", 1, WEB, honor_affinity=False)
    assert may(snapshot, app("web", spread=(counts,))) == []
    assert may(snapshot, app("web", spread=(replace(counts, honor_taints=True),))) == [0, 1]
    wants = (NodeTerm((requirement("disk", "DoesNotExist"),)),)
    assert may(snapshot, app("web", nodes=wants, spread=(replace(counts, honor_affinity=True),))) == [0, 1]


def test_a_node_that_is_gone_is_no_empty_domain() -> None:
    """It has lost its labels; one that is not ready still is part of its zone."""
    snapshot = zones("a", "b", "c")
    put(snapshot, 0, app("web"))
    put(snapshot, 1, app("web"))
    snapshot.put_node(node("n2", ready=False, labels={"zone": "c"}))
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB),))) == []
    snapshot.put_node(node("n2", ready=False))
    assert may(snapshot, app("web", spread=(Spread("zone", 1, WEB),))) == [0, 1]


@pytest.mark.parametrize(
    ("held", "wanted", "free"),
    [
        (host_port(80), host_port(80), False),
        (host_port(80), host_port(80, "UDP"), True),
        (host_port(80), host_port(81), True),
        (host_port(80), host_port(80, ip="10.0.0.1"), False),
        (host_port(80, ip="10.0.0.1"), host_port(80, ip="10.0.0.2"), True),
        (host_port(80, ip="10.0.0.1"), host_port(80), False),
        (host_port(80, ip="10.0.0.1"), host_port(80, "TCP", "10.0.0.1"), False),
    ],
)
def test_a_host_port_is_had_once(held: HostPort, wanted: HostPort, free: bool) -> None:
    """Per protocol and address; no address means all of them."""
    snapshot = zones("a")
    put(snapshot, 0, app("web", ports=(held,)))
    assert may(snapshot, app("db", ports=(wanted,))) == ([0] if free else [])


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ("5",), [0]),
        ("NotIn", ("5",), [1, 2, 3, 4]),
        ("Exists", (), [0, 1, 2, 3]),
        ("DoesNotExist", (), [4]),
        ("Gt", ("5",), [1]),
        ("Lt", ("6",), [0, 2]),
        ("Gt", ("five",), []),
        ("Like", ("5",), []),
    ],
)
def test_node_terms_compare_as_kubernetes_does(
    operator: str, values: tuple[str, ...], expected: list[int]
) -> None:
    """Gt and Lt read whole numbers with a sign and nothing else."""
    snapshot = Snapshot()
    for at, value in enumerate(("5", "+6", "-7", "8_0", None)):
        snapshot.put_node(node(f"n{at}", labels={} if value is None else {"gen": value}))
    wanted = NodeTerm((requirement("gen", operator, values),))
    assert may(snapshot, Rules(nodes=(wanted,))) == expected


def test_node_terms_are_alternatives_and_an_empty_one_is_none() -> None:
    """One term must hold; no terms, or empty ones, match no node; a volume does not look at nodes' names."""
    snapshot = zones("a", "b", "c")
    in_a = NodeTerm((requirement("zone", "In", ("a",)),))
    not_n2 = NodeTerm((), (requirement("metadata.name", "NotIn", ("n2",)),))
    n1 = NodeTerm((), (requirement("metadata.name", "In", ("n1",)),))
    assert may(snapshot, Rules(nodes=(in_a, n1))) == [0, 1]
    assert may(snapshot, Rules(nodes=(not_n2,))) == [0, 1]
    assert may(snapshot, Rules(nodes=())) == []
    assert may(snapshot, Rules(nodes=(NodeTerm(),))) == []
    assert may(snapshot, Rules(volumes=((in_a, n1), (not_n2,)))) == [0, 1, 2]
    assert may(snapshot, Rules(volumes=((in_a,), (not_n2,)))) == [0]
    two_names = NodeTerm((), (requirement("metadata.name", "In", ("n0", "n1")),))
    assert may(snapshot, Rules(nodes=(two_names,))) == []
    assert may(snapshot, Rules(node_name="n2")) == [2]
    assert may(snapshot, Rules(node_name="n9")) == []


def test_label_keys_become_requirements_of_the_pods_own_values() -> None:
    """Keys the pod does not carry say nothing; a selector that is not there stays so."""
    labels = {"hash": "p", "job": "7"}
    assert with_label_keys(WEB, labels, ["hash", "nope"], ["job"]) == (
        requirement("app", "In", ["web"]),
        requirement("hash", "In", ["p"]),
        requirement("job", "NotIn", ["7"]),
    )
    assert with_label_keys(None, labels, ["hash"]) is None


def test_a_pod_nobody_looks_at_has_no_rules() -> None:
    """Its labels matter only where somebody asks for them, and its namespace only where anybody asks for pods."""
    plain = Rules("ns", (("app", "web"), ("index", "7")))
    asks = app("db", anti_affinity=(term(WEB),))
    assert narrowed(plain, None) is None
    assert narrowed(plain, watched_by([plain])) is None
    assert narrowed(plain, watched_by([asks])) == Rules("ns", (("app", "web"),))
    assert narrowed(asks, None) == asks
    everything = app("db", anti_affinity=(term(()),))
    assert narrowed(plain, watched_by([everything])) == Rules("ns")


# ---- groups ----


def test_a_gang_spreads_itself_over_nodes() -> None:
    """Anti-affinity to its own kind: each member on a node of its own, or none at all."""
    rules = app("web", anti_affinity=(term(WEB, "host"),))
    assert nodes_of(decide(zones("a", "a", "b"), gang(1, 3, shape(rules=rules)))) == [[[0, 1, 2]]]
    assert nodes_of(decide(zones("a", "a"), gang(1, 3, shape(rules=rules)))) == []


def test_roles_of_a_gang_see_each_other() -> None:
    """Workers go where their ps is, in one zone; the ps keep apart."""
    ps = role("ps", 2, what=shape(2, rules=app("db", anti_affinity=(term(DB, "host"),))))
    workers = role("worker", 2, what=shape(rules=app("web", affinity=(term(DB),))))
    plan = decide(zones("a", "b", "b"), group(1, [workers, ps]))
    assert nodes_of(plan) == [[[0, 0], [0, 1]]]


def test_a_gang_with_affinity_to_itself_finds_the_zone_with_room_for_all() -> None:
    """Pod by pod it would begin in the fullest node's zone, where there is no room for the rest."""
    snapshot = zones("a", "b", "b", "c")
    put(snapshot, 0, Rules("ns"))
    put(snapshot, 0, Rules("ns"))
    rules = app("web", affinity=(term(WEB),))
    assert nodes_of(decide(snapshot, gang(1, 2, shape(rules=rules)))) == [[[0, 0]]]
    assert nodes_of(decide(snapshot, gang(1, 6, shape(rules=rules)))) == [[[1, 1, 1, 1, 2, 2]]]
    assert nodes_of(decide(snapshot, gang(1, 9, shape(rules=rules)))) == []


def test_of_two_zones_with_room_for_all_the_cheaper_one_is_taken() -> None:
    """The fullest node leads into zone a, where one of three has no room; b and c would do, and b is fuller."""
    snapshot = zones("a", "b", "c")
    for at in (0, 0, 1):
        put(snapshot, at, Rules("ns"))
    plan = decide(snapshot, gang(1, 3, shape(rules=app("web", affinity=(term(WEB),)))))
    assert nodes_of(plan) == [[[1, 1, 1]]]


def test_two_single_members_see_each_other() -> None:
    """A ps and a worker that keeps away from it."""
    ps = role("ps", 1, what=shape(2, rules=app("db")))
    worker = role("worker", 1, what=shape(rules=app("web", anti_affinity=(term(DB),))))
    assert nodes_of(decide(zones("a", "a", "b"), group(1, [ps, worker]))) == [[[0], [2]]]
    assert nodes_of(decide(zones("a", "a"), group(1, [ps, worker]))) == []


def test_members_of_a_bag_spread_themselves() -> None:
    """Only their spread looks at them: two zones in turn."""
    even = app("web", spread=(Spread("zone", 1, WEB),))
    assert nodes_of(decide(zones("a", "b"), bag(1, 4, shape(rules=even)))) == [[[0, 1, 0, 1]]]


def test_a_gang_in_one_rack_keeps_its_rules() -> None:
    """Rack b is the first in which three members find three nodes."""
    snapshot = Snapshot()
    for at, rack in enumerate(("a", "a", "b", "b", "b")):
        snapshot.put_node(node(f"n{at}", labels={"host": f"n{at}"}, rack=rack))
    rules = app("web", anti_affinity=(term(WEB, "host"),))
    plan = decide(snapshot, gang(1, 3, shape(rules=rules, rack="required")))
    assert nodes_of(plan) == [[[2, 3, 4]]]


def test_a_bag_takes_what_its_rules_leave() -> None:
    """Two of five tasks that each need a port; the rest is told why."""
    snapshot = zones("a", "b")
    plan = decide(snapshot, bag(1, 5, shape(rules=app("web", ports=(host_port(80),)))))
    assert nodes_of(plan) == [[[0, 1]]]
    assert [(r.code, r.numbers["apart"]) for r in plan.reasons] == [(ReasonCode.NEIGHBOURS, 2)]


def test_a_group_sees_those_placed_before_it_in_the_same_cycle() -> None:
    """And what the first let in: the one with affinity to it comes in the same cycle if it is looked at later."""
    first = bag(1, 1, shape(rules=app("db", anti_affinity=(term(WEB),))), priority=2)
    apart = bag(2, 1, shape(rules=app("web")), priority=1)
    near = bag(3, 1, shape(rules=app("job", affinity=(term(DB),))))
    plan = decide(zones("a", "b"), apart, near, first)
    assert nodes_of(plan) == [[[0]], [[1]], [[0]]]


def test_who_was_refused_by_affinity_is_asked_again_after_it_came() -> None:
    """Two alike: one before its friend was placed, one after; only the first has to wait for the next cycle."""
    near = shape(rules=app("job", affinity=(term(DB),)))
    early, late = bag(1, 1, near, priority=3), bag(3, 1, near, priority=1)
    friend = bag(2, 1, shape(rules=app("db")), priority=2)
    plan = decide(zones("a"), early, friend, late)
    assert [p.group for p in plan.placements] == [2, 3]
    assert [(r.group, r.code) for r in plan.reasons] == [(1, ReasonCode.NEIGHBOURS)]


def test_a_cluster_that_places_pod_by_pod_asks_again_too() -> None:
    """As above, with the profile of a stock cluster."""
    near = shape(rules=app("job", affinity=(term(DB),)))
    early, late = bag(1, 1, near, priority=3), bag(3, 1, near, priority=1)
    friend = bag(2, 1, shape(rules=app("db")), priority=2)
    stock = PROFILES["kube-like"]
    plan = cycle(zones("a"), Catalogue(), QueueTree(), [early, friend, late], stock, 0)
    assert [p.group for p in plan.placements] == [2, 3]
    assert [(r.group, r.code) for r in plan.reasons] == [(1, ReasonCode.NEIGHBOURS)]


def test_a_long_bag_that_looks_at_itself_is_placed_over_several_cycles() -> None:
    """One by one costs a look each, and a cycle's looks are counted."""
    snapshot = zones("a", "b", cores=64)
    small = replace(OURS, window=10)
    what = bag(1, 30, shape(1, 0, rules=app("web", spread=(Spread("zone", 1, WEB),))))
    plan = cycle(snapshot, Catalogue(), QueueTree(), [what], small, 0)
    assert [len(p.nodes[0]) for p in plan.placements] == [10]
    assert [r.code for r in plan.reasons] == [ReasonCode.BACKLOG_WINDOW]


# ---- wishes ----


def test_a_wish_decides_between_nodes_and_keeps_nobody_away() -> None:
    """The nodes it would rather have first; where they are full, any."""
    ssd = NodeTerm((requirement("disk", "In", ("ssd",)),))
    snapshot = zones("a", "b")
    snapshot.put_node(node("n2", 2, labels={"disk": "ssd"}))
    what = bag(1, 3, shape(rules=Rules(preferred_nodes=((50, ssd),))))
    assert nodes_of(decide(snapshot, what)) == [[[2, 2, 0]]]


def test_wishes_about_pods_are_for_or_against() -> None:
    """Near the db, and if it can be had not with another web."""
    snapshot = zones("a", "a", "b")
    put(snapshot, 1, app("db"))
    near = Rules("ns", preferred_pods=((10, term(DB)),))
    assert nodes_of(decide(snapshot, bag(1, 1, shape(rules=near)))) == [[[1]]]
    away = Rules("ns", preferred_pods=((-10, term(DB)),))
    assert nodes_of(decide(snapshot, bag(1, 1, shape(rules=away)))) == [[[2]]]
    both = Rules("ns", preferred_pods=((10, term(DB)), (-100, term(DB, "host"))))
    assert nodes_of(decide(snapshot, bag(1, 1, shape(rules=both)))) == [[[0]]]


def test_members_that_would_rather_be_apart_are_spread_as_far_as_there_are_nodes() -> None:
    """Preferred anti-affinity to one's own kind looks again after each pod; the fourth shares a node."""
    apart = app("web", preferred_pods=((-100, term(WEB, "host")),))
    assert nodes_of(decide(zones("a", "a", "b"), gang(1, 4, shape(rules=apart)))) == [[[0, 1, 2, 0]]]


def test_members_that_would_rather_be_even_are_spread_over_zones() -> None:
    """ScheduleAnyway: in turn while it can be had, then where there is room."""
    even = app("web", preferred_spread=(Spread("zone", 1, WEB),))
    assert nodes_of(decide(zones("a", "b", cores=3), bag(1, 4, shape(rules=even)))) == [[[0, 1, 0, 1]]]
    small = zones("a", "b", "b", cores=1)
    assert nodes_of(decide(small, bag(1, 3, shape(rules=even)))) == [[[0, 1, 2]]]


# ---- reasons ----


def message(snapshot: Snapshot, what: PodGroup) -> tuple[ReasonCode, str]:
    reason = decide(snapshot, what).reasons[0]
    return reason.code, reason.message


def test_a_pod_kept_apart_is_told_by_whom() -> None:
    """The rules in turn, each with the number of nodes it closes."""
    snapshot = zones("a", "b", "c")
    put(snapshot, 0, app("db"))
    put(snapshot, 1, app("job", anti_affinity=(term(WEB),)))
    put(snapshot, 2, app("job", ports=(host_port(80),)))
    rules = app("web", ports=(host_port(80),), anti_affinity=(term(DB),))
    assert message(snapshot, bag(1, 1, shape(rules=rules))) == (
        ReasonCode.NEIGHBOURS,
        "kept from nodes with room; task: of 3 nodes 1 node have a host port it needs in use, "
        "1 node have a pod its anti-affinity keeps away from, "
        "1 node have a pod whose anti-affinity keeps it away",
    )


def test_a_gang_kept_apart_is_told_how_many_of_it_fit() -> None:
    """And what keeps the next one away."""
    rules = app("web", anti_affinity=(term(WEB),))
    assert message(zones("a", "a", "b"), gang(1, 3, shape(rules=rules))) == (
        ReasonCode.NEIGHBOURS,
        "2 of 3 members fit beside other pods; worker: of 3 nodes "
        "3 nodes have a pod its anti-affinity keeps away from",
    )


def test_no_matching_node_is_told_as_before() -> None:
    """Node affinity excludes every node, whoever is there."""
    wants = (NodeTerm((requirement("disk", "Exists"),)),)
    assert message(zones("a", "b"), bag(1, 1, shape(rules=Rules(nodes=wants)))) == (
        ReasonCode.NO_MATCHING_NODE,
        "no node allows task: of 2 ready nodes 2 nodes do not match its node affinity",
    )


def test_where_there_is_no_room_anyway_the_reason_is_room() -> None:
    """Rules between pods are told where they are what is in the way."""
    snapshot = zones("a", "b", cores=1)
    put(snapshot, 0, app("db"))
    put(snapshot, 1, app("db"))
    code, _ = message(snapshot, bag(1, 1, shape(rules=app("web", anti_affinity=(term(DB),)))))
    assert code is ReasonCode.INSUFFICIENT


# ---- peers ----


def test_questions_are_forgotten_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two questions, eight in turn keep their answers right while pods come and go."""
    monkeypatch.setattr(pod_index, "_QUESTIONS", 2)
    snapshot = zones("a", "b")
    shapes = [app(f"x{n}", anti_affinity=(term(selector_of({"app": f"y{n}"})),)) for n in range(4)]
    owners = []
    for number in range(4):
        owners.append(put(snapshot, 0, app(f"y{number}")))
        assert [may(snapshot, rules) for rules in shapes] == [
            [1] if n <= number else [0, 1] for n in range(4)
        ]
        assert max(len(kind.counts) for kind in snapshot.peers._kinds.values()) <= 2
    for number in range(4):
        snapshot.unclaim(owners[number], Statement())
        assert [may(snapshot, rules) for rules in shapes] == [
            [0, 1] if n <= number else [1] for n in range(4)
        ]
    assert snapshot.peers._kinds == {}


def test_nodes_may_come_after_the_questions() -> None:
    """A new node is asked about too."""
    snapshot = zones("a")
    rules = app("web", anti_affinity=(term(DB),))
    assert may(snapshot, rules) == [0]
    for at in range(1, 40):
        snapshot.put_node(node(f"n{at}", labels={"zone": "a" if at < 39 else "b"}))
        put(snapshot, at, app("db"))
        assert may(snapshot, rules) == []
    snapshot.put_node(node("n40", labels={"zone": "c"}))
    assert may(snapshot, rules) == [40]


def test_shapes_without_rules_ask_nobody() -> None:
    """What all of today's work is: no rules between pods, no question, the same table."""
    snapshot = cluster(4, 4)
    put(
        snapshot,
        0,
        app(
            "db",
            anti_affinity=(
                term(
                    (),
                ),
            ),
        ),
    )
    plain: Shape = shape(memory=1)
    assert beside_others(snapshot, plain, snapshot.ready)[0] is not None
    decide(snapshot, gang(1, 2, plain))
    assert snapshot.peers._counts == {}
    assert plain.rules is None
    assert plain.requests[1] == GIB
