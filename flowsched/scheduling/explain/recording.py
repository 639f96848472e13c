"""Recordings: one cycle in a file (its inputs, the profile, its plan), read back, decided again, and compared.

The file is a zip archive: `record.json` (format, version, moment, counts), `profile.json` (as `policy.profile` reads it),
`objects.json` and `arrays/*.npy` (the other arguments of the cycle), `plan.json` (the plan, readable). `replayed` decides
again, to the same bytes.
"""

from __future__ import annotations

import inspect
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.errors import FlowschedError, InvalidRequest
from flowsched.executor.constraints import HostPort, NodeTerm, PodTerm, Requirement, Rules, Spread
from flowsched.executor.nodes import NodeInfo, Zone
from flowsched.executor.quotas import QuotaLimit
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Nomination, Placement, Plan
from flowsched.scheduling.pod_group import Home, Kept, PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.extension import Offered
from flowsched.scheduling.policy.framework import Profile, Storage
from flowsched.scheduling.policy.profile import document_of, policies_from
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state import pod_index
from flowsched.scheduling.state.claims import Claim, ClaimKind, DirectBook, Ledger
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import Devices
from flowsched.scheduling.state.numa import Zones
from flowsched.scheduling.state.pod_index import Peers
from flowsched.scheduling.state.snapshot import MAX_AXES, Snapshot
from flowsched.scheduling.state.usage import Account, Payer, UsageBook
from flowsched.version import VERSION
from flowsched.workflow.spec import EMPTY

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
#: What objects in older files lack: class -> attribute -> how it is without.
LATER: Final[Mapping[type, Mapping[str, Callable[[], object]]]] = {
    Snapshot: {"quotas": dict, "quota_used": lambda: np.zeros(MAX_AXES, dtype=np.int64)},
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
    "PeerKind": pod_index._Kind,
    "Peers": Peers,
    "PodGroup": PodGroup,
    "PodTerm": PodTerm,
    "Queue": Queue,
    "QueueTree": QueueTree,
    "QuotaLimit": QuotaLimit,
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
#: What of a plan decides nothing: plans that differ in nothing else are equal.
_UNDECIDED: Final = {(Placement, "choices")}
_NAME_OF: Final = {kind: name for name, kind in NAMES.items()}
#: Classes that have another name now: the name in files of format 2 and before (`module:class`), and the present one.
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
        return name, _lasting(value) if is_dataclass(kind) or issubclass(kind, msgspec.Struct) else None


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
        if issubclass(kind, msgspec.Struct):  # what came later than the file has its default
            self._objects.append(None)  # its own values never hold it
            at = len(self._objects) - 1
            self._objects[at] = kind(**{name: self.value(inner) for name, inner in held.items()})
            return self._objects[at]
        made: object = object.__new__(kind)
        self._objects.append(made)
        for name, inner in held.items():
            object.__setattr__(made, name, self.value(inner))
        for name, empty in LATER.get(kind, {}).items():
            if name not in held:
                object.__setattr__(made, name, empty())
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
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
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
    """A value for people and for comparing: lists and objects by name, without what decides nothing. There is no way back."""
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
    if isinstance(value, msgspec.Struct) or is_dataclass(value):
        names = [name for name in attributes(value) if (type(value), name) not in _UNDECIDED]
        return {name: readable(getattr(value, name)) for name in names}
    raise FlowschedError(f"a plan holds {value!r:.80}, which cannot be written")


# ---- the record ----


#: Grows when older readers could not understand a file.
FORMAT: Final = 3
#: What this version reads: format 2 names classes by their Python modules.
READABLE: Final = (2, 3)
#: The largest part that is read: 4 GiB. A file from elsewhere must not fill the memory.
_LARGEST: Final = 4 << 30
#: Equal records are equal bytes: zip files tell when they were made.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


class Record(msgspec.Struct, frozen=True):
    """One cycle.

    Args:
        inputs: The arguments of `cycle`, by name.
        plan: What it decided, as `plan_bytes` writes it.
        version: Of the flowsched that decided.
    """

    inputs: Mapping[str, Any]
    plan: bytes
    version: str = VERSION

    @property
    def profile(self) -> Profile:
        """The policy it decided under."""
        profile: Profile = self.inputs["profile"]
        return profile


def plan_bytes(plan: Plan) -> bytes:
    """A plan as canonical JSON: equal plans are equal bytes."""
    return json.dumps(readable(plan), ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


class Draft(msgspec.Struct, frozen=True):
    """A record as plain values and copied arrays: what it was made of may change, and `packed` may run in a thread."""

    about: Mapping[str, Any]
    profile: Mapping[str, Any]
    plan: Plan | bytes
    objects: Mapping[str, Any]
    arrays: Sequence[NDArray[Any]]

    def packed(self) -> bytes:
        """The file; equal records give equal bytes."""
        plan = self.plan if isinstance(self.plan, bytes) else plan_bytes(self.plan)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            _write(archive, "record.json", json.dumps(self.about, indent=2).encode())
            _write(archive, "profile.json", json.dumps(self.profile, indent=2).encode())
            _write(archive, "plan.json", plan)
            _write(archive, "objects.json", json.dumps(self.objects, separators=(",", ":")).encode())
            for at, array in enumerate(self.arrays):
                held = io.BytesIO()
                np.save(held, array, allow_pickle=False)
                _write(archive, f"arrays/{at:05}.npy", held.getvalue())
        return file.getvalue()


def recorded(plan: Plan, /, *arguments: Any, **named: Any) -> Draft:
    """A cycle that has just decided, from its arguments as they were given.

    Raises:
        FlowschedError: Something of it cannot be written.
    """
    bound = inspect.signature(cycle).bind(*arguments, **named)
    bound.apply_defaults()
    try:
        return draft(bound.arguments, plan)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FlowschedError(f"this cycle cannot be recorded: {type(error).__name__}: {error}") from error


#: Recorded cycles, and why one could not be recorded, in order.
Tape: TypeAlias = "list[Draft | FlowschedError]"


def taped(tape: Tape, plan: Plan, arguments: Sequence[Any]) -> None:
    """Put a cycle on a tape, or why it cannot be recorded: deciding goes on all the same."""
    try:
        tape.append(recorded(plan, *arguments))
    except FlowschedError as error:
        tape.append(error)


def draft(inputs: Mapping[str, Any], plan: Plan | bytes, version: str = VERSION) -> Draft:
    """The arguments of a cycle, and its plan."""
    writer = Writer()
    profile: Profile = inputs["profile"]
    others = {name: writer.plain(value) for name, value in inputs.items() if name != "profile"}
    about = {
        "format": FORMAT, "version": version, "now": inputs["now"], "nodes": len(inputs["snapshot"]),
        "groups": len(inputs["backlog"]), "profile": profile.name,
    }  # fmt: skip
    return Draft(about, document_of(profile), plan, others, writer.arrays)


def _write(archive: zipfile.ZipFile, name: str, raw: bytes) -> None:
    entry = zipfile.ZipInfo(name, _LONG_AGO)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, raw, compresslevel=1)


def unpacked(
    raw: bytes, plugins: Mapping[str, Offered] | None = None, broken: Mapping[str, str] = EMPTY
) -> Record:
    """Read a file.

    Args:
        raw: The file.
        plugins: What is installed here; the recorded profile may name some.
        broken: What is installed and does not work: why.

    Raises:
        InvalidRequest: It is no snapshot, or one that this version cannot read.
        InvalidDocument: Its profile needs a plugin that is not here.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            about = json.loads(_read(archive, "record.json"))
            if about["format"] not in READABLE:
                raise InvalidRequest(
                    f"the snapshot is of format {about['format']!r:.20}, made by flowsched {about['version']}; "
                    f"this is {VERSION}, which reads formats {' and '.join(map(str, READABLE))}"
                )
            names = sorted(name for name in archive.namelist() if name.startswith("arrays/"))
            arrays = [np.load(io.BytesIO(_read(archive, name)), allow_pickle=False) for name in names]
            profile = json.loads(_read(archive, "profile.json"))
            plan = _read(archive, "plan.json")
            reader = Reader(arrays)
            others = json.loads(_read(archive, "objects.json"))
            inputs = {name: reader.value(value) for name, value in others.items()}
        version = str(about["version"])
    except FlowschedError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, LookupError, ValueError, TypeError, AttributeError,
            EOFError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:  # fmt: skip
        raise InvalidRequest(
            f"this is no snapshot that flowsched {VERSION} can read: {type(error).__name__}: {error!s:.200}"
        ) from error
    inputs["profile"] = policies_from(profile, plugins or {}, broken).default
    return Record(inputs, plan, version)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
    if entry.file_size > _LARGEST:
        raise InvalidRequest(f"{name} of the snapshot is larger than {_LARGEST:,} bytes")
    if entry.compress_type not in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raise InvalidRequest(f"{name} of the snapshot is compressed in a way that no snapshot is")
    return archive.read(name)


def replayed(record: Record, profile: Profile | None = None) -> Plan:
    """Decide again; under another profile, if one is given.

    Raises:
        InvalidRequest: The cycle of this version needs something that the file does not hold.
    """
    inputs = {**record.inputs, "profile": profile if profile is not None else record.profile}
    try:
        bound = inspect.signature(cycle).bind(**inputs)
    except TypeError as error:
        raise InvalidRequest(f"the snapshot was made by flowsched {record.version}: {error}") from None
    return cycle(*bound.args, **bound.kwargs)


# ---- differences between two plans, in words ----
#
# Plans come as `plan_bytes` writes them.


#: More differences than this are counted.
SHOWN: Final = 50
#: More nodes of one role than this are counted.
_NODES: Final = 8


def summary(plan: Mapping[str, Any]) -> str:
    """What a plan decides, in one line."""
    pods = sum(len(nodes) for each in plan["placements"] for nodes in each["nodes"])
    codes: dict[str, int] = {}
    for each in plan["reasons"]:
        codes[each["code"]] = codes.get(each["code"], 0) + 1
    waits = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "nobody"
    return (
        f"{pods} pods of {len(plan['placements'])} groups placed, {len(plan['reservations'])} reserved; "
        f"who waits: {waits}"
    )


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], backlog: Sequence[PodGroup], nodes: Sequence[str]
) -> list[str]:
    """What another plan decides otherwise, a line each; none exactly where the plans are equal.

    Args:
        before: One plan.
        after: The other.
        backlog: For the names of groups.
        nodes: For the names of nodes.
    """
    names = {group.key: group.name for group in backlog}
    lines: list[str] = []
    for part in sorted({*before, *after}):
        old, new = before.get(part), after.get(part)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list) and _by_group(old) and _by_group(new):
            lines += _groups(part, old, new, names, nodes)
        else:
            lines.append(f"{part}: {_short(old)} -> {_short(new)}")
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"... and {len(lines) - SHOWN} more differences"]
    return lines


def _by_group(entries: Sequence[Any]) -> bool:
    return all(isinstance(each, dict) and "group" in each for each in entries)


def _groups(
    part: str, old: Sequence[Any], new: Sequence[Any], names: Mapping[int, str], nodes: Sequence[str]
) -> list[str]:
    """Entries of groups: those that one plan has alone, those that differ, and their order."""
    was, now = ({each["group"]: each for each in entries} for entries in (old, new))
    lines = []
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            about = f"{part} of {names.get(key, 'group')} (group {key})"
            lines.append(f"{about}: {_entry(was.get(key), nodes)} -> {_entry(now.get(key), nodes)}")
    if not lines:
        first = next(at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        lines.append(f"{part}: the same, in another order from the {first + 1}. on")
    return lines


def _entry(entry: Mapping[str, Any] | None, nodes: Sequence[str]) -> str:
    if entry is None:
        return "none"
    parts = []
    for name, value in entry.items():
        if name == "group":
            continue
        if name == "nodes":
            parts.append("on " + " | ".join(_placed(role, nodes) for role in value))
        elif value not in ([], {}, None):
            parts.append(f"{name} {_short(value)}")
    return ", ".join(parts)


def _placed(role: Sequence[int], nodes: Sequence[str]) -> str:
    shown = [nodes[at] if 0 <= at < len(nodes) else str(at) for at in role[:_NODES]]
    more = f" and {len(role) - _NODES} more" if len(role) > _NODES else ""
    return (" ".join(shown) or "nothing") + more


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
