"""Large datasets in pieces, as the engine sees them: what is ordered, what counts, and what is done when they do not come."""

from __future__ import annotations

from typing import Any

from flowsched.executor.protocol import (
    NodeChanged,
    PiecesSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.scheduling.transfers import TransferLimits
from flowsched.values import replace
from tests.engine.scene import Scene, node

MB = 1_000_000
URI = "s3://lab/hg38.fa"
#: Three pieces of a dataset come from outside at a time.
LIMITS = TransferLimits(per_dest=3, origin=3, origin_rate=200 * MB, piece_bytes=100 * MB)


def scene(nodes: int = 1, size: int = 300 * MB) -> Scene:
    """A task on each node that reads 300 MB; they move in pieces of 100 MB."""
    made = Scene(*(node(f"n{n}", cpu=1, labels={"at": f"n{n}"}) for n in range(nodes)))
    made.state.cluster.transfer_limits = LIMITS
    stages: list[dict[str, Any]] = [
        {
            "name": f"s{n}",
            "command": ["x"],
            "selector": {"at": f"n{n}"},
            "inputs": [{"name": "ref", "uri": URI, "size": size}],
        }
        for n in range(nodes)
    ]
    made.submit("w", *stages)
    return made


def ordered(told: Scene) -> list[tuple[str, str | None, int, str]]:
    """Destination, source, MB of the offset and version of what the last step ordered."""
    assert all(not order.whole for order in told.last.transfers)
    return [(order.dest, order.source, order.offset // MB, order.version) for order in told.last.transfers]


def came(told: Scene, order: Transfer, version: str = "one", size: int = 300 * MB) -> TransferDone:
    return TransferDone(
        order.uri, order.dest, told.now, order.size_bytes, order.source, size, order.offset, False, version
    )


def refused(told: Scene, order: Transfer, **more: Any) -> TransferFailed:
    return TransferFailed(order.uri, order.dest, told.now, "no", order.source, offset=order.offset, **more)


def test_the_last_piece_lets_the_task_start() -> None:
    """Three pieces at a time; two are not enough."""
    told = scene()
    assert ordered(told) == [("n0", None, 0, ""), ("n0", None, 100, ""), ("n0", None, 200, "")]
    orders = told.last.transfers
    told.tell(came(told, orders[2]), came(told, orders[0]))
    assert told.launched == []
    told.tell(came(told, orders[1]))
    assert told.launched == ["fs-w-s0-0-0"]
    run = told.state.work.runs["w"]
    assert run.stages[0].moved.tolist() == [300 * MB]


def test_a_node_gives_its_pieces_while_it_waits() -> None:
    """Node 1 gets from outside what nobody has asked for, and from node 0 what that has."""
    told = scene(2)
    orders = {(order.dest, order.offset): order for order in told.last.transfers}
    assert sorted(orders) == [("n0", 0), ("n0", 100 * MB), ("n0", 200 * MB)]
    told.tell(came(told, orders["n0", 100 * MB]))
    assert ordered(told) == [("n1", "n0", 100, "one")]


def test_pieces_of_another_version_do_not_count() -> None:
    """What came of a version that nobody else has is ordered again, with the version said."""
    told = scene()
    orders = told.last.transfers
    told.tell(came(told, orders[0], "one"))
    told.tell(came(told, orders[1], "two"))
    assert ordered(told) == [("n0", None, 100, "one")]
    assert told.state.cluster.catalogue.landed(0, 0) == 0b001


def test_an_origin_that_has_changed_is_asked_for_all_pieces_again() -> None:
    """One failure counts; the others that were under way say nothing new."""
    told = scene()
    orders = told.last.transfers
    told.tell(came(told, orders[0], "one"))
    told.tell(refused(told, orders[1], changed=True, version="two"))
    assert told.state.cluster.catalogue.landed(0, 0) == 0
    told.tell(refused(told, orders[2], changed=True, version="two"))
    told.tell(after=1_000)
    wanted = sorted((order.offset // MB, order.version) for order in told.last.transfers)
    assert wanted == [(0, "two"), (100, "two"), (200, "two")]
    for order in list(told.last.transfers):
        told.tell(came(told, order, "two"))
    assert told.launched == ["fs-w-s0-0-0"]


def test_what_cannot_be_divided_is_ordered_as_a_whole() -> None:
    """A folder, or an origin without ranges: at once, and once all the pieces have come back."""
    told = scene()
    orders = told.last.transfers
    told.tell(*(refused(told, order, undivided=True) for order in orders))
    assert [(order.whole, order.offset, order.size_bytes) for order in told.last.transfers] == [
        (True, 0, 300 * MB)
    ]
    told.tell(TransferDone(URI, "n0", told.now, 300 * MB, None, 300 * MB))
    assert told.launched == ["fs-w-s0-0-0"]


def test_a_dataset_that_is_smaller_than_was_thought_leaves_nothing_on_its_way() -> None:
    """It has 200 MB and not 500: of three pieces under way the first says so, and when the last has come nothing more will."""
    told = scene(size=500 * MB)
    coming = []
    for order in told.last.transfers:
        coming.append(int(told.state.cluster.snapshot.inbound[0]) // MB)
        told.tell(came(told, order, size=200 * MB))
    assert coming == [500, 400, 300]
    assert told.last.transfers == []
    assert told.state.cluster.snapshot.inbound.tolist() == [0]
    assert not told.state.cluster.catalogue.expected_on(0)


def test_pieces_that_come_back_one_by_one_are_waited_for() -> None:
    """The first says that it cannot be divided: it is on its way until the last of three has come back, then as a whole."""
    told = scene()
    seen = []
    for order in told.last.transfers:
        told.tell(refused(told, order, undivided=True))
        seen.append((int(told.state.cluster.snapshot.inbound[0]) // MB, len(told.state.data.moving)))
    assert seen == [(200, 2), (100, 1), (300, 1)]
    told.tell(TransferDone(URI, "n0", told.now, 300 * MB, None, 300 * MB))
    assert told.state.cluster.snapshot.inbound.tolist() == [0]


def test_a_dataset_that_a_node_has_whole_is_what_that_has() -> None:
    """Its origin has changed meanwhile: copies of the whole cannot mix the two."""
    told = scene(2)
    told.tell(TransferDone(URI, "n0", told.now, 300 * MB, None, 300 * MB))
    pieces = list(told.last.transfers)
    assert {(order.dest, order.source, order.whole) for order in pieces} == {("n1", "n0", False)}
    told.tell(*(refused(told, order, changed=True, version="other") for order in pieces))
    told.tell(after=10_000)
    assert [(o.dest, o.source, o.whole, o.version) for o in told.last.transfers] == [("n1", "n0", True, "")]


def test_mirrors_that_do_not_agree_are_read_as_a_whole() -> None:
    """Each answer names another version: at the fourth change one of them is asked for all of it."""
    told = scene()
    wholes = []
    for number in range(4):
        wholes.append([order.whole for order in told.last.transfers])
        told.tell(*(refused(told, o, changed=True, version=f"v{number}") for o in told.last.transfers))
        told.tell(after=60_000)
    wholes.append([order.whole for order in told.last.transfers])
    assert wholes == [[False] * 3, [False] * 3, [False] * 3, [False] * 3, [True]]


def test_a_size_that_was_wrong_is_corrected_by_the_first_piece() -> None:
    """It has 420 MB and not 300: five pieces, of which the one that came is ordered again by its real length."""
    told = scene()
    orders = told.last.transfers
    told.tell(came(told, orders[0], size=420 * MB))
    assert told.state.cluster.catalogue.sizes[0] == 420 * MB
    assert told.state.cluster.transfer_limits.pieces_of(0, told.state.cluster.catalogue) == 5


def test_pieces_on_a_node_that_is_gone_are_fetched_elsewhere() -> None:
    """Node 0 had piece 0 and is lost: node 1 takes it from outside, and waits for nobody."""
    told = scene(2)
    orders = {(order.dest, order.offset): order for order in told.last.transfers}
    told.tell(came(told, orders["n0", 0]))
    (order,) = told.last.transfers
    assert (order.dest, order.source) == ("n1", "n0")
    gone = replace(node("n0", cpu=1, labels={"at": "n0"}), ready=False)
    told.tell(
        NodeChanged(gone),
        refused(told, order, lost=True),
        refused(told, orders["n0", 100 * MB]),
        refused(told, orders["n0", 200 * MB]),
    )
    assert sorted(ordered(told)) == [
        ("n1", None, 0, "one"),
        ("n1", None, 100, "one"),
        ("n1", None, 200, "one"),
    ]


def test_pieces_from_before_a_restart_are_not_ordered_again() -> None:
    """Node 0 has piece 1 and a part of piece 2: piece 1 goes to node 1 from there, and 0 and 2 come from outside."""
    told = Scene(*(node(f"n{n}", cpu=1, labels={"at": f"n{n}"}) for n in range(2)))
    told.state.cluster.transfer_limits = LIMITS
    told.tell(PiecesSeen(URI, "n0", 300 * MB, "one", ((100 * MB, 250 * MB),)))
    stage = {"name": "s", "command": ["x"], "scatter": {"count": 2}, "resources": {"cpu": 1}}
    told.submit("w", {**stage, "inputs": [{"name": "ref", "uri": URI, "size": 300 * MB}]})
    assert sorted(ordered(told), key=str) == [
        ("n0", None, 0, "one"), ("n0", None, 200, "one"), ("n1", "n0", 100, "one"),
    ]  # fmt: skip


def test_a_node_that_does_not_give_its_pieces_is_passed_over() -> None:
    """It lives but cannot be reached from the other, which does not wait for it: the rest comes from outside after a pause."""
    told = scene(2)
    orders = {(order.dest, order.offset): order for order in told.last.transfers}
    told.tell(came(told, orders["n0", 0]))
    (order,) = told.last.transfers
    told.tell(refused(told, order))
    assert told.state.cluster.catalogue.landed(0, 0) == 0
    told.tell(*(refused(told, o) for o in (orders["n0", 100 * MB], orders["n0", 200 * MB])))
    told.tell(after=1_000)
    assert {(dest, source) for dest, source, _, _ in ordered(told)} == {("n1", None)}
    assert sorted(offset for _, _, offset, _ in ordered(told)) == [100, 200]
    assert (
        0,
        0,
        0,
    ) in told.state.data.moving  # node 0 is ordered its piece again: it says at once whether it has it
