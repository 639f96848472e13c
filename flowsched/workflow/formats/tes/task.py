"""A task as GA4GH TES 1.1 has it: decoded tolerantly where clients differ, strictly where a value has a meaning.

Null stands for "not said" wherever a field is optional, and is dropped (Cromwell sends null tags, pydantic-tes a null for every
field). Fields that are not known are ignored: older and newer clients send others. A wrong type is a fault with its JSON path.

Every field is read in both spellings: `cpu_cores`, as the specification has it, and `cpuCores`, as Protobuf's JSON has it, which
Funnel's Go client sends. Keys of tags, of an environment and of backend_parameters are the sender's own and stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Final, Literal, NoReturn
from urllib.parse import unquote

import msgspec

from flowsched.errors import Fault, InvalidDocument, InvalidRequest
from flowsched.workflow.document.limits import DEFAULT, Limits, exceeded
from flowsched.workflow.document.reader import child, shown
from flowsched.workflow.json_pieces import PIECE, Structure, parse

FileType = Literal["FILE", "DIRECTORY"]


def _described(**schema: object) -> msgspec.Meta:
    """The published description of a field; `document` checks the values, because it finds all faults at once."""
    return msgspec.Meta(extra_json_schema=schema)


_Path = Annotated[str, _described(pattern="^/[^\\x00-\\x1f\\x7f]*$", maxLength=1000)]
_Image = Annotated[str, _described(pattern="^(?!-)[!-~]+$", maxLength=1024)]
_Url = Annotated[
    str, _described(pattern="^(/|file:///|https?://|s3://)", examples=["s3://lab/a.bam", "/data/a.bam"])
]
_Amount = Annotated[float, _described(minimum=0, maximum=(1 << 31) - 1)]
_WILDCARD: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{[^{}]*,[^{}]*\}")
#: As int32 holds it: clients read cores so.
_MOST: Final = (1 << 31) - 1


class InvalidTask(InvalidDocument):
    """The task was understood and is wrong; `faults` holds everything that is. TES clients expect 400."""

    status = 400
    title = "The task has faults"


class Input(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A file that is put into the container. `content` wins over `url` if it is not empty."""

    path: _Path
    name: str | None = None
    description: str | None = None
    url: str | None = None
    type: FileType | None = None
    content: str | None = None
    streamable: bool | None = None


class Output(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A file, a folder, or all files that fit a pattern, taken out of the container."""

    path: _Path
    url: _Url
    name: str | None = None
    description: str | None = None
    path_prefix: str | None = None
    type: FileType | None = None


class Asked(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The resources that a task requests (`resources`). Decimal gigabytes."""

    cpu_cores: int | float | None = None
    preemptible: bool | None = None
    ram_gb: _Amount | None = None
    disk_gb: _Amount | None = None
    zones: list[str] | None = None
    backend_parameters: dict[str, str | None] | None = None
    backend_parameters_strict: bool | None = None


class TaskExecutor(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One program, in an image of its own."""

    image: _Image
    command: Annotated[list[str], _described(minItems=1)]
    workdir: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    env: dict[str, str | None] | None = None
    ignore_error: bool | None = None


class Task(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A task as a client sends it, without the fields that only the server sets (id, state, logs, creation_time)."""

    executors: Annotated[list[TaskExecutor], _described(minItems=1)]
    name: str | None = None
    description: str | None = None
    inputs: list[Input] | None = None
    outputs: list[Output] | None = None
    resources: Asked | None = None
    volumes: list[_Path] | None = None
    tags: dict[str, str | None] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Its tags; null was dropped."""
        return {key: value for key, value in (self.tags or {}).items() if value is not None}


#: The objects of a task that have fields of their own: where they stand, and whether there are several.
_PARTS: Final[tuple[tuple[str, type[msgspec.Struct], bool], ...]] = (
    ("executors", TaskExecutor, True),
    ("inputs", Input, True),
    ("outputs", Output, True),
    ("resources", Asked, False),
)
#: The same entries under the names by which limits know them.
_COUNTED: Final = (
    ("executors", "roles"),
    ("inputs", "files"),
    ("outputs", "files"),
    ("volumes", "inputs"),
    ("tags", "labels"),
)
_ENCODER: Final = msgspec.json.Encoder()


def read_task(raw: bytes, limits: Limits = DEFAULT) -> Task:
    """Decode a body of `POST /tasks`.

    Raises:
        InvalidRequest: It is no JSON.
        TooLarge: It is longer than `document_bytes`, or has more entries or levels somewhere than a limit allows.
        InvalidTask: A field has a wrong type or is missing, or stands there in two spellings that differ.
    """
    if len(raw) > limits.document_bytes:
        exceeded("document_bytes", limits.document_bytes, "the task is too large (bytes)", len(raw))
    try:
        sent = parse(Structure(raw, limits), _decoded) if len(raw) > PIECE else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    _check_counts(sent, limits)
    sent = _in_snake_case(sent)
    _check_parts(sent, limits)
    try:
        task = msgspec.convert(sent, Task)
    except msgspec.ValidationError as error:
        _refuse(str(error))
    _tidy(task)
    faults = list(_faults(task))
    if faults:
        raise InvalidTask(faults)
    return task


def _decoded(piece: bytes, _: int) -> object:
    return msgspec.json.decode(piece)


def encode_task(task: Task) -> bytes:
    """The task as JSON, without nulls and without ignored keys."""
    return _ENCODER.encode(task)


def without_content(task: Task) -> Task:
    """The task without the contents of its inputs, as the view BASIC shows it."""
    if not any(each.content for each in task.inputs or ()):
        return task
    inputs = [msgspec.structs.replace(each, content=None) for each in task.inputs or ()]
    return msgspec.structs.replace(task, inputs=inputs)


def _check_counts(sent: object, limits: Limits) -> None:
    """Refuse too many entries before any of them is read: a task beyond a limit costs no more than its decoding."""
    if not isinstance(sent, dict):
        return
    for name, limit in _COUNTED:
        found = sent.get(name)
        if isinstance(found, list | dict) and len(found) > getattr(limits, limit):
            exceeded(limit, getattr(limits, limit), f"too many {name}", len(found))


def _check_parts(sent: object, limits: Limits) -> None:
    """The same for the parts of parts, and for keys: an environment has as many variables as in any document."""
    if not isinstance(sent, dict):
        return
    executors, asked = sent.get("executors"), sent.get("resources")
    holders = [
        (each, f"$.executors[{number}]", "env", "environment")
        for number, each in enumerate(executors if isinstance(executors, list) else ())
    ]
    others = (asked, "$.resources", "backend_parameters", "labels"), (sent, "$", "tags", "labels")
    for part, path, name, limit in [*holders, *others]:
        found = part.get(name) if isinstance(part, dict) else None
        if isinstance(found, dict) and len(found) > getattr(limits, limit):
            exceeded(limit, getattr(limits, limit), f"too many entries at {path}.{name}", len(found))
        key = max(found, key=len, default="") if isinstance(found, dict) else ""
        size = len(key.encode()) if len(key) > limits.string_bytes // 4 else 0
        if size > limits.string_bytes:
            exceeded("string_bytes", limits.string_bytes, f"a key at {path}.{name} is too long (bytes)", size)


def _in_snake_case(sent: object) -> object:
    """The task with every field in the spelling of the specification.

    Raises:
        InvalidTask: A field has different values in its two spellings.
    """
    if not isinstance(sent, dict):
        return sent
    faults: list[Fault] = []
    task = _respelt(sent, Task, "$", faults)
    for name, kind, several in _PARTS:
        part = task.get(name)
        if several and isinstance(part, list):
            task[name] = [
                _respelt(each, kind, f"$.{name}[{i}]", faults) if isinstance(each, dict) else each
                for i, each in enumerate(part)
            ]
        elif not several and isinstance(part, dict):
            task[name] = _respelt(part, kind, f"$.{name}", faults)
    if faults:
        raise InvalidTask(faults)
    return task


def _respelt(
    sent: dict[str, Any], kind: type[msgspec.Struct], path: str, faults: list[Fault]
) -> dict[str, Any]:
    """One object with the fields of `kind` in snake_case; null beside a value says nothing."""
    spellings = _spellings(kind)
    if spellings.keys().isdisjoint(sent):
        return sent
    made = dict(sent)
    for camel, snake in spellings.items():
        if camel not in made:
            continue
        value, other = made.pop(camel), made.get(snake)
        if value is not None and other is not None and value != other:
            expected = "one of the two spellings, or the same value in both"
            faults.append(
                Fault(f"{path}.{camel}", f"{shown(value)}, and {shown(other)} at {snake}", expected)
            )
        made[snake] = value if other is None else other
    return made


@cache
def _spellings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """lowerCamelCase, as Protobuf's JSON spells a field, -> the field; of those that it spells otherwise."""
    names = (field.name for field in msgspec.structs.fields(kind))
    return {re.sub(r"_(.)", lambda found: found[1].upper(), name): name for name in names if "_" in name}


def _refuse(message: str) -> NoReturn:
    """Msgspec's words as a fault: "Expected `str`, got `int` - at `$.inputs[0].path`"."""
    text, _, at = message.partition(" - at `")
    path = at.rstrip("`") or "$"
    missing = re.fullmatch(r"Object missing required field `(\w+)`", text)
    if missing:
        raise InvalidTask([Fault(child(path, missing[1]), "nothing", "a value: it is required")])
    wanted, _, found = text.replace("`", "").partition(", got ")
    raise InvalidTask([Fault(path, found or "another value", wanted.removeprefix("Expected "))])


def _tidy(task: Task) -> None:
    """Drop nulls and empty texts where they say nothing, and say types that were left out."""
    task.tags = _without_nulls(task.tags)
    for executor in task.executors:
        executor.env = _without_nulls(executor.env)
        for name in ("workdir", "stdin", "stdout", "stderr"):
            setattr(executor, name, getattr(executor, name) or None)
    for task_input in task.inputs or ():
        task_input.type = task_input.type or "FILE"
        task_input.url = task_input.url or None
        if task_input.content == "" and task_input.url is not None:
            task_input.content = None
    for taken in task.outputs or ():
        taken.type = taken.type or "FILE"
        taken.path_prefix = taken.path_prefix or None
    if task.resources is not None:
        task.resources.backend_parameters = _without_nulls(task.resources.backend_parameters)
        if isinstance(task.resources.cpu_cores, float):  # answered as a whole number: Cromwell takes no other
            task.resources.cpu_cores = math.ceil(task.resources.cpu_cores)


def _without_nulls(values: dict[str, str | None] | None) -> dict[str, str | None] | None:
    return None if values is None else {key: value for key, value in values.items() if value is not None}


def _faults(task: Task) -> Iterable[Fault]:
    """The faults of a task beside the types, as far as only TES knows them."""
    if not task.executors:
        yield Fault("$.executors", "an array of 0", "at least one executor")
    for number, task_input in enumerate(task.inputs or ()):
        if task_input.url is None and task_input.content is None:
            yield Fault(f"$.inputs[{number}]", "neither url nor content", "one of url and content")
        if task_input.content and task_input.type == "DIRECTORY":
            yield Fault(f"$.inputs[{number}].type", '"DIRECTORY"', '"FILE": content is of a file')
    asked = task.resources or Asked()
    for name in ("cpu_cores", "ram_gb", "disk_gb"):
        amount = getattr(asked, name)
        if amount is not None and not 0 <= amount <= _MOST:
            yield Fault(f"$.resources.{name}", shown(amount), f"a number from 0 to {_MOST:,}")
    for key, value in task.labels.items():
        if "\0" in key + value:
            yield Fault(child("$.tags", key), "a text with a NUL character", "text without NUL")


def wild(taken: Output) -> bool:
    """Whether the path of an output stands for several: with the wildcards of POSIX 12.3 (* ? [...]), or with `{a,b}`, which
    engines send as users write it. Braces alone may be a part of a name: they count where a prefix is given, or the url ends as
    the path does.
    """
    if _WILDCARD.search(taken.path):
        return True
    return _BRACES.search(taken.path) is not None and (taken.path_prefix is not None or ends_alike(taken))


def fixed_part(path: str) -> str:
    """The folder that all matches of a path with wildcards lie in."""
    found = min((each.start() for each in (_WILDCARD.search(path), _BRACES.search(path)) if each), default=0)
    return path[:found].rpartition("/")[0] or "/"


def ends_alike(taken: Output) -> bool:
    """Whether the url of a path with wildcards ends with the same wildcards, as Nextflow's does where it sends no prefix."""
    pattern = taken.path[len(fixed_part(taken.path)) :].lstrip("/")
    return any(url.endswith(f"/{pattern}") for url in (taken.url, unquote(taken.url)))


def folder_and_prefix(taken: Output) -> tuple[str, str]:
    """Where the matches of a path with wildcards go, and what is cut off from theirs: without a prefix the part that is the
    same for all.
    """
    if taken.path_prefix is not None:
        return taken.url, taken.path_prefix
    prefix = fixed_part(taken.path)
    if not ends_alike(taken):
        return taken.url, prefix
    names = taken.path[len(prefix) :].lstrip("/").count("/") + 1
    return taken.url.rsplit("/", names)[0] or "/", prefix
