"""Reading a container task: its steps, and the files at paths of their own, as GA4GH TES has them; and of which run it is a call.

A task with `steps` sees what `files` puts at absolute paths of its container. Bytes that have to come from elsewhere (s3, http) are
inputs of the stage like any other, so that they are staged, cached and seen by the scheduler; a path that every node sees is used
where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from flowsched.values import replace
from flowsched.workflow.document.reader import Section, child, shown
from flowsched.workflow.document.stage import (
    IMAGE,
    IMAGE_TEXT,
    Given,
    read_arguments,
    wrong_variable,
)
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

_STEP_KEYS: Final[Mapping[str, str]] = {
    "command": "",
    "image": "",
    "env": "",
    "workdir": "",
    "stdin": "",
    "stdout": "",
    "stderr": "",
    "ignore_error": "",
}
_FILES_KEYS: Final[Mapping[str, str]] = {
    "inputs": "",
    "outputs": "",
    "mounts": "",
    "volumes": "",
    "leave": "",
    "return_code": "",
}
_PLACED_KEYS: Final[Mapping[str, str]] = {"path": "", "uri": "", "content": "", "directory": "", "size": ""}
_DELIVERED_KEYS: Final[Mapping[str, str]] = {
    "path": "",
    "uri": "",
    "directory": "",
    "path_prefix": "",
    "name": "",
}
_MOUNT_KEYS: Final[Mapping[str, str]] = {"source": "", "path": "", "read_only": ""}
_LEFT_KEYS: Final[Mapping[str, str]] = {"path": "", "content": "", "reason": ""}
_CALL_KEYS: Final[Mapping[str, str]] = {
    "run": "",
    "run_name": "",
    "source": "",
    "node": "",
    "shard": "",
    "task": "",
    "attempt": "",
    "after": "",
    "rank_ms": "",
    "since_ms": "",
}
_PATH_TEXT: Final = "an absolute path of the container, without .. and control characters"
_MOST: Final = (1 << 53) - 1
_LAST_MS: Final = 253_402_300_799_999  #: the end of the year 9999: no date is later


class ReadContainer(msgspec.Struct, frozen=True):
    """A container task, and the inputs of its stage that it asks for."""

    container: Container
    inputs: list[Given]


def read_container(section: Section) -> ReadContainer | None:
    """Read `steps` and `files` of a stage; None if it is no container task."""
    if "steps" not in section:
        if "files" in section:
            section.fault("files", 'no such key without steps: files at paths of a container need "steps"')
        return None
    _refuse(section, ("command", "inputs", "outputs", "container"))
    roles = section.values.get("roles")
    for name, role in roles.items() if isinstance(roles, Mapping) else ():
        if isinstance(name, str) and isinstance(role, Mapping):
            path = child(section.at("roles"), name)
            _refuse(Section(section.reader, role, path), ("command", "container"))
    section.array("steps", empty=False)
    steps = tuple(_step(entry) for entry in section.sections("steps", "roles", _STEP_KEYS))
    files = section.section("files", _FILES_KEYS) if "files" in section else None
    if files is None:
        return ReadContainer(Container(steps), [])
    placed, inputs = _placed(files)
    container = Container(
        steps,
        placed,
        tuple(_delivered(entry) for entry in files.sections("outputs", "files", _DELIVERED_KEYS)),
        tuple(_mount(entry) for entry in files.sections("mounts", "inputs", _MOUNT_KEYS)),
        _volumes(files),
        tuple(_left(entry) for entry in files.sections("leave", "outputs", _LEFT_KEYS)),
        return_code=_path(files, "return_code"),
    )
    return ReadContainer(container, inputs)


def _refuse(section: Section, keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in section:
            wrong = "no such key beside steps: see steps and files"
            section.reader.fault(section.at(key), f"the key {shown(key)}", wrong)


def step_role(role: RoleSpec, container: Container) -> RoleSpec:
    """The role of a container task as the rest sees it: the last step's image stands for all."""
    if not container.steps:
        return role
    last = container.steps[-1]
    return replace(role, command=last.command, image=last.image)


def _step(entry: Section) -> Step:
    return Step(
        command=read_arguments(entry, required=True) or (),
        image=entry.text("image", IMAGE, IMAGE_TEXT),
        env=entry.texts("env", "environment", wrong_variable, secret=True),
        workdir=_path(entry, "workdir"),
        stdin=_path(entry, "stdin"),
        stdout=_path(entry, "stdout"),
        stderr=_path(entry, "stderr"),
        ignore_error=entry.flag("ignore_error"),
    )


def _placed(files: Section) -> tuple[tuple[Placed, ...], list[Given]]:
    placed: list[Placed] = []
    inputs: list[Given] = []
    for number, entry in enumerate(files.sections("inputs", "files", _PLACED_KEYS)):
        path = _path(entry, "path", required=True) or "/"
        directory = entry.flag("directory")
        size = entry.amount("size", parse_bytes, 'bytes, as "12Gi"')
        if ("uri" in entry) == ("content" in entry):
            found = "uri and content" if "uri" in entry else "neither uri nor content"
            entry.reader.fault(entry.path, found, "exactly one of uri and content")
            continue
        if "content" in entry:
            placed.append(Placed(path, content=_content(entry)))
            continue
        uri = _uri(entry)
        if uri is None:
            continue
        if uri.startswith(("/", "file:")):
            source = (
                uri if "%" in uri else file_path(uri, bool)
            )  # escapes are read where the file can be looked for
            placed.append(Placed(path, source=source, directory=directory))
            continue
        if directory and uri.startswith("s3:"):
            uri = uri.rstrip("/") + "/"  # all that lies below it
        name = f"file-{number}"
        inputs.append(Given(entry.path, InputSpec(name, uri=uri, size_bytes=size)))
        placed.append(Placed(path, input=name, directory=directory))
    return tuple(placed), inputs


def _content(entry: Section) -> str:
    value = entry.values["content"]
    if not isinstance(value, str):
        entry.fault("content", "text")
        return ""
    entry.reader.count(
        "content_bytes", len(value.encode(errors="replace")), f"{entry.at('content')} is too long"
    )
    return value


def _uri(entry: Section) -> str | None:
    uri = entry.text("uri", expected="a uri", required=True)
    if uri is None:
        return None
    wrong = wrong_uri(uri)
    if wrong is not None:
        entry.fault("uri", wrong, redacted(uri))
        return None
    return uri


def _delivered(entry: Section) -> Delivered:
    path = _path(entry, "path", required=True) or "/"
    uri = _uri(entry) or "/"
    uri = target_path(uri, path) or uri
    if uri.startswith(("http:", "https:")):
        entry.fault("uri", "/absolute/path, file:///path or s3://bucket/key: nothing can be written to http")
    prefix = _path(entry, "path_prefix")
    if prefix is not None and not (path == prefix or path.startswith(prefix.rstrip("/") + "/")):
        entry.fault("path_prefix", f"a folder that {path} lies in")
    name = entry.text("name") or ""
    return Delivered(path, uri, entry.flag("directory"), prefix, name)


def _mount(entry: Section) -> Mount:
    source = _path(entry, "source", required=True) or "/"
    return Mount(source, _path(entry, "path", required=True) or "/", entry.flag("read_only"))


def _left(entry: Section) -> Left:
    path, content = _path(entry, "path", required=True), entry.text("content", required=True)
    return Left(path or "/", content or "", entry.choice("reason", {each.value: each for each in LeftFor}))


def _volumes(files: Section) -> tuple[str, ...]:
    found = files.array("volumes") or ()
    files.reader.count("inputs", len(found), f"too many volumes at {files.path}")
    inner = Section(files.reader, {str(i): value for i, value in enumerate(found)}, files.at("volumes"))
    return tuple(_path(inner, str(i)) or "/" for i in range(len(found)))


def _path(entry: Section, key: str, *, required: bool = False) -> str | None:
    """An absolute path of the container."""
    text = entry.text(key, expected=_PATH_TEXT, required=required)
    if text is None:
        return None
    wrong = not text.startswith("/") or ".." in text.split("/") or CONTROL.search(text) is not None
    if wrong or len(text.encode()) > 4000:
        entry.fault(key, _PATH_TEXT)
        return None
    return text


def read_call(section: Section) -> Call | None:
    """Read of which run a workflow is one call."""
    entry = section.section("call", _CALL_KEYS)
    if entry is None:
        return None
    after = _texts(entry, "after")
    return Call(
        run=_short(entry, "run", required=True),
        run_name=_short(entry, "run_name"),
        source=_short(entry, "source"),
        node=_short(entry, "node", required=True),
        shard=entry.whole("shard", 0, _MOST),
        attempt=entry.whole("attempt", 1, 1_000_000) or 0,
        task=_short(entry, "task"),
        after=after,
        rank_ms=entry.whole("rank_ms", 0, _MOST) or 0,
        since_ms=entry.whole("since_ms", 0, _LAST_MS) or 0,
    )


def _short(entry: Section, key: str, *, required: bool = False) -> str:
    text = entry.text(key, required=required) or ""
    if len(text) > 1024 or (required and not text):
        entry.fault(key, "1-1,024 characters")
    return text


def _texts(entry: Section, key: str) -> tuple[str, ...]:
    found: Sequence[object] = entry.array(key) or ()
    entry.reader.count("inputs", len(found), f"too many texts at {entry.at(key)}")
    texts = []
    for i, value in enumerate(found):
        text = entry.reader.text(value, f"{entry.at(key)}[{i}]")
        if text == "":
            entry.reader.fault(f"{entry.at(key)}[{i}]", '""', "text that is not empty")
        texts.append(text or "")
    return tuple(texts)
