"""Which copies are admitted, and from where."""

from __future__ import annotations

from scheduling_cases import GIB, cluster, node

from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.transfers import TransferLimits, TransferOrder, TransferWant, Wants, admit

LIMITS = TransferLimits()


def data(snapshot: Snapshot, *holders: int, origin: bool = True) -> tuple[Catalogue, int]:
    catalogue = Catalogue()
    dataset = catalogue.intern("s3://reads", GIB, origin)
    for holder in holders:
        catalogue.add_replica(dataset, holder)
    return catalogue, dataset


def asked(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *wants: tuple[int, int, int],
    active: tuple[TransferOrder, ...] = (),
    limits: TransferLimits = LIMITS,
) -> list[tuple[int, int | None, int]]:
    """(dataset, source, dest) of what is ordered; a want is (dataset, dest, rank)."""
    listed = [TransferWant(dataset, dest, rank, 0) for dataset, dest, rank in wants]
    return [
        (o.dataset, o.source, o.dest) for o in admit([Wants(listed)], active, snapshot, catalogue, limits)
    ]


def test_the_critical_copies_go_first_and_a_node_takes_three_at_a_time() -> None:
    """Five are wanted on one node: the three of highest rank start."""
    snapshot, catalogue = cluster(1), Catalogue()
    datasets = [catalogue.intern(f"s3://{n}", GIB, True) for n in range(5)]
    wants = [(dataset, 0, rank) for dataset, rank in zip(datasets, [5, 1, 9, 3, 7], strict=True)]
    assert asked(snapshot, catalogue, *wants) == [(2, None, 0), (4, None, 0), (0, None, 0)]


def test_priority_goes_before_rank() -> None:
    """A want of higher priority takes the only slot."""
    snapshot, catalogue = cluster(1), Catalogue()
    a, b = catalogue.intern("s3://a", GIB, True), catalogue.intern("s3://b", GIB, True)
    wants = [TransferWant(a, 0, 900, 0), TransferWant(b, 0, 1, 1)]
    orders = admit([Wants(wants)], (), snapshot, catalogue, TransferLimits(per_dest=1))
    assert orders == (TransferOrder(b, None, 0, GIB),)


def test_a_copy_is_never_in_flight_twice_nor_ordered_where_it_is() -> None:
    """Two wants for the same pair, one in flight, one already there: one order in all."""
    snapshot = cluster(1, 1, 1)
    catalogue, d = data(snapshot, 0)
    active = (TransferOrder(d, 0, 1, GIB),)
    assert asked(snapshot, catalogue, (d, 1, 9), (d, 0, 9), (d, 2, 1), (d, 2, 2), active=active) == [
        (d, 0, 2)
    ]


def test_the_least_loaded_source_gives() -> None:
    """Node 0 sends two copies already, node 1 one."""
    snapshot = cluster(1, 1, 1, 1, 1, 1)
    catalogue, d = data(snapshot, 0, 1)
    active = tuple(TransferOrder(99, source, dest, GIB) for source, dest in [(0, 2), (0, 3), (1, 4)])
    assert asked(snapshot, catalogue, (d, 5, 1), active=active) == [(d, 1, 5)]


def test_a_source_gives_four_at_a_time() -> None:
    """A fifth node waits; a peer that is done will serve it."""
    snapshot = cluster(*[1] * 7)
    catalogue, d = data(snapshot, 0, origin=False)
    orders = asked(snapshot, catalogue, *[(d, dest, 1) for dest in range(1, 7)])
    assert orders == [(d, 0, dest) for dest in (1, 2, 3, 4)]


def test_peer_or_outside_by_estimated_time() -> None:
    """A peer on a slow link loses against a fast outside, and wins against a slow one."""
    snapshot = Snapshot()
    snapshot.put_node(node("slow", nic_out_rate=10_000_000))
    snapshot.put_node(node("dest"))
    catalogue, d = data(snapshot, 0)
    assert asked(snapshot, catalogue, (d, 1, 1)) == [(d, None, 1)]
    slow = TransferLimits(origin_rate=5_000_000)
    assert asked(snapshot, catalogue, (d, 1, 1), limits=slow) == [(d, 0, 1)]


def test_one_copy_comes_from_a_slow_outside_and_peers_pass_it_on() -> None:
    """Three nodes want the same; while one fetches it, the outside is left to others."""
    snapshot = cluster(1, 1, 1)
    catalogue, d = data(snapshot)
    slow = TransferLimits(origin_rate=20_000_000)
    assert asked(snapshot, catalogue, *[(d, dest, 1) for dest in range(3)], limits=slow) == [(d, None, 0)]
    fast = TransferLimits(origin_rate=10_000_000_000)
    assert len(asked(snapshot, catalogue, *[(d, dest, 1) for dest in range(3)], limits=fast)) == 3


def test_what_is_lost_is_not_ordered_and_nothing_goes_to_a_node_that_is_not_ready() -> None:
    """No origin, no replica; or a node that takes no pods."""
    snapshot = Snapshot()
    snapshot.put_node(node("gone", ready=False))
    snapshot.put_node(node("here"))
    catalogue, d = data(snapshot, origin=False)
    assert catalogue.lost(d)
    assert asked(snapshot, catalogue, (d, 1, 1)) == []
    catalogue, d = data(snapshot, 1)
    assert asked(snapshot, catalogue, (d, 0, 1)) == []


def test_a_drained_node_still_gives_what_nobody_else_has() -> None:
    """Its data can be fetched although it takes no new pods."""
    snapshot = Snapshot()
    snapshot.put_node(node("drained", ready=False))
    snapshot.put_node(node("here"))
    catalogue, d = data(snapshot, 0, origin=False)
    assert asked(snapshot, catalogue, (d, 1, 1)) == [(d, 0, 1)]


def test_missing_bytes() -> None:
    """What each node lacks; an empty file that is not there is missing all the same; one named twice counts once."""
    catalogue = Catalogue()
    big, empty = catalogue.intern("a", 100), catalogue.intern("b")
    catalogue.add_replica(big, 1)
    catalogue.add_replica(empty, 2)
    assert catalogue.missing_bytes((big, empty, big), 3).tolist() == [101, 1, 100]
    catalogue.expect(big, 0)
    assert catalogue.missing_bytes((big,), 3).tolist() == [100, 0, 100]
    assert catalogue.unordered_bytes((big,), 3).tolist() == [0, 0, 100]
    catalogue.add_replica(big, 0)
    assert (catalogue.nodes_of(big), catalogue.expected_on(big)) == (frozenset({0, 1}), frozenset())
    assert catalogue.intern("a", 70) == big
    assert catalogue.missing_bytes((big,), 3).tolist() == [0, 0, 70]


def test_a_link_to_the_outside_is_filled_although_one_node_takes_half_of_it() -> None:
    """Both slots go to a node whose disk takes 500 MB/s of the 1,000 that come from outside: another node gets a third copy, a
    fourth is not needed; and where nodes take 1,000 two are enough.
    """
    catalogue = Catalogue()
    datasets = [catalogue.intern(f"s3://{n}", GIB, True) for n in range(5)]
    wants = [(dataset, dest, 9 - dataset) for dataset, dest in zip(datasets, (0, 0, 0, 1, 2), strict=True)]
    limits = TransferLimits(origin=2, origin_rate=1_000_000_000)
    slow, fast = Snapshot(), Snapshot()
    for name in ("a", "b", "c"):
        slow.put_node(node(name, 1, nic_in_rate=1_200_000_000, disk_rate=500_000_000))
        fast.put_node(node(name, 1, nic_in_rate=1_200_000_000, disk_rate=1_000_000_000))
    assert asked(slow, catalogue, *wants, limits=limits) == [(0, None, 0), (1, None, 0), (3, None, 1)]
    assert asked(fast, catalogue, *wants, limits=limits) == [(0, None, 0), (1, None, 0)]
