"""Reading untrusted JSON: text into values, values by typed questions, and names; each wrong answer becomes a fault.

A `Reader` belongs to one document and collects its faults; see `keys` for the objects of it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeGuard, TypeVar

from flowsched.errors import Fault, InvalidDocument, InvalidRequest
from flowsched.workflow.document.limits import DEFAULT, Limits, exceeded
from flowsched.workflow.json_pieces import Structure, parse

T = TypeVar("T")

_STR: Final = frozenset({str})
_SHOWN: Final = 60  #: characters of a text that a fault repeats
_LONGEST_KEY: Final = 100  #: a longer key is not repeated in a path
_COMPARISONS: Final = 2_000  #: names compared for "did you mean", per document: some 20 ms


#: The expected value of a key for texts where users often write a truth value.
TRUTH: Final = 'text (a truth value needs quotes: "true")'


class Number(str):
    """A number with a fraction or an exponent, as it is written in JSON: `1.50` is no other text where text is meant."""

    __slots__ = ()


def written(value: object) -> object:
    """A number as the text that it is written as; anything else as it is."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Number | int):
        return str(value)
    return repr(float(value)) if isinstance(value, float) and isfinite(value) else value


def child(path: str, key: str) -> str:
    """The JSON path of a member; of the object itself where the key is too long to repeat."""
    if len(key) > _LONGEST_KEY:
        return path
    return f"{path}.{key}" if key.isidentifier() and key.isascii() else f"{path}[{json.dumps(key)}]"


def shown(value: object) -> str:
    """A value as a fault repeats it: short, one line, and containers by their size alone."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
        case float():
            return repr(value)
        case Number():
            return str(value)
        case str():
            cut = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
            return json.dumps(cut, ensure_ascii=not cut.isprintable())
        case Mapping():
            return f"an object with {len(value)} key{'s' * (len(value) != 1)}"
        case list() | tuple():
            return f"an array of {len(value)}"
    return f"a Python {type(value).__name__}"


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is surely an object with texts as keys, as nearly all are: `Reader.mapping` says what else it is."""
    return type(value) is dict and _STR.issuperset(map(type, value))


class Reader:
    """Collects the faults of one document."""

    __slots__ = ("_comparisons", "_more", "faults", "limits", "longest")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.longest = (
            limits.string_bytes // 4
        )  #: a text of so many characters is within `string_bytes` in any case
        self.faults: list[Fault] = []
        self._more = 0
        self._comparisons = _COMPARISONS

    def fault(self, path: str, found: str, expected: str) -> None:
        """Note a fault. Beyond the limit they are only counted."""
        if self.full:
            self._more += 1
        else:
            self.faults.append(Fault(path, found, expected))

    def skip(self, count: int) -> None:
        """Count entries that were not looked at, since no more faults are written down."""
        self._more += count

    @property
    def full(self) -> bool:
        """Whether further faults are only counted: then a loop may stop."""
        return len(self.faults) >= self.limits.faults

    def finish(self) -> None:
        """Raise the faults found, if there are any.

        Raises:
            InvalidDocument: With every fault.
        """
        if self._more:
            self.faults.append(
                Fault(
                    "$",
                    f"{self._more:,} more entries with faults or not looked at",
                    "the faults above mended first",
                )
            )
        if self.faults:
            raise InvalidDocument(self.faults)

    def unknown(self, path: str, key: str, known: Collection[str]) -> None:
        """Note a key that does not exist, with the one that was probably meant."""
        if self.full:
            self._more += 1
            return
        self.fault(child(path, key), f"the key {shown(key)}", self.hint(key, known))

    def hint(self, word: str, known: Collection[str]) -> str:
        """The words expected in place of another: the known one that was probably meant, or all of them."""
        close = self.meant(word, known)
        return f"did you mean {close!r}?" if close else f"one of {', '.join(known)}"

    def mapping(self, value: object, path: str) -> Mapping[str, object] | None:
        """An object with texts as keys."""
        if not isinstance(value, Mapping):
            self.fault(path, shown(value), "an object")
            return None
        for key in value:
            if not isinstance(key, str):
                self.fault(path, f"the key {shown(key)}", "keys that are texts")
                return None
        return value

    def array(self, value: object, path: str, *, empty: bool = True) -> Sequence[object] | None:
        """An array."""
        if not isinstance(value, list | tuple):
            self.fault(path, shown(value), "an array")
            return None
        if not value and not empty:
            self.fault(path, "an array of 0", "at least one entry")
            return None
        return value

    def text(self, value: object, path: str, expected: str = "text", *, secret: bool = False) -> str | None:
        """A text that a process, a file name and a database can hold: no NUL, no half surrogate."""
        if not isinstance(value, str) or isinstance(value, Number):
            self.fault(path, shown(value), expected)
            return None
        if len(value) > self.longest:
            self.check_length(value, path)
        if "\0" in value:
            what = "a text" if secret else shown(value)
            self.fault(path, f"{what} with a NUL character at {value.index(chr(0))}", "text without NUL")
            return None
        if not value.isascii() and not encodable(value):
            self.fault(path, "a text with half of a surrogate pair", "text that can be encoded")
            return None
        return value

    def check_length(self, value: str, path: str) -> None:
        """Refuse a text that is too long.

        Raises:
            TooLarge: Its UTF-8 is longer than `string_bytes`.
        """
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > self.limits.string_bytes:
            exceeded(
                "string_bytes", self.limits.string_bytes, f"the text at {path} is too long (bytes)", size
            )

    def count(self, limit: str, found: int, what: str) -> None:
        """Refuse too many of something.

        Raises:
            TooLarge: There are more than the limit of that name allows.
        """
        allowed: int = getattr(self.limits, limit)
        if found > allowed:
            exceeded(limit, allowed, what, found)

    def meant(self, word: str, known: Collection[str]) -> str | None:
        """The known name that a misspelt one probably meant. Stops looking when a document has too many."""
        if len(word) > _SHOWN or self._comparisons <= 0:
            return None
        self._comparisons -= len(known) // 100 + 1
        candidates = [name for name in known if abs(len(name) - len(word)) <= 3]
        if len(candidates) > self._comparisons:
            candidates = [name for name in candidates if name[:2].lower() == word[:2].lower()]
        if len(candidates) > self._comparisons:
            return None
        self._comparisons -= len(candidates)
        folded = {name.lower().replace("-", "_"): name for name in candidates}
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower().replace("-", "_")
        close = difflib.get_close_matches(snake, folded, n=1, cutoff=0.7)
        return folded[close[0]] if close else None


def encodable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---- JSON text as Python values, or one clear refusal ----
#
# Two things are found here that a JSON parser keeps to itself: keys that occur twice (most parsers silently keep the last) and
# how deep and how many the values are (checked on the bytes, before the parser spends its stack and memory on them).


_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF: Final = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].))", re.DOTALL
)


def read_document(raw: bytes, limits: Limits = DEFAULT, number: Callable[[str], object] = float) -> object:
    """Parse JSON strictly.

    Args:
        raw: The document as sent.
        limits: `document_bytes`, `depth`, `objects` and `values` are checked.
        number: Makes the value of a number with a fraction or an exponent.

    Raises:
        InvalidRequest: Not JSON, not UTF-8, or JSON that means different things to different readers: a
            key twice in one object, NaN, a number beyond a float's range, half of a surrogate pair.
        TooLarge: A limit is exceeded.
    """
    if len(raw) > limits.document_bytes:
        exceeded("document_bytes", limits.document_bytes, "the document is too large (bytes)", len(raw))
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None

    def loads(piece: bytes, begin: int) -> object:
        return _loads(piece, raw, begin, number)

    return parse(Structure(raw, limits), loads)


def _loads(piece: bytes, raw: bytes, begin: int, number: Callable[[str], object]) -> object:
    """Parse a piece of `raw`, which begins there."""
    _check_surrogates(piece)

    def finite(text: str) -> object:
        if not isfinite(float(text)):
            raise InvalidRequest(f"the number {text[:32]!a} is beyond the range of a float")
        return number(text)

    try:
        return json.loads(
            piece.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=finite
        )
    except json.JSONDecodeError as error:
        place = begin + len(piece.decode()[: error.pos].encode())
        line = raw.count(b"\n", 0, place) + 1
        column = len(raw[raw.rfind(b"\n", 0, place) + 1 : place].decode()) + 1
        begins = error.msg == "Expecting value" and raw.strip() and not raw[:place].strip()
        hint = " (commands such as `flowsched submit` read YAML, HTTP does not)" if begins else ""
        raise InvalidRequest(f"not JSON: {error.msg}: line {line}, column {column}{hint}") from None
    except ValueError:  # from int(): the interpreter refuses to convert more than 4,300 digits
        raise InvalidRequest("a whole number has more than 4,300 digits") from None


def _check_surrogates(raw: bytes) -> None:
    if _SURROGATE.search(raw) is None:
        return
    found = _HALF.search(raw.replace(b"\\\\", b""))
    if found is not None:
        escape = found[0][:4].decode("ascii")
        raise InvalidRequest(f"half of a surrogate pair ({escape}…): not a character, no text can hold it")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise InvalidRequest(f"the key {key[:64]!a} occurs twice in one object")
            keys.add(key)
    return made


def _refuse_constant(name: str) -> object:
    raise InvalidRequest(f"not JSON: {name} is no number")


# ---- names, and the environment variable that a name becomes ----


#: Stages and roles: they become parts of DNS labels and of `stage.output`, hence no dot.
STAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
STAGE_TEXT: Final = "1-63 letters, digits, - or _, the first a letter or digit"
#: Inputs, outputs and queues.
PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
PART_TEXT: Final = "1-63 letters, digits, -, _ or ., the first no - or ."
#: Environment variables, as Kubernetes allows them.
VARIABLE: Final = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]{0,255}")
VARIABLE_TEXT: Final = "1-256 letters, digits, _, - or ., the first no digit"
#: Keys and values of node labels, in selectors and tolerations.
LABEL_KEY: Final = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_KEY_TEXT: Final = 'a label key as in Kubernetes ("disktype", "example.org/zone")'
LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
LABEL_VALUE_TEXT: Final = "a label value as in Kubernetes: at most 63 letters, digits, -, _ or ."
#: A shared storage, as a profile's `storages` names it.
STORAGE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
#: Extended resources: always with a domain, so that a misspelt "memroy" is not one.
EXTENDED: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
#: Variables with this prefix are the service's own.
RESERVED_PREFIX: Final = "FLOWSCHED_"

_NOT_IN_A_VARIABLE: Final = re.compile(r"[^A-Z0-9]")


def variable(kind: str, name: str) -> str:
    """The variable that says where a file is: ("INPUT", "ref-dict") gives FLOWSCHED_INPUT_REF_DICT."""
    return f"{RESERVED_PREFIX}{kind}_{_NOT_IN_A_VARIABLE.sub('_', name.upper())}"
