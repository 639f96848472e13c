"""Recordings: one cycle in a file (its inputs, the profile, its plan), read back, decided again, and compared.

The file is a zip archive of JSON: `record.json` (version, moment, counts), `profile.json` (as `policy.profile` reads it),
`plan.json` (the plan, readable) and `inputs.json` (the other arguments of the cycle). `replayed` decides again, to the same bytes.
The version that wrote a file reads it. A reader makes only values of the core, which does no I/O: a file runs no code.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from flowsched.errors import FlowschedError, InvalidRequest
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Placement, Plan, Reasons
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.extension import Offered
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.policy.profile import document_of, policies_from
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state import pod_index
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.version import VERSION
from flowsched.workflow.spec import EMPTY

#: Attributes that follow from the others and are computed again on demand: class -> attribute -> its empty value.
TRANSIENT: Final[Mapping[type, Mapping[str, Callable[[], object]]]] = {
    Snapshot: {"cache": dict},
    Catalogue: {"_arrays": dict, "_missing": dict, "caches": lambda: None},
    pod_index.Peers: {"_counts": dict},
    pod_index._Kind: {"counts": list},
    QueueTree: {"_facts": lambda: None},
}
#: Packages whose classes may stand in a file. They do no I/O (the contract "The core is pure" in pyproject.toml).
_CORE: Final = ("flowsched.executor.", "flowsched.scheduling.", "flowsched.workflow.")
#: Fields of a plan that decide nothing: plans that differ only in them are equal.
_UNDECIDED: Final = {(Placement, "choices")}
#: Dtypes that may stand in a file.
_DTYPES: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


#: The types that JSON knows itself.
_ATOMS: Final = frozenset({str, int, bool, NoneType})


class Writer:
    """Turns values into the types that JSON knows. An object that comes twice is written once."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._values: list[object] = []  #: so that no identity is used twice

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
            return entries if kind is tuple else {"=": "list", "of": entries}
        if isinstance(value, Mapping):
            return {"=": "map", "of": [[self.plain(key), self.plain(each)] for key, each in value.items()]}
        if isinstance(value, set | frozenset):
            return {"=": kind.__name__, "of": [self.plain(each) for each in sorted(value)]}
        if isinstance(value, np.integer | np.bool_):
            return value.item()
        if isinstance(value, np.ndarray) and str(value.dtype) in _DTYPES:
            raw = base64.b64encode(value.tobytes()).decode()
            return {"=": "array", "type": str(value.dtype), "shape": list(value.shape), "of": raw}
        where = f"{kind.__module__}:{kind.__qualname__}"
        if not where.startswith(_CORE):
            raise FlowschedError(f"a value of {where} cannot be recorded: {value!r:.80}")
        if isinstance(value, Enum | tuple):
            arguments = value if isinstance(value, tuple) else (value.value,)
            return {"=": "made", "is": where, "of": [self.plain(each) for each in arguments]}
        if id(value) in self._numbers:
            return {"=": "same", "as": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        self._values.append(value)
        without = TRANSIENT.get(kind, {})
        members = {name: getattr(value, name) for name in attributes(value) if name not in without}
        for name, each in members.items():
            if type(each) not in _ATOMS:
                members[name] = self.plain(each)
        return {"=": "object", "is": where, "of": members}


class Reader:
    """Makes values again."""

    def __init__(self) -> None:
        self._objects: list[object] = []

    def value(self, plain: Any) -> Any:
        """The value that `Writer.plain` encoded.

        Raises:
            InvalidRequest: No writer of this version wrote this.
        """
        match plain:
            case None | bool() | int() | str():
                return plain
            case list():
                return tuple(self.value(each) for each in plain)
            case {"=": "list", "of": content}:
                return [self.value(each) for each in content]
            case {"=": "map", "of": content}:
                return {self.value(key): self.value(each) for key, each in content}
            case {"=": "set", "of": content}:
                return {self.value(each) for each in content}
            case {"=": "frozenset", "of": content}:
                return frozenset(self.value(each) for each in content)
            case {"=": "array", "type": dtype, "shape": shape, "of": content} if dtype in _DTYPES:
                raw = base64.b64decode(content, validate=True)
                return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()
            case {"=": "made", "is": where, "of": content}:
                return _class(where)(*(self.value(each) for each in content))
            case {"=": "same", "as": number}:
                return self._objects[number]
            case {"=": "object", "is": where, "of": content}:
                return self._object(_class(where), content)
        raise InvalidRequest(f"{plain!r:.60} is nothing that a snapshot holds")

    def _object(self, kind: type, content: Mapping[str, Any]) -> object:
        at = len(self._objects)
        made: object = None if issubclass(kind, msgspec.Struct) else object.__new__(kind)
        self._objects.append(made)  # before its members, as the writer counts
        if made is None:
            made = self._objects[at] = kind(**{name: self.value(each) for name, each in content.items()})
            return made
        for name, each in content.items():
            object.__setattr__(made, name, self.value(each))
        for name, empty in TRANSIENT.get(kind, {}).items():
            object.__setattr__(made, name, empty())
        return made


def _class(where: str) -> type:
    module, _, name = where.partition(":")
    found = getattr(importlib.import_module(module), name, None) if where.startswith(_CORE) else None
    if not isinstance(found, type) or found.__module__ != module:
        raise InvalidRequest(f"{where!r:.80} is no class of this version's scheduler")
    return found


def attributes(value: object) -> list[str]:
    """The names of all that an object holds, in the order of its class."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if is_dataclass(value):
        return [each.name for each in fields(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", ())]


def readable(value: Any) -> Any:
    """A value for people and for comparing: lists and objects by name, without undecided fields. There is no way back."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): readable(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list | Reasons):
        return [readable(each) for each in value]
    if isinstance(value, msgspec.Struct) or is_dataclass(value):
        names = [name for name in attributes(value) if (type(value), name) not in _UNDECIDED]
        return {name: readable(getattr(value, name)) for name in names}
    raise FlowschedError(f"a plan holds {value!r:.80}, which cannot be written")


# ---- the record ----


#: The largest part that is read: 4 GiB. A file from elsewhere must not fill the memory.
_LARGEST: Final = 4 << 30


class Record(msgspec.Struct, frozen=True):
    """One cycle.

    Args:
        inputs: The arguments of `cycle`, by name.
        plan: The plan that it decided, as `plan_bytes` writes it.
    """

    inputs: Mapping[str, Any]
    plan: bytes

    @property
    def profile(self) -> Profile:
        """The policy it decided under."""
        profile: Profile = self.inputs["profile"]
        return profile


def plan_bytes(plan: Plan) -> bytes:
    """A plan as canonical JSON: equal plans are equal bytes."""
    return json.dumps(readable(plan), ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode()


class Draft(msgspec.Struct, frozen=True):
    """A record as plain values: its sources may change meanwhile, and `packed` may run in a thread."""

    about: Mapping[str, Any]
    profile: Mapping[str, Any]
    plan: Plan
    inputs: Mapping[str, Any]

    def packed(self) -> bytes:
        """The file."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("record.json", json.dumps(self.about, indent=2))
            archive.writestr("profile.json", json.dumps(self.profile, indent=2))
            archive.writestr("plan.json", plan_bytes(self.plan))
            archive.writestr("inputs.json", json.dumps(self.inputs, separators=(",", ":")))
        return file.getvalue()


def recorded(plan: Plan, /, *arguments: Any, **named: Any) -> Draft:
    """A cycle that has just decided, from its arguments as they were given.

    Raises:
        FlowschedError: Something of it cannot be written.
    """
    bound = inspect.signature(cycle).bind(*arguments, **named)
    bound.apply_defaults()
    inputs = dict(bound.arguments)
    profile: Profile = inputs.pop("profile")
    about = {
        "version": VERSION, "now": inputs["now"], "nodes": len(inputs["snapshot"]),
        "groups": len(inputs["backlog"]), "profile": profile.name,
    }  # fmt: skip
    writer = Writer()
    try:
        written = {name: writer.plain(value) for name, value in inputs.items()}
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FlowschedError(f"this cycle cannot be recorded: {type(error).__name__}: {error}") from error
    return Draft(about, document_of(profile), plan, written)


#: Recorded cycles, and why one could not be recorded, in order.
Tape: TypeAlias = "list[Draft | FlowschedError]"


def taped(tape: Tape, plan: Plan, arguments: Sequence[Any]) -> None:
    """Put a cycle on a tape, or why it cannot be recorded: deciding goes on all the same."""
    try:
        tape.append(recorded(plan, *arguments))
    except FlowschedError as error:
        tape.append(error)


def unpacked(
    raw: bytes, plugins: Mapping[str, Offered] | None = None, broken: Mapping[str, str] = EMPTY
) -> Record:
    """Read a file.

    Args:
        raw: The file.
        plugins: The plugins installed here; the recorded profile may name some.
        broken: The installed plugins that do not work, each with the reason.

    Raises:
        InvalidRequest: It is no snapshot, or one of another version.
        InvalidDocument: Its profile needs a plugin that is not here.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            about = json.loads(_read(archive, "record.json"))
            if about["version"] != VERSION:
                raise InvalidRequest(
                    f"the snapshot was made by flowsched {about['version']!s:.20}, and this is {VERSION}: replay it there"
                )
            profile = json.loads(_read(archive, "profile.json"))
            plan = _read(archive, "plan.json")
            reader = Reader()
            written = json.loads(_read(archive, "inputs.json"))
            inputs = {name: reader.value(value) for name, value in written.items()}
        if inputs.keys() != inspect.signature(cycle).parameters.keys() - {"profile"}:
            raise InvalidRequest("the snapshot lacks what a cycle of this version needs")
    except FlowschedError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, LookupError, ValueError, TypeError, AttributeError,
            EOFError, ImportError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:  # fmt: skip
        raise InvalidRequest(
            f"this is no snapshot that flowsched {VERSION} can read: {type(error).__name__}: {error!s:.200}"
        ) from error
    return Record({**inputs, "profile": policies_from(profile, plugins or {}, broken).default}, plan)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _LARGEST:
        raise InvalidRequest(f"{name} of the snapshot is larger than {_LARGEST:,} bytes")
    return archive.read(name)


def replayed(record: Record, profile: Profile | None = None) -> Plan:
    """Decide again; under another profile, if one is given."""
    return cycle(**{**record.inputs, "profile": profile if profile is not None else record.profile})


# ---- differences between two plans, in words ----
#
# Plans come as `plan_bytes` writes them.


#: More differences than this are counted.
SHOWN: Final = 50
#: More nodes of one role than this are counted.
_NODES: Final = 8


def summary(plan: Mapping[str, Any]) -> str:
    """The decisions of a plan, in one line."""
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
    """The differences of another plan, a line each; the list is empty exactly if the plans are equal.

    Args:
        before: One plan.
        after: The other.
        backlog: For the names of groups.
        nodes: For the names of nodes.
    """
    names = {group.key: group.name for group in backlog}
    lines: list[str] = []
    for part in sorted({*before, *after}):
        old, new = _by_group(before.get(part)), _by_group(after.get(part))
        for key in (key for key in {**old, **new} if old.get(key) != new.get(key)):
            about = part if key is None else f"{part} of {names.get(key, 'group')} (group {key})"
            lines.append(f"{about}: {_entry(old.get(key), nodes)} -> {_entry(new.get(key), nodes)}")
    if before != after and not lines:
        lines = ["the same decisions, in another order"]
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"... and {len(lines) - SHOWN} more differences"]
    return lines


def _by_group(entries: Any) -> dict[int | None, Any]:
    """Entries of a part of a plan by the group that they are about; a part about no groups as it is."""
    if isinstance(entries, list) and all(isinstance(each, dict) and "group" in each for each in entries):
        return {each["group"]: each for each in entries}
    return {None: entries}


def _entry(entry: Any, nodes: Sequence[str]) -> str:
    if not isinstance(entry, dict):
        return _short(entry if entry is not None else "none")
    parts = []
    for name, value in entry.items():
        if name == "nodes":
            parts.append("on " + " | ".join(_placed(role, nodes) for role in value))
        elif name != "group" and value not in ([], {}, None):
            parts.append(f"{name} {_short(value)}")
    return ", ".join(parts)


def _placed(role: Sequence[int], nodes: Sequence[str]) -> str:
    shown = [nodes[at] if 0 <= at < len(nodes) else str(at) for at in role[:_NODES]]
    more = f" and {len(role) - _NODES} more" if len(role) > _NODES else ""
    return (" ".join(shown) or "nothing") + more


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
