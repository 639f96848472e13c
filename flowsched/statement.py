"""Statement: an undo log over arrays and plain containers, so that a decision can be taken back in O(its size)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSet
from operator import setitem
from typing import Any, TypeVar, TypeVarTuple, Unpack

from numpy.typing import NDArray

K = TypeVar("K")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")

_ABSENT: Any = object()


class Statement:
    """Changes made through a statement are undone, newest first, by `rollback`; `forget` makes them final.

    The idea is Volcano's Statement: simulate on the real arrays, then keep or drop the whole decision. An entry is a function and
    its arguments: a closure is five objects for the garbage collector, and a restart makes half a million.
    """

    __slots__ = ("_undo",)

    def __init__(self) -> None:
        self._undo: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        """How many changes could be undone."""
        return len(self._undo)

    def set(self, array: NDArray[Any], where: Any, value: Any) -> None:
        """`array[where] = value`. `where` is any numpy index; index arrays must hold no duplicates."""
        old = array[where]
        if hasattr(old, "copy"):
            old = old.copy()
        self._undo.append((setitem, array, where, old))
        array[where] = value

    def put_at(self, array: NDArray[Any], where: int | tuple[int, int], value: Any) -> None:
        """`array[where] = value` for one element: as `set`, in a fraction of the time."""
        old = array[where]
        self._undo.append((setitem, array, where, old))
        array[where] = value

    def add(self, array: NDArray[Any], where: Any, amount: Any) -> None:
        """`array[where] += amount`, undone exactly (whole numbers)."""
        array[where] += amount
        self._undo.append((_subtract, array, where, amount))

    def put(self, mapping: MutableMapping[K, V], key: K, value: V) -> None:
        """`mapping[key] = value`."""
        old = mapping.get(key, _ABSENT)
        self._undo.append((_drop, mapping, key) if old is _ABSENT else (setitem, mapping, key, old))
        mapping[key] = value

    def put_all(self, mapping: MutableMapping[K, V], items: Mapping[K, V]) -> None:
        """As `put`, of many. `items`: not modified afterwards."""
        old = {key: mapping[key] for key in items if key in mapping}
        self._undo.append((_put_back, mapping, items, old))
        mapping.update(items)

    def pop(self, mapping: MutableMapping[K, V], key: K) -> V | None:
        """Take a key out of a mapping; None if it was not there. (Insertion order may differ after a rollback.)"""
        if key not in mapping:
            return None
        old = mapping.pop(key)
        self._undo.append((setitem, mapping, key, old))
        return old

    def include(self, members: MutableSet[K], member: K) -> None:
        """Add to a set."""
        if member not in members:
            members.add(member)
            self._undo.append((_discard, members, member))

    def include_all(self, members: MutableSet[K], more: Iterable[K]) -> None:
        """As `include`, of many."""
        new = [member for member in more if member not in members]
        if new:
            members |= set(new)
            self._undo.append((_discard_all, members, new))

    def exclude(self, members: MutableSet[K], member: K) -> None:
        """Take out of a set."""
        if member in members:
            members.discard(member)
            self._undo.append((_add, members, member))

    def assign(self, target: object, name: str, value: Any) -> None:
        """`target.name = value`."""
        old = getattr(target, name)
        self._undo.append((setattr, target, name, old))
        setattr(target, name, value)

    def undo_with(self, action: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Note how to undo a change that was made by hand: by this call."""
        self._undo.append((action, *args))

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._undo)

    def rollback(self, mark: int = 0) -> None:
        """Undo everything since `mark`, newest first."""
        while len(self._undo) > mark:
            undo, *args = self._undo.pop()
            undo(*args)

    def forget(self) -> None:
        """Make all changes final."""
        self._undo.clear()


def _drop(mapping: MutableMapping[K, V], key: K) -> None:
    mapping.pop(key, None)


def _subtract(array: NDArray[Any], where: Any, amount: Any) -> None:
    array[where] -= amount


def _add(members: MutableSet[K], member: K) -> None:
    members.add(member)


def _discard(members: MutableSet[K], member: K) -> None:
    members.discard(member)


def _discard_all(members: MutableSet[K], some: Iterable[K]) -> None:
    for member in some:
        members.discard(member)


def _put_back(mapping: MutableMapping[K, V], items: Mapping[K, V], old: Mapping[K, V]) -> None:
    """Undo `put_all`."""
    for key in items:
        if key in old:
            mapping[key] = old[key]
        else:
            mapping.pop(key, None)
