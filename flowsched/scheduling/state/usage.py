"""Usage: how much each queue and user has held, and for how long, now and in the past, which fades.

The use of an account is summed up in amount x ms (milli-CPU ms, byte ms, …) as exact whole numbers. Time is cut into steps of a
64th of the half-life; at the end of each step the sum is multiplied by 2 ** (-1/64), in whole 32-bit parts. So no `exp` is
needed, the result is the same on every machine, and it does not depend on how often it is read: rolling on by two hours is
rolling on by one hour twice.

An account is computed when its holding changes and when a step of time ends, never by the clock: a thousand accounts that just
run cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from flowsched.statement import Statement

#: Steps in a half-life.
STEPS: Final = 64
#: 2 ** (32 - 1/64), rounded down: 64 steps leave a half, to within 2e-8.
FACTOR: Final = 4_248_701_964
_BITS: Final = 32


class Payer(NamedTuple):
    """The owner of an account: a queue and its user (as in `Claim`); the user is empty if there is none."""

    queue: str
    user: str


_NOBODY: Final[Mapping[Payer, tuple[int, ...]]] = {}


@dataclass(slots=True)
class Account:
    """The present and past usage of one user of one queue.

    Attributes:
        held: (R,) now.
        past: (R,) amount x ms, faded, at the beginning of the step of time that `at_ms` lies in.
        fresh: (R,) amount x ms since then.
        at_ms: Up to when `fresh` counts.
    """

    held: list[int]
    past: list[int]
    fresh: list[int]
    at_ms: int

    def widen(self, axes: int) -> None:
        """Make room for more resources."""
        for row in (self.held, self.past, self.fresh):
            row.extend([0] * (axes - len(row)))

    def roll(self, now: int, step_ms: int) -> None:
        """Count the present amounts until `now`. A clock that goes back changes nothing."""
        if now <= self.at_ms:
            return
        step, last = self.at_ms // step_ms, now // step_ms
        begin = self.at_ms
        while step < last:
            end = (step + 1) * step_ms
            steady = begin == step * step_ms and not any(self.fresh)
            for axis, amount in enumerate(self.held):
                whole = self.past[axis] + self.fresh[axis] + amount * (end - begin)
                faded = whole * FACTOR >> _BITS
                steady = steady and faded == self.past[axis]
                self.past[axis], self.fresh[axis] = faded, 0
            step, begin = step + 1, end
            if steady:  # as much fades as comes: all further steps end alike, and after a gap of years there are millions
                step, begin = last, last * step_ms
        for axis, amount in enumerate(self.held):
            self.fresh[axis] += amount * (now - begin)
        self.at_ms = now


class UsageRow(NamedTuple):
    """An account's past as it is kept in SQL. `past`: resource -> amount x ms at `at_ms`, the beginning of a step of time."""

    queue: str
    user: str
    at_ms: int
    served_ms: int
    past: Mapping[str, int]


class UsageBook:
    """All accounts.

    Attributes:
        now: The moment of the current step of the engine; bookings count from then.
        served_queues: When a queue, or one below it, was last given something, wall-clock ms. Changed through statements.
        served_users: The same by account.
        written: The step of time in which rows were last asked for; None = never. The engine's step keeps it.
    """

    def __init__(self) -> None:
        self.now = 0
        self.served_queues: dict[str, int] = {}
        self.served_users: dict[Payer, int] = {}
        self.written: int | None = None
        self._accounts: dict[Payer, Account] = {}
        self._queues: dict[str, list[int]] = {}
        self._half_life_ms = 0
        self._loaded: dict[Payer, int] = {}  #: up to when the row counts that an account began with
        self._changed: set[Payer] = set()  #: booked since rows were last asked for
        self._faded: tuple[int, dict[Payer, tuple[int, ...]]] | None = None
        self._faded_queues: tuple[Mapping[Payer, Sequence[int]], int, Mapping[str, Sequence[int]]] | None = (
            None
        )

    # ---- time ----

    def begin(self, now: int, half_life_ms: int) -> None:
        """A step of the engine begins.

        Args:
            now: Wall-clock ms.
            half_life_ms: After so long the past counts half; 0 = there is no past.
        """
        self.now = max(now, self.now)
        half_life_ms = max(half_life_ms, STEPS) if half_life_ms > 0 else 0
        if half_life_ms != self._half_life_ms:
            if self._half_life_ms:
                self._settle_all()
            for account in self._accounts.values():
                if self._half_life_ms or not any(account.past):  # what was loaded says itself of when it is
                    account.at_ms = self.now
            self._half_life_ms, self._faded = half_life_ms, None

    @property
    def step_ms(self) -> int:
        """How long a step of time is; 0 = there is no past."""
        return self._half_life_ms // STEPS

    @property
    def step(self) -> int:
        """The number of the current step of time."""
        return self.now // self.step_ms if self.step_ms else 0

    def _settle_all(self) -> None:
        for account in self._accounts.values():
            account.roll(self.now, self.step_ms)

    # ---- what is held ----

    def book(self, payer: Payer, amount: Sequence[int], sign: int) -> None:
        """An account holds so much more (sign 1) or less (-1) from now on. Booking the opposite undoes it."""
        account = self._accounts.get(payer)
        if account is None:
            empty = [0] * len(amount)
            account = self._accounts[payer] = Account(list(empty), list(empty), list(empty), self.now)
        elif len(account.held) < len(amount):
            account.widen(len(amount))
        if self._half_life_ms:
            account.roll(self.now, self.step_ms)
        self._changed.add(payer)
        queue = self._queues.setdefault(payer.queue, [0] * len(amount))
        queue.extend([0] * (len(amount) - len(queue)))
        for axis, value in enumerate(amount):
            if value:
                account.held[axis] += sign * value
                queue[axis] += sign * value
        if not any(queue):
            del self._queues[payer.queue]
        if not any(account.held) and not any(account.past) and not any(account.fresh):
            del self._accounts[payer]

    def credit(self, payer: Payer, amount: Sequence[int], since_ms: int, statement: Statement) -> None:
        """Count the usage of an account since then that its row does not have: of a pod found after a restart, which runs on.

        Args:
            payer: The account's owner; the account holds the amount already.
            amount: (R,) what the pod holds.
            since_ms: Since when, wall-clock ms.
            statement: Where to note the undo.
        """
        account = self._accounts.get(payer)
        if not self._half_life_ms or account is None:
            return
        empty = [0] * len(amount)
        since_ms = max(since_ms, self._loaded.get(payer, 0))
        other = Account(list(amount), list(empty), list(empty), since_ms)
        other.roll(self.now, self.step_ms)
        self._add(account, other, 1)
        statement.undo_with(lambda: self._add(account, other, -1))

    def _add(self, account: Account, other: Account, sign: int) -> None:
        account.roll(self.now, self.step_ms)
        account.widen(len(other.past))
        for axis in range(len(other.past)):
            account.past[axis] += sign * other.past[axis]
            account.fresh[axis] += sign * other.fresh[axis]
        self._faded = None

    def of_queue(self, queue: str) -> Sequence[int]:
        """(R,) what the accounts of a queue hold, those of queues below it not included; may be shorter than the axes."""
        return self._queues.get(queue, ())

    def of_payer(self, payer: Payer) -> Sequence[int]:
        """(R,) what an account holds; may be shorter than the axes."""
        account = self._accounts.get(payer)
        return () if account is None else account.held

    @property
    def queues(self) -> Iterable[str]:
        """Queues that hold anything."""
        return self._queues.keys()

    def payers(self) -> Iterable[Payer]:
        """The owners of all accounts."""
        return self._accounts.keys()

    # ---- the past ----

    def faded(self) -> Mapping[Payer, tuple[int, ...]]:
        """(R,) by account: its mean usage of late, in the units of the axes; an account without a past is left out.

        As of the beginning of the current step of time, so that it changes 64 times in a half-life and not with every call.
        Usage of a half-life ago counts half. An account that has always held the same gets just that.
        """
        if not self._half_life_ms or not self._accounts:
            return _NOBODY
        if self._faded is None or self._faded[0] != self.step:
            self._settle_all()
            # One unit that is held for ever sums up to step_ms * FACTOR / (2 ** 32 - FACTOR).
            part, whole = (1 << _BITS) - FACTOR, self.step_ms * FACTOR
            found = {}
            for payer, account in self._accounts.items():
                if any(account.past):
                    found[payer] = tuple(past * part // whole for past in account.past)
            self._faded = (self.step, found)
            for payer in [p for p, a in self._accounts.items() if not any((*a.held, *a.past, *a.fresh))]:
                del self._accounts[payer]
        return self._faded[1]

    def faded_queues(self, axes: int) -> Mapping[str, Sequence[int]]:
        """(R,) by queue: the sum of its users' faded averages, those of queues below it not included."""
        faded = self.faded()
        known = self._faded_queues
        if known is None or known[0] is not faded or known[1] != axes:
            found: dict[str, list[int]] = {}
            for payer, amounts in faded.items():
                row = found.setdefault(payer.queue, [0] * axes)
                for axis, amount in enumerate(amounts[:axes]):
                    row[axis] += amount
            known = self._faded_queues = (faded, axes, found)
        return known[2]

    # ---- rows ----

    def rows(self, axes: Sequence[str], statement: Statement) -> list[UsageRow]:
        """Accounts with more past than what their last row has faded to, as of the beginning of this step of time.

        These are accounts that hold something, and accounts that did since rows were last asked for. The account with the empty
        queue, of pods that no queue pays for, has no row.
        """
        begin = self.step * self.step_ms
        self._settle_all()
        holding = {payer for payer, account in self._accounts.items() if any(account.held)}
        found = []
        for payer in sorted(holding | self._changed):
            account = self._accounts.get(payer)
            past = dict(zip(axes, account.past, strict=False)) if account is not None else {}
            nonzero = {name: amount for name, amount in past.items() if amount}
            if payer.queue and nonzero:
                found.append(UsageRow(*payer, begin, self.served_users.get(payer, 0), nonzero))
        statement.assign(self, "_changed", set())
        return found

    def load(self, rows: Iterable[UsageRow], axes: Sequence[str]) -> None:
        """Begin with the rows of SQL. Resources that no longer exist are left out."""
        for row in rows:
            payer = Payer(row.queue, row.user)
            past = [row.past.get(axis, 0) for axis in axes]
            self._accounts[payer] = Account([0] * len(past), past, [0] * len(past), row.at_ms)
            self._loaded[payer] = row.at_ms
            self.served_users[payer] = row.served_ms
            self.served_queues[row.queue] = max(row.served_ms, self.served_queues.get(row.queue, 0))
        self._faded = None
