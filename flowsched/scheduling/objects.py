"""The core's objects as plain values and arrays, and back: what a snapshot file holds. No pickle: nothing in a file runs.

Values of the classes in `NAMES` are written with all their attributes, whatever they are, so that a new attribute is written
too; caches are left out (`TRANSIENT`). Nothing is called when they are read: an object is made without its constructor and
given its attributes. A file names classes by `NAMES`, so that a class may move or be renamed while its files stay readable.

JSON has lists and objects only, so the rest is marked: `[...]` is a tuple, and `{"=": KIND, ...}` everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowsched.errors import FlowschedError, InvalidRequest
from flowsched.executor.constraints import HostPort, NodeTerm, PodTerm, Requirement, Rules, Spread
from flowsched.executor.nodes import NodeInfo, Zone
from flowsched.scheduling import neighbours
from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.devices import Devices
from flowsched.scheduling.ledger import Claim, ClaimKind, DirectBook, Ledger
from flowsched.scheduling.neighbours import Peers
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.podgroup import Home, Kept, PodGroup, RoleRequest, Shape
from flowsched.scheduling.queues import Queue, QueueTree
from flowsched.scheduling.snapshot import Snapshot
from flowsched.scheduling.storages import Storage
from flowsched.scheduling.usage import Account, Payer, UsageBook
from flowsched.scheduling.zones import Zones

#: What follows from the rest and is made again when it is asked for: (class, attribute) -> how it is without.
TRANSIENT: Final[Mapping[tuple[str, str], type]] = {
    (Snapshot.__qualname__, "cache"): dict,
    (Catalogue.__qualname__, "_arrays"): dict,
    (Catalogue.__qualname__, "_missing"): dict,
    (Catalogue.__qualname__, "shelves"): NoneType,
    (Peers.__qualname__, "_counts"): dict,
    (QueueTree.__qualname__, "_facts"): NoneType,
    ("_Kind", "counts"): list,
}
#: What may stand in a file: its name there -> its class. A name stays when its class gets another one.
NAMES: Final[Mapping[str, type]] = {
    "Account": Account,
    "Catalogue": Catalogue,
    "Claim": Claim,
    "ClaimKind": ClaimKind,
    "Devices": Devices,
    "DirectBook": DirectBook,
    "Home": Home,
    "HostPort": HostPort,
    "Kept": Kept,
    "Ledger": Ledger,
    "NodeInfo": NodeInfo,
    "NodeTerm": NodeTerm,
    "Nomination": Nomination,
    "Payer": Payer,
    "PeerKind": neighbours._Kind,
    "Peers": Peers,
    "PodGroup": PodGroup,
    "PodTerm": PodTerm,
    "Queue": Queue,
    "QueueTree": QueueTree,
    "Requirement": Requirement,
    "RoleRequest": RoleRequest,
    "Rules": Rules,
    "Shape": Shape,
    "Snapshot": Snapshot,
    "Spread": Spread,
    "Storage": Storage,
    "UsageBook": UsageBook,
    "Zone": Zone,
    "Zones": Zones,
}
_NAME_OF: Final = {kind: name for name, kind in NAMES.items()}
#: Names of format 2 and before, `module:class`, whose class is not the name of now.
_FORMER: Final = {"_Kind": "PeerKind"}
_MARK: Final = "="
#: Arrays of so few values stand among the objects.
_SMALL: Final = 32
#: What JSON knows itself.
_ATOMS: Final = frozenset({str, int, bool, NoneType})
#: Dtypes that may stand in a file.
_DTYPES: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Writer:
    """Turns objects into plain values. Larger arrays are put aside.

    Attributes:
        arrays: What was put aside; values name them by index.
    """

    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  #: so that no identity is used twice
        self._kinds: dict[type, tuple[str, list[str] | None]] = {}

    def plain(self, value: Any) -> Any:
        """The value as JSON knows it.

        Raises:
            FlowschedError: It is nothing that a file can hold.
        """
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is tuple or kind is list:
            entries = [each if type(each) in _ATOMS else self.plain(each) for each in value]
            return entries if kind is tuple else {_MARK: "list", "of": entries}
        if kind is dict or isinstance(value, Mapping):
            pairs = [
                [
                    key if type(key) in _ATOMS else self.plain(key),
                    inner if type(inner) in _ATOMS else self.plain(inner),
                ]
                for key, inner in value.items()
            ]
            return {_MARK: "map", "of": pairs}
        if isinstance(value, set | frozenset):
            name = "set" if isinstance(value, set) else "frozenset"
            return {_MARK: name, "of": [self.plain(each) for each in sorted(value)]}
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.integer | np.bool_):
            return value.item()
        return self._object(value)

    def _array(self, value: NDArray[Any]) -> Any:
        if str(value.dtype) not in _DTYPES:
            raise FlowschedError(f"an array of {value.dtype} is none of whole numbers: it cannot be recorded")
        if value.size <= _SMALL:
            shape = list(value.shape)
            return {_MARK: "small", "type": str(value.dtype), "shape": shape, "of": value.ravel().tolist()}
        self.arrays.append(np.array(value, order="C"))  # a copy: the original lives on
        return {_MARK: "array", "at": len(self.arrays) - 1}

    def _object(self, value: Any) -> Any:
        kind = type(value)
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = self._look_at(kind, value)
        where, names = known
        if isinstance(value, Enum):
            return {_MARK: "enum", "is": where, "of": self.plain(value.value)}
        if isinstance(value, tuple):
            return {_MARK: "named", "is": where, "of": [self.plain(each) for each in value]}
        if id(value) in self._numbers:
            return {_MARK: "same", "as": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        held = {}
        for name in names if names is not None else _lasting(value):
            inner = getattr(value, name)
            held[name] = inner if type(inner) in _ATOMS else self.plain(inner)
        return {_MARK: "object", "is": where, "of": held}

    @staticmethod
    def _look_at(kind: type, value: Any) -> tuple[str, list[str] | None]:
        """What all values of a class share: its name, and its attributes if they are always the same."""
        name = _NAME_OF.get(kind)
        if name is None:
            where = f"{kind.__module__}:{kind.__qualname__}"
            raise FlowschedError(
                f"a value of {where} cannot be recorded, since no snapshot has a name for it: {value!r:.80}"
            )
        return name, _lasting(value) if is_dataclass(kind) else None


class Reader:
    """Makes objects of plain values again."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        self._arrays = arrays
        self._objects: list[object] = []

    def value(self, plain: Any) -> Any:
        """What `Writer.plain` was given.

        Raises:
            InvalidRequest: No writer of this version wrote this.
        """
        if isinstance(plain, list):
            return tuple(self.value(each) for each in plain)
        if not isinstance(plain, dict):
            return plain
        match plain.get(_MARK):
            case "list":
                return [self.value(each) for each in plain["of"]]
            case "map":
                return {self.value(key): self.value(inner) for key, inner in plain["of"]}
            case "set":
                return {self.value(each) for each in plain["of"]}
            case "frozenset":
                return frozenset(self.value(each) for each in plain["of"])
            case "small":
                if plain["type"] not in _DTYPES:
                    raise InvalidRequest(f"an array of {plain['type']!r:.40} is none of whole numbers")
                return np.array(plain["of"], dtype=plain["type"]).reshape(plain["shape"])
            case "array":
                return self._arrays[plain["at"]]
            case "enum":
                return _class(plain["is"])(self.value(plain["of"]))
            case "named":
                return _class(plain["is"])(*[self.value(each) for each in plain["of"]])
            case "same":
                return self._objects[plain["as"]]
            case "object":
                return self._made(_class(plain["is"]), plain["of"])
        raise InvalidRequest(f"{plain!r:.60} is nothing that a snapshot holds")

    def _made(self, kind: type, held: Mapping[str, Any]) -> object:
        made: object = object.__new__(kind)
        self._objects.append(made)
        for name, inner in held.items():
            object.__setattr__(made, name, self.value(inner))
        for (owner, name), empty in TRANSIENT.items():
            if owner == kind.__qualname__:
                object.__setattr__(made, name, empty())
        if is_dataclass(kind):
            for each in fields(kind):  # what came later than the file has its default
                if each.name not in held and not hasattr(made, each.name):
                    if each.default_factory is not MISSING:
                        object.__setattr__(made, each.name, each.default_factory())
                    elif each.default is not MISSING:
                        object.__setattr__(made, each.name, each.default)
        return made


def _lasting(value: object) -> list[str]:
    return [name for name in attributes(value) if (type(value).__qualname__, name) not in TRANSIENT]


def attributes(value: object) -> list[str]:
    """The names of all that an object holds, in the order of its class."""
    if is_dataclass(value):
        return [each.name for each in fields(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", ())]


def _class(where: str) -> type:
    former = where.rpartition(":")[2]
    found = NAMES.get(where) or NAMES.get(_FORMER.get(former, former))
    if found is None:
        raise InvalidRequest(f"{where!r:.80} is no class of this version's scheduler")
    return found


def readable(value: Any) -> Any:
    """A value for people and for comparing: lists and objects by name. There is no way back."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): readable(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [readable(each) for each in value]
    if is_dataclass(value):
        return {each.name: readable(getattr(value, each.name)) for each in fields(value)}
    raise FlowschedError(f"a plan holds {value!r:.80}, which cannot be written")
