"""Taking back, in small literal cases: whose room a group may take, who goes first, and who stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from scheduling_cases import SECOND, bag, cluster, gang, run, shape

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Nomination, Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

OURS = PROFILES["flowsched"]
NOW = 100 * SECOND


def decide(
    snapshot: Snapshot, *backlog: PodGroup, queues: QueueTree | None = None, profile: Profile = OURS
) -> Plan:
    return cycle(snapshot, Catalogue(), queues or QueueTree(), backlog, profile, NOW)


def works(snapshot: Snapshot, owner: str, at: int, cores: float, *, unit: str = "", **more: object) -> None:
    """A pod that may be taken away, and has run for a second unless something else is said."""
    more = {"started_ms": NOW - SECOND, **more}
    run(snapshot, owner, at, cores, unit=unit or owner, **more)


def victims(plan: Plan) -> list[tuple[tuple[str, ...], str]]:
    return [(eviction.owners, eviction.reason) for eviction in plan.evictions]


def codes(plan: Plan) -> dict[int, str]:
    return {reason.group: reason.code.value for reason in plan.reasons}


# ---- who ----


def test_higher_priority_takes_the_room_of_lower_in_its_queue() -> None:
    """The pod goes, its room is nominated, and the group says what it waits for."""
    snapshot = cluster(4)
    works(snapshot, "low", 0, 4)
    plan = decide(snapshot, gang(1, 2, priority=5))
    assert plan.placements == ()
    assert victims(plan) == [(("low",), "Preempted")]
    assert plan.evictions[0].message == "g1 of priority 5 takes its room; its own is 0"
    assert codes(plan) == {1: "WaitingForVictims"}
    assert plan.reasons[0].message == (
        "its room on 1 node is being freed: 1 of 1 pods that make way for it have not left yet"
    )
    (nomination,) = plan.nominations
    assert (nomination.group, nomination.pods, nomination.victims) == (1, 2, ("low",))
    assert [(node, amounts[0]) for node, amounts in nomination.room] == [(0, 2000)]


def test_a_group_behind_refused_ones_that_are_older_takes_room_by_its_priority() -> None:
    """Waiting has lifted two groups of priority 0 above the third, and they find no room. The third asks for as much, and takes the
    room of one pod.
    """
    snapshot = cluster(4, 4)
    works(snapshot, "low", 0, 4, until_ms=NOW + SECOND)
    works(snapshot, "other", 1, 4, until_ms=NOW + 60 * SECOND)
    old = [bag(key, 1, shape(4, 1), ready_ms=NOW - 3 * OURS.promote_ms) for key in (1, 2)]
    plan = decide(snapshot, *old, bag(3, 1, shape(4, 1), priority=1, ready_ms=NOW))
    assert victims(plan) == [(("other",), "Preempted")]
    assert codes(plan)[3] == "WaitingForVictims"


def test_equal_priority_takes_nothing() -> None:
    """Who came first stays."""
    snapshot = cluster(4)
    works(snapshot, "first", 0, 4, priority=5)
    assert victims(decide(snapshot, gang(1, 2, priority=5))) == []


def test_nobody_is_touched_where_the_group_would_not_fit_all_the_same() -> None:
    """A gang of five cores on a cluster of which two are held by its equals."""
    snapshot = cluster(4, 2)
    works(snapshot, "low", 0, 4)
    works(snapshot, "equal", 1, 2, priority=5)
    plan = decide(snapshot, gang(1, 5, priority=5))
    assert victims(plan) == []
    assert codes(plan) == {1: "Insufficient"}


def test_what_nobody_may_take_stays() -> None:
    """A claim without a unit (a stranger's pod) is no victim, whatever its priority."""
    snapshot = cluster(4)
    run(snapshot, "stranger", 0, 4)
    assert victims(decide(snapshot, gang(1, 2, priority=5))) == []


def test_a_profile_may_forbid_it() -> None:
    """`preempt` off: the group waits."""
    snapshot = cluster(4)
    works(snapshot, "low", 0, 4)
    plan = decide(snapshot, gang(1, 2, priority=5), profile=replace(OURS, preempt=False))
    assert victims(plan) == []


def test_what_has_run_too_short_is_left_alone_until_it_has_run_long_enough() -> None:
    """It began a second ago and may not be taken for three: the plan says when to look again."""
    snapshot = cluster(4)
    works(snapshot, "low", 0, 4)
    plan = decide(snapshot, gang(1, 2, priority=5), profile=replace(OURS, min_runtime_ms=3 * SECOND))
    assert victims(plan) == []
    assert plan.look_at == NOW + 2 * SECOND


def test_what_has_not_begun_may_be_taken_at_once() -> None:
    """The minimum runtime protects work, and there is none yet."""
    snapshot = cluster(4)
    works(snapshot, "low", 0, 4, started_ms=None)
    plan = decide(snapshot, gang(1, 2, priority=5), profile=replace(OURS, min_runtime_ms=3 * SECOND))
    assert victims(plan) == [(("low",), "Preempted")]


# ---- in which order ----


def test_victims_go_by_lost_work() -> None:
    """Lower priority; not begun; BestEffort before Burstable before Guaranteed; little done before much; the youngest."""
    snapshot = cluster(7)
    works(snapshot, "much", 0, 1, started_ms=NOW - 9 * SECOND)
    works(snapshot, "guaranteed", 0, 1, qos=2)
    works(snapshot, "little", 0, 1, started_ms=NOW - 2 * SECOND)
    works(snapshot, "best-effort", 0, 1, qos=0, started_ms=NOW - 50 * SECOND)
    works(snapshot, "bound", 0, 1, qos=2, started_ms=None)
    works(snapshot, "low", 0, 1, priority=-1, qos=2, started_ms=NOW - 90 * SECOND)
    works(snapshot, "equal", 0, 1, priority=1)
    for owner in ("much", "little"):
        claim = snapshot.claims[owner]
        snapshot.claim(structs.replace(claim, qos=1), Statement())
    order = []
    for cores in range(1, 7):
        taken = {
            owner for owners, _ in victims(decide(snapshot, gang(1, cores, priority=1))) for owner in owners
        }
        order.append(taken - {owner for before in order for owner in before})
    assert order == [{"low"}, {"bound"}, {"best-effort"}, {"little"}, {"much"}, {"guaranteed"}]


def test_a_gang_goes_as_a_whole() -> None:
    """One of its three members is in the way; without it the others would start anew anyway."""
    snapshot = cluster(2, 2)
    for number, at in enumerate((0, 0, 1)):
        works(snapshot, f"member-{number}", at, 1, unit="ring")
    plan = decide(snapshot, bag(1, 1, priority=1))
    assert victims(plan) == []  # there is a free core
    plan = decide(snapshot, gang(2, 2, priority=1))
    assert victims(plan) == [(("member-0", "member-1", "member-2"), "Preempted")]


def test_who_is_not_needed_stays() -> None:
    """The cheapest victim is on a node where the pod would not fit all the same."""
    snapshot = cluster(2, 4)
    works(snapshot, "cheap", 0, 2, started_ms=None)
    works(snapshot, "dear", 1, 4)
    assert victims(decide(snapshot, bag(1, 1, shape(2), priority=1))) == [(("cheap",), "Preempted")]
    assert victims(decide(snapshot, bag(1, 1, shape(4), priority=1))) == [(("dear",), "Preempted")]


def test_room_that_is_being_left_is_taken_before_anybody_is_asked_to_go() -> None:
    """A pod is leaving anyway: the group is nominated to its room, without a victim."""
    snapshot = cluster(4)
    works(snapshot, "leaving", 0, 2)
    snapshot.claim(structs.replace(snapshot.claims["leaving"], kind=ClaimKind.RELEASING), Statement())
    works(snapshot, "low", 0, 2)
    plan = decide(snapshot, gang(1, 2, priority=1))
    assert victims(plan) == []
    assert [(n.group, n.victims) for n in plan.nominations] == [(1, ())]


def test_two_groups_do_not_count_on_the_same_room() -> None:
    """The first is given what is being left; the second needs the other victim."""
    snapshot = cluster(4)
    works(snapshot, "leaving", 0, 2)
    snapshot.claim(structs.replace(snapshot.claims["leaving"], kind=ClaimKind.RELEASING), Statement())
    works(snapshot, "low", 0, 2)
    plan = decide(snapshot, gang(1, 2, priority=2), gang(2, 2, priority=1))
    assert victims(plan) == [(("low",), "Preempted")]
    assert [(n.group, n.victims) for n in plan.nominations] == [(1, ()), (2, ("low",))]


# ---- after that ----


def nominated(snapshot: Snapshot, key: int, cores: int, *owners: str, held: int = 0) -> None:
    """A group for whom others are leaving node 0, with so many cores held for it already."""
    nomination = Nomination(key, "default", cores, ((0, (cores * 1000,)),), owners, NOW + 60 * SECOND)
    snapshot.nominations[key] = nomination
    if held:
        claim = Claim(nomination.holder(0), 0, (held * 1000,), ClaimKind.NOMINATED, "default", NOW, None)
        snapshot.claim(claim, Statement())


def test_a_nominated_group_asks_for_nobody_else() -> None:
    """One of its two victims has not left: it waits, although another victim could be had."""
    snapshot = cluster(4)
    works(snapshot, "leaving", 0, 2)
    snapshot.claim(structs.replace(snapshot.claims["leaving"], kind=ClaimKind.RELEASING), Statement())
    works(snapshot, "low", 0, 1)
    nominated(snapshot, 1, 3, "gone", "leaving", held=1)
    plan = decide(snapshot, gang(1, 3, priority=5))
    assert (victims(plan), plan.nominations, codes(plan)) == ([], (), {1: "WaitingForVictims"})
    assert plan.reasons[0].numbers == {"victims": 2, "not_left": 1, "nodes": 1}


def test_a_nominated_group_is_placed_on_what_is_held_for_it() -> None:
    """Nobody else gets it, however important."""
    snapshot = cluster(4)
    nominated(snapshot, 1, 3, "gone", held=3)
    plan = decide(snapshot, gang(2, 2, priority=9), gang(1, 3, priority=5))
    assert [(p.group, [n.tolist() for n in p.nodes]) for p in plan.placements] == [(1, [[0, 0, 0]])]


def test_a_nominated_pod_whose_inputs_are_elsewhere_is_placed_once() -> None:
    """Its inputs are copied to the node that is kept for it; the node that has them has room, and does not get it a second time."""
    snapshot, catalogue = cluster(4, 4), Catalogue()
    dataset = catalogue.intern("s3://d", 5_000_000, True)
    catalogue.add_replica(dataset, 1)
    nominated(snapshot, 1, 1, "gone", held=1)
    group = bag(1, inputs=(dataset,), priority=5)
    plan = cycle(snapshot, catalogue, QueueTree(), [group], OURS, NOW)
    assert [(p.group, [n.tolist() for n in p.nodes]) for p in plan.placements] == [(1, [[0]])]


def test_a_group_whose_nomination_came_to_nothing_waits_a_minute_before_another() -> None:
    """It was given up ten seconds ago."""
    snapshot = cluster(4)
    works(snapshot, "low", 0, 4)
    snapshot.spent[1] = NOW - 10 * SECOND
    assert victims(decide(snapshot, gang(1, 2, priority=5))) == []
    snapshot.spent[1] = NOW - 60 * SECOND
    assert victims(decide(snapshot, gang(1, 2, priority=5))) == [(("low",), "Preempted")]


# ---- queues ----


def two(**more: object) -> QueueTree:
    return QueueTree([Queue("a", weight=1, **more), Queue("b", weight=3)])  # type: ignore[arg-type]


def fill(snapshot: Snapshot, queue: str, cores: int, **more: object) -> None:
    for number in range(cores):
        works(snapshot, f"{queue}{number}", 0, 1, queue=queue, **more)


def test_priority_does_not_reach_into_another_queue() -> None:
    """Whoever writes 1000 into a document does not get another queue's room for it."""
    snapshot = cluster(4)
    fill(snapshot, "a", 4)
    plan = decide(snapshot, gang(1, 1, queue="other", priority=1000))
    assert victims(plan) == []


def test_a_queue_takes_back_what_another_has_beyond_its_share() -> None:
    """A has all of eight cores and weight 1, b weight 3: b gets six of them and no more."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    six = decide(snapshot, gang(1, 6, queue="b"), queues=two())
    assert [reason for _, reason in victims(six)] == ["Reclaimed"] * 6
    assert six.evictions[0].message == "g1 of queue b takes back what queue a has beyond its share"
    assert victims(decide(snapshot, gang(1, 7, queue="b"), queues=two())) == []


def test_a_bag_gets_as_many_as_its_queue_is_entitled_to() -> None:
    """Twenty pods ask: six get room."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    plan = decide(snapshot, bag(1, 20, queue="b"), queues=two())
    assert len(plan.evictions) == 6


def test_nothing_is_taken_from_a_queue_that_is_not_reclaimable() -> None:
    """Its operator said so."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    assert victims(decide(snapshot, gang(1, 2, queue="b"), queues=two(reclaimable=False))) == []


def test_a_guarantee_is_kept() -> None:
    """Of eight cores seven are guaranteed to a: one can be had."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    queues = two(guarantee=(7000,))
    assert len(decide(snapshot, gang(1, 1, queue="b"), queues=queues).evictions) == 1
    assert victims(decide(snapshot, gang(1, 2, queue="b"), queues=queues)) == []


def test_a_guarantee_is_given() -> None:
    """B has a share of 5/8 of weight 1, and a only 3/8 of weight 1; but five cores are guaranteed to a."""
    snapshot = cluster(8)
    fill(snapshot, "a", 3)
    fill(snapshot, "b", 5)
    queues = QueueTree([Queue("a", guarantee=(5000,)), Queue("b")])
    assert len(decide(snapshot, gang(1, 2, queue="a"), queues=queues).evictions) == 2
    assert victims(decide(snapshot, gang(1, 3, queue="a"), queues=queues)) == []


def test_without_weights_and_guarantees_queues_take_nothing_from_each_other() -> None:
    """Nobody has said what a queue deserves."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    assert victims(decide(snapshot, gang(1, 2, queue="b"), queues=QueueTree([Queue("a"), Queue("b")]))) == []


def test_a_queue_of_higher_priority_takes_from_a_lower_one_down_to_its_guarantee() -> None:
    """`urgent` goes before `a`, whose three guaranteed cores stay."""
    snapshot = cluster(8)
    fill(snapshot, "a", 8)
    queues = QueueTree([Queue("urgent", priority=1), Queue("a", guarantee=(3000,))])
    plan = decide(snapshot, gang(1, 5, queue="urgent"), queues=queues)
    assert [reason for _, reason in victims(plan)] == ["Preempted"] * 5
    assert plan.evictions[0].message == "g1 takes its room: queue urgent goes before queue a"
    assert victims(decide(snapshot, gang(1, 6, queue="urgent"), queues=queues)) == []


def test_siblings_deep_in_the_tree_are_compared_where_their_paths_differ() -> None:
    """One of lab's two teams has all that lab has, which is no more than lab's share: its sister gets half, a stranger nothing."""
    snapshot = cluster(8)
    fill(snapshot, "one", 4)
    fill(snapshot, "ward", 4)
    queues = QueueTree(
        [Queue("lab"), Queue("ward", weight=2), Queue("one", parent="lab"), Queue("two", parent="lab")]
    )
    plan = decide(snapshot, gang(1, 2, queue="two"), queues=queues)
    assert [owners for owners, _ in victims(plan)] == [("one3",), ("one2",)]
    assert victims(decide(snapshot, gang(1, 3, queue="two"), queues=queues)) == []


# ---- gangs that can spare members ----


def members(snapshot: Snapshot, unit: str, count: int, least: int, at: int = 0, **more: object) -> None:
    """A gang of members of one core each, of which so many must stay."""
    for number in range(count):
        works(snapshot, f"{unit}-{number}", at, 1, unit=unit, elastic=(0, number, least), **more)


def told(plan: Plan) -> list[tuple[tuple[str, ...], bool]]:
    return [(eviction.owners, eviction.part) for eviction in plan.evictions]


def test_members_that_a_gang_can_spare_go_one_by_one_before_a_whole_gang() -> None:
    """Two of four can be spared. A younger gang that needs all its members, and would lose less work, stays."""
    snapshot = cluster(6)
    members(snapshot, "old", 4, 2, started_ms=NOW - 90 * SECOND)
    members(snapshot, "new", 2, 2)
    assert told(decide(snapshot, bag(1, 1, priority=1))) == [(("old-3",), True)]
    assert told(decide(snapshot, gang(1, 2, priority=1))) == [(("old-3",), True), (("old-2",), True)]


def test_beyond_what_it_can_spare_a_gang_goes_as_a_whole() -> None:
    """With all its members, in one eviction."""
    snapshot = cluster(3)
    members(snapshot, "g", 3, 2)
    assert told(decide(snapshot, gang(1, 2, priority=1))) == [(("g-0", "g-1", "g-2"), False)]


def test_members_that_are_missing_already_are_not_spared_again() -> None:
    """One of three is leaving for somebody else: two are there, and two must stay."""
    snapshot = cluster(3)
    members(snapshot, "g", 3, 2)
    gone = structs.replace(snapshot.claims["g-0"], kind=ClaimKind.RELEASING)
    snapshot.claim(gone, Statement())
    assert told(decide(snapshot, gang(1, 2, priority=1))) == [(("g-1", "g-2"), False)]


def test_each_role_has_a_minimum_of_its_own() -> None:
    """Of the ps none can be spared, of three workers two."""
    snapshot = cluster(4)
    works(snapshot, "g-ps", 0, 1, unit="g")
    for number in (1, 2, 3):
        works(snapshot, f"g-w{number}", 0, 1, unit="g", elastic=(1, number, 1))
    assert told(decide(snapshot, gang(1, 2, priority=1))) == [(("g-w3",), True), (("g-w2",), True)]


def test_a_queue_takes_back_its_share_from_members_that_can_be_spared() -> None:
    """Two queues of equal weight on six cores: queue a's gang of six, of which two are needed, comes down to three."""
    snapshot = cluster(6)
    members(snapshot, "g", 6, 2, queue="a")
    queues = QueueTree([Queue("a", weight=2), Queue("b", weight=2)])
    plan = decide(snapshot, bag(1, 6, queue="b"), queues=queues)
    assert told(plan) == [(("g-5",), True), (("g-4",), True), (("g-3",), True)]
    assert {each.reason for each in plan.evictions} == {"Reclaimed"}


def test_a_plugins_order_does_not_put_a_gang_before_the_members_it_can_spare() -> None:
    """It says: the most claims first. What can be spared goes first all the same."""

    def largest(snapshot: Snapshot, units: Sequence[Sequence[Claim]], now: int) -> NDArray[np.int64]:
        return np.array([-len(unit) for unit in units], dtype=np.int64)

    snapshot = cluster(4)
    members(snapshot, "g", 4, 3)
    plan = decide(snapshot, bag(1, 1, priority=1), profile=replace(OURS, victim_order=largest))
    assert told(plan) == [(("g-3",), True)]
