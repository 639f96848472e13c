"""Tables of keys: the keys of each object of a document. One table drives the reader, the JSON Schema and the reference page.

A `Table` has a `Key` for each key: its kind, its meaning, and its default. A *kind* reads a value (a wrong one is a fault and
gives None) and declares its JSON Schema. The code beside the table checks the keys against each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from flowsched.errors import InvalidRequest
from flowsched.workflow.document.limits import DEFAULT
from flowsched.workflow.document.reader import TRUTH, Reader, child, is_object, shown, written
from flowsched.workflow.spec import EMPTY

Schema = dict[str, Any]

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


Place: TypeAlias = "str | tuple[Place, str | int]"


def _path_of(place: Place) -> str:
    """The JSON path of a place."""
    if isinstance(place, str):
        return place
    path, key = _path_of(place[0]), place[1]
    return child(path, key) if isinstance(key, str) else f"{path}[{key}]"


class Section:
    """One object or array of a document: `values` as they are written, and `read` what its table has made of them.

    By `[key]` a key that is not there, or has a fault, gives its default, or None. It is the member `key` of the section `above`,
    or stands alone at a path.
    """

    __slots__ = ("_place", "read", "reader", "values")

    def __init__(
        self,
        reader: Reader,
        values: Any,
        above: Section | str,
        key: str | int = "",
        defaults: Mapping[str, Any] = EMPTY,
    ) -> None:
        self.reader = reader
        self.values = values
        #: Its path; or the place of the section above, and its key there. Not that section, which has this one in `read`: in a
        #: cycle both would wait for the garbage collector, which looks rarely (`app.spare_the_collector`).
        self._place: Place = above if isinstance(above, str) else (above._place, key)
        self.read = dict(defaults)

    @property
    def path(self) -> str:
        """Its JSON path. Only faults name it, so it is made for those alone."""
        return _path_of(self._place)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def __getitem__(self, key: str) -> Any:
        return self.read.get(key)

    def at(self, key: str | int) -> str:
        """The path of a member, there or not."""
        return _path_of((self._place, key))

    def fault(self, key: str | int, expected: str, found: str | None = None) -> None:
        """Note the fault of a member; `found` if its value shall not be shown itself."""
        if found is None:
            there = isinstance(key, int) or key in self.values
            found = shown(self.values[key]) if there else "nothing"
        self.reader.fault(self.at(key), found, expected)

    def refuse(self, key: str, reason: str) -> None:
        """Note a key that has no place here."""
        if key in self.values:
            self.reader.fault(self.at(key), f"the key {shown(key)}", reason)

    def get(self, key: str, kind: AnyKind, *, required: str = "") -> Any:
        """Read a member that is in no table; `required`: the text of the fault if it is missing."""
        if key in self.values:
            return kind.read(self, key)
        if required:
            self.fault(key, required)
        return None


class Kind(msgspec.Struct, frozen=True):
    """The values that a key accepts: a reader of a section's member (None and a fault if it is wrong), and the JSON Schema."""

    read: Callable[[Section, Any], Any]
    schema: Schema


class Key(msgspec.Struct, frozen=True):
    """One key of an object."""

    kind: AnyKind
    about: str  #: in Markdown, for the reference page
    required: str = ""  #: the expected value, for the fault if it is missing; "" = it may be missing
    default: Any = None  #: as a document says it
    otherwise: str = ""  #: the default, in words

    def schema(self) -> Schema:
        """Its kind with its meaning, without the links of the page."""
        made = {**self.kind.schema, "description": _LINK.sub(r"\1", self.about)}
        return made if self.default is None else {**made, "default": self.default}


class Others(msgspec.Struct, frozen=True):
    """Keys that a table does not name."""

    pattern: re.Pattern[str]
    key: Key
    word: str  #: the word for them in a fault that lists the known keys


class Table:
    """The keys of one kind of object; itself a kind, which reads an object as a `Section`.

    Args:
        about: The meaning of such an object.
        keys: Its keys.
        elsewhere: Key that is known but refused -> the key to write instead.
        others: Further keys, by their form.
        rules: The part of its JSON Schema about several keys together.
        name: Under which its JSON Schema stands in `$defs`; "" = where it is used.
    """

    def __init__(
        self,
        about: str,
        keys: Mapping[str, Key],
        *,
        elsewhere: Mapping[str, str] = EMPTY,
        others: Others | None = None,
        rules: Mapping[str, Any] = EMPTY,
        name: str = "",
    ) -> None:
        self.keys, self.elsewhere, self.name, self._others = keys, elsewhere, name, others
        self._read = {name: key.kind.read for name, key in keys.items()}
        self._required = {name: key.required for name, key in keys.items() if key.required}
        defaults = {name: key.default for name, key in keys.items() if key.default is not None}
        at = Section(Reader(DEFAULT), defaults, "$")
        self._defaults = {name: keys[name].kind.read(at, name) for name in defaults}
        self.definition: Schema = {
            "description": about,
            "type": "object",
            "properties": {name: key.schema() for name, key in keys.items()},
            "additionalProperties": False,
            **({"required": list(self._required)} if self._required else {}),
            **({"patternProperties": {whole(others.pattern): others.key.schema()}} if others else {}),
            **rules,
        }
        self.schema: Schema = {"$ref": f"#/$defs/{name}"} if name else self.definition

    def read(self, section: Section, key: Any) -> Section | None:
        """A member that is an object."""
        return self._open(section.reader, section.values[key], section, key)

    def open(self, reader: Reader, value: object, path: str) -> Section | None:
        """An object that is a member of none: its keys, and each value by itself."""
        return self._open(reader, value, path)

    def _open(
        self, reader: Reader, value: object, above: Section | str, key: str | int = ""
    ) -> Section | None:
        section = Section(reader, value, above, key, self._defaults)
        if not is_object(value) and reader.mapping(value, section.path) is None:
            return None
        if self._others is not None and len(section.values) > reader.limits.labels:
            reader.count("labels", len(section.values), f"too many keys at {section.path}")
        readers, made = self._read, section.read
        for name in section.values:
            read = readers.get(name)
            if read is None and self._others is not None and self._others.pattern.fullmatch(name):
                read = self._others.key.kind.read
            if read is not None:
                if (found := read(section, name)) is not None:
                    made[name] = found
            elif name in self.elsewhere:
                section.refuse(name, self.elsewhere[name])
            else:
                known = [*self.keys, *([self._others.word] if self._others else [])]
                reader.unknown(section.path, name, known)
        for name, expected in self._required.items():
            if name not in section.values:
                section.fault(name, expected)
        return section


AnyKind = Kind | Table


# ---- kinds ----


def whole(pattern: re.Pattern[str]) -> str:
    """A pattern as JSON Schema says that it fits a whole text."""
    return f"^(?:{pattern.pattern})$"


class Form(msgspec.Struct, frozen=True):
    """Which texts are good: those that fit `pattern`, have `least` to `most` characters, and with which `wrong` finds no fault."""

    expected: str = "text"
    pattern: re.Pattern[str] | None = None
    wrong: Callable[[str], str | None] | None = None  #: the text to write instead, or None
    least: int = 0
    most: int = 1 << 31
    more: Mapping[str, Any] = EMPTY  #: JSON Schema of the rule in `wrong`

    def fault(self, text: str) -> str | None:
        """The text expected in place of a wrong one; None if the text is right."""
        if not self.least <= len(text) <= self.most:
            return self.expected
        if self.pattern is not None and self.pattern.fullmatch(text) is None:
            return self.expected
        return None if self.wrong is None else self.wrong(text)

    @property
    def schema(self) -> Schema:
        """The same for other programs."""
        made: Schema = {} if self.pattern is None else {"pattern": whole(self.pattern)}
        made |= {"minLength": self.least} if self.least else {}
        return made | ({"maxLength": self.most} if self.most < 1 << 31 else {}) | dict(self.more)


def text(form: Form | None = None, *, free: bool = False, show: Callable[[str], str] | None = None) -> Kind:
    """A text.

    Args:
        form: Which texts are good.
        free: It is for a process: a number is the text that it is written as.
        show: How a fault says a text that it may not repeat.
    """
    good = form or Form()
    fault = None if form is None else form.fault

    def read(section: Section, key: Any) -> str | None:
        value, reader = section.values[key], section.reader
        # A text with which nothing can be wrong, as nearly all are: its path need not be made.
        if not (
            type(value) is str and len(value) <= reader.longest and value.isascii() and "\0" not in value
        ):
            expected = TRUTH if free and isinstance(value, bool) else good.expected
            value = written(value) if free else value
            value = reader.text(value, section.at(key), expected, secret=show is not None)
            if value is None:
                return None
        wrong = None if fault is None else fault(value)
        if wrong is None:
            return value
        section.fault(key, wrong, (show or shown)(value))
        return None

    return Kind(read, {"type": ["string", "number"] if free else "string", **good.schema})


def hidden(value: str) -> str:
    """A text that a fault may not repeat."""
    return f"a text of {len(value)} characters"


def _read_flag(section: Section, key: Any) -> bool | None:
    value = section.values[key]
    if isinstance(value, bool):
        return value
    section.fault(key, "true or false")
    return None


FLAG: Final = Kind(_read_flag, {"type": "boolean"})
ANYTHING: Final = Kind(lambda section, key: section.values[key], {})


def number(low: int, high: int | str, expected: str = "a whole number") -> Kind:
    """A whole number in a range; more than the limit that `high` names is too large (413)."""

    def read(section: Section, key: Any) -> int | None:
        value = section.values[key]
        most: int = high if isinstance(high, int) else getattr(section.reader.limits, high)
        if isinstance(value, int) and not isinstance(value, bool):
            if low <= value <= most:
                return value
            if isinstance(high, str):
                section.reader.count(high, min(value, 1 << 63), f"{section.at(key)} is too large")
        section.fault(key, f"{expected} from {low:,} to {most:,}")
        return None

    most = high if isinstance(high, int) else getattr(DEFAULT, high)
    return Kind(read, {"type": "integer", "minimum": low, "maximum": most})


def choice(words: Mapping[str, Any] | Iterable[str], refused: Mapping[str, str] = EMPTY) -> Kind:
    """One of several words, each with its meaning; some words of other systems are refused with the reason.

    Of words with one meaning faults name the first.
    """
    known = words if isinstance(words, Mapping) else {str(word): word for word in words}

    def expected(reader: Reader, value: object) -> str:
        if isinstance(value, str):
            if value in refused:
                return refused[value]
            close = reader.meant(value, known)
            if close:
                return f"did you mean {next(word for word in known if known[word] == known[close])!r}?"
        meanings = list(known.values())
        first = [word for at, word in enumerate(known) if meanings.index(meanings[at]) == at]
        return f"one of {', '.join(map(json.dumps, first))}"

    def read(section: Section, key: Any) -> Any:
        value = section.values[key]
        if isinstance(value, str) and value in known:
            return known[value]
        section.fault(key, expected(section.reader, value))
        return None

    return Kind(read, {"enum": list(known)})


def amount(parse: Callable[[object], int], expected: str, form: str = "quantity", **more: Any) -> Kind:
    """A quantity, by the function that reads it; `form` is its JSON Schema in `$defs`, which says `more` here."""

    def read(section: Section, key: Any) -> int | None:
        try:
            return parse(section.values[key])
        except InvalidRequest as error:
            _, _, hint = str(error).partition(": ")
            general = hint.startswith(("write a number", 'write "'))  # says what `expected` says
            section.fault(key, expected if general else f"{expected} ({hint or error})")
            return None

    return Kind(read, {"$ref": f"#/$defs/{form}", **more})


def _few(section: Section, key: Any, found: int, most: int | str) -> bool:
    """Whether there are no more entries than a number; a limit, by its name, ends the document instead."""
    if isinstance(most, str):
        if found > getattr(section.reader.limits, most):
            section.reader.count(most, found, f"too many entries at {section.at(key)}")
    elif found > most:
        section.fault(key, f"at most {most} {key.replace('_', ' ')}")
        return False
    return True


def list_of(of: AnyKind, most: int | str, least: int = 0) -> Kind:
    """An array, read as a list with None in place of each entry that is wrong; `most` is a number, or names a limit."""

    def read(section: Section, key: Any) -> list[Any] | None:
        found = section.values[key]
        if type(found) is not list or not found:
            found = section.reader.array(found, section.at(key), empty=not least)
        if found is None or not _few(section, key, len(found), most):
            return None
        inner, read_one = Section(section.reader, found, section, key), of.read
        return [read_one(inner, i) for i in range(len(found))]

    largest = most if isinstance(most, int) else getattr(DEFAULT, most)
    return Kind(read, {"type": "array", "items": of.schema, "minItems": least, "maxItems": largest})


def map_of(of: AnyKind, most: int | str, name: Form, *, least: int = 0, word: str = "key") -> Kind:
    """An object with keys of one form, read as a dictionary without those that are wrong; `word` is what one is called."""

    def read(section: Section, key: Any) -> dict[str, Any] | None:
        found = section.values[key]
        if not is_object(found):
            found = section.reader.mapping(found, section.at(key))
        if found is None or not _few(section, key, len(found), most):
            return None
        if len(found) < least:
            section.fault(key, f"at least one {word}")
        inner = Section(section.reader, found, section, key)
        for each in found:
            wrong = name.fault(each)
            if wrong is not None:
                section.reader.fault(inner.at(each), f"the {word} {shown(each)}", wrong)
            elif (value := of.read(inner, each)) is not None:
                inner.read[each] = value
        return inner.read

    largest = most if isinstance(most, int) else getattr(DEFAULT, most)
    made = {"type": "object", "maxProperties": largest, "additionalProperties": of.schema}
    made |= {"minProperties": least} if least else {}
    return Kind(read, made | ({"propertyNames": name.schema} if name.schema else {}))


def hinted(of: AnyKind, instead: Callable[[object], str | None]) -> Kind:
    """A kind, with a hint for values that users often write by mistake: `instead` gives the text to write, or None."""

    def read(section: Section, key: Any) -> Any:
        wrong = instead(section.values[key])
        if wrong is None:
            return of.read(section, key)
        section.fault(key, wrong)
        return None

    return Kind(read, of.schema)
