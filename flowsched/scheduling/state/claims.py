"""The claims table as arrays: which pod holds what on which node, and until when. Rows are slots; a freed slot is used again.

It knows nothing of nodes' sizes; `Snapshot` keeps the sums. Slots are a stack, so that undoing a change newest first puts every
row back exactly where it was.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.executor.constraints import Rules
from flowsched.scheduling.state.gpus import Parts

#: In `until`: the end is not known.
UNKNOWN = -1
#: In `kind`: the slot is empty.
EMPTY = -1


class ClaimKind(IntEnum):
    """The kind of a claim: its meaning for other pods."""

    STAGING = 0  #: a target to which inputs are being copied: soft, holds no room
    RUNNING = 1  #: assumed, bound or running: holds room
    RELEASING = 2  #: being taken away: holds room until it is seen to be gone
    NOMINATED = 3  #: room that was freed for a nominated group: holds room until the group is placed

    __array_ufunc__ = (
        np.ndarray.__array_ufunc__
    )  # as of `TaskState`: comparing arrays with it is 5 times as fast


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Room on one node, for one owner (a pod's name).

    Args:
        owner: Unique; a second claim of the same owner replaces the first.
        node: Node index.
        amount: (R,) in the units of `Snapshot.axes`; may be shorter (the rest is 0).
        kind: Its meaning for other pods.
        queue: The queue that pays.
        since_ms: Since when.
        until_ms: Expected end; None where nothing is known.
        late_ms: An end that few exceed, where one is known that is later than the expected one.
        io_bytes: Bytes it reads and writes on the node's disk; > 0 makes it an IO-heavy task.
        group: Name of its group.
        rules: The facts that rules of other pods may see of it; None = nothing.
        unit: The unit that is evicted together: the pods of a gang share it; "" = it may not be evicted for others.
        priority: As declared, and the steps that waiting had added in its queue when it started. A group of that queue with a
            higher declared priority may take its room.
        qos: `QosClass`: pods of a lower class are evicted first.
        started_ms: When its process began to run; None = it has done nothing yet.
        user: The user of its queue: as the workflow names it, or a foreign pod's namespace; empty if there is none.
        direct: Its reads and writes on shared storages, as in `Shape`.
        learned: Workflow and stage, where what it counts for of disks or storages was learned of their tasks, and the per mille
            of it that is counted.
        starting: Its node is starting it: that makes the next pod wait.
        promoted: Steps of priority that waiting had given, when it started, each queue on its path from the root down, and last
            itself in its queue. Queues that would not have gone before it do not take its room. Empty = none.
        devices: Which GPUs of the node it holds; the snapshot chooses for claims that do not say.
        elastic: Of a gang that goes on with fewer members: (role, number of the member, how many of the role must stay).
        in_quota: flowsched makes the pod, so it counts for the quotas (`Snapshot.quotas`).
    """

    owner: str
    node: int
    amount: tuple[int, ...]
    kind: ClaimKind
    queue: str
    since_ms: int
    until_ms: int | None
    io_bytes: int = 0
    group: str = ""
    rules: Rules | None = None
    late_ms: int | None = None
    unit: str = ""
    priority: int = 0
    qos: int = 0
    started_ms: int | None = None
    user: str = ""
    direct: tuple[tuple[str, int], ...] = ()
    learned: tuple[str, str, int] | None = None
    devices: Parts = ()
    elastic: tuple[int, int, int] | None = None
    starting: bool = False
    promoted: tuple[int, ...] = ()
    in_quota: bool = False


class DirectBook:
    """The demands of claims on shared storages, all nodes together.

    Attributes:
        rates: Bytes/s by storage/read and storage/write.
        others: Of those, what others were measured to use beside.
        claims: Claims that ask for storage rates, and claims with a learned use of disks, by owner.
    """

    __slots__ = ("claims", "others", "rates")

    def __init__(self) -> None:
        self.others: dict[str, int] = {}
        self.rates: dict[str, int] = {}
        self.claims: dict[str, Claim] = {}

    def book(self, claim: Claim, sign: int) -> None:
        """A claim comes (+1) or goes (-1)."""
        if not claim.direct and claim.learned is None:
            return
        for key, rate in claim.direct:
            self.rates[key] = self.rates.get(key, 0) + sign * rate
        if sign > 0:
            self.claims[claim.owner] = claim
        else:
            del self.claims[claim.owner]


class Ledger:
    """Rows of claims. All arrays have one entry per slot; empty slots have kind EMPTY.

    Attributes:
        node: (M,) node index.
        amount: (M, R) what is held, in the units of the axes.
        devices: (M, D) thousandths of each GPU of the node; D grows.
        since: (M,) wall-clock ms.
        until: (M,) expected end in wall-clock ms, UNKNOWN where it is not.
        late: (M,) an end that few exceed, UNKNOWN where none is known.
        kind: (M,) ClaimKind.
        owner: The claim's owner, by slot; "" in empty ones.
        unit: (M,) number of the unit that is taken away together, 0 = it may not be. Numbers rise with age.
        queue: (M,) number of the queue that pays, as in `queues`.
        priority, qos: (M,) as in `Claim`.
        elastic: (M, 3) as in `Claim`; the last is 0 where all must stay.
        started: (M,) since when its process runs, UNKNOWN where it does not.
        promoted: By slot, as in `Claim`, where it is not empty.
        queues: Names of queues by their numbers.
    """

    __slots__ = (
        "_free", "_last_unit", "_queue_ids", "_slots", "_units", "amount", "devices", "elastic", "kind", "late", "node",
        "owner", "priority", "promoted", "qos", "queue", "queues", "since", "started", "unit", "until",
    )  # fmt: skip

    def __init__(self, axes: int) -> None:
        self.node = np.zeros(0, dtype=np.int64)
        self.amount = np.zeros((0, axes), dtype=np.int64)
        self.devices = np.zeros((0, 0), dtype=np.int64)
        self.since = np.zeros(0, dtype=np.int64)
        self.until = np.zeros(0, dtype=np.int64)
        self.late = np.zeros(0, dtype=np.int64)
        self.kind = np.full(0, EMPTY, dtype=np.int8)
        self.owner: list[str] = []
        self.unit = np.zeros(0, dtype=np.int64)
        self.queue = np.zeros(0, dtype=np.int32)
        self.priority = np.zeros(0, dtype=np.int64)
        self.qos = np.zeros(0, dtype=np.int8)
        self.started = np.zeros(0, dtype=np.int64)
        self.elastic = np.zeros((0, 3), dtype=np.int64)
        self.promoted: dict[int, tuple[int, ...]] = {}
        self.queues: list[str] = []
        self._queue_ids: dict[str, int] = {}
        self._units: dict[str, tuple[int, int]] = {}  #: name -> (number, claims)
        self._last_unit = 0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    @property
    def arrays(self) -> tuple[NDArray[np.int64] | NDArray[np.int8], ...]:
        """All of them."""
        return self.node, self.amount, self.since, self.until, self.kind

    def widen(self, axes: int) -> None:
        """Make room for more axes; old rows hold nothing of them."""
        wider = np.zeros((len(self.node), axes), dtype=np.int64)
        wider[:, : self.amount.shape[1]] = self.amount[:, :axes]
        self.amount = wider

    def insert(self, claim: Claim, amount: NDArray[np.int64]) -> None:
        """Note a claim; `amount`: (R,) what it really holds."""
        if not self._free:
            self._grow()
        slot, owner = self._free.pop(), claim.owner
        self._slots[owner] = slot
        self.owner[slot] = owner
        self.node[slot] = claim.node
        self.amount[slot, : len(amount)] = amount
        for device, part in claim.devices:
            self._add_device(slot, device, part)
        self.since[slot] = claim.since_ms
        self.until[slot] = UNKNOWN if claim.until_ms is None else claim.until_ms
        self.late[slot] = UNKNOWN if claim.late_ms is None else claim.late_ms
        self.kind[slot] = claim.kind
        if claim.queue not in self._queue_ids:
            self._queue_ids[claim.queue] = len(self.queues)
            self.queues.append(claim.queue)
        self.queue[slot] = self._queue_ids[claim.queue]
        self._join(slot, claim)

    def amount_of(self, owner: str) -> NDArray[np.int64]:
        """(R,) what the claim really holds. A copy."""
        row: NDArray[np.int64] = self.amount[self._slots[owner]].copy()
        return row

    @property
    def flat(self) -> tuple[dict[str, int], list[int]]:
        """The containers of plain values: a deep copy may copy them shallowly."""
        return self._slots, self._free

    def slot_of(self, owner: str) -> int | None:
        """Where a claim stands; None if there is none."""
        return self._slots.get(owner)

    def unit_number(self, name: str) -> int:
        """The number of a unit; -1 if no claim belongs to it."""
        return self._units.get(name, (-1, 0))[0]

    def remove(self, claim: Claim) -> None:
        """Forget a claim."""
        owner = claim.owner
        slot = self._slots.pop(owner)
        self._leave(slot, claim)
        self.node[slot] = self.since[slot] = self.until[slot] = self.late[slot] = 0
        self.amount[slot] = 0
        if claim.devices:
            self.devices[slot] = 0
        self.owner[slot] = ""
        self.kind[slot] = EMPTY
        self._free.append(slot)

    def restake(self, before: Claim, after: Claim) -> None:
        """Note that a claim may be evicted on other terms; its amounts are the same."""
        slot = self._slots[before.owner]
        self._leave(slot, before)
        self._join(slot, after)

    def _join(self, slot: int, claim: Claim) -> None:
        """Note the unit that a claim is evicted with, and the terms."""
        if not claim.unit:
            return
        number, count = self._units.get(claim.unit, (self._last_unit + 1, 0))
        self._last_unit = max(self._last_unit, number)
        self._units[claim.unit] = number, count + 1
        self.unit[slot], self.priority[slot], self.qos[slot] = number, claim.priority, claim.qos
        self.elastic[slot] = claim.elastic or 0
        if claim.promoted:
            self.promoted[slot] = claim.promoted
        self.started[slot] = UNKNOWN if claim.started_ms is None else claim.started_ms

    def _leave(self, slot: int, claim: Claim) -> None:
        if not claim.unit:
            return
        number, count = self._units.pop(claim.unit)
        if count > 1:
            self._units[claim.unit] = number, count - 1
        self.unit[slot] = 0
        self.promoted.pop(slot, None)

    def _add_device(self, slot: int, device: int, part: int) -> None:
        width = self.devices.shape[1]
        if device >= width:
            more = np.zeros((len(self.devices), device + 1 - width), dtype=np.int64)
            self.devices = np.concatenate([self.devices, more], axis=1)
        self.devices[slot, device] += part

    def devices_of(self, slots: NDArray[np.intp], width: int) -> NDArray[np.int64]:
        """(K, `width`) thousandths of each GPU that the claims in these slots hold. `width`: at least as many as any has."""
        rows = np.zeros((len(slots), width), dtype=np.int64)
        rows[:, : self.devices.shape[1]] = self.devices[slots]
        return rows

    def _grow(self) -> None:
        old, axes = self.amount.shape
        more = max(64, old)
        self.devices = np.concatenate([self.devices, np.zeros((more, self.devices.shape[1]), dtype=np.int64)])
        self.node = np.concatenate([self.node, np.zeros(more, dtype=np.int64)])
        self.amount = np.concatenate([self.amount, np.zeros((more, axes), dtype=np.int64)])
        self.since = np.concatenate([self.since, np.zeros(more, dtype=np.int64)])
        self.until = np.concatenate([self.until, np.zeros(more, dtype=np.int64)])
        self.late = np.concatenate([self.late, np.zeros(more, dtype=np.int64)])
        for name in ("unit", "queue", "priority", "qos", "started"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, dtype=column.dtype)]))
        self.elastic = np.concatenate([self.elastic, np.zeros((more, 3), dtype=np.int64)])
        self.kind = np.concatenate([self.kind, np.full(more, EMPTY, dtype=np.int8)])
        self.owner.extend([""] * more)
        self._free.extend(range(old + more - 1, old - 1, -1))
