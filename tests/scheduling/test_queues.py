"""Order and shares of queues, in literal cases; order inside a queue; no wait without end."""

from __future__ import annotations

import pytest
from msgspec import structs
from scheduling_cases import SECOND, bag, claim, cluster, gang, node, run, shape

from flowsched.errors import ConfigurationError
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.locality_delay import half_a_node
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.fair_share import FairShareOrder
from flowsched.scheduling.queues.ordering import in_order
from flowsched.scheduling.queues.tree import Queue, QueueTree, Shares
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer
from flowsched.statement import Statement
from flowsched.values import replace

OURS = PROFILES["flowsched"]
HOUR = 3600 * SECOND


def decide(snapshot: Snapshot, queues: QueueTree, *backlog: PodGroup, now: int = 0) -> Plan:
    return cycle(snapshot, Catalogue(), queues, backlog, OURS, now)


def counts(plan: Plan) -> dict[int, int]:
    return {p.group: sum(len(nodes) for nodes in p.nodes) for p in plan.placements}


def test_dominant_resource_fairness_gives_what_its_paper_gives() -> None:
    """Ghodsi et al. 2011: 9 CPU and 18 GB; A asks <1, 4>, B asks <3, 1>: A runs three, B two."""
    snapshot = Snapshot()
    snapshot.put_node(node("n", 9, 18))
    plan = decide(snapshot, QueueTree(), bag(1, 9, shape(1, 4), queue="A"), bag(2, 9, shape(3, 1), queue="B"))
    assert counts(plan) == {1: 3, 2: 2}


def test_weights_divide_the_cluster() -> None:
    """Three to one on eight cores: six and two."""
    queues = QueueTree([Queue("a", weight=3), Queue("b", weight=1)])
    assert counts(decide(cluster(8), queues, bag(1, 9, queue="a"), bag(2, 9, queue="b"))) == {1: 6, 2: 2}


def test_shares_are_hierarchical() -> None:
    """Two departments share eight cores evenly, however many teams one of them has."""
    queues = QueueTree([Queue("x", parent="one"), Queue("y", parent="one"), Queue("z", parent="two")])
    backlog = [bag(key, 9, queue=name) for key, name in enumerate("xyz")]
    assert counts(decide(cluster(8), queues, *backlog)) == {0: 2, 1: 2, 2: 4}


def test_what_a_queue_holds_counts() -> None:
    """B already has four of eight cores: the next four are a's."""
    snapshot = cluster(8)
    claim(snapshot, "r", 0, 4, ClaimKind.RUNNING, queue="b")
    assert counts(decide(snapshot, QueueTree(), bag(1, 9, queue="a"), bag(2, 9, queue="b"))) == {1: 4}


def test_a_staged_target_holds_nothing_of_its_queue() -> None:
    """STAGING claims are soft: they are not usage."""
    snapshot = cluster(8)
    claim(snapshot, "s", 0, 4, ClaimKind.STAGING, queue="b")
    assert snapshot.queue_usage("b") == (0, 0, 0, 0, 0)


def test_guarantees_and_priorities_go_before_shares() -> None:
    """A has more already, but not what it was promised; c has priority over b, and takes nothing of a's guarantee."""
    queues = QueueTree([Queue("a", guarantee=(6000,)), Queue("c", priority=1)])
    snapshot = cluster(8)
    claim(snapshot, "r", 0, 4, ClaimKind.RUNNING, queue="a")
    plan = decide(snapshot, queues, bag(1, 9, queue="a"), bag(2, 9, queue="b"), bag(3, 1, queue="c"))
    assert [p.group for p in plan.placements] == [1, 3, 2]
    assert counts(plan) == {1: 2, 2: 1, 3: 1}


@pytest.mark.parametrize("capped", ["b", "parent"])
def test_caps_refuse_with_the_numbers(capped: str) -> None:
    """A cap of two cores, its own or its parent's: two of nine start, and the reason says so; a gang of three never."""
    queues = QueueTree([Queue("b", parent="parent"), Queue("parent")])
    queues.put(replace(queues.get(capped), cap=(2000, -1)))
    plan = decide(cluster(8), queues, bag(1, 9, queue="b"), gang(2, 3, queue="b"))
    assert counts(plan) == {1: 2}
    codes = [(r.code.value, r.numbers["cap_cpu"]) for r in plan.reasons]
    assert codes == [("QueueLimit", 2000), ("LargerThanQueue", 2000)]
    assert plan.reasons[1].message == f"queue {capped} may never have more than 2 CPU, and this needs 3 CPU"


def test_a_gang_leaves_out_extras_that_would_break_a_cap() -> None:
    """Two of four members are needed; the cap allows three cores: it starts with its minimum."""
    queues = QueueTree([Queue("default", cap=(3000,))])
    wanted = gang(1, 4)
    roles = (structs.replace(wanted.roles[0], minimum=2),)
    assert counts(decide(cluster(8), queues, structs.replace(wanted, roles=roles))) == {1: 2}


def test_queues_that_make_no_sense_are_refused() -> None:
    """No weight, or its own ancestor."""
    with pytest.raises(ConfigurationError, match="weight 0"):
        QueueTree([Queue("a", weight=0)])
    with pytest.raises(ConfigurationError, match="its own ancestor"):
        QueueTree([Queue("a", parent="b"), Queue("b", parent="a")])


def test_turns_are_counted() -> None:
    """How many cores in a row until a stands behind b: with four against three, two more."""
    snapshot = cluster(100)
    claim(snapshot, "r", 0, 4, ClaimKind.RUNNING, queue="b")
    claim(snapshot, "q", 0, 3, ClaimKind.RUNNING, queue="a")
    waiting = {"a": [bag(1, 50, queue="a")], "b": [bag(2, 50, queue="b")]}
    tree = QueueTree()
    oldest = {Payer("a", ""): 0, Payer("b", ""): 0}
    fair_share = FairShareOrder(waiting, oldest, tree, Shares(tree, snapshot), snapshot.usage, OURS, 0)
    assert fair_share.first() is not None
    assert fair_share.pods_until_behind((1000,), 50) == 2


def order(*groups: PodGroup, profile: object = OURS, now: int = 0, fifo: bool = False) -> list[int]:
    queues = QueueTree([Queue("default", order="fifo" if fifo else "best-effort")])
    return [group.key for group in in_order(groups, queues, profile, now)["default"]]  # type: ignore[arg-type]


def test_order_inside_a_queue() -> None:
    """Priority, then the critical path, then who was ready first, then the key."""
    groups = [
        bag(1, rank_ms=10),
        bag(2, rank_ms=50),
        bag(3, priority=1),
        bag(4, rank_ms=50, ready_ms=-5),
        bag(5, rank_ms=50),
    ]
    assert order(*groups) == [3, 4, 2, 5, 1]
    assert order(*groups, fifo=True) == [3, 4, 1, 2, 5]


def test_age_goes_before_rank_and_long_age_before_priority() -> None:
    """Ten minutes of waiting beat any rank; an hour beats one step of priority."""
    old = bag(1, ready_ms=-600 * SECOND)
    assert order(bag(2, rank_ms=9999), old) == [1, 2]
    assert order(bag(2, priority=1), old) == [2, 1]
    assert order(bag(2, priority=1), bag(1, ready_ms=-HOUR)) == [1, 2]


def test_shortest_remaining_workflow_first_critical_path_inside() -> None:
    """Workflow b has 30 s to go, a 100 s."""
    groups = [
        bag(1, workflow="a", rank_ms=100),
        bag(2, workflow="b", rank_ms=30),
        bag(3, workflow="b", rank_ms=20),
    ]
    assert order(*groups, profile=replace(OURS, order="shortest")) == [2, 3, 1]


def test_gangs_and_pods_of_more_than_half_a_node_do_not_give_way_to_shorter_workflows() -> None:
    """Room for a gang (2) and for three of four cores (3) has to be collected; two of four (4) find theirs beside others."""
    groups = [
        bag(1, workflow="short", rank_ms=10),
        gang(2, 2, workflow="b", rank_ms=3_000),
        bag(3, 1, shape(3, 0), workflow="c", rank_ms=2_000),
        bag(4, 1, shape(2, 0), workflow="d", rank_ms=1_000),
    ]
    profile = replace(OURS, order="shortest")
    half = half_a_node(cluster(2, 4), profile)
    ordered = in_order(groups, QueueTree(), profile, 0, half=half)["default"]
    assert [group.key for group in ordered] == [2, 3, 1, 4]


@pytest.mark.parametrize("late", [gang(1, 16, ready_ms=5 * SECOND, workflow="long"), None])
def test_streams_of_short_workflows_pass_nobody_for_whom_room_must_be_collected(
    late: PodGroup | None,
) -> None:
    """Sixteen of sixteen cores at once, or nodes whole, one by one: promised room at once, not only when they have aged."""
    large = late or bag(1, 5, shape(4, 0), ready_ms=5 * SECOND, workflow="long")
    profile = replace(OURS, order="shortest", age_class_ms=HOUR)
    start = endless_stream(profile, structs.replace(large, rank_ms=HOUR, runtime_ms=HOUR), 200)
    assert start is not None
    assert start <= 5 + 35


def endless_stream(profile: object, late: PodGroup, until_s: int) -> int | None:
    """Virtual time: four nodes of four cores, always more one-core tasks of 20 s than fit, and `late` from second 5 on."""
    snapshot, statement, serial = cluster(4, 4, 4, 4), Statement(), 100
    for second in range(until_s):
        now = second * SECOND
        for owner, held in list(snapshot.claims.items()):
            if held.until_ms is not None and held.until_ms <= now:
                snapshot.unclaim(owner, statement)
        backlog = [
            bag(serial + n, 1, runtime_ms=(15 + n) * SECOND, ready_ms=now, rank_ms=1) for n in range(20)
        ]
        serial += 20
        if second >= 5:
            backlog.append(late)
        plan = cycle(snapshot, Catalogue(), QueueTree(), backlog, profile, now)  # type: ignore[arg-type]
        for placement in plan.placements:
            if placement.group == 1 and len(placement.nodes[0]) >= late.roles[0].minimum:
                return second
            if placement.group != 1:
                started = next(group for group in backlog if group.key == placement.group)
                until = now + (started.runtime_ms or 0)
                run(snapshot, f"p{placement.group}", int(placement.nodes[0][0]), 1, until, since_ms=now)
    return None


def test_a_big_gang_starts_under_an_endless_stream_of_small_tasks() -> None:
    """It ages to the front, is promised the cluster, and starts when the last task of before is done; stock never does."""
    quick = replace(OURS, age_class_ms=60 * SECOND)
    large = gang(1, 16, ready_ms=5 * SECOND, runtime_ms=60 * SECOND)
    start = endless_stream(quick, large, 200)
    assert start is not None
    assert start <= 5 + 60 + 35
    assert endless_stream(PROFILES["kube-like"], large, 200) is None
    assert endless_stream(replace(quick, backfill="none"), large, 200) is None


def test_turns_do_not_depend_on_how_large_bags_are() -> None:
    """Two queues with huge bags on a large cluster end within an eighth of each other, in few turns."""
    backlog = [bag(key, 5000, shape(1, 0), queue=name) for key, name in ((1, "a"), (2, "b"))]
    plan = decide(cluster(*[64] * 16), QueueTree(), *backlog)
    given = counts(plan)
    assert sum(given.values()) == 1024
    assert abs(given[1] - given[2]) <= 128
