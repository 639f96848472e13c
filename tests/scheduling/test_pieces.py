"""Large datasets move in pieces: each from outside once, the rest from whoever has it; and what moves ahead leaves room."""

from __future__ import annotations

import pytest
from scheduling_cases import cluster

from flowsched.errors import ConfigurationError
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.transfers import (
    TransferLimits,
    TransferOrder,
    TransferWant,
    Wants,
    admit,
    parse_piece_size,
)

MB = 1_000_000
LIMITS = TransferLimits(per_dest=2, per_source=4, origin=2, piece_bytes=100 * MB)


def large(pieces: int = 4) -> tuple[Catalogue, int]:
    """A dataset of so many pieces, the last one smaller."""
    catalogue = Catalogue()
    return catalogue, catalogue.intern("s3://large", pieces * 100 * MB - 40 * MB, True)


def test_a_piece_comes_from_outside_once() -> None:
    """Two nodes want it, two slots lead outside: they fetch different pieces."""
    snapshot, (catalogue, data) = cluster(1, 1), large()
    wants = [TransferWant(data, 0, 1, 0), TransferWant(data, 1, 1, 0)]
    first = admit([Wants(wants)], (), snapshot, catalogue, LIMITS)
    assert [(order.source, order.dest, order.piece) for order in first] == [(None, 0, 0), (None, 0, 1)]
    again = admit([Wants(wants)], first[:1], snapshot, catalogue, LIMITS)
    assert [(order.source, order.dest, order.piece) for order in again] == [(None, 0, 1)]


def test_few_pieces_of_a_dataset_come_from_outside_at_a_time() -> None:
    """Two flows fill a link to the outside that is as fast as a node's; where it is three times as fast, four do."""
    snapshot, (catalogue, data) = cluster(1), large(8)
    limits = TransferLimits(per_dest=8, origin=8, piece_bytes=100 * MB)
    wants = [TransferWant(data, 0, 1, 0)]
    assert [order.piece for order in admit([Wants(wants)], (), snapshot, catalogue, limits)] == [0, 1]
    fast = TransferLimits(per_dest=8, origin=8, piece_bytes=100 * MB, origin_rate=3 * 117 * MB)
    assert [order.piece for order in admit([Wants(wants)], (), snapshot, catalogue, fast)] == [0, 1, 2, 3]


def test_who_has_a_piece_gives_it_while_it_waits_for_the_next() -> None:
    """Node 0 has piece 2 alone: node 1 takes it from there, and another from outside."""
    snapshot, (catalogue, data) = cluster(1, 1), large()
    catalogue.land(data, 0, 2)
    orders = admit([Wants([TransferWant(data, 1, 1, 0)])], (), snapshot, catalogue, LIMITS)
    assert [(order.source, order.piece) for order in orders] == [(0, 2), (None, 0)]


def test_the_last_piece_is_what_is_left() -> None:
    """360 MB in pieces of 100: the fourth has 60."""
    snapshot, (catalogue, data) = cluster(1), large()
    for piece in range(3):
        catalogue.land(data, 0, piece)
    (order,) = admit([Wants([TransferWant(data, 0, 1, 0)])], (), snapshot, catalogue, LIMITS)
    assert (order.piece, order.size_bytes) == (3, 60 * MB)


def test_small_datasets_and_executors_that_cannot_move_as_a_whole() -> None:
    """Less than two pieces is one; without a size of pieces everything is."""
    assert (LIMITS.pieces(199 * MB), LIMITS.pieces(200 * MB), TransferLimits().pieces(10**12)) == (1, 2, 1)


def test_what_moves_ahead_leaves_a_slot() -> None:
    """Of two slots a node has, copies ahead of time take one; what is waited for takes the other, first."""
    snapshot, catalogue = cluster(1), Catalogue()
    ids = [catalogue.intern(f"s3://{n}", 50 * MB, True) for n in range(3)]
    ahead = [TransferWant(data, 0, 100, 0, 1) for data in ids[:2]]
    limits = TransferLimits(per_dest=2, origin=8)
    assert [order.dataset for order in admit([Wants(ahead)], (), snapshot, catalogue, limits)] == [ids[0]]
    orders = admit([Wants([*ahead, TransferWant(ids[2], 0, 1, 0)])], (), snapshot, catalogue, limits)
    assert [order.dataset for order in orders] == [ids[2]]


def test_copies_for_tasks_that_may_run_elsewhere_leave_the_link_to_the_outside() -> None:
    """Of eight slots they take two, and none while two copies come that tasks wait for, which take all eight."""
    snapshot, catalogue = cluster(1, 1, 1, 1, 1, 1, 1, 1), Catalogue()
    ids = [catalogue.intern(f"s3://{n}", 50 * MB, True) for n in range(24)]
    limits = TransferLimits(per_dest=3, origin=8)
    maybe = Wants([TransferWant(data, at % 8, 100, 0, 3) for at, data in enumerate(ids[:16])])
    waited = Wants([TransferWant(data, at, 1, 0) for at, data in enumerate(ids[16:])])
    first = admit([maybe], (), snapshot, catalogue, limits)
    assert [(order.dataset, order.dest) for order in first] == [(0, 0), (1, 1)]
    assert [order.ahead for order in admit([maybe, waited], first, snapshot, catalogue, limits)] == [0] * 6
    others = tuple(TransferOrder(90 + n, None, n, 10**9) for n in range(2))
    assert admit([maybe], others, snapshot, catalogue, limits) == ()


def test_little_copies_pass_beside_large_ones() -> None:
    """Both slots are taken by large copies; a few bytes go all the same."""
    snapshot, catalogue = cluster(1), Catalogue()
    little = catalogue.intern("s3://little", 1000, True)
    active = tuple(TransferOrder(90 + n, None, 0, 10**9) for n in range(2))
    orders = admit([Wants([TransferWant(little, 0, 1, 0)])], active, snapshot, catalogue, LIMITS)
    assert [order.dataset for order in orders] == [little]


def test_all_pieces_make_a_replica_and_are_forgotten() -> None:
    """Bits are kept while some are missing; undone by the statement that noted them."""
    catalogue, data = large(2)
    assert catalogue.land(data, 0, 1) == 0b10
    assert list(catalogue.holders(data, 0b11)) == [(0, 0b10)]
    assert catalogue.land(data, 0, 0) == 0b11
    catalogue.drop_pieces(data, 0)
    catalogue.add_replica(data, 0)
    assert list(catalogue.holders(data, 0b11)) == [(0, 0b11)]


def test_what_is_found_to_be_indivisible_moves_as_a_whole() -> None:
    """A folder is as large as any file, and has no ranges."""
    snapshot, (catalogue, data) = cluster(1), large()
    catalogue.undivided.add(data)
    (order,) = admit([Wants([TransferWant(data, 0, 1, 0)])], (), snapshot, catalogue, LIMITS)
    assert (order.piece, order.size_bytes) == (0, 360 * MB)


def test_a_piece_is_not_taken_from_a_node_that_goes() -> None:
    """Node 0 has piece 2 and takes no new pods: what it waited for comes no more, and others fetch piece 2 from outside."""
    snapshot, (catalogue, data) = cluster(1, 1), large(3)
    catalogue.land(data, 0, 2)
    snapshot.ready[0] = False
    orders = admit([Wants([TransferWant(data, 1, 1, 0)])], (), snapshot, catalogue, LIMITS)
    assert [(order.source, order.piece) for order in orders] == [(None, 0), (None, 1)]
    again = admit([Wants([TransferWant(data, 1, 1, 0)])], orders[:1], snapshot, catalogue, LIMITS)
    assert [(order.source, order.piece) for order in again] == [(None, 1)]


def test_a_size_of_pieces_is_a_quantity() -> None:
    """Too little, or no amount, is refused with what to say."""
    assert [parse_piece_size(text) for text in ("128M", "0", "64Ki")] == [128_000_000, 0, 65_536]
    for text in ("1", "many"):
        with pytest.raises(ConfigurationError, match="--piece-size"):
            parse_piece_size(text)
