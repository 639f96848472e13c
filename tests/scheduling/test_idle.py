"""Every idle core has one cause, and it is the one that keeps it idle."""

from __future__ import annotations

from scheduling_cases import GIB, bag, cluster, gang, group, node, role, run, shape, stage
from waiting_cases import Case

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.idle import KINDS, Cause, Split, idle_room, split
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

OURS = PROFILES["flowsched"]
NOW = 3_600_000


def after(snapshot: Snapshot, *backlog: PodGroup, queues: QueueTree | None = None) -> Split:
    """The split after a cycle in which nobody starts (the tests see to it)."""
    plan = cycle(snapshot, Catalogue(), queues or QueueTree(), backlog, OURS, NOW)
    assert not plan.placements
    known = {group.key: group for group in backlog}
    waiting = [(known[reason.group], reason) for reason in plan.reasons]
    return split(idle_room(snapshot, waiting, OURS, {group.key: group.name for group in backlog}))


def cpu(found: Split) -> dict[str, int]:
    """Idle milli-CPU by cause, without zeros."""
    return {cause.name: int(found.amounts[cause, 0]) for cause in Cause if found.amounts[cause, 0]}


def test_the_causes_of_every_resource_add_up_to_what_is_idle() -> None:
    """300 random clusters with random work, whatever overlaps in them."""
    for seed in range(300):
        s = Case(seed).situation
        backlog = (s.group, *s.others)
        plan = s.plan()
        known = {group.key: group for group in backlog}
        waiting = [(known[reason.group], reason) for reason in plan.reasons]
        found = split(idle_room(s.snapshot, waiting, s.profile, {}))
        idle = 0 * s.snapshot.allocatable.sum(axis=0)
        for at in range(len(s.snapshot)):
            if s.snapshot.ready[at]:
                idle = idle + (s.snapshot.allocatable[at] - s.snapshot.used[at]).clip(0)
        assert found.amounts.sum(axis=0).tolist() == idle.tolist(), seed
        assert (found.amounts >= 0).all(), seed
        for cause in Cause:
            told = sum(amount for (of, _), amount in found.blame.items() if of is cause)
            assert cause is Cause.NO_DEMAND or (found.amounts[cause] - told == 0).all(), seed


def test_nobody_asks() -> None:
    """An empty backlog: no demand. A node that takes no pods is not idle but off."""
    snapshot = cluster(4, 4)
    snapshot.put_node(node("n2", 8, ready=False))
    run(snapshot, "a", 0, 1)
    found = after(snapshot)
    assert cpu(found) == {"NO_DEMAND": 7000}
    assert (int(found.capacity[0]), int(found.off[0])) == (8000, 8000)


def test_pieces_that_are_too_small_are_fragmentation_up_to_what_is_asked_for() -> None:
    """Four nodes with 2 cores free each, one pod of 3: it takes 3 of the 8 for its own, nobody asks for the others."""
    snapshot = cluster(4, 4, 4, 4)
    for at in range(4):
        run(snapshot, f"a{at}", at, 2)
    assert cpu(after(snapshot, bag(1, what=shape(3)))) == {"FRAGMENTATION": 3000, "NO_DEMAND": 5000}


def test_cores_beside_full_memory_are_fragmentation() -> None:
    """6 cores are free and no memory."""
    snapshot = cluster(8, memory=4)
    snapshot.claim(Claim("a", 0, (2000, 4 * GIB), ClaimKind.RUNNING, "default", 0, None), Statement())
    assert cpu(after(snapshot, bag(1, 6, shape(1, 1)))) == {"FRAGMENTATION": 6000}


def test_a_cap_holds_what_would_fit_and_no_more() -> None:
    """The queue's 20 pods of 1 core: 5 would fit beside what runs, and they are the cap's. Of 2 pods, 2 are."""
    snapshot = cluster(4, 4)
    run(snapshot, "a", 0, 3, queue="night")
    queues = QueueTree([Queue("night", cap=(3000,))])
    found = after(snapshot, bag(1, 20, queue="night"), queues=queues)
    assert cpu(found) == {"QUOTA": 5000}
    assert int(found.blame[Cause.QUOTA, "night"][0]) == 5000
    found = after(snapshot, bag(1, 2, queue="night"), queues=queues)
    assert cpu(found) == {"QUOTA": 2000, "NO_DEMAND": 3000}


def test_what_would_delay_a_promise_is_reserved_and_the_gang_itself_is_fragmentation() -> None:
    """A gang of 8 waits for a node; 2 long pods would fit and may not; of 4 idle cores 2 are theirs, 2 are pieces."""
    snapshot = cluster(4, 4)
    run(snapshot, "a", 0, 4, until_ms=NOW + 60_000)
    found = after(snapshot, gang(1, 8, priority=5, name="big"), bag(2, 2, runtime_ms=7_200_000))
    assert cpu(found) == {"RESERVED": 2000, "FRAGMENTATION": 2000}
    assert (Cause.RESERVED, "big") in found.blame


def test_targets_of_copies_wait_for_data() -> None:
    """A pod of 3 cores whose inputs are being copied to the node."""
    snapshot = cluster(4)
    stage(snapshot, "a", 0, 3)
    assert cpu(after(snapshot)) == {"DATA": 3000, "NO_DEMAND": 1000}


def test_a_selector_a_taint_or_a_size_that_fits_no_node_is_a_mismatch() -> None:
    """Each asks for 2 cores of 4."""
    snapshot = cluster(4, labels={"disk": "hdd"})
    wants = bag(1, 2, shape(selector=(("disk", "ssd"),)))
    assert cpu(after(snapshot, wants)) == {"MISMATCH": 2000, "NO_DEMAND": 2000}
    assert cpu(after(cluster(4), bag(1, 1, shape(64)))) == {"MISMATCH": 4000}
    tainted = Snapshot()
    tainted.put_node(node("n0", 4, taints=(("gpu", "", "NoSchedule"),)))
    assert cpu(after(tainted, bag(1, 1))) == {"MISMATCH": 1000, "NO_DEMAND": 3000}


def test_gangs_count_whole() -> None:
    """A capped gang of 3 × 2 cores would not fit 5 idle cores anyway: that is fragmentation, not the cap."""
    snapshot = cluster(8)
    run(snapshot, "a", 0, 3, queue="night")
    queues = QueueTree([Queue("night", cap=(3000,))])
    assert cpu(after(snapshot, gang(1, 3, shape(2), queue="night"), queues=queues)) == {"FRAGMENTATION": 5000}
    roles = [role("ps", 1, what=shape(1)), role("worker", 2, what=shape(2))]
    assert cpu(after(snapshot, group(1, roles, queue="night"), queues=queues)) == {"QUOTA": 5000}


def test_gpus_that_wait_for_cores_are_counted_by_themselves() -> None:
    """8 GPUs idle, no core left: pods of 1 core and 1 GPU. CPU-only work makes no demand for GPUs."""
    snapshot = Snapshot()
    snapshot.put_node(node("n0", 4, gpu_millis=8000))
    run(snapshot, "a", 0, 4)
    with_gpu = bag(1, 5, Shape((1000, GIB, 0, 1000, 0)))
    found = after(snapshot, with_gpu)
    assert found.amounts[:, 3].tolist() == [3000, 5000, 0, 0, 0, 0, 0, 0]
    found = after(snapshot, bag(2, 5))
    assert found.amounts[:, 3].tolist() == [8000, 0, 0, 0, 0, 0, 0, 0]


def test_absurd_requests_do_not_overflow() -> None:
    """Pods that ask for 2^60 milli-CPU, eight at a time, thousands of them: nobody's demand is negative."""
    backlog = [gang(n + 1, 8, shape((1 << 60) / 1000 + n)) for n in range(KINDS + 10)]
    assert cpu(after(cluster(4), *backlog)) == {"MISMATCH": 4000}


def test_beyond_so_many_kinds_the_rest_is_one() -> None:
    """100 pods of 100 sizes, none of which fits: all of their demand counts."""
    snapshot = cluster(4, 4)
    run(snapshot, "a", 0, 3.9)
    run(snapshot, "b", 1, 3.9)
    backlog = [bag(n + 1, what=shape(0.2 + n / 1000)) for n in range(KINDS + 36)]
    assert cpu(after(snapshot, *backlog)) == {"FRAGMENTATION": 200}


def test_idle_room_stays_when_its_snapshot_changes() -> None:
    """A thread splits it while the next step places pods and a node goes."""
    snapshot = cluster(4, 4)
    room = idle_room(snapshot, [], OURS, {})
    before = split(room)
    run(snapshot, "a", 0, 3)
    snapshot.put_node(node("n1", 4, ready=False))
    after = split(room)
    assert before.amounts.tolist() == after.amounts.tolist()
    assert cpu(after) == {"NO_DEMAND": 8000}
