"""Workflow documents as they are before they are sent: read from a file, with relative paths made absolute.

A service does not know where a document lay, so the client says where its files are. Pure but for `read`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def read(path: Path) -> bytes:
    """Read a document and resolve its relative input URIs against its folder."""
    return resolved_bytes(path.read_bytes(), path.absolute().parent)


def resolved_bytes(raw: bytes, folder: Path) -> bytes:
    """Resolve a document as JSON.

    Bytes that are no JSON object, or have a key twice, stay as they are: the service names their faults, and must name
    them in the bytes that the user wrote.
    """
    try:
        document = _loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(document, dict):
        return raw
    found = resolve_uris(document, folder)
    return raw if found is document else json.dumps(found, ensure_ascii=False).encode()


def resuming(raw: bytes, workflow: str) -> bytes:
    """A document that resumes another workflow. The service refuses bytes that are no JSON object."""
    try:
        document = _loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(document, dict):
        return raw
    return json.dumps({**document, "resume": workflow}, ensure_ascii=False).encode()


def resolve_uris(document: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Make relative input URIs absolute: `data/x.fa` is `/folder/data/x.fa`, `file:data/x.fa` is `file:///folder/data/x.fa`.

    Nothing is percent-encoded, since `{item}` and `{index}` stand in URIs, and nothing is looked up on the disk.

    Args:
        document: A workflow document, perhaps a wrong one. Not modified.
        folder: Where the document lies; absolute.

    Returns:
        The document itself where nothing was relative, else a copy of what changed.
    """
    stages = document.get("stages")
    if not isinstance(stages, list):
        return document
    resolved = [_stage(stage, folder) for stage in stages]
    if all(new is old for new, old in zip(resolved, stages, strict=True)):
        return document
    return {**document, "stages": resolved}


def _stage(stage: Any, folder: Path) -> Any:
    if not isinstance(stage, Mapping) or not isinstance(stage.get("inputs"), list):
        return stage
    inputs = [_input(entry, folder) for entry in stage["inputs"]]
    if all(new is old for new, old in zip(inputs, stage["inputs"], strict=True)):
        return stage
    return {**stage, "inputs": inputs}


def _input(entry: Any, folder: Path) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("uri"), str):
        return entry
    uri = absolute_uri(entry["uri"], folder)
    return entry if uri == entry["uri"] else {**entry, "uri": uri}


def absolute_uri(uri: str, folder: Path) -> str:
    """One URI: a relative path gets its folder, all others stay. Without a scheme it is a path: no `%` in it is an escape."""
    path = uri.removeprefix("file:")
    if path.startswith("//") or not path or (path == uri and _SCHEME.match(uri)):
        return uri
    scheme = "" if path == uri else "file://"
    return scheme + posixpath.normpath(posixpath.join(folder.as_posix(), path))


def not_json(value: Any, place: str = "$") -> Iterator[str]:
    """The values in a document that JSON cannot hold, each with its place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from not_json(inner, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from not_json(inner, f"{place}[{index}]")
    elif not (value is None or isinstance(value, str | int | float)):
        yield f"{place}: found {value!r}, expected a text, number, list or mapping"


def _loads(raw: bytes) -> Any:
    """JSON as values. A number with a fraction or an exponent is its text, which means the same in a document: `1.50` stays."""
    return json.loads(raw, object_pairs_hook=_object, parse_float=str)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found
