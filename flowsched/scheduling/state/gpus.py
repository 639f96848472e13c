"""GPUs, device by device: a part of a GPU is a part of one device, and k whole ones are k unused devices.

Free room on a node is a row of devices, in thousandths of each. Room that is (N,) for any other resource is (N, D) for GPUs by
device, under the axis number `DEVICES`: it is added, subtracted and compared like the rest, and only the code that places pods
must know that a request is served by devices. `choose` says by which, everywhere: whole devices from the lowest number, and for
a part the fullest device that still takes it, so that whole ones stay whole.

It is used only if parts are in use or requested (`Devices.matter`). While all held and requested amounts are whole devices, the
sum says the same.

Axes: N nodes, D devices of a node, K pods. Thousandths of a device, whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.statement import Statement

Ints = NDArray[np.int64]
#: (device, thousandths of it), by what one pod has of a node.
Parts = tuple[tuple[int, int], ...]

#: The axis number of room by device, always the last one of a request. Not an axis of the snapshot.
DEVICES: Final = 1 << 20
#: A whole device.
WHOLE: Final = 1000
#: Its place in the axes of the snapshot (`AXES`): the sum.
GPU: Final = 3


def choose(free: Sequence[int], millis: int) -> Parts | None:
    """Which devices a pod gets; None if it has to wait, though the sum may do.

    Args:
        free: For each device of the node, thousandths that are free.
        millis: How much the pod asks for.
    """
    whole, rest = divmod(max(millis, 0), WHOLE)
    chosen: list[tuple[int, int]] = []
    if whole:
        chosen = [(device, WHOLE) for device, left in enumerate(free) if left >= WHOLE][:whole]
        if len(chosen) < whole:
            return None
    if rest:
        taken = {device for device, _ in chosen}
        fitting = [(left, device) for device, left in enumerate(free) if left >= rest and device not in taken]
        if not fitting:
            return None
        chosen.append((min(fitting)[1], rest))
    return tuple(chosen)


def copies_by_device(free: Ints, millis: int) -> Ints:
    """(...,) how many pods that each ask for so much find devices, of (..., D) what is free.

    Parts lie on devices that are in use before they break a new one, so c pods of w whole devices and a part need room for c
    parts beside c * w whole ones: c <= P + m * (W - c * w), where P parts lie on broken devices and m on a whole one.
    """
    whole, rest = divmod(millis, WHOLE)
    unused = free >= WHOLE
    found: Ints
    if not rest:
        found = unused.sum(axis=-1) // whole
        return found
    parts = np.maximum(free, 0) // rest
    if not whole:
        found = parts.sum(axis=-1)
        return found
    count, each = unused.sum(axis=-1), WHOLE // rest
    broken = np.where(unused, 0, parts).sum(axis=-1)
    found = np.minimum(count // whole, (broken + count * each) // (1 + whole * each))
    return found


def seat(free: Ints, nodes: Ints, millis: int) -> Ints:
    """(K, D) what each pod takes, one after the other; `free` (N, D) is less by it afterwards.

    A pod that fits nowhere takes all of the emptiest devices, and more: the caller has asked before whether it fits.
    """
    rows = np.zeros((len(nodes), free.shape[1]), dtype=np.int64)
    for at, node in enumerate(nodes.tolist()):
        left = free[node].tolist()
        for device, part in choose(left, millis) or forced(left, millis):
            rows[at, device] = part
            free[node, device] -= part
    return rows


def forced(free: Sequence[int], millis: int) -> Parts:
    """Devices for a pod that is there although it does not fit: the emptiest, the lowest number first."""
    order = sorted(range(len(free)), key=lambda device: (-free[device], device))
    found, left = [], millis
    for device in order:
        if left > 0:
            found.append((device, min(left, WHOLE)))
            left -= WHOLE
    return tuple(sorted(found))


def parts_of(row: Sequence[int]) -> Parts:
    """A row of amounts (D,) as the devices of one pod."""
    return tuple((device, part) for device, part in enumerate(row) if part)


def allocated_parts(devices: Iterable[int], millis: int) -> Parts:
    """The parts of its devices that a pod holds, in the order of `choose`: whole ones, then a part."""
    return tuple(
        (device, min(WHOLE, millis - WHOLE * at)) for at, device in enumerate(devices) if millis > WHOLE * at
    )


class Devices:
    """The parts of the devices of each node that claims hold.

    Attributes:
        width: D, the most devices a node has had.
        shared: How many claims hold a part of a device.
        asked: Whether a part is asked for in this cycle.
    """

    def __init__(self) -> None:
        self.width = self.shared = 0
        self.asked = False
        self._count = np.zeros(0, dtype=np.int64)  #: (N,) or longer
        self._load = np.zeros((0, 0), dtype=np.int64)  #: (N, D) or longer

    @property
    def matter(self) -> bool:
        """Whether the sum of the free parts is not enough to decide."""
        return self.asked or self.shared > 0

    def note(self, requests: Iterable[Sequence[int]], statement: Statement | None = None) -> None:
        """Note whether pods that wait ask for parts, until the statement is rolled back. `requests`: (R,) of each."""
        if self.width and not self.matter and any(len(asks) > GPU and asks[GPU] % WHOLE for asks in requests):
            self.asked = True
            if statement is not None:
                statement.undo_with(lambda: setattr(self, "asked", False))

    # ---- nodes and claims ----

    def report(self, node: int, millis: int) -> None:
        """Note that a node has so many thousandths of GPUs."""
        count = millis // WHOLE
        if count or node < len(self._count):
            self._grow(node + 1, count)
            self._count[node] = count

    def fitted(self, node: int, parts: Parts, millis: int) -> Parts:
        """The devices of a claim of so much: those given, less of them if it holds less, and more by choice if it holds more."""
        allocated = sum([part for _, part in parts])
        if allocated == millis:
            return parts
        if allocated > millis:
            remaining: list[tuple[int, int]] = []
            for device, part in parts:
                less = min(part, millis - sum(part for _, part in remaining))
                if less > 0:
                    remaining.append((device, less))
            return tuple(remaining)
        free = self.free_on(node)
        for device, part in parts:
            if device < len(free):
                free[device] -= part
        return (*parts, *(choose(free, millis - allocated) or forced(free, millis - allocated)))

    def book(self, node: int, parts: Parts, sign: int) -> None:
        """A claim holds devices from now on (1), or does not any more (-1)."""
        self._grow(node + 1, 1 + max(device for device, _ in parts))
        for device, part in parts:
            self._load[node, device] += sign * part
        self.shared += sign * any(part % WHOLE for _, part in parts)

    def _grow(self, nodes: int, devices: int) -> None:
        self.width = max(self.width, devices)
        if nodes <= len(self._count) and self.width <= self._load.shape[1]:
            return
        size = max(16, 2 * len(self._count), nodes) if nodes > len(self._count) else len(self._count)
        count, load = np.zeros(size, dtype=np.int64), np.zeros((size, self.width), dtype=np.int64)
        count[: len(self._count)] = self._count
        load[: len(self._load), : self._load.shape[1]] = self._load
        self._count, self._load = count, load

    # ---- questions ----

    def whole(self, nodes: int) -> Ints:
        """(N, D) what there is of each device: 1000, or 0 where a node has no such device."""
        count = np.zeros(nodes, dtype=np.int64)
        known = min(nodes, len(self._count))
        count[:known] = self._count[:known]
        found: Ints = np.where(np.arange(self.width) < count[:, None], WHOLE, 0)
        return found

    def free(self, nodes: int) -> Ints:
        """(N, D) what is free of each device. The caller's own."""
        found = self.whole(nodes)
        known = min(nodes, len(self._load))
        found[:known] -= np.where(found[:known] > 0, self._load[:known], 0)
        return found

    def free_on(self, node: int) -> list[int]:
        """The free part of each device of one node, in thousandths."""
        if node >= len(self._count):
            return []
        found: list[int] = (WHOLE - self._load[node, : int(self._count[node])]).tolist()
        return found

    def row(self, parts: Parts) -> Ints:
        """(D,) what one claim holds."""
        row = np.zeros(self.width, dtype=np.int64)
        for device, part in parts:
            row[device] += part
        return row
