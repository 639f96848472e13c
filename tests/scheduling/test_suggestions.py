"""What `explain` suggests is one change, starts the group when it is applied, and could not be smaller."""

from __future__ import annotations

import pytest
from scheduling_cases import GIB, bag, claim, cluster, frozen, gang, group, node, role, run, shape
from waiting_cases import Case, first, starts_with, starts_with_less, waiting

from flowsched.scheduling.explain.remedies import Kind, Situation, Suggestion, outlook
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from tests.soak import worlds

OURS = PROFILES["flowsched"]
HOUR = 3_600_000


def asked(snapshot: Snapshot, who: PodGroup, *others: PodGroup, queues: QueueTree | None = None) -> Situation:
    return Situation(snapshot, Catalogue(), queues or QueueTree(), who, others, OURS, HOUR)


def best(situation: Situation) -> Suggestion:
    found = first(situation)
    assert found is not None
    return found


def said(situation: Situation, most: int = 3) -> list[str]:
    return [each.message for each in outlook(situation.copy(), most).suggestions]


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_what_is_suggested_starts_the_group_and_one_unit_less_does_not(part: int) -> None:
    """Random groups in four parts: for 98 of 100 there is a single change, and every one that is said is minimal."""
    seeds = worlds(few=25, many=500)
    suggested, started, larger_than_needed = 0, 0, []
    for seed, _, situation in waiting(seeds, first=part * 100_000):
        change = first(situation)
        if change is None:
            continue
        suggested += 1
        started += starts_with(situation, change)
        if starts_with_less(situation, change):
            larger_than_needed.append(seed)
    assert started == suggested
    assert started >= 0.98 * seeds - 1
    assert larger_than_needed == []


def test_asking_and_applying_change_nothing() -> None:
    """The arrays, the backlog and the queues of whoever asks are byte by byte what they were."""
    for seed in range(0, 60, 3):
        situation = Case(seed).situation
        before, queues = frozen(situation.snapshot), list(situation.queues)
        claims = dict(situation.snapshot.claims)
        for change in outlook(situation.copy()).suggestions:
            starts_with(situation, change)
        assert frozen(situation.snapshot) == before
        assert situation.snapshot.claims == claims
        assert list(situation.queues) == queues


def test_a_copy_shares_nothing_that_its_groups_read() -> None:
    """What they read over the network is theirs as well: replicas come and go while somebody thinks about the copy elsewhere."""
    catalogue = Catalogue()
    here, far = (catalogue.intern(name, GIB, True) for name in ("s3://lab/here", "s3://lab/far"))
    who = bag(1, inputs=(here,), remote=(far,))
    private = Situation(
        cluster(4, 4), catalogue, QueueTree(), who, (bag(2, remote=(far,)),), OURS, HOUR
    ).copy()
    for dataset in (here, far):
        catalogue.add_replica(dataset, 1)
        assert not private.catalogue.has_replica(dataset)


def test_the_same_question_has_the_same_answer() -> None:
    """Orders are fixed: asked twice, the same suggestions in the same words."""
    for _, _, situation in waiting(10):
        assert outlook(situation.copy()) == outlook(situation.copy())


def test_a_little_less_cpu_is_asked_for_to_the_milli_core() -> None:
    """A node with 3.5 cores free and a pod that wants 4."""
    snapshot = cluster(8)
    run(snapshot, "other", 0, 4.5, until_ms=90 * HOUR)
    change = best(asked(snapshot, bag(1, what=shape(4))))
    assert (change.kind, change.object, change.what) == (Kind.REQUEST, "task", "cpu")
    assert (change.was, change.to) == (4000, 3500)
    assert change.message == "ask for 3.5 CPU instead of 4 CPU for each task"


def test_a_smaller_gang_is_suggested_where_six_of_eight_fit() -> None:
    """Two nodes take six of eight members."""
    found = said(asked(cluster(6, 6), gang(1, 8, shape(2))))
    assert found[:2] == [
        "ask for 1.5 CPU instead of 2 CPU for each worker",
        "start with 6 members instead of 8 (minimum of worker)",
    ]


def test_a_cap_is_raised_by_what_is_missing() -> None:
    """A queue that may have 4 cores and has 3, and a pod of 2 that is not divisible enough to be made half."""
    snapshot = cluster(16)
    run(snapshot, "mine", 0, 3, until_ms=90 * HOUR, queue="night")
    queues = QueueTree([Queue("night", cap=(4000,))])
    found = said(asked(snapshot, bag(1, what=shape(2), queue="night"), queues=queues))
    assert "raise the cap of queue night by 1 CPU to 5 CPU" in found


def test_a_cap_below_the_request_is_named_while_others_fill_the_queue() -> None:
    """No end of theirs would help, so the change is the one that is needed in any case; their claims stay as they were."""
    snapshot = cluster(4)
    run(snapshot, "mine", 0, 2, until_ms=90 * HOUR, queue="night")
    queues = QueueTree([Queue("night", cap=(2000,))])
    private = asked(
        snapshot, bag(1, what=shape(3), queue="night"), bag(2, queue="night"), queues=queues
    ).copy()
    found = outlook(private)
    assert found.binds == (("task", "cpu"), ("night", "cap cpu"))
    assert [each.message for each in found.suggestions] == [
        "ask for 2 CPU instead of 3 CPU for each task",
        "raise the cap of queue night by 1 CPU to 3 CPU",
    ]
    assert list(private.snapshot.claims) == ["mine"]


def test_a_taint_a_label_and_a_rack_are_named() -> None:
    """Each the only thing in the way."""
    tainted = Snapshot()
    tainted.put_node(node("n0", taints=(("gpu", "yes", "NoSchedule"),)))
    assert said(asked(tainted, bag(1)))[0] == "tolerate the taint gpu=yes:NoSchedule"
    labelled = cluster(4, labels={"disk": "hdd"})
    wants = bag(1, what=shape(selector=(("disk", "ssd"),)))
    assert said(asked(labelled, wants)) == [
        "drop its demand: label disk=ssd",
        "one more node with 1 CPU, 1 GiB memory, label disk=ssd",
    ]
    racks = Snapshot()
    for at in range(4):
        racks.put_node(node(f"n{at}", 4, rack=f"r{at % 2}"))
    wants = gang(1, 12, shape(1, rack="required"))
    assert "drop its demand: rack" in said(asked(racks, wants), 5)


def test_who_holds_the_room_is_named() -> None:
    """One node, full, for a month."""
    snapshot = cluster(4)
    run(snapshot, "a", 0, 3, until_ms=900 * HOUR, group="train/fit")
    run(snapshot, "b", 0, 1, until_ms=900 * HOUR, group="etl/sort")
    found = said(asked(snapshot, bag(1, what=shape(0.001))))
    assert "free 0.001 CPU on node n0 (held by train/fit 3 CPU, etl/sort 1 CPU)" in found


def holds(snapshot: Snapshot, owner: str, at: int, cores: int, memory: int, queue: str = "default") -> None:
    claimed = Claim(
        owner, at, (cores * 1000, memory), ClaimKind.RUNNING, queue, 0, 900 * HOUR, group=f"train/{owner}"
    )
    snapshot.claim(claimed, Statement())


def test_what_is_little_of_a_node_is_freed_first() -> None:
    """Three of eight cores beside 1 of 16 GiB of memory, on a node that has none left: what a change costs goes by all there is."""
    snapshot = cluster(8, 8)
    holds(snapshot, "a", 0, 7, GIB)
    holds(snapshot, "b", 1, 1, 16 * GIB)
    (found,) = [each for each in said(asked(snapshot, bag(1, what=shape(4))), 9) if each.startswith("free")]
    assert found == "free 1 GiB memory on node n1 (held by train/b 16 GiB memory)"


def test_a_cap_is_told_so_that_it_does() -> None:
    """The cap that starts the group is no whole number of MiB: it is rounded up."""
    snapshot = cluster(8)
    queues = QueueTree([Queue("teaching", cap=(-1, 1_000_000_000))])
    holds(snapshot, "a", 0, 1, 900_000_000, "teaching")
    wants = bag(1, what=Shape((1_000, 500_000_000, 0, 0, 0)), queue="teaching")
    (found,) = [each for each in said(asked(snapshot, wants, queues=queues), 9) if each.startswith("raise")]
    assert found.endswith("to 1336 MiB memory")


def test_room_that_is_kept_for_a_group_is_named_first() -> None:
    """Who asks where the fourth core is sees it, also beside larger holders; those that are not named are counted."""
    snapshot = cluster(8)
    for at, name in enumerate(("ann/a", "bob/b", "eve/c")):
        run(snapshot, f"p{at}", 0, 2, until_ms=900 * HOUR, group=name)
    run(snapshot, "p3", 0, 1, until_ms=900 * HOUR, group="zoe/d")
    claim(snapshot, "nominated/3/0", 0, 1, ClaimKind.NOMINATED, queue="quick", until_ms=900 * HOUR)
    (found,) = [each for each in said(asked(snapshot, bag(1))) if "free" in each]
    held = "kept for the next group of queue quick 1 CPU, ann/a 2 CPU, bob/b 2 CPU, 2 more"
    assert found == f"free 1 CPU on node n0 (held by {held})"


def test_under_a_cap_only_room_of_its_queue_helps() -> None:
    """A full node: room that another queue frees changes nothing, and no holder of another queue is named."""
    snapshot = cluster(4)
    claim(snapshot, "a", 0, 3, ClaimKind.RUNNING, queue="research", group="ann/fit", until_ms=900 * HOUR)
    claim(snapshot, "b", 0, 1, ClaimKind.RUNNING, queue="teaching", group="bob/sort", until_ms=900 * HOUR)
    queues = QueueTree([Queue("teaching", cap=(1000,))])
    found = [
        each for each in said(asked(snapshot, bag(1, queue="teaching"), queues=queues), 9) if "free" in each
    ]
    assert found == ["free 1 CPU on node n0 (held by bob/sort 1 CPU)"]


def test_what_binds_is_told_by_role() -> None:
    """The workers' memory, not their cores, and not the ps."""
    snapshot = cluster(16, memory=8)
    roles = [role("ps", 1, what=shape(1, 1)), role("worker", 2, what=shape(1, 6))]
    binds = outlook(asked(snapshot, group(1, roles)).copy()).binds
    assert binds == (("worker", "memory"), ("worker", "min_member"))


def test_who_starts_anyway_needs_no_suggestion() -> None:
    """There is room."""
    assert first(asked(cluster(4), bag(1))) is None


def test_absurd_requests_are_answered_too() -> None:
    """Eight pods of 2^60 milli-CPU: asking for less would do, a node for them cannot be made."""
    found = outlook(asked(cluster(4, 4), gang(1, 8, shape((1 << 60) / 1000))).copy())
    assert [(each.kind, each.to) for each in found.suggestions] == [(Kind.REQUEST, 1000)]


def test_without_any_node_one_that_is_made_for_it_is_described() -> None:
    """An empty cluster."""
    wants = bag(1, what=shape(2, 4, selector=(("disk", "ssd"),)))
    assert said(asked(Snapshot(), wants)) == ["one more node with 2 CPU, 4 GiB memory, label disk=ssd"]


def test_groups_that_get_some_of_the_nodes_are_named() -> None:
    """Those that wait and go first take the first of three nodes."""
    wants, *siblings = (bag(key, what=shape(2, 4), name=f"w/align[{key}]") for key in (2, 0, 1))
    assert said(asked(Snapshot(), wants, *siblings)) == [
        "3 more nodes with 2 CPU, 4 GiB memory; w/align[0], w/align[1] would start there too"
    ]
