"""Datasets that move in pieces: what has come where, of which version, and what turned out not to move like that.

Which pieces a node has is not in SQL: it is on the node's disk. After a restart nodes say what they have (`seen`); and a piece
that is ordered where it is already is answered without copying it.
"""

from __future__ import annotations

from typing import Final

from flowsched.engine.changes import Recorder
from flowsched.executor.protocol import PiecesSeen, TransferDone, TransferFailed

#: An origin that gives another version each time it is asked (mirrors that do not agree) is read as a whole, from one of them.
_MOST_EDITIONS: Final = 3


def landed(recorder: Recorder, pair: tuple[int, int], event: TransferDone, ordered: bool) -> bool:
    """Note a piece that has come to a node. Returns whether the node has all of the dataset now.

    What it says of the dataset's size and version is believed. Pieces of another version than the others do not count: they
    are ordered again, now with the version said.
    """
    state, statement = recorder.state, recorder.statement
    dataset, node = pair
    catalogue, limits = state.catalogue, state.transfer_limits
    if event.size_bytes and event.size_bytes != catalogue.sizes[dataset]:
        catalogue.intern(event.uri, event.size_bytes)
        catalogue.drop_all_pieces(dataset, statement)  # the last one may be longer than was thought
    edition, times = catalogue.editions.get(dataset, ("", 0))
    if edition and event.version and event.version != edition:
        return False
    if event.version != edition:
        statement.put(catalogue.editions, dataset, (event.version or edition, times))
    pieces = limits.pieces_of(dataset, catalogue)
    if not ordered or pieces == 1 or node in catalogue.nodes_of(dataset):
        return False  # the last: told after the piece that found all of it there
    statement.pop(state.transfer_backoff, pair)  # it goes on: what went wrong before is over
    return catalogue.land(dataset, node, event.offset // limits.piece_bytes, statement) == (1 << pieces) - 1


def moved_by(recorder: Recorder, pair: tuple[int, int], event: TransferDone) -> int:
    """Bytes that moved for what has come. The last piece to land is not always told last: when it makes the dataset whole, those
    still under way have moved too, and nobody will wait for their news.
    """
    state = recorder.state
    pieces = state.transfer_limits.pieces_of(pair[0], state.catalogue)
    if pieces == 1 or not event.whole or not event.moved_bytes:
        return event.moved_bytes
    late = [state.moving.get((*pair, piece)) for piece in range(pieces)]
    return event.moved_bytes + sum(order.size_bytes for order in late if order is not None)


def seen(recorder: Recorder, event: PiecesSeen) -> None:
    """A node says which parts of a dataset it has, from before this service, or its agent, started."""
    state, statement = recorder.state, recorder.statement
    node = state.snapshot.index.get(event.node)
    if node is None:
        return
    catalogue, limits = state.catalogue, state.transfer_limits
    dataset = catalogue.intern(event.uri, event.size_bytes)
    edition, times = catalogue.editions.get(dataset, ("", 0))
    pieces = limits.pieces_of(dataset, catalogue)
    if pieces == 1 or node in catalogue.nodes_of(dataset) or (edition and event.version != edition):
        return  # it drops them when it is ordered those of the other version
    statement.put(catalogue.editions, dataset, (event.version, times))
    for piece in range(pieces):
        start = piece * limits.piece_bytes
        end = start + limits.piece_size(event.size_bytes, piece)
        if any(first <= start and end <= last for first, last in event.spans):
            catalogue.land(dataset, node, piece, statement)


def refused(recorder: Recorder, dataset: int, event: TransferFailed) -> bool:
    """A piece did not come because the dataset is another one now, or does not come in pieces.

    Returns whether that is all that is to be done; else it counts as any failure, and is tried again after a while.
    """
    state, statement = recorder.state, recorder.statement
    catalogue = state.catalogue
    edition, times = catalogue.editions.get(dataset, ("", 0))
    if event.changed and event.version == edition and edition:
        return True  # known by now: it was ordered before
    catalogue.drop_all_pieces(dataset, statement)
    # Where a node has it whole, that is what it is: copies of the whole cannot mix with what its origin has become.
    whole = event.undivided or catalogue.held(dataset) or times >= _MOST_EDITIONS
    if whole:
        if dataset not in catalogue.undivided:
            statement.include(catalogue.undivided, dataset)
        statement.put(catalogue.editions, dataset, ("", times))
    else:
        statement.put(catalogue.editions, dataset, (event.version, times + 1))
    return event.undivided


def pass_over(recorder: Recorder, dataset: int, source: str) -> None:
    """A node did not give a piece. If it is still waiting for others itself, they are asked of it no more until it has said again
    what it has.
    """
    state = recorder.state
    node = state.snapshot.index.get(source)
    if node is not None and node not in state.catalogue.nodes_of(dataset):
        state.catalogue.drop_pieces(dataset, node, recorder.statement)
