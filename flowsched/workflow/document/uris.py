"""URIs of inputs and outputs: which are accepted, which path a file URI names, and what the file of a URI is called. Pure.

/data/a%20b#1          a path: as it is written
file:///data/a%20b#1   as it is written if there is such a file, else with its escapes decoded (`file_path`)
https://host/a%20b?x   sent as it is written; its file is called `a b`
s3://bucket/a#1?b%20   the key as it is written
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from flowsched.workflow.document.reader import shown

_AUTHORITY: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_URI: Final = re.compile(
    r"(?:file://(?:localhost)?)?/[^\x00-\x1f\x7f]*"
    rf"|https?://{_AUTHORITY}(?:[/?#][^\x00-\x20\x7f]*)?"
    r"|s3://[A-Za-z0-9][A-Za-z0-9._-]{0,254}/[^\x00-\x1f\x7f]+"
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
#: Characters that no path and no uri holds.
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
FORMS: Final = "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key"
_FILE: Final = re.compile(r"(?:(?i:file)://(?:localhost)?)?(/.*)", re.DOTALL)
#: Escapes that no program writes that escapes a path: NUL, a letter or digit, a percent sign without two digits.
_NOT_ESCAPED: Final = re.compile(r"%(?:00|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|(?![0-9A-Fa-f]{2}))")


def wrong_uri(uri: str) -> str | None:
    """The URI that is expected in place of a wrong one, in words, or None."""
    if _URI.fullmatch(uri):
        return None
    if CONTROL.search(uri):
        return "a uri without control characters"
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return (
            "an absolute path or file:///…: the service has no working folder "
            "(the command line resolves relative paths against the document's folder; in Python write Path(...))"
        )
    if scheme[1] not in ("file", "http", "https", "s3"):
        return f"{FORMS}: the scheme {shown(scheme[1])} is not supported"
    if "@" in re.split(r"[/?#]", uri.partition("://")[2], maxsplit=1)[0]:
        return "a uri without user name or password: those belong in secrets, never in a document"
    return FORMS


def redacted(uri: str) -> str:
    """A URI as a fault shows it: without anything that may be a password or a signature."""
    uri, question, _ = uri.partition("?")
    uri = f"{uri}?…" if question else uri
    head, slashes, rest = uri.partition("//")
    _, at, tail = rest.rpartition("@")
    return shown(f"{head}{slashes}…@{tail}" if at else uri)


def file_path(uri: str, is_meant: Callable[[str], object]) -> str | None:
    """The path that a path or a file URI names; None if it names none.

    Some programs escape the paths that they make URIs of (cwl-tes, Python's `as_uri`), others do not (Cromwell, Nextflow).

    Args:
        uri: `/a b`, `file:///a b` or `file:///a%20b`. A `#` or `?` belongs to the path.
        is_meant: Whether the path as it is written is the right one: of an input, whether it exists.

    Returns:
        The path as it is written if that is meant, or if no program that escapes has written it (`%41`, `100%`); else the
        path with its escapes decoded.
    """
    if uri.startswith("/"):
        return uri
    found = _FILE.fullmatch(uri)
    if found is None:
        return None
    written = found[1]
    if "%" not in written or _NOT_ESCAPED.search(written) or is_meant(written):
        return written
    return unquote(written)


def target_path(uri: str, path: str) -> str | None:
    """The path of an output's target, which need not exist yet: as it is written if it ends as the output's own path does."""
    return file_path(uri, lambda written: _last(written) == _last(path))


def base_name(uri: str, is_meant: Callable[[str], object]) -> str:
    """The name of the file of a URI: the last part of its path or key; "" if there is none. See `file_path`."""
    path = file_path(uri, is_meant)
    if path is not None:
        return _last(path)
    scheme, slashes, rest = uri.partition("://")
    if scheme.lower() in ("http", "https"):
        return unquote(_last(re.split("[?#]", rest, maxsplit=1)[0].partition("/")[2]))
    return _last(rest.partition("/")[2] if slashes else uri)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
