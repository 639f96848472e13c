"""Profiles as documents: plain values in, a checked `Profile` out, and back; a profile's plug-ins are tried once. Pure.

    default: lab                  # which profile is in force; may be left out where there is one
    profiles:
      lab: {packing: spread}      # the rest as in the built-in profile `flowsched`
      genomics:
        extends: lab              # the default's default; another profile of this document, or a built-in one
        filters: [only-ssd, {name: only-label, key: tier, value: fast}]
    queues: {germline: genomics}  # groups of this queue are placed under another profile

One profile alone may also stand at the top: `{name: lab, packing: spread}`. The decoder reads the fields of `framework.Profile`
from their types and their meaning from its docstring, so that a new field needs no word here. `control` reads the file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from flowsched.errors import Fault, FlowschedError, InvalidDocument
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.extension import FIELDS, Guard, Kind, Offered, guarded
from flowsched.scheduling.policy.framework import PER_QUEUE, PROFILES, Profile
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import Reader, child, shown
from flowsched.workflow.spec import EMPTY

#: The profile that a profile extends if it names none.
BUILT_IN: Final = "flowsched"
#: Fields of a profile that are not written in it: its key is its name, and `queues` stand beside the profiles.
_ELSEWHERE: Final = frozenset({"name", "queues"})
#: The smallest whole number of a field where it is not 0: what is divided by, and what nothing would get past.
_LEAST: Final[Mapping[str, int]] = {
    "window": 1, "age_class_ms": 1, "promote_ms": 1, "origin_rate": 1, "default_runtime_ms": 1,
}  # fmt: skip
#: 31,000 years, or a petabyte a second.
_MOST: Final = 10**15
_MOST_PERCENT: Final = 10_000
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAME_SAID: Final = "a name of 1 to 63 letters, digits, '.', '-' and '_'"
_PLUGIN_KINDS: Final = {name: kind for kind, names in FIELDS.items() for name in names}
_WRONG: Final = object()


@dataclass(frozen=True, slots=True)
class Policies:
    """What a document says.

    Args:
        default: The profile in force, with those of queues in its `queues`.
        named: Every profile of the document.
        paths: Where they stand in it.
    """

    default: Profile
    named: Mapping[str, Profile]
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The plugins of the profiles in force, each once."""
        found: list[Guard] = []
        for profile in (self.default, *self.default.queues.values()):
            found += [guard for guard in guards_of(profile) if not any(guard is other for other in found)]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """One field of a profile, for people."""

    name: str
    expected: str
    default: str
    about: str
    per_queue: bool


def guards_of(profile: Profile) -> list[Guard]:
    """The third-party plugins of one profile."""
    return [guard for _, guard in plugin_fields(profile)]


def plugin_fields(profile: Profile, path: str = "$") -> Iterator[tuple[str, Guard]]:
    """Where a profile that stands at `path` names its plugins, and each of them."""
    for name in _PLUGIN_KINDS:
        value = getattr(profile, name)
        if isinstance(value, Guard):
            yield child(path, name), value
        for at, each in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(each, Guard):
                yield f"{child(path, name)}[{at}]", each


# ---- the fields ----


@cache
def written_fields(kind: type = Profile) -> Mapping[str, tuple[Field[Any], Any]]:
    """Every field that a document may say, with its type. Kept: Python reads its annotations anew each time, 1 ms."""
    hints = get_type_hints(kind)
    elsewhere = _ELSEWHERE if kind is Profile else ()
    return {each.name: (each, hints[each.name]) for each in fields(kind) if each.name not in elsewhere}


def field_facts() -> list[FieldFacts]:
    """Every field of a profile: what it takes, what it is otherwise, and what it means."""
    about = _documented(Profile)
    facts = []
    for name, (each, kind) in written_fields().items():
        default = values_of(_default(each), name)
        facts.append(FieldFacts(name, expected(name, kind), _said(default), about[name], name in PER_QUEUE))
    return facts


def expected(name: str, kind: Any) -> str:
    """What a field takes, in words.

    Raises:
        TypeError: The type is one that no document can say: see `_decoded`.
    """
    if name in _PLUGIN_KINDS:
        what = f"{_PLUGIN_KINDS[name]} plugin"
        return f"a list of {what}s" if get_origin(kind) is tuple else f"a {what}, or null"
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool:
        return "true or false"
    if kind is int:
        return f"a whole number from {_LEAST.get(name, 0)} to {_most(name):,}"
    if kind is str:
        return "text"
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (Union, UnionType) and NoneType in inner and len(inner) == 2:
        return expected(name, next(each for each in inner if each is not NoneType)) + ", or null"
    if origin is tuple and inner[1:] == (Ellipsis,):
        return f"a list, each {expected(name, inner[0])}"
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
        return "an object with " + ", ".join(written_fields(kind))
    raise TypeError(f"no document can say {name}: {kind}; teach scheduling.policy this type")


def _most(name: str) -> int:
    return _MOST_PERCENT if name.endswith("_percent") else _MOST


def _documented(kind: type) -> dict[str, str]:
    """By field, what the docstring's Args say of it."""
    text = inspect.getdoc(kind) or ""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.partition("Args:\n")[2].splitlines():
        entry = re.fullmatch(r"    ([a-z_0-9, ]+): (.*)", line)
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith("        "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        elif line.strip():
            break
    return found


def _default(each: Field[Any]) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _said(value: object) -> str:
    return shown(value).strip('"') if isinstance(value, str) else ("[]" if value == [] else shown(value))


# ---- values out ----


def document_of(profile: Profile) -> dict[str, Any]:
    """The whole profile, its queues' too, as a document that gives an equal one.

    Raises:
        FlowschedError: It holds a function that is no plugin, so a reader of the document could not find it.
    """
    named = {profile.name: profile} | {each.name: each for each in profile.queues.values()}
    document: dict[str, Any] = {"default": profile.name}
    document["profiles"] = {name: profile_values(each) for name, each in named.items()}
    if profile.queues:
        document["queues"] = {queue: each.name for queue, each in sorted(profile.queues.items())}
    return document


def profile_values(profile: Profile) -> dict[str, Any]:
    """Every field of one profile as plain values."""
    return {name: values_of(getattr(profile, name), name) for name in written_fields()}


def values_of(value: Any, name: str = "") -> Any:
    """A field's value as a document says it."""
    if isinstance(value, tuple):
        return [values_of(each, name) for each in value]
    if isinstance(value, Guard):
        return {"name": value.name, **dict(value.parameters)} if value.parameters else value.name
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: values_of(getattr(value, each.name), each.name) for each in fields(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise FlowschedError(f"{name}: {value!r} is no plugin of an entry point, so no document can name it")


# ---- values in ----


def policies_from(
    document: object,
    plugins: Mapping[str, Offered],
    broken: Mapping[str, str] = EMPTY,
    *,
    base: str = BUILT_IN,
    limits: Limits = DEFAULT,
) -> Policies:
    """Check a document and make its profiles.

    Args:
        document: As read from YAML or JSON.
        plugins: What was found, by name.
        broken: What was found and is no plugin, by name: why.
        base: The built-in profile that is extended where nothing is said.
        limits: How many faults are told.

    Raises:
        InvalidDocument: With everything that is wrong.
    """
    reader = Reader(limits)
    found = reader.mapping(document, "$")
    made: Policies | None = None
    if found is not None:
        made = _Decoder(reader, plugins, broken, base).read(found)
    reader.finish()
    assert made is not None  # what kept it from being made is a fault
    return made


@dataclass(slots=True)
class _Decoder:
    reader: Reader
    plugins: Mapping[str, Offered]
    broken: Mapping[str, str]
    base: str
    raw: Mapping[str, object] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    default: str = ""
    made: dict[str, Profile] = field(default_factory=dict)

    def read(self, found: Mapping[str, object]) -> Policies | None:
        """The document as a whole."""
        if "profiles" not in found:
            self._alone(found)
        else:
            section = self.reader.section(found, "$", dict.fromkeys(("default", "profiles", "queues"), ""))
            named = self.reader.mapping(found["profiles"], "$.profiles")
            if section is None or not named:
                if named is not None and not named:
                    self.reader.fault("$.profiles", "an object with 0 keys", "at least one profile")
                return None
            self.raw = named
            self.paths = {name: child("$.profiles", name) for name in self.raw}
            for name in self.raw:
                if not _NAME.fullmatch(name):
                    self.reader.fault(self.paths[name], f"the key {shown(name)}", _NAME_SAID)
            self.default = self._default_name(found)
        for name in self.raw:
            self._profile(name, ())
        queues = self._queues(found.get("queues", {})) if "profiles" in found else {}
        if self.default not in self.made:
            return None
        default = replace(self.made[self.default], queues=queues)
        return Policies(default, {**self.made, self.default: default}, self.paths)

    def _alone(self, found: Mapping[str, object]) -> None:
        name = found.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            said = shown(name) if "name" in found else "nothing"
            self.reader.fault("$.name", said, f"{_NAME_SAID} (or `profiles`, by name)")
            name = "unnamed"
        self.raw = {name: {key: value for key, value in found.items() if key != "name"}}
        self.paths, self.default = {name: "$"}, name

    def _default_name(self, found: Mapping[str, object]) -> str:
        name = found.get("default")
        if "default" not in found and len(self.raw) == 1:
            return next(iter(self.raw))
        if isinstance(name, str) and name in self.raw:
            return name
        said = shown(name) if "default" in found else "nothing"
        self.reader.fault("$.default", said, f"one of the profiles: {', '.join(map(str, self.raw))}")
        return ""

    def _profile(self, name: str, below: tuple[str, ...]) -> Profile | None:
        """One profile, made from the one it extends. `below`: the profiles that extend it and wait for it."""
        if name in self.made:
            return self.made[name]
        path = self.paths[name]
        known = dict.fromkeys((*written_fields(), "extends"), "")
        section = self.reader.section(self.raw[name], path, known)
        self.made[name] = PROFILES[self.base]  # each fault is reported once
        if section is None:
            return None
        start = self._extended(name, section.values, path, below)
        changes: dict[str, Any] = {"name": name}
        for key, (_, kind) in written_fields().items():
            if key in section.values:
                value = self._decoded(section.values[key], child(path, key), key, kind, getattr(start, key))
                if value is not _WRONG:
                    changes[key] = value
        self.made[name] = replace(start, **changes)
        return self.made[name]

    def _extended(
        self, name: str, values: Mapping[str, object], path: str, below: tuple[str, ...]
    ) -> Profile:
        said = values.get("extends", self.default if name != self.default and self.default else self.base)
        if "extends" not in values and said in below:  # the default one extends it
            said = self.base
        at = child(path, "extends")
        if isinstance(said, str) and said in self.raw and said != name:
            if said in below:
                self.reader.fault(at, shown(said), f"no circle: {' -> '.join((*below, name, said))}")
                return PROFILES[self.base]
            if said in self.made and said in (*below, name):
                return self.made[said]
            return self._profile(said, (*below, name)) or PROFILES[self.base]
        if isinstance(said, str) and said in PROFILES:
            return PROFILES[said]
        others = [each for each in (*self.raw, *PROFILES) if each != name or each in PROFILES]
        self.reader.fault(at, shown(said), f"one of {', '.join(dict.fromkeys(others))}")
        return PROFILES[self.base]

    def _queues(self, value: object) -> dict[str, Profile]:
        queues: dict[str, Profile] = {}
        for queue, name in (self.reader.mapping(value, "$.queues") or {}).items():
            path = child("$.queues", queue)
            if not isinstance(name, str) or name not in self.raw:
                self.reader.fault(path, shown(name), f"one of the profiles: {', '.join(self.raw)}")
            elif self.default in self.made and name != self.default:
                self._comparable(name, path)
                queues[queue] = self.made[name]
        return queues

    def _comparable(self, name: str, path: str) -> None:
        """What concerns a cycle as a whole must be said by the default profile alone."""
        own, default = self.made[name], self.made[self.default]
        for key in written_fields():
            if key not in PER_QUEUE and getattr(own, key) != getattr(default, key):
                said, wanted = (shown(values_of(getattr(each, key))) for each in (own, default))
                self.reader.fault(
                    child(self.paths[name], key), said,
                    f"{wanted}, as in {self.default}: it is the same for all queues ({path} names this profile)",
                )  # fmt: skip

    # ---- one field ----

    def _decoded(self, value: object, path: str, name: str, kind: Any, before: Any) -> Any:
        """A value of a field's type, or `_WRONG` with a fault."""
        if name in _PLUGIN_KINDS:
            return self._plugins(value, path, _PLUGIN_KINDS[name], many=get_origin(kind) is tuple)
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            bare = next(each for each in inner if each is not NoneType)
            return None if value is None else self._decoded(value, path, name, bare, before)
        if origin is tuple:
            entries = self.reader.array(value, path)
            decoded = [
                self._decoded(each, f"{path}[{at}]", name, inner[0], None)
                for at, each in enumerate(entries or ())
            ]
            return _WRONG if entries is None or _WRONG in decoded else tuple(decoded)
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
            return self._object(value, path, kind, before)
        if origin is Literal:
            right = isinstance(value, str) and value in inner
        elif kind is bool:
            right = isinstance(value, bool)
        elif kind is int:
            whole = isinstance(value, int) and not isinstance(value, bool)
            right = whole and _LEAST.get(name, 0) <= value <= _most(name)  # type: ignore[operator]
        else:
            right = kind is str and isinstance(value, str)
        if right:
            return value
        self.reader.fault(path, shown(value), expected(name, kind))
        return _WRONG

    def _object(self, value: object, path: str, kind: type, before: Any) -> Any:
        known = written_fields(kind)
        section = self.reader.section(value, path, dict.fromkeys(known, ""))
        if section is None:
            return _WRONG
        start: Any = before if isinstance(before, kind) else kind()
        changes: dict[str, Any] = {}
        for key in section.values:
            if key in known:
                changes[key] = self._decoded(
                    section.values[key], child(path, key), key, known[key][1], getattr(start, key)
                )
        return _WRONG if _WRONG in changes.values() else replace(start, **changes)

    def _plugins(self, value: object, path: str, kind: Kind, *, many: bool) -> Any:
        if not many:
            return None if value is None else self._plugin(value, path, kind)
        entries = self.reader.array(value, path)
        made = [self._plugin(each, f"{path}[{at}]", kind) for at, each in enumerate(entries or ())]
        return _WRONG if entries is None or _WRONG in made else tuple(made)

    def _plugin(self, value: object, path: str, kind: Kind) -> Any:
        said = {"name": value} if isinstance(value, str) else self.reader.mapping(value, path)
        if said is None:
            return _WRONG
        name, at = said.get("name"), path if isinstance(value, str) else child(path, "name")
        what = self.plugins.get(name) if isinstance(name, str) else None
        fitting = sorted(each.name for each in self.plugins.values() if each.kind is kind)
        if what is None or what.kind is not kind:
            there = f"one of {', '.join(fitting)}" if fitting else "none is installed"
            found = "nothing" if "name" not in said else shown(name)
            if isinstance(name, str) and name in self.broken:
                found += f", which does not work: {self.broken[name]}"
            found += f", a {what.kind} plugin" if what is not None else ""
            self.reader.fault(at, found, f"a {kind} plugin: {there}")
            return _WRONG
        known = {each.name: each for each in what.parameters}
        right = True
        for key, told in said.items():
            if key == "name":
                continue
            if key not in known:
                self.reader.unknown(path, key, ["name", *known])
                right = False
            elif type(told) is not known[key].type:
                self.reader.fault(child(path, key), shown(told), known[key].expected)
                right = False
        return guarded(what, {k: v for k, v in said.items() if k != "name"}) if right else _WRONG


# ---- the rehearsal ----
#
# Each plug-in of a profile answers once about a small made-up cluster. If one fails, the profile does not come into force.


_GIB: Final = 1 << 30
_NOW: Final = 1_000_000_000


def rehearse(policies: Policies) -> None:
    """Let every plugin of every profile answer once.

    Raises:
        InvalidDocument: With each plugin that failed, where it is named and how it failed.
    """
    faults = []
    for name, profile in policies.named.items():
        for path, guard in plugin_fields(profile, policies.paths[name]):
            _try(guard)
            if guard.trouble.times:
                found = f"plugin {guard.name}, which fails: {guard.trouble.last}"
                faults.append(Fault(path, found, "a plugin that answers"))
    if faults:
        raise InvalidDocument(faults)


def _try(guard: Guard) -> None:
    snapshot, catalogue = Snapshot(), Catalogue()
    for at in range(3):
        snapshot.put_node(NodeInfo(f"rehearsal-{at}", 8_000, 32 * _GIB, labels={"rehearsal": str(at)}))
    claim = Claim("rehearsal", 0, (1_000, _GIB), ClaimKind.RUNNING, "default", 0, None)
    snapshot.claim(claim, Statement())
    catalogue.add_replica(catalogue.intern("rehearsal://input", _GIB, True), 0)
    guard.rehearse(snapshot, catalogue, [_group(1, gang=True), _group(2, gang=False)], _NOW)


def _group(key: int, *, gang: bool) -> PodGroup:
    role = RoleRequest("worker", Shape((1_000, _GIB)), 2, 2 if gang else 1)
    return PodGroup(key, f"rehearsal-{key}", "default", "rehearsal", 0, 0, _NOW - key, gang, (role,))
