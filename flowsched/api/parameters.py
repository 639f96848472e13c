"""Query strings, path segments and JSON bodies become typed values, or a 400 that says all that is wrong."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import MultiMapping

from flowsched.api.routes import Call, Limits, Q
from flowsched.aside import aside
from flowsched.errors import Fault, InvalidRequest, TooLarge
from flowsched.workflow.document.reader import read_document

S = TypeVar("S", bound=msgspec.Struct)

#: The most parts of a form.
_MOST_PARTS: Final = 2_000
#: A fault shows at most so much of what was sent.
SHOWN: Final = 60
#: Longer path segments and parameters name nothing that could exist.
LONGEST: Final = 1024
#: Texts that pass `check_text`, as a pattern for the published description.
TEXT: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
_WHOLE: Final = re.compile("-?[0-9]+")
#: As in Stripe's and the IETF's draft: opaque, printable, short.
LONGEST_KEY: Final = 255
#: The values of headers with a meaning here, as patterns for the published description.
HEADERS: Final = {"Idempotency-Key": f"^[ -~]{{1,{LONGEST_KEY}}}$", "Last-Event-ID": "^[0-9]{0,18}$"}


class InvalidParameters(InvalidRequest):
    """Parameters or a small body are wrong; `faults` holds all that is, with paths such as `?limit`."""

    title = "The request's parameters have faults"

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(str(fault) for fault in self.faults))


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """The fields of a struct by their names in JSON; msgspec reads its annotations anew each time."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def decode_query(query: MultiMapping[str], kind: type[Q]) -> Q:
    """Read query parameters as a struct.

    Each parameter is converted on its own, so that all faults are found at once. Unknown and repeated names
    are faults too: a misspelt filter that is ignored would list (or cancel) more than was meant.

    Raises:
        InvalidParameters: With everything that is wrong.
    """
    if not query:
        return kind()
    fields = _fields(kind)
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for name in dict.fromkeys(query):
        texts = query.getall(name)
        if name not in fields:
            if not kind.strict:
                continue
            faults.append(Fault(f"?{shown(name)}", "an unknown parameter", allowed(fields)))
        elif _is_list(fields[name].type):
            values[name] = texts
            for text in texts:
                _converted(f"?{name}", text, str, faults)
        elif len(texts) > 1:
            faults.append(Fault(f"?{name}", f"{len(texts)} values", "one value"))
        else:
            value = _converted(f"?{name}", texts[0], fields[name].type, faults)
            values[fields[name].name] = value
    if faults:
        raise InvalidParameters(faults)
    return kind(**values)


def _is_list(kind: Any) -> bool:
    """Whether a parameter may be given several times."""
    return get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind) is list


def _converted(path: str, text: str, kind: Any, faults: list[Fault]) -> Any:
    try:
        check_text(path, text)
        value = msgspec.convert(text, kind, strict=False)
        if value is None:  # msgspec takes the text "null" for it: a filter that was given would not filter
            faults.append(Fault(path, repr(shown(text)), _expected("", kind)))
        if isinstance(value, int) and not isinstance(value, bool) and not _WHOLE.fullmatch(text):
            faults.append(Fault(path, repr(shown(text)), "a whole number"))  # msgspec takes 1e3 too
        return value
    except InvalidParameters as error:
        faults.extend(error.faults)
    except msgspec.ValidationError as error:
        faults.append(Fault(path, repr(shown(text)), _expected(str(error), kind)))
    return None


def path_text(request: web.Request, name: str) -> str:
    """A path segment; the service says whether it names anything."""
    text = request.match_info[name]
    check_text(f"{{{name}}}", text)
    return text


def path_index(request: web.Request, name: str = "index") -> int:
    """A path segment that is a number of a task."""
    text = request.match_info[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidParameters(
            [Fault(f"{{{name}}}", repr(shown(text)), "a whole number from 0 to 999999999")]
        )
    return int(text)


def task_of(call: Call[Any]) -> tuple[str, str, int]:
    """(workflow, stage, index) of a task's path."""
    return path_text(call.request, "workflow"), path_text(call.request, "stage"), path_index(call.request)


def check_text(path: str, text: str) -> None:
    """Refuse what no name can hold: control characters (SQL has no NUL), lone surrogates, endless text."""
    if len(text) > LONGEST:
        raise InvalidParameters([Fault(path, f"{len(text)} characters", f"at most {LONGEST}")])
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise InvalidParameters([Fault(path, repr(shown(text)), "text without control characters")])


def idempotency_key(request: web.Request) -> str | None:
    """The `Idempotency-Key` header: 1 to 255 printable ASCII characters."""
    keys = request.headers.getall("Idempotency-Key", [])
    if not keys:
        return None
    key = keys[0]
    if len(keys) > 1 or not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        expected = f"one value of 1 to {LONGEST_KEY} printable ASCII characters"
        raise InvalidParameters([Fault("Idempotency-Key", repr(shown(", ".join(keys))), expected)])
    return key


def last_event_id(request: web.Request, after: int) -> int:
    """Where an event stream goes on. `Last-Event-ID` wins: browsers reconnect with the first URL."""
    text = request.headers.get("Last-Event-ID")
    if text is None or text == "":
        return after
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidParameters([Fault("Last-Event-ID", repr(shown(text)), "the id of an event")])
    return int(text)


async def read_body(request: web.Request, limit: int, limits: Limits) -> bytes:
    """Read a body of at most `limit` bytes; a longer one is refused before it is read, or while it comes.

    Raises:
        TooLarge: With the limit.
        InvalidRequest: It is compressed, or does not arrive in time.
    """
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise InvalidRequest("The body is compressed (Content-Encoding); send it as it is")
    if request.content_length is not None and request.content_length > limit:
        raise TooLarge(f"The body has {request.content_length} bytes; at most {limit} are accepted")
    parts = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.content.iter_any():
                parts += part
                if len(parts) > limit:
                    raise TooLarge(f"The body has more than {limit} bytes, which is the limit")
    except TimeoutError:
        raise InvalidRequest(f"The body did not arrive within {limits.body_seconds:.0f} s") from None
    return bytes(parts)


class Part(NamedTuple):
    """A part of a form."""

    name: str
    filename: str  #: "" = it is no file
    data: bytes


async def read_form(request: web.Request, limits: Limits) -> list[Part]:
    """The parts of a form, in their order, which have no more bytes together than a body may have.

    Raises:
        TooLarge: They have more.
        InvalidRequest: It is no form, or does not arrive in time.
    """
    parts: list[Part] = []
    left = limits.body_bytes
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or part.name is None:
                    raise InvalidRequest("A part of the form has no name")
                found = bytearray()
                while chunk := await part.read_chunk():
                    found += chunk
                    if len(found) > left:
                        raise TooLarge("The form has more bytes than a body may have")
                left -= len(found)
                parts.append(Part(part.name, part.filename or "", bytes(found)))
                if len(parts) > _MOST_PARTS:
                    raise TooLarge(f"The form has more than {_MOST_PARTS} parts")
    except TimeoutError:
        raise InvalidRequest(f"The form did not arrive within {limits.body_seconds:.0f} s") from None
    except (HttpProcessingError, ValueError, AssertionError, RuntimeError) as error:
        raise InvalidRequest(f"The form cannot be read: {error}") from error
    return parts


async def read_json(request: web.Request, kind: type[S], limits: Limits) -> S:
    """Read a small JSON body as a struct; an empty body is an empty object.

    Raises:
        InvalidRequest: Not JSON, a repeated key, a number that is none.
        InvalidParameters: Wrong types or unknown fields.
    """
    raw = await read_body(request, limits.small_body_bytes, limits)
    return await aside(len(raw), decode_body, raw, kind)


def decode_body(raw: bytes, kind: type[S]) -> S:
    """Decode a small JSON object, as strictly as a workflow: no NaN, no repeated keys, no deep nesting."""
    value = read_document(raw) if raw.strip() else {}
    if not isinstance(value, dict):
        raise InvalidParameters([Fault("$", type(value).__name__, "an object")])
    return _checked(value, kind)


def _checked(value: dict[str, Any], kind: type[S]) -> S:
    fields = _fields(kind)
    faults = [
        Fault(f"$.{shown(name)}", "an unknown field", allowed(fields)) for name in value.keys() - fields
    ]
    faults += [
        Fault(f"$.{name}", "nothing", _expected("", field.type))
        for name, field in fields.items()
        if field.required and name not in value
    ]
    values: dict[str, Any] = {}
    for name in value.keys() & fields.keys():
        try:
            values[fields[name].name] = msgspec.convert(_whole(value[name]), fields[name].type)
            _check_texts(f"$.{name}", value[name])
        except InvalidParameters as error:
            faults.extend(error.faults)
        except msgspec.ValidationError as error:
            message, _, at = str(error).partition(" - at `$")
            found = shown(repr(value[name]))
            faults.append(Fault(f"$.{name}{at.rstrip('`')}", found, _expected(message, fields[name].type)))
    if faults:
        raise InvalidParameters(sorted(faults, key=lambda fault: fault.path))
    return kind(**values)


def _whole(value: Any) -> Any:
    """An integer as JSON Schema has it: 3.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_texts(path: str, value: Any) -> None:
    if isinstance(value, str):
        check_text(path, value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            check_text(path, name)
            _check_texts(f"{path}.{name}", inner)


def _expected(message: str, kind: Any) -> str:
    """The expected value, from msgspec's message: it says "Expected `int` >= 1, got `str`", or what was invalid."""
    if not message.startswith("Expected"):
        (schema,), components = msgspec.json.schema_components([kind])
        for part in (schema, *schema.get("anyOf", ()), *components.values()):
            if "enum" in part:
                return allowed(part["enum"])
    if "matching regex" in message:
        (schema,), _ = msgspec.json.schema_components([kind])
        for part in (schema, *schema.get("anyOf", ())):
            if part.get("examples"):
                return "text such as " + " or ".join(map(str, part["examples"]))
    wanted = message.split(", got ")[0].removeprefix("Expected ").replace("`", "")
    if wanted == "object":
        (schema,), _ = msgspec.json.schema_components([kind])
        for part in (schema, *schema.get("anyOf", ())):
            if part.get("examples"):
                return f"an object, as {json.dumps(part['examples'][0])}"
    return {"bool": "true or false", "int": "a whole number", "str": "text"}.get(wanted, wanted)


def allowed(fields: Iterable[str]) -> str:
    """Say which names there are."""
    names = sorted(fields)
    return "one of " + ", ".join(names) if names else "none"


def shown(text: str, most: int = SHOWN) -> str:
    """Shorten what was sent, for a message."""
    return text if len(text) <= most else text[:most] + "…"
