"""What claims add up to: by node, by device, by zone, by who pays. One claim at a time, or many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.nodes import ALIGNED
from flowsched.scheduling.axes import IO
from flowsched.scheduling.devices import GPU
from flowsched.scheduling.ledger import Claim, ClaimKind
from flowsched.scheduling.usage import Payer

if TYPE_CHECKING:
    from flowsched.scheduling.snapshot import Snapshot


def book(snapshot: Snapshot, claim: Claim, amount: NDArray[np.int64], sign: int) -> None:
    """A claim comes (+1) or goes (-1). `amount`: (R,) what it really holds."""
    width = len(amount)
    if claim.kind is ClaimKind.STAGING:
        snapshot.staging_claims += sign
        snapshot.matrices["staging"][claim.node, :width] += sign * amount
        return
    snapshot.matrices["used"][claim.node, :width] += sign * amount
    if claim.devices:
        snapshot.devices.book(claim.node, claim.devices, sign)
    if ALIGNED in snapshot.axes and amount[snapshot.axes.index(ALIGNED)] > 0:
        if sign > 0:
            snapshot.zones.add(claim.owner, claim.node, claim.since_ms, amount)
        else:
            snapshot.zones.remove(claim.owner, claim.node)
    if claim.rules is not None and claim.kind is not ClaimKind.NOMINATED:
        snapshot.peers.count(claim.rules, claim.node, claim.kind is ClaimKind.RELEASING, sign)
    if claim.unit and claim.kind is ClaimKind.RUNNING:
        _takeable(snapshot, claim.priority, sign)
    snapshot.direct.book(claim, sign)
    if claim.io_bytes > 0:
        snapshot.columns["io_tasks"][claim.node] += sign
    snapshot.usage.book(Payer(claim.queue, claim.user), amount.tolist(), sign)


def _takeable(snapshot: Snapshot, priority: int, more: int) -> None:
    count = snapshot.takeable.get(priority, 0) + more
    if count:
        snapshot.takeable[priority] = count
    else:
        del snapshot.takeable[priority]


def runs_of_plain(snapshot: Snapshot, claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """Claims in their order, cut so that each run is of claims that hold amounts and nothing else, or is one that holds more."""
    aligned = snapshot.axes.index(ALIGNED) if ALIGNED in snapshot.axes else None
    plain: list[Claim] = []
    for claim in claims:
        amount = claim.amount
        more = claim.devices or claim.rules is not None or claim.owner in snapshot.claims
        if not more and claim.kind is not ClaimKind.STAGING:
            more = len(amount) > GPU and amount[GPU] > 0
            more = more or (aligned is not None and len(amount) > aligned and amount[aligned] > 0)
        if more:
            if plain:
                yield plain
            plain = []
            yield [claim]
        else:
            plain.append(claim)
    if plain:
        yield plain


def amounts_of(snapshot: Snapshot, claims: Sequence[Claim]) -> NDArray[np.int64]:
    """(K, R) what plain claims really hold: of a disk's bandwidth no more than there is."""
    width = len(snapshot.axes)
    rows = [claim.amount for claim in claims]
    if any(len(row) != width for row in rows):
        rows = [row + (0,) * (width - len(row)) for row in rows]
    amounts = np.array(rows, dtype=np.int64)
    if amounts[:, IO].any():
        nodes = [claim.node for claim in claims]
        amounts[:, IO] = np.minimum(amounts[:, IO], snapshot.allocatable[nodes, IO])
    return amounts


def book_all(snapshot: Snapshot, claims: Sequence[Claim], amounts: NDArray[np.int64]) -> None:
    """Plain claims come: as `book` for each. `amounts`: (K, R) what they really hold."""
    nodes = np.array([claim.node for claim in claims])
    np.add.at(snapshot.columns["version"], nodes, 1)
    staging = np.array([claim.kind is ClaimKind.STAGING for claim in claims])
    snapshot.staging_claims += int(np.count_nonzero(staging))
    for name, some in (("staging", staging), ("used", ~staging)):
        for axis in np.flatnonzero(amounts.any(axis=0)).tolist():
            np.add.at(snapshot.matrices[name][:, axis], nodes[some], amounts[some, axis])
    payers: dict[Payer, list[int]] = {}
    takeable: dict[int, int] = {}
    for at, claim in enumerate(claims):
        if claim.kind is ClaimKind.STAGING:
            continue
        payers.setdefault(Payer(claim.queue, claim.user), []).append(at)
        if claim.unit and claim.kind is ClaimKind.RUNNING:
            takeable[claim.priority] = takeable.get(claim.priority, 0) + 1
        if claim.direct or claim.learned is not None:
            snapshot.direct.book(claim, 1)
        if claim.io_bytes > 0:
            snapshot.columns["io_tasks"][claim.node] += 1
    for priority, count in takeable.items():
        _takeable(snapshot, priority, count)
    for payer, mine in payers.items():
        snapshot.usage.book(payer, amounts[mine].sum(axis=0).tolist(), 1)
