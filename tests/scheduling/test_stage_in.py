"""What it costs to bring a dataset to a node, in ms written out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.plugins.locality import StageIn
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

MB = 1_000_000
PRICED = StageIn(origin_rate=1_000 * MB, price_percent=50)


def cost(snapshot: Snapshot, *, inputs: tuple[int, ...] = (), remote: tuple[int, ...] = ()) -> list[int]:
    """By node, for a pod that copies or reads a dataset of 1 GB which n0 has."""
    catalogue = Catalogue()
    catalogue.add_replica(catalogue.intern("s3://lab/x", 1_000 * MB), 0)
    return priced(PRICED, snapshot, catalogue, inputs, remote)


def priced(
    cost: StageIn,
    snapshot: Snapshot,
    catalogue: Catalogue,
    inputs: tuple[int, ...],
    remote: tuple[int, ...] = (),
) -> list[int]:
    """By node."""
    role = RoleRequest("task", Shape((1000, 0)), 1, 1)
    group = PodGroup(1, "g", "default", "w", 0, 0, 0, False, (role,), inputs, remote=remote)
    told = cost(snapshot, catalogue, group, role)
    assert told is not None
    return [int(each) for each in told]


def two(disk: int) -> Snapshot:
    """Two nodes with links of 1 GB/s."""
    snapshot = Snapshot()
    for name in ("n0", "n1"):
        rates = {"nic_in_rate": 1_000 * MB, "nic_out_rate": 1_000 * MB, "disk_rate": disk}
        snapshot.put_node(NodeInfo(name, 4_000, 8 << 30, **rates))
    return snapshot


def test_a_copy_costs_half_of_its_time_again_on_what_it_keeps_busy() -> None:
    """Over a disk of 100 MB/s 10 s, and 5 s for others who could use it; over the link alone 1 and 0.5 s. To begin takes 1 s."""
    assert cost(two(100 * MB), inputs=(0,)) == [0, 16_000]
    assert cost(two(0), inputs=(0,)) == [0, 2_500]


def test_what_is_on_its_way_is_written_first() -> None:
    """500 MB more for the same disk: 5 s later. Nobody pays for them again."""
    snapshot = two(100 * MB)
    snapshot.add_inbound(1, 500 * MB, Statement())
    assert cost(snapshot, inputs=(0,)) == [0, 21_000]


def test_what_is_read_remotely_costs_the_link_only() -> None:
    """1 s, and half of it for others; on the node that has it nothing."""
    assert cost(two(100 * MB), remote=(0,)) == [0, 1_500]


def test_what_nobody_has_costs_the_same_but_where_something_is_on_its_way() -> None:
    """1 GB over a disk of 100 MB/s: 10 s, 5 s for others, 1 s to begin; behind 500 MB more 5 s later. From outside it takes 1 s."""
    snapshot, catalogue = two(100 * MB), Catalogue()
    dataset = catalogue.intern("s3://lab/new", 1_000 * MB, origin=True)
    assert priced(PRICED, snapshot, catalogue, (dataset, dataset)) == [16_000, 16_000]
    snapshot.add_inbound(1, 500 * MB, Statement())
    assert priced(PRICED, snapshot, catalogue, (dataset, dataset)) == [16_000, 21_000]
    slow = StageIn(origin_rate=50 * MB, price_percent=0)
    assert priced(slow, snapshot, catalogue, (dataset,)) == [21_000, 21_000]


@given(st.tuples(*[st.sampled_from([0, 7, 100, 1_000])] * 3), st.integers(0, 60), st.data())
def test_a_copy_costs_the_same_whether_or_not_all_nodes_are_alike(
    rates: tuple[int, int, int], percent: int, data: st.DataObject
) -> None:
    """Whatever is known of disks and links, whoever has or awaits what, and whatever is on its way: a node of other rates beside
    three that are alike changes nothing for these.
    """
    catalogue, inbound, costs = Catalogue(), [], []
    for _ in range(3):
        inbound.append(data.draw(st.sampled_from([0, 0, 1, 999 * MB])))
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 10**6, 10**9 + 7]), min_size=1, max_size=3))
    inputs = tuple(catalogue.intern(f"s3://lab/{at}", size, origin=True) for at, size in enumerate(sizes))
    for dataset in inputs:
        for node in data.draw(st.sets(st.integers(0, 2))):
            catalogue.add_replica(dataset, node)
        catalogue.expect(dataset, data.draw(st.lists(st.integers(0, 2), max_size=2)))
    for others in ([], [(70, 300)]):
        snapshot = Snapshot()
        for at, (nic, disk) in enumerate([(rates[0], rates[1])] * 3 + others):
            node = NodeInfo(f"n{at}", 4_000, 8 << 30, nic_in_rate=nic * MB, disk_rate=disk * MB)
            snapshot.put_node(node)
        for at, size in enumerate(inbound):
            snapshot.add_inbound(at, size, Statement())
        costs.append(priced(StageIn(rates[2] * MB, percent), snapshot, catalogue, inputs, inputs[:1])[:3])
    assert costs[0] == costs[1]
