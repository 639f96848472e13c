"""NUMA zones: a pod with whole cores goes only where one zone has room for all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scheduling_cases import GIB, bag, frozen, gang, group, node, role

from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.numa import Zones
from flowsched.scheduling.state.snapshot import AXES, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

OURS = PROFILES["flowsched"]


def zone(cores: int, free: int | None = None, memory: int = 64) -> Zone:
    has = {"cpu": cores * 1000, "memory": memory * GIB}
    return Zone(has, has | {"cpu": 1000 * (cores if free is None else free)})


def aligned(cores: int, memory: int = 1) -> Shape:
    return Shape((cores * 1000, memory * GIB, 0, 0, 0, 1))


def plain(cores: int) -> Shape:
    return Shape((cores * 1000, GIB, 0, 0, 0))


def with_zones(*nodes: tuple[int, ...], said: dict[int, tuple[int, ...]] | None = None) -> Snapshot:
    """Nodes with zones of so many cores; () = a node of 64 cores that tells none. `said`: free cores, as told."""
    snapshot = Snapshot()
    for at, cores in enumerate(nodes):
        free = (said or {}).get(at, cores)
        info = node(f"n{at}", sum(cores) or 64, 1024, extended={ALIGNED: PLENTY})
        snapshot.put_node(replace(info, zones=tuple(map(zone, cores, free))))
    return snapshot


def take(snapshot: Snapshot, at: int, cores: int, since: int = 0) -> str:
    owner = f"pod-{len(snapshot.claims)}"
    amount = aligned(cores).requests
    snapshot.claim(Claim(owner, at, amount, ClaimKind.RUNNING, "q", since, None), Statement())
    return owner


def plan(snapshot: Snapshot, *groups: PodGroup) -> Plan:
    return cycle(snapshot, Catalogue(), QueueTree(), groups, OURS, 1000)


def placed(found: Plan) -> dict[int, list[int]]:
    return {each.group: sorted(np.concatenate(each.nodes).tolist()) for each in found.placements}


def test_a_node_takes_as_many_as_its_zones_do() -> None:
    """Two zones of 8 cores hold two pods of 5 cores, although 16 cores would hold three."""
    found = plan(with_zones((8, 8)), bag(1, 3, what=aligned(5)))
    assert placed(found) == {1: [0, 0]}
    (reason,) = found.reasons
    assert reason.code is ReasonCode.ZONES
    assert (
        "needs 5 CPU and 1 GiB memory in one zone: of 1 node with room 1 has it in no single one"
        in reason.message
    )


def test_a_part_of_a_gpu_is_named_where_no_zone_has_room() -> None:
    """A pod of 5 cores and half a GPU, where two zones have 3 cores left each."""
    snapshot = with_zones((8, 8))
    snapshot.put_node(replace(snapshot.info(0), gpu_millis=1000))
    take(snapshot, 0, 5)
    take(snapshot, 0, 5)
    (reason,) = plan(snapshot, bag(1, 1, what=Shape((5000, GIB, 0, 500, 0, 1)))).reasons
    assert reason.code is ReasonCode.ZONES
    assert "needs 5 CPU and 1 GiB memory and 0.5 GPU in one zone" in reason.message


def test_pods_without_whole_cores_may_lie_across_zones() -> None:
    """Zones bind nobody else, and nodes that tell none bind nobody."""
    assert placed(plan(with_zones((8, 8)), bag(1, 3, what=plain(5)))) == {1: [0, 0, 0]}
    assert placed(plan(with_zones(()), bag(1, 12, what=aligned(5)))) == {1: [0] * 12}


def test_a_pod_larger_than_any_zone_is_told_so() -> None:
    """No waiting will help it."""
    (reason,) = plan(with_zones((8, 8)), bag(1, 1, what=aligned(12))).reasons
    assert reason.code is ReasonCode.NO_MATCHING_NODE
    assert "1 node have no NUMA zone that large" in reason.message


def test_groups_of_one_cycle_see_each_other() -> None:
    """And the cycle leaves the snapshot as it was."""
    snapshot = with_zones((8, 8))
    before = frozen(snapshot)
    found = plan(snapshot, bag(1, 1, what=aligned(5)), bag(2, 2, what=aligned(6)), bag(3, 1, what=aligned(3)))
    assert {key: len(nodes) for key, nodes in placed(found).items()} == {1: 1, 2: 1, 3: 1}
    assert frozen(snapshot) == before
    assert snapshot.zones.most(aligned(4).requests, 1).tolist() == [4]


def test_a_gang_is_whole_or_nothing_in_zones_too() -> None:
    """Six members of 5 cores need three nodes of two zones."""
    members = gang(1, 6, aligned(5))
    assert placed(plan(with_zones((8, 8), (8, 8)), members)) == {}
    assert placed(plan(with_zones((8, 8), (8, 8), (8, 8)), members)) == {1: [0, 0, 1, 1, 2, 2]}


def test_roles_of_a_gang_share_zones() -> None:
    """A ps of 4 cores and a worker of 8 do not fit two zones of 8 and a ps beside each: they count as the largest of them."""
    both = group(1, [role("ps", 1, what=aligned(4)), role("w", 2, what=aligned(8))])
    assert placed(plan(with_zones((8, 8)), both)) == {}
    assert len(placed(plan(with_zones((8, 8), (8, 8)), both))[1]) == 3


def test_what_the_node_says_is_free_bounds_it() -> None:
    """Somebody of whom we do not know has 6 of the first zone's cores."""
    snapshot = with_zones((8, 8), said={0: (2, 8)})
    assert snapshot.zones.most(aligned(4).requests, 1).tolist() == [2]


def test_who_ends_leaves_his_zone() -> None:
    """First fit in the order of coming: 5 | 3, then 5 in the second."""
    snapshot = with_zones((8, 8))
    first = take(snapshot, 0, 5, since=1)
    take(snapshot, 0, 3, since=2)
    take(snapshot, 0, 5, since=3)
    assert snapshot.zones.most(aligned(3).requests, 1).tolist() == [1]
    statement = Statement()
    snapshot.unclaim(first, statement)
    assert snapshot.zones.most(aligned(5).requests, 1).tolist() == [
        1
    ]  # 3 and 5 in the first, it is worked out anew
    statement.rollback()
    assert snapshot.zones.most(aligned(3).requests, 1).tolist() == [1]


def test_zones_may_be_told_and_taken_back_at_any_time() -> None:
    """A report comes after the pods; a node that is replaced has others."""
    snapshot = Snapshot()
    info = node("n0", 16, extended={ALIGNED: PLENTY})
    snapshot.put_node(info)
    take(snapshot, 0, 5)
    assert not snapshot.zones
    snapshot.put_node(replace(info, zones=(zone(8), zone(8))))
    assert snapshot.zones.most(aligned(4).requests, 1).tolist() == [2]
    snapshot.put_node(replace(info, zones=(zone(16),)))
    assert snapshot.zones.most(aligned(4).requests, 1).tolist() == [2]
    snapshot.put_node(info)
    assert not snapshot.zones


@example([[], [1, 16, 3]], [(1, 1), (1, 1), (1, 5), (9, 3), (2, 1), (2, 1)])  # twelve are held: more than ten
@given(
    zones=st.lists(st.lists(st.integers(1, 16), min_size=0, max_size=4), min_size=1, max_size=5),
    asks=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 5)), min_size=1, max_size=6),
)
def test_no_zone_is_given_more_than_it_has(zones: list[list[int]], asks: list[tuple[int, int]]) -> None:
    """Whatever is placed, a kubelet that takes the pods in their order finds a zone for each; and nothing that fits is left out."""
    snapshot = with_zones(*map(tuple, zones))
    groups = [bag(number, count, what=aligned(cores)) for number, (cores, count) in enumerate(asks)]
    found = plan(snapshot, *groups)
    kubelets = [list(cores) for cores in zones]
    for each in found.placements:
        cores = asks[each.group][0]
        for at in np.concatenate(each.nodes).tolist():
            if kubelets[at]:
                first = next((z for z, left in enumerate(kubelets[at]) if left >= cores), None)
                assert first is not None, (zones, asks, found)
                kubelets[at][first] -= cores
    got = {each.group: sum(map(len, each.nodes)) for each in found.placements}
    last = max(got, default=-1)
    for number, (cores, count) in enumerate(asks):
        if number >= last and got.get(number, 0) < count and not any(not z for z in zones):
            assert all(left < cores for kubelet in kubelets for left in kubelet)


@given(data=st.data())
def test_every_undo_is_exact(data: st.DataObject) -> None:
    """Claims come and go under statements that are rolled back: the zones are as before."""
    snapshot = with_zones((8, 8), (4, 4, 4))
    owners = [take(snapshot, number % 2, 1 + number % 4, since=number) for number in range(5)]
    before = [snapshot.zones.most(aligned(n).requests, 2).tolist() for n in range(1, 9)]
    statement = Statement()
    for number in range(data.draw(st.integers(1, 8))):
        if owners and data.draw(st.booleans()):
            snapshot.unclaim(data.draw(st.sampled_from(owners)), statement)
        else:
            amount = aligned(data.draw(st.integers(1, 8))).requests
            claim = Claim(f"new-{number}", number % 2, amount, ClaimKind.RUNNING, "q", 9, None)
            snapshot.claim(claim, statement)
        snapshot.zones.most(aligned(1).requests, 2)
    statement.rollback()
    assert [snapshot.zones.most(aligned(n).requests, 2).tolist() for n in range(1, 9)] == before


@pytest.mark.parametrize("axes", [AXES, (*AXES, "fpga", ALIGNED)])
def test_without_zones_nothing_is_asked(axes: tuple[str, ...]) -> None:
    """No node tells any: no pod is aligned."""
    zones = Zones()
    zones.set_axes(axes)
    assert not zones.is_aligned((1000,) * len(axes))


def test_extended_resources_have_zones_too() -> None:
    """One FPGA in each zone: a pod with 2 fits no node of them; what a zone does not list is bound to none."""
    has = ({"cpu": 8000, "fpga": 1}, {"cpu": 8000, "fpga": 1})
    info = NodeInfo("n0", 16_000, 64 * GIB, extended={ALIGNED: PLENTY, "fpga": 2})
    snapshot = Snapshot()
    snapshot.put_node(replace(info, zones=tuple(Zone(each, each) for each in has)))
    at = {axis: number for number, axis in enumerate(snapshot.axes)}

    def asks(fpgas: int) -> Shape:
        requests = [0] * len(snapshot.axes)
        requests[0], requests[1], requests[at["fpga"]], requests[at[ALIGNED]] = 1000, GIB, fpgas, 1
        return Shape(tuple(requests))

    assert placed(plan(snapshot, bag(1, 3, asks(1)))) == {1: [0, 0]}
    assert plan(snapshot, bag(1, 1, asks(2))).reasons[0].code is ReasonCode.NO_MATCHING_NODE
    uneven = ({"cpu": 8000}, {"cpu": 8000, "fpga": 2})
    snapshot.put_node(replace(info, zones=tuple(Zone(each, each) for each in uneven)))
    assert placed(plan(snapshot, bag(1, 3, asks(1)))) == {1: [0, 0]}
    assert placed(plan(snapshot, bag(1, 3, asks(0)))) == {1: [0, 0, 0]}


def test_a_pod_of_no_zone_starts_behind_a_smaller_one_that_no_zone_takes() -> None:
    """Four cores are free in each of two zones: a pod of five in one zone finds none. One of six over both does."""
    snapshot = with_zones((8, 8), said={0: (4, 4)})
    take(snapshot, 0, 8)
    anywhere = Shape((*aligned(6).requests[:-1], 0))
    found = plan(snapshot, bag(1, what=aligned(5)), bag(2, what=aligned(5)), bag(3, what=anywhere))
    assert placed(found) == {3: [0]}
