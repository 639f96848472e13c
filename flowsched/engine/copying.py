"""Copies from outside and pods that work straight on the storage they come from share its budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flowsched.engine.state import EngineState
from flowsched.scheduling.budgets import limits_of
from flowsched.scheduling.storages import Storage
from flowsched.scheduling.transfers import TransferLimits, TransferOrder
from flowsched.statement import Statement

#: All copies together count for at most one part of so many of the budget, however many there are: pods get the rest.
_PARTS: Final = 2


def begin_copy(state: EngineState, order: TransferOrder, statement: Statement) -> None:
    """A copy has been ordered: one from outside counts from now on, if that is a storage with a budget."""
    storage = _origin(state) if order.source is None else None
    if storage is not None:
        key = f"{storage.name}/read"
        limit = limits_of((storage,), state.profile.io_fill_percent)[key]
        rate = limit // (_PARTS * max(1, state.transfer_limits.origin))
        statement.put(state.copying, (order.dataset, order.dest, order.piece), (key, rate))
        _count(state, key, rate, statement)


def end_copy(state: EngineState, order: TransferOrder, statement: Statement) -> None:
    """It is not under way any more."""
    counted = statement.pop(state.copying, (order.dataset, order.dest, order.piece))
    if counted is not None:
        _count(state, counted[0], -counted[1], statement)


def limits_now(state: EngineState) -> TransferLimits:
    """How many copies may go beside each other: fewer from outside while pods work straight on what lies there, at least one."""
    storage, limits = _origin(state), state.transfer_limits
    if storage is None:
        return limits
    key = f"{storage.name}/read"
    limit = limits_of((storage,), state.profile.io_fill_percent)[key]
    pods = sum(
        rate for claim in state.snapshot.direct.claims.values() for name, rate in claim.direct if name == key
    )
    if not pods:
        return limits
    left = max(0, limit - pods)
    return replace(
        limits,
        origin=max(1, limits.origin * left // limit),
        origin_rate=max(1, limits.origin_rate * left // limit),
    )


def _origin(state: EngineState) -> Storage | None:
    """The storage that data from outside lie on, if it has a budget."""
    if not state.profile.io_fill_percent:
        return None
    return next((each for each in state.profile.storages if each.origin and each.read_rate), None)


def _count(state: EngineState, key: str, rate: int, statement: Statement) -> None:
    rates = state.snapshot.direct.rates
    statement.put(rates, key, rates.get(key, 0) + rate)
