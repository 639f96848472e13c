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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from flowsched.errors import Fault, FlowschedError, InvalidDocument
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.extension import (
    FIELDS,
    Guard,
    GuardedCost,
    GuardedFilter,
    GuardedQueueOrder,
    GuardedVictimOrder,
    Kind,
    Offered,
    guarded,
)
from flowsched.scheduling.policy.framework import PER_QUEUE, PROFILES, Profile
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.document import keys
from flowsched.workflow.document.keys import Key, Section, Table
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import Reader, child, shown
from flowsched.workflow.spec import EMPTY

#: The profile that a profile extends if it names none.
BUILT_IN: Final = "flowsched"
#: Fields of a profile that are not written in it: its key is its name, and `queues` stand beside the profiles.
_ELSEWHERE: Final = frozenset({"name", "queues"})
#: The smallest whole number of a field where it is not 0: for divisors, and for limits that no group would get past.
_LEAST: Final[Mapping[str, int]] = {
    "window": 1, "age_class_ms": 1, "promote_ms": 1, "origin_rate": 1, "default_runtime_ms": 1,
}  # fmt: skip
#: 31,000 years, or a petabyte a second.
_MOST: Final = 10**15
_MOST_PERCENT: Final = 10_000
#: Of one list.
_MOST_LISTED: Final = 10_000
_NAME: Final = keys.Form(
    "a name of 1 to 63 letters, digits, '.', '-' and '_'",
    re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"),
)
_ALONE: Final = keys.Form(f"{_NAME.expected} (or `profiles`, by name)", _NAME.pattern)
_ANY: Final = Key(keys.ANYTHING, "Anything")
#: By field, the texts that are good.
_FORMS: Final[Mapping[str, keys.Form]] = {
    "prefixes": keys.Form(
        "an absolute path or the beginning of a URL: /data, s3://lab",
        re.compile(r"/.*|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.*"),
    )
}


def _profile_of_a_queue(section: Section, key: Any) -> object:
    found = section.values[key]
    if found is None:
        section.fault(key, "the name of a profile")
    return found


_QUEUES: Final = keys.map_of(keys.Kind(_profile_of_a_queue, {}), _MOST_LISTED, keys.Form())
#: The kinds of keys for the parameters of plugins.
_PARAMETERS: Final[Mapping[type, keys.Kind]] = {
    bool: keys.FLAG,
    int: keys.number(-_MOST, _MOST),
    str: keys.text(),
}
_PLUGIN_KINDS: Final = {name: kind for kind, names in FIELDS.items() for name in names}


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that a document declares.

    Args:
        default: The profile in force, with those of queues in its `queues`.
        named: Every profile of the document.
        paths: The path of each in the document.
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
    """Every field of a profile: its values, its default, and its meaning."""
    about = _documented(Profile)
    facts = []
    for name, (each, kind) in written_fields().items():
        made = each.default_factory() if each.default_factory is not MISSING else each.default
        default = values_of(made, name)
        default_text = default if isinstance(default, str) else "[]" if default == [] else shown(default)
        words = _words(_kind(name, kind, lambda *_: None).schema)
        facts.append(FieldFacts(name, words, default_text, about[name], name in PER_QUEUE))
    return facts


def _words(schema: keys.Schema) -> str:
    """The values that a field accepts, in words."""
    match schema:
        case {"title": str(what)}:
            return what
        case {"type": "boolean"}:
            return "true or false"
        case {"minimum": low, "maximum": high}:
            return f"a whole number from {low:,} to {high:,}"
        case {"enum": words}:
            return f"one of {', '.join(words)}"
        case {"type": "array", "items": inner}:
            return f"a list, each {_words(inner)}"
        case {"properties": inner}:
            return f"an object with {', '.join(inner)}"
        case {"anyOf": [inner, {"type": "null"}]}:
            return f"{_words(inner)}, or null"
    return "text"


def _documented(kind: type) -> dict[str, str]:
    """By field, its description in the docstring's Args."""
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
        plugins: The plugins found, by name.
        broken: Entries found that are no working plugin, by name, each with the reason.
        base: The built-in profile that a profile extends if it names none.
        limits: How many faults are reported.

    Raises:
        InvalidDocument: With everything that is wrong.
    """
    reader = Reader(limits)
    made = _Decoder(reader, plugins, broken, base).read(document)
    reader.finish()
    assert made is not None  # `finish` raised the faults that kept it from being made
    return made


PluginReader = Callable[[Kind, Section, Any], Guard | None]


def _kind(name: str, annotation: Any, plugin: PluginReader) -> keys.AnyKind:
    """The kind of key for a field of a type in a document.

    Raises:
        TypeError: The type is one that no document can say.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if name in _PLUGIN_KINDS:
        what = _PLUGIN_KINDS[name]
        one = keys.Kind(partial(plugin, what), {"title": f"a {what} plugin, or null"})
        if origin is not tuple:
            return keys.Kind(
                lambda section, key: None if section.values[key] is None else one.read(section, key),
                one.schema,
            )
        return keys.Kind(keys.list_of(one, _MOST_LISTED).read, {"title": f"a list of {what} plugins"})
    if origin in (Union, UnionType):
        bare = _kind(name, next(each for each in inner if each is not NoneType), plugin)
        schema = {"anyOf": [bare.schema, {"type": "null"}]}
        return keys.Kind(
            lambda section, key: None if section.values[key] is None else bare.read(section, key), schema
        )
    if origin is tuple:
        return keys.list_of(_kind(name, inner[0], plugin), _MOST_LISTED)
    if origin is Literal:
        return keys.choice(inner)
    if annotation is int:
        return keys.number(_LEAST.get(name, 0), _MOST_PERCENT if name.endswith("_percent") else _MOST)
    if hasattr(annotation, "__dataclass_fields__"):
        return _table(annotation, plugin)
    if annotation in (bool, str):
        return keys.FLAG if annotation is bool else keys.text(_FORMS.get(name))
    raise TypeError(f"no document can say {name}: {annotation}; teach scheduling.policy this type")


def _table(kind: type, plugin: PluginReader) -> Table:
    written = written_fields(kind)
    about = _documented(kind)
    fields = {
        name: Key(_kind(name, each, plugin), about.get(name, "")) for name, (_, each) in written.items()
    }
    return Table(kind.__name__, {**fields, **({"extends": _ANY} if kind is Profile else {})})


def _changed(start: Any, section: Section, **more: Any) -> Any:
    """A value with the values of a section in place of its own."""
    changes: dict[str, Any] = {}
    kind: type = type(start)
    for key, (_, annotation) in written_fields(kind).items():
        if key in section and (section[key] is not None or section.values[key] is None):
            changes[key] = _made(section[key], annotation, getattr(start, key))
    return replace(start, **changes, **more)


def _made(read: Any, kind: Any, before: Any) -> Any:
    if isinstance(read, Section):
        return _changed(before if hasattr(before, "__dataclass_fields__") else kind(), read)
    if isinstance(read, list):
        return tuple(_made(each, get_args(kind)[0], None) for each in read)
    return read


@dataclass(slots=True)
class _Decoder:
    reader: Reader
    plugins: Mapping[str, Offered]
    broken: Mapping[str, str]
    base: str
    raw: Mapping[str, Section] = field(default_factory=dict)
    default: str = ""
    made: dict[str, Profile] = field(default_factory=dict)

    def read(self, document: object) -> Policies | None:
        """The document as a whole."""
        profile = _table(Profile, self._plugin)
        queues: Mapping[str, object] = {}
        if isinstance(document, Mapping) and "profiles" not in document:
            self._alone(document, profile)
        else:
            named = keys.map_of(profile, _MOST_LISTED, _NAME, least=1, word="profile")
            fields = {"default": _ANY, "profiles": Key(named, ""), "queues": Key(_QUEUES, "")}
            section = Table("Profiles.", fields).open(self.reader, document, "$")
            if section is None or not section["profiles"]:
                return None
            self.raw, queues = section["profiles"], section["queues"] or {}
            self.default = self._default_name(section)
        for name in self.raw:
            self._profile(name, ())
        of_queues = self._queues(queues)
        if self.default not in self.made:
            return None
        default = replace(self.made[self.default], queues=of_queues)
        paths = {name: section.path for name, section in self.raw.items()}
        return Policies(default, {**self.made, self.default: default}, paths)

    def _alone(self, found: Mapping[str, object], profile: Table) -> None:
        name = Section(self.reader, found, "$").get("name", keys.text(_ALONE), required=_ALONE.expected)
        self.default = name or "unnamed"
        section = profile.open(
            self.reader, {key: value for key, value in found.items() if key != "name"}, "$"
        )
        assert section is not None  # it is an object
        self.raw = {self.default: section}

    def _default_name(self, section: Section) -> str:
        name = section["default"]
        if "default" not in section and len(self.raw) == 1:
            return next(iter(self.raw))
        if isinstance(name, str) and name in self.raw:
            return name
        section.fault("default", f"one of the profiles: {', '.join(self.raw)}")
        return ""

    def _profile(self, name: str, below: tuple[str, ...]) -> Profile:
        """One profile, made from the one it extends. `below`: the profiles that extend it and wait for it."""
        if name not in self.made:
            self.made[name] = PROFILES[self.base]  # each fault is reported once
            section = self.raw[name]
            self.made[name] = _changed(self._extended(name, section, below), section, name=name)
        return self.made[name]

    def _extended(self, name: str, section: Section, below: tuple[str, ...]) -> Profile:
        parent = section["extends"]
        if "extends" not in section:
            parent = self.default if name != self.default and self.default else self.base
            parent = self.base if parent in below else parent  # the default one extends it
        if isinstance(parent, str) and parent in self.raw and parent != name:
            if parent in below:
                section.fault("extends", f"no circle: {' -> '.join((*below, name, parent))}")
                return PROFILES[self.base]
            return self._profile(parent, (*below, name))
        if isinstance(parent, str) and parent in PROFILES:
            return PROFILES[parent]
        others = [each for each in (*self.raw, *PROFILES) if each != name or each in PROFILES]
        section.fault("extends", f"one of {', '.join(dict.fromkeys(others))}")
        return PROFILES[self.base]

    def _queues(self, assigned: Mapping[str, object]) -> dict[str, Profile]:
        queues: dict[str, Profile] = {}
        for queue, name in assigned.items():
            path = child("$.queues", queue)
            if not isinstance(name, str) or name not in self.raw:
                self.reader.fault(path, shown(name), f"one of the profiles: {', '.join(self.raw)}")
            elif self.default in self.made and name != self.default:
                self._comparable(name, path)
                queues[queue] = self.made[name]
        return queues

    def _comparable(self, name: str, path: str) -> None:
        """Fields that concern a cycle as a whole must be set by the default profile alone."""
        own, default = self.made[name], self.made[self.default]
        for key in written_fields():
            if key not in PER_QUEUE and getattr(own, key) != getattr(default, key):
                found, wanted = (shown(values_of(getattr(each, key))) for each in (own, default))
                self.reader.fault(
                    self.raw[name].at(key), found,
                    f"{wanted}, as in {self.default}: it is the same for all queues ({path} names this profile)",
                )  # fmt: skip

    def _plugin(self, kind: Kind, section: Section, key: Any) -> Guard | None:
        """The plugin that stands there by its name, or as an object with its parameters."""
        value = section.values[key]
        entry = {"name": value} if isinstance(value, str) else self.reader.mapping(value, section.at(key))
        if entry is None:
            return None
        path = section.at(key)
        name, at = entry.get("name"), path if isinstance(value, str) else child(path, "name")
        what = self.plugins.get(name) if isinstance(name, str) else None
        if what is None or what.kind is not kind:
            fitting = sorted(each.name for each in self.plugins.values() if each.kind is kind)
            there = f"one of {', '.join(fitting)}" if fitting else "none is installed"
            found = "nothing" if "name" not in entry else shown(name)
            if isinstance(name, str) and name in self.broken:
                found += f", which does not work: {self.broken[name]}"
            found += f", a {what.kind} plugin" if what is not None else ""
            self.reader.fault(at, found, f"a {kind} plugin: {there}")
            return None
        known = {each.name: Key(_PARAMETERS[each.type], each.name) for each in what.parameters}
        values = Table(what.about, {"name": _ANY, **known}).open(self.reader, entry, path)
        return (
            None
            if values is None
            else guarded(what, {name: values[name] for name in known if name in values})
        )


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
    groups = [_group(1, gang=True), _group(2, gang=False)]
    role = groups[0].roles[0]
    match guard:
        case GuardedFilter():
            guard(snapshot, role.shape)
        case GuardedCost():
            guard(snapshot, catalogue, groups[0], role)
        case GuardedQueueOrder():
            guard(groups, _NOW)
        case GuardedVictimOrder():
            guard(snapshot, [(claim,)], _NOW)


def _group(key: int, *, gang: bool) -> PodGroup:
    role = RoleRequest("worker", Shape((1_000, _GIB)), 2, 2 if gang else 1)
    return PodGroup(key, f"rehearsal-{key}", "default", "rehearsal", 0, 0, _NOW - key, gang, (role,))
