"""Reading what a stage reads and writes: inputs, outputs, and the URIs in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowsched.workflow import names
from flowsched.workflow.reader import Section, shown
from flowsched.workflow.resources import parse_bytes
from flowsched.workflow.spec import InputSpec, Match, OutputSpec, RoleSpec

_INPUT_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "uri": "",
    "size": "",
    "from": "",
    "match": "",
    "manifest": "",
    "optional": "",
    "url": "uri",
    "path": "uri (what a task reads reaches it by FLOWSCHED_INPUT_<NAME>)",
}
_OUTPUT_KEYS: Final[Mapping[str, str]] = {"name": "", "path": "", "role": "", "optional": "", "value": ""}
_MATCHES: Final = {str(match): match for match in Match}
REFERENCE_TEXT: Final = 'an output of a stage, as "align.bam"'

_AUTHORITY: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_URI: Final = re.compile(
    r"(?:file://(?:localhost)?)?/[^\x00-\x1f\x7f]*"
    rf"|https?://{_AUTHORITY}(?:[/?#][^\x00-\x20\x7f]*)?"
    r"|s3://[A-Za-z0-9][A-Za-z0-9._-]{0,254}/[^\x00-\x1f\x7f]+"
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: Characters that no path and no uri holds.
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_URI_FORMS: Final = "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key"
_ITEM: Final = "{item}"


@dataclass(frozen=True, slots=True)
class Given:
    """An input and where it stands in the document."""

    path: str
    spec: InputSpec


def wrong_uri(uri: str) -> str | None:
    """What is wrong with a URI, in words, or None."""
    if _URI.fullmatch(uri):
        return None
    if CONTROL.search(uri):
        return "a uri without control characters"
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return (
            "an absolute path or file:///…: the service has no working folder "
            "(the command line resolves relative paths against the document's folder)"
        )
    if scheme[1] not in ("file", "http", "https", "s3"):
        return f"{_URI_FORMS}: the scheme {shown(scheme[1])} is not supported"
    if "@" in re.split(r"[/?#]", uri.partition("://")[2], maxsplit=1)[0]:
        return "a uri without user name or password: those belong in secrets, never in a document"
    return _URI_FORMS


def redacted(uri: str) -> str:
    """A URI as a fault shows it: without anything that may be a password or a signature."""
    uri, question, _ = uri.partition("?")
    uri = f"{uri}?…" if question else uri
    head, slashes, rest = uri.partition("//")
    _, at, tail = rest.rpartition("@")
    return shown(f"{head}{slashes}…@{tail}" if at else uri)


def read_inputs(section: Section) -> list[Given]:
    """Read the inputs of a stage; those that make no sense are faults and left out."""
    found = []
    for entry in section.sections("inputs", "inputs", _INPUT_KEYS):
        spec = _input(entry)
        if spec is not None:
            found.append(Given(entry.path, spec))
    _check_variables(section, "INPUT", [(given.path, given.spec.name) for given in found])
    return found


def _input(entry: Section) -> InputSpec | None:
    name = entry.text("name", names.PART, names.PART_TEXT, required=True)
    if ("uri" in entry) == ("from" in entry):
        found = "uri and from" if "uri" in entry else "neither uri nor from"
        entry.reader.fault(entry.path, found, "exactly one of uri and from")
        return None
    spec = _from_outside(entry, name) if "uri" in entry else _from_stage(entry, name)
    return spec if name is not None else None


def _from_outside(entry: Section, name: str | None) -> InputSpec | None:
    for key in ("match", "manifest", "optional"):
        if key in entry:
            entry.reader.fault(
                entry.at(key), f"the key {shown(key)}", "no such key beside uri: it goes with from"
            )
    size = entry.amount("size", parse_bytes, 'bytes, as "12Gi"')
    uri = entry.text("uri", expected="a uri")
    if uri is None:
        return None
    wrong = _wrong_template(uri)
    if wrong is not None:
        entry.fault("uri", wrong, redacted(uri))
        return None
    return InputSpec(name or "", uri=uri, size_bytes=size)


def _wrong_template(uri: str) -> str | None:
    """What is wrong with a URI in which {item} and {index} will be replaced."""
    if uri.startswith(_ITEM):
        return None  # the items are whole uris: `edges` checks each of them
    wrong = wrong_uri(uri.replace(_ITEM, "0").replace("{index}", "0"))
    if wrong is None and re.match(r"[^/?#]*//[^/?#]*\{(?:item|index)\}", uri):
        return "{item} and {index} behind the host or bucket only"
    return wrong


def _from_stage(entry: Section, name: str | None) -> InputSpec | None:
    if "size" in entry:
        entry.reader.fault(entry.at("size"), 'the key "size"', "estimate.output in the stage that writes it")
    text = entry.text("from", expected=REFERENCE_TEXT)
    reference = divide(text or "")
    if text is not None and reference is None:
        entry.fault("from", REFERENCE_TEXT)
    match = entry.choice("match", _MATCHES)
    manifest, optional = entry.flag("manifest"), entry.flag("optional")
    if reference is None:
        return None
    return InputSpec(
        name or "",
        stage=reference[0],
        output=reference[1],
        match=match or Match.ALL,
        manifest=manifest,
        optional=optional,
    )


def divide(reference: str) -> tuple[str, str] | None:
    """Divide "stage.output" at its first dot, since a stage's name has none; None if that is impossible."""
    stage, _, output = reference.partition(".")
    return (stage, output) if stage and output else None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where outputs of a stage lie, by (role, path): the path of the entry that said so."""

    files: dict[tuple[str | None, str], str]
    folders: dict[tuple[str | None, str], str]


def read_outputs(section: Section, roles: Sequence[RoleSpec]) -> list[OutputSpec]:
    """Read the outputs of a stage that has these roles."""
    known = [role.name for role in roles]
    first = next((role.name for role in roles if role.completes), None)
    found: list[OutputSpec] = []
    places: list[tuple[str, str]] = []
    taken = _Places({}, {})
    for entry in section.sections("outputs", "outputs", _OUTPUT_KEYS):
        name = entry.text("name", names.PART, names.PART_TEXT, required=True)
        path = _path(entry)
        role = entry.text("role", expected="the name of a role of this stage")
        if role is not None and role not in known:
            close = entry.reader.meant(role, known)
            hint = f"did you mean {close!r}?" if close else f"one of {', '.join(known)}"
            entry.fault("role", f"a role of this stage: {hint}")
        spec = OutputSpec(name or "", path or "", role, entry.flag("optional"), entry.flag("value"))
        if name is not None:
            found.append(spec)
            places.append((entry.path, name))
        if path is not None:
            _check_place(entry, role or first, path, taken)
    _check_variables(section, "OUTPUT", places)
    return found


def _path(entry: Section) -> str | None:
    path = entry.text("path", expected="a path below the task's working folder", required=True)
    if path is None:
        return None
    if path.startswith("/"):
        entry.fault("path", "a relative path: outputs lie below the task's working folder")
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or CONTROL.search(path):
        entry.fault("path", "a path below the task's working folder, without .. and control characters")
        return None
    if len(path.encode()) > 1024 or len(parts) > 32 or any(len(part.encode()) > 255 for part in parts):
        entry.fault("path", "at most 32 parts of 255 bytes, and 1,024 bytes in all")
        return None
    return "/".join(parts)


def _check_place(entry: Section, owner: str | None, path: str, places: _Places) -> None:
    """Two outputs may not be one file, nor one lie inside the other: each is published by renaming it."""
    parts = path.split("/")
    folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
    clashes = [places.files.get((owner, part)) for part in [*folders, path]]
    other = next((at for at in clashes if at is not None), places.folders.get((owner, path)))
    if other is not None:
        entry.fault("path", f"a path that neither is, holds nor is inside the one of {other}")
        return
    places.files[(owner, path)] = entry.path
    for folder in folders:
        places.folders[(owner, folder)] = entry.path


def _check_variables(section: Section, kind: str, places: Sequence[tuple[str, str]]) -> None:
    """Two names may not become one variable."""
    seen: dict[str, tuple[str, str]] = {}
    for path, name in places:
        variable = names.variable(kind, name)
        other = seen.setdefault(variable, (path, name))
        if other[0] != path:
            expected = f"a name that does not become {variable} too, as {shown(other[1])} at {other[0]} does"
            section.reader.fault(f"{path}.name", shown(name), expected)
