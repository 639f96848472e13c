"""Reading a container task: its steps, and the files at paths of their own, as GA4GH TES has them; and of which run it is a call.

A task with `steps` sees what `files` puts at absolute paths of its container. Bytes that have to come from elsewhere (s3, http) are
inputs of the stage like any other, so that they are staged, cached and seen by the scheduler; a path that every node sees is used
where it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from flowsched.values import replace
from flowsched.workflow.document import keys
from flowsched.workflow.document.keys import Form, Key, Section, Table
from flowsched.workflow.document.stage import COMMAND, COMMAND_TEXT, ENV, IMAGE, ReadInput, make_command
from flowsched.workflow.document.uris import CONTROL, file_path, redacted, target_path, wrong_uri
from flowsched.workflow.resources import parse_bytes
from flowsched.workflow.spec import (
    Call,
    Container,
    Delivered,
    InputSpec,
    Left,
    LeftFor,
    Mount,
    Placed,
    RoleSpec,
    Step,
)

_MOST: Final = (1 << 53) - 1
_LAST_MS: Final = 253_402_300_799_999  #: the end of the year 9999: no date is later
_PATH_TEXT: Final = "an absolute path of the container, without .. and control characters"


_GOOD_PATH: Final = re.compile(r"/[^\x00-\x1f\x7f]{0,999}")


def _wrong_path(text: str) -> str | None:
    if _GOOD_PATH.fullmatch(text) and ".." not in text:
        return None
    wrong = not text.startswith("/") or ".." in text.split("/") or CONTROL.search(text) is not None
    return _PATH_TEXT if wrong or len(text.encode()) > 4000 else None


def _read_content(section: Section, key: Any) -> str | None:
    """The bytes of a file, as text; it may be longer than other texts."""
    value = section.values[key]
    if isinstance(value, str):
        size = len(value.encode(errors="replace"))
        section.reader.count("content_bytes", size, f"{section.at(key)} is too long")
        return value
    section.fault(key, "text")
    return None


_PATH: Final = keys.text(Form(_PATH_TEXT, wrong=_wrong_path, more={"pattern": "^/"}))
_URI: Final = keys.text(Form("a uri", wrong=wrong_uri), show=redacted)
_SHORT: Final = keys.text(Form("1-1,024 characters", most=1024))
_REQUIRED_SHORT: Final = keys.text(Form("1-1,024 characters", least=1, most=1024))
_IS_FOLDER: Final = Key(keys.FLAG, "Whether it is a folder", default=False)
STEP: Final = Table(
    "A program and its image.",
    {
        "command": Key(COMMAND, "Program and arguments", required=COMMAND_TEXT),
        "image": Key(IMAGE, "Its image, where the cluster uses images"),
        "env": Key(ENV, "Variables"),
        "workdir": Key(_PATH, "Where it starts"),
        "stdin": Key(_PATH, "The file that it reads"),
        "stdout": Key(
            _PATH,
            "A file for the step's output. An attempt empties it when its first step opens it; its later steps add to it",
        ),
        "stderr": Key(_PATH, "The same for its errors"),
        "ignore_error": Key(keys.FLAG, "The next step runs though this one failed", default=False),
    },
)
PLACED: Final = Table(
    "A file that is there before the first step.",
    {
        "path": Key(_PATH, "Where the steps find it", required=_PATH_TEXT),
        "uri": Key(_URI, "`/path` or `file:///path` that every node sees, `http(s)://` or `s3://`"),
        "content": Key(
            keys.Kind(_read_content, {"type": "string"}),
            "The bytes themselves, at most 1 MiB, in place of `uri`",
        ),
        "directory": _IS_FOLDER,
        "size": Key(keys.amount(parse_bytes, 'bytes, as "12Gi"'), "Bytes, if known"),
    },
    rules={"oneOf": [{"required": ["uri"]}, {"required": ["content"]}]},
)
DELIVERED: Final = Table(
    "A file or folder that is delivered when the steps have ended.",
    {
        "path": Key(_PATH, "Where the steps leave it; may hold wildcards", required=_PATH_TEXT),
        "uri": Key(_URI, "Where it goes: `/path`, `file:///path` or `s3://bucket/key`", required="a uri"),
        "directory": _IS_FOLDER,
        "path_prefix": Key(_PATH, "The prefix that is cut off the paths that a wildcard finds"),
        "name": Key(keys.text(), "Its name for people"),
    },
)
MOUNT: Final = Table(
    "A folder of the nodes.",
    {
        "source": Key(_PATH, "A folder that every node sees", required=_PATH_TEXT),
        "path": Key(_PATH, "Where the steps see it", required=_PATH_TEXT),
        "read_only": Key(keys.FLAG, "Whether they may only read it", default=False),
    },
)
LEFT: Final = Table(
    "A file that is there once an attempt has ended, however it ended.",
    {
        "path": Key(_PATH, "Where", required=_PATH_TEXT),
        "content": Key(keys.text(), "The text of the file if the attempt wrote none", required="text"),
        "reason": Key(keys.choice(LeftFor), "Only an end for this reason leaves it"),
    },
)
FILES: Final = Table(
    "The files of steps, at absolute paths of their containers.",
    {
        "inputs": Key(
            keys.list_of(PLACED, "files"),
            "Put there before the first step. A path of the file system is used where it is (every node must see it), read "
            "only; other URIs are staged like any input",
        ),
        "outputs": Key(
            keys.list_of(DELIVERED, "files"),
            "Taken out when the steps have ended; in place before the task has succeeded. Of a task whose last "
            "attempt has failed, what is there is taken out too; one that cannot be is a warning beside the failure. A missing "
            "file is no error. "
            "A `path` with wildcards (`*`, `?`, `[…]` within a name, `**` across folders, `{a,b}`) takes all that fit, each "
            "to `uri` + its path without `path_prefix`",
        ),
        "mounts": Key(
            keys.list_of(MOUNT, "inputs"), "Folders that every node sees, at paths of the container"
        ),
        "volumes": Key(keys.list_of(_PATH, "inputs"), "Empty folders that the steps share"),
        "leave": Key(
            keys.list_of(LEFT, "outputs"),
            "Files that are there once an attempt has ended, however it ended: written if the attempt has not",
        ),
        "return_code": Key(
            _PATH,
            "The file into which the steps write a return code that their client judges by, as Cromwell's scripts do (they "
            "always end with 0). When an attempt has ended well, the number in it is the exit code that lists and views show",
        ),
    },
)
CALL: Final = Table(
    "The larger run that this workflow is one call of.",
    {
        "run": Key(_REQUIRED_SHORT, "Which run: the same text, the same run", required="text"),
        "run_name": Key(_SHORT, "The run's name for people"),
        "source": Key(_SHORT, "The engine that says so"),
        "node": Key(_REQUIRED_SHORT, "Which call of the run", required="text"),
        "shard": Key(keys.number(0, _MOST), "Which element of a scatter"),
        "task": Key(_SHORT, "Which task of the node: the same text, the same task"),
        "attempt": Key(
            keys.number(1, 1_000_000),
            "Which attempt of the task, as the engine numbers them. Without it and `task`, the call is a task of its own "
            "([which task, and which attempt of it](engines.md#what-identifies-a-run-a-kind-a-task-and-an-attempt))",
        ),
        "after": Key(
            keys.list_of(keys.text(Form("text that is not empty", least=1)), "inputs"),
            "Nodes whose outputs it reads",
        ),
        "rank_ms": Key(
            keys.number(0, _MOST), "Expected ms from its start to the end of the run; 0 is unknown", default=0
        ),
        "since_ms": Key(
            keys.number(0, _LAST_MS), "When the run began, wall-clock ms; 0 is unknown", default=0
        ),
        "head": Key(
            keys.FLAG,
            "It is the process of the engine: its end is the end of the run, and the service cancels calls that still live",
            default=False,
        ),
    },
)


class ReadContainer(msgspec.Struct, frozen=True):
    """A container task, and the inputs of its stage that it asks for."""

    container: Container
    inputs: list[ReadInput]


def make_container(section: Section) -> ReadContainer | None:
    """The `steps` and `files` of a stage; None if it is no container task."""
    if "steps" not in section:
        if "files" in section:
            section.fault("files", 'no such key without steps: files at paths of a container need "steps"')
        return None
    _refuse(section, ("command", "inputs", "outputs", "container"))
    for role in (section["roles"] or {}).values():
        _refuse(role, ("command", "container"))
    steps = tuple([_step(entry) for entry in _there(section["steps"])])
    files = section["files"]
    if files is None:
        return ReadContainer(Container(steps), [])
    placed, inputs = _placed(files)
    container = Container(
        steps,
        placed,
        tuple([_delivered(entry) for entry in _there(files["outputs"])]),
        tuple(
            Mount(entry["source"] or "/", entry["path"] or "/", entry["read_only"])
            for entry in _there(files["mounts"])
        ),
        tuple(_there(files["volumes"])),
        tuple(
            Left(entry["path"] or "/", entry["content"] or "", entry["reason"])
            for entry in _there(files["leave"])
        ),
        return_code=files["return_code"],
    )
    return ReadContainer(container, inputs)


def _there(entries: Sequence[Any] | None) -> list[Any]:
    return [entry for entry in entries or () if entry is not None]


def _refuse(section: Section, keys: tuple[str, ...]) -> None:
    for key in keys:
        section.refuse(key, "no such key beside steps: see steps and files")


def step_role(role: RoleSpec, container: Container) -> RoleSpec:
    """The role of a container task as the rest sees it: the last step's image stands for all."""
    if not container.steps:
        return role
    last = container.steps[-1]
    return replace(role, command=last.command, image=last.image)


def _step(entry: Section) -> Step:
    return Step(
        command=make_command(entry) or (),
        image=entry["image"],
        env=MappingProxyType(entry["env"] or {}),
        workdir=entry["workdir"],
        stdin=entry["stdin"],
        stdout=entry["stdout"],
        stderr=entry["stderr"],
        ignore_error=entry["ignore_error"],
    )


def _placed(files: Section) -> tuple[tuple[Placed, ...], list[ReadInput]]:
    placed: list[Placed] = []
    inputs: list[ReadInput] = []
    for number, entry in enumerate(_there(files["inputs"])):
        read, written = entry.read, entry.values
        path, uri, directory = read.get("path") or "/", read.get("uri"), read["directory"]
        if ("uri" in written) == ("content" in written):
            found = "uri and content" if "uri" in entry else "neither uri nor content"
            entry.reader.fault(entry.path, found, "exactly one of uri and content")
            continue
        if "content" in written:
            placed.append(Placed(path, content=entry["content"]))
            continue
        if uri is None:
            continue
        if uri.startswith(("/", "file:")):
            # Escapes are read where the file can be looked for.
            source = uri if uri[0] == "/" or "%" in uri else file_path(uri, bool)
            placed.append(Placed(path, source=source, directory=directory))
            continue
        if directory and uri.startswith("s3:"):
            uri = uri.rstrip("/") + "/"  # all that lies below it
        name = f"file-{number}"
        inputs.append(ReadInput(entry.path, InputSpec(name, uri=uri, size_bytes=entry["size"])))
        placed.append(Placed(path, input=name, directory=directory))
    return tuple(placed), inputs


def _delivered(entry: Section) -> Delivered:
    read = entry.read
    path, uri, prefix = read.get("path") or "/", read.get("uri") or "/", read.get("path_prefix")
    uri = target_path(uri, path) or uri
    if uri.startswith(("http:", "https:")):
        entry.fault("uri", "/absolute/path, file:///path or s3://bucket/key: nothing can be written to http")
    if prefix is not None and not (path == prefix or path.startswith(prefix.rstrip("/") + "/")):
        entry.fault("path_prefix", f"a folder that {path} lies in")
    return Delivered(path, uri, read["directory"], prefix, read.get("name") or "")


def make_call(entry: Section | None) -> Call | None:
    """Of which run a workflow is one call."""
    if entry is None:
        return None
    after = tuple(text or "" for text in entry["after"] or ())
    return Call(**{"run": "", "run_name": "", "source": "", "node": "", **entry.read, "after": after})
