"""Short cycles decide what the long way decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.scheduling import cycle as cycle_module
from flowsched.scheduling import horizon
from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.executor import NodeInfo
from flowsched.scheduling.framework import PROFILES
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.queues import Queue, QueueTree
from flowsched.scheduling.snapshot import ClaimKind, Snapshot
from tests.scheduling.scheduling_cases import GIB, at_length, bag, claim, cluster, gang, run, shape, stage
from tests.scheduling.test_single import NOW, World, told

OURS = PROFILES["flowsched"]


def world(seed: int) -> World:
    """A random cluster and a few groups, most often in one line, gangs of one pod among them."""
    made = World(seed)
    rng = made.rng
    some: list[PodGroup] = []
    for group in made.backlog[: rng.choice([1, 1, 1, 2, 3, 6, 8, 9])]:
        if rng.random() < 0.3:
            group = replace(gang(group.key, 1, group.roles[0].shape), inputs=group.inputs)
        queue = "a" if rng.random() < 0.95 else group.queue
        rank = rng.choice([0, 0, 500, 5_000, 100_000])
        some.append(replace(group, queue=queue, rank_ms=rank, workflow=rng.choice(["w", "x"])))
    made.backlog = some
    made.profile = replace(made.profile, order=rng.choice(["shortest", "rank", "fifo"]))
    return made


@given(st.integers(0, 1 << 32))
@settings(max_examples=800, deadline=None)
def test_a_short_cycle_decides_what_the_long_way_decides(seed: int) -> None:
    """Data and none, targets, several policies, ranks and priorities, full clusters: the same plan."""
    some = world(seed)
    short = told(some.decide())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "decide_briefly", at_length)
        long = told(some.decide())
    assert short == long


def unset(*_: object, **__: object) -> None:
    raise AssertionError("the long way was set up")


def briefly(
    snapshot: Snapshot, backlog: Sequence[PodGroup], catalogue: Catalogue | None = None
) -> list[tuple[int, list[int], int]]:
    """Key, nodes and cost of what a cycle places without setting anything up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "_Cycle", unset)
        plan = cycle(snapshot, catalogue or Catalogue(), QueueTree(), backlog, OURS, NOW)
    assert plan.looked_at == len(backlog)
    assert not plan.reasons
    return [(each.group, each.nodes[0].tolist(), each.cost_ms) for each in plan.placements]


def test_few_pods_of_one_line_take_room_from_each_other() -> None:
    """Each goes to the fullest node that has room when its turn comes, by priority; a gang of one as well as a bag."""
    snapshot = cluster(2, 4, 16)
    backlog = [bag(1, 1, shape(2)), gang(2, 1, shape(2)), bag(3, 1, shape(1), priority=1)]
    assert briefly(snapshot, backlog) == [(3, [0], 718), (1, [1], 718), (2, [1], 437)]


def test_a_pod_goes_beside_its_inputs() -> None:
    """One holder is emptier than others, and of eight holders the fullest is chosen; the first of two that are alike."""
    snapshot, catalogue = cluster(2, 16, *[8] * 8), Catalogue()
    few, many = (catalogue.intern(f"s3://lab/{name}", GIB, True) for name in ("few", "many"))
    catalogue.add_replica(few, 1)
    for node in range(2, 10):
        catalogue.add_replica(many, node)
    for node in (4, 7):
        run(snapshot, f"p{node}", node, 4)
    backlog = [bag(1, 1, shape(1), inputs=(few,)), gang(2, 1, shape(1), inputs=(many,))]
    assert [nodes for _, nodes, _ in briefly(snapshot, backlog, catalogue)] == [[1], [4]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queues": QueueTree([Queue("top", paused=True), Queue("default", parent="top")])}, "Paused"),
        ({"queues": QueueTree([Queue("default", cap=(500,))])}, "QueueLimit"),
        ({"backlog": [bag(1, 1, shape(5))]}, "LargerThanNode"),
        ({"backlog": [bag(1, 1, shape(4, selector=(("disktype", "ssd"),)))]}, "NoMatchingNode"),
        ({"backlog": [bag(1), bag(2, 1, shape(4))]}, "Insufficient"),
    ],
)
def test_who_may_not_or_cannot_start_hears_why(change: dict[str, Any], reason: str) -> None:
    """The long way says it, also of the second of two."""
    given: dict[str, Any] = {"queues": QueueTree(), "backlog": [bag(1)], **change}
    plan = cycle(cluster(4), Catalogue(), given["queues"], given["backlog"], OURS, NOW)
    assert [each.code for each in plan.reasons] == [reason]


def test_work_is_what_runs_and_what_waits_over_all_cores() -> None:
    """2 cores for 10 s more, 1 of which nothing is known (20 s), 4 that are late (by a tenth of their minute), a target (20 s)."""
    snapshot = cluster(4, 4)
    run(snapshot, "known", 0, 2, NOW + 10_000)
    claim(snapshot, "unknown", 0, 1, ClaimKind.RUNNING, since_ms=NOW)
    claim(snapshot, "late", 1, 4, ClaimKind.RUNNING, NOW - 10_000, since_ms=NOW - 60_000)
    stage(snapshot, "target", 1, 2)
    profile = replace(OURS, default_runtime_ms=20_000)
    backlog = [bag(1, 3, rank_ms=9_000, runtime_ms=4_000), bag(2, 1, rank_ms=0, runtime_ms=1_000)]
    # (2 * 10 + 1 * 20 + 4 * 6 + 2 * 20 + 3 * 4 + 1) s of one core, over 8 cores
    assert horizon.work_ms(snapshot, backlog, profile, NOW) == 117_000 // 8


def test_nobody_asks_for_work_who_is_near_the_end() -> None:
    """What waits takes 4 s on one core; a rank below that is no reason to look at what runs."""
    backlog = [bag(1, 3, rank_ms=3_999, runtime_ms=1_000), bag(2, 1, rank_ms=0, runtime_ms=1_000)]
    snapshot = Snapshot()
    snapshot.put_node(NodeInfo("n0", 1_000, 16 * GIB))
    assert horizon.work_ms(snapshot, backlog, OURS, NOW) is None
