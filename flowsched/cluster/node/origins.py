"""Origins of datasets: files of this machine, HTTP servers, object stores. fsspec is only used here."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

from flowsched.cluster.local.runner.bounds import Bounds

#: HTTP statuses after which trying again is no use.
_GONE_FOR_GOOD: Final = frozenset({400, 401, 403, 404, 405, 410, 414})

#: First byte and size of all, of a 206.
CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})")
#: Object stores are asked for so much at a time.
_STORE_BLOCK: Final = 16 << 20

#: What must be installed for a scheme, where fsspec alone does not know it.
_EXTRAS: Final = {"s3": "pip install flowsched[objectstore]", "s3a": "pip install flowsched[objectstore]"}


class NotFetched(Exception):
    """A dataset that could not be brought; the rest as in `TransferFailed`."""

    def __init__(
        self,
        message: str,
        *,
        lost: bool = False,
        permanent: bool = False,
        changed: bool = False,
        undivided: bool = False,
        version: str = "",
        emptied: bool = False,
    ) -> None:
        super().__init__(message)
        self.lost = lost
        self.permanent = permanent
        self.changed = changed
        self.undivided = undivided
        self.version = version
        self.emptied = emptied  #: what its destination had of it is gone


@dataclass(frozen=True, slots=True)
class Section:
    """A range of a dataset that is being read: its bytes, and what they are a part of.

    Args:
        stream: At the range's first byte; it may go on after the last.
        total: Bytes of the whole dataset.
        version: What its holder calls this version of it; equal names, equal bytes.
        name, mode: Of its file.
        whole: Whether the holder has all of it.
        unchanged: Asked at the end: whether it was still the same version then.
    """

    stream: BinaryIO
    total: int
    version: str
    name: str
    mode: int = 0o644
    whole: bool = True
    unchanged: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Origins:
    """What may be fetched, and how fast.

    Args:
        allowed_roots: Folders below which files of this machine may be taken; None = see `bounds`.
        schemes: Schemes beside `file` that may be fetched; None = all that fsspec knows.
        rate: Bytes/s of all fetching from origins together; 0 = no limit.
        options: Per scheme, what fsspec is given (credentials, endpoints).
        bounds: Which files of this machine may be taken; None = by `allowed_roots` alone.
    """

    allowed_roots: Sequence[Path] | None = None
    schemes: frozenset[str] | None = None
    rate: int = 0
    options: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    bounds: Bounds | None = None

    def local_path(self, uri: str) -> Path | None:
        """The path that a uri names on this machine; None if it is of another scheme.

        Raises:
            NotFetched: It is outside of the allowed roots, or neither a uri nor an absolute path.
        """
        parts = urlsplit(uri)
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            path = Path(unquote(parts.path))
        elif uri.startswith("/"):
            path = Path(uri)
        elif parts.scheme in ("", "file"):
            raise NotFetched(f"{uri!r} is neither an absolute path nor a uri", permanent=True)
        else:
            return None
        roots = None if self.allowed_roots is None else [str(root) for root in self.allowed_roots]
        refused = (self.bounds or Bounds(allowed=roots)).refusal(str(path), whole=True)
        if refused:
            raise NotFetched(refused, permanent=True)
        real = Path(os.path.realpath(path))
        if not real.exists():
            raise NotFetched(f"there is no {real}", permanent=True)
        return real

    def upload(self) -> dict[str, Any]:
        """How a runner, which has none of this, writes to object stores: what it shall be given. It holds credentials."""
        names = [name for name in os.environ if name.startswith("AWS_")]
        return {
            "path": [folder for folder in sys.path if folder],
            "env": {name: os.environ[name] for name in (*names, "HOME") if name in os.environ},
            "options": {scheme: dict(options) for scheme, options in self.options},
        }

    def open(self, uri: str) -> tuple[BinaryIO, int | None]:
        """Open a dataset elsewhere: its bytes, and how many they should be if that is known. Blocks.

        Raises:
            NotFetched: It cannot be opened.
        """
        scheme = self._allowed(uri)
        with _refusals(uri, scheme):
            return self._open(uri, scheme)

    def open_section(self, uri: str, start: int, end: int, name: str) -> Section:
        """Open a range of a dataset that is not on this machine: of HTTP servers that give ranges and say which version they are
        of, and of object stores. Blocks.

        Raises:
            NotFetched: It cannot be opened; `undivided` if it can only be had as a whole.
        """
        scheme = self._allowed(uri)
        if uri.endswith("/") and scheme not in ("http", "https"):
            raise NotFetched(f"{uri} is a folder, which moves as a whole", undivided=True)
        with _refusals(uri, scheme):
            if scheme in ("http", "https"):
                return self._http_section(uri, scheme, start, end, name)
            return self._stored_section(uri, scheme, start, name)

    def _http_section(self, uri: str, scheme: str, start: int, end: int, name: str) -> Section:
        asked = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        stream = self._http_stream(uri, scheme, asked)
        answer = stream.r
        version = version_of(answer.headers)
        told = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status != 206 or told is None or int(told[1]) != start or not version:
            stream.close()
            why = "it tells no ETag" if answer.status == 206 and told is not None else "it gives no ranges"
            raise NotFetched(f"{uri} moves as a whole: {why}", undivided=True)
        return Section(stream, int(told[2]), version, name)

    def _stored_section(self, uri: str, scheme: str, start: int, name: str) -> Section:
        import fsspec

        files, path = fsspec.core.url_to_fs(uri, **dict(dict(self.options).get(scheme, ())))
        files.invalidate_cache(files._parent(path))  # it may have been listed before it changed
        stream = files.open(path, "rb", block_size=_STORE_BLOCK, cache_type="readahead")
        details = getattr(stream, "details", None) or {}
        version = str(details.get("ETag") or details.get("etag") or "").strip('"')
        if not version or not isinstance(stream.size, int):
            stream.close()
            raise NotFetched(f"{uri} moves as a whole: its store tells no ETag", undivided=True)
        stream.seek(start)
        return Section(stream, stream.size, version, name)

    def listing(self, uri: str) -> list[str]:
        """The names below a folder of an object store (a uri that ends in a slash), relative to it, in order. Blocks.

        Raises:
            NotFetched: It cannot be listed, or there is nothing.
        """
        import fsspec

        scheme = self._allowed(uri)
        with _refusals(uri, scheme):
            files, path = fsspec.core.url_to_fs(uri, **dict(dict(self.options).get(scheme, ())))
            top = path.rstrip("/") + "/"
            found = [str(name).removeprefix(top) for name in files.find(path) if not str(name).endswith("/")]
        if not found:
            raise NotFetched(f"there is nothing below {uri}", permanent=True)
        odd = next((name for name in found if {"", ".", ".."} & set(name.split("/"))), None)
        if odd is not None:
            raise NotFetched(f"{uri} holds {odd!r}, which is no name of a file", permanent=True)
        return sorted(found)

    def _allowed(self, uri: str) -> str:
        scheme = urlsplit(uri).scheme.lower()
        if self.schemes is not None and scheme not in self.schemes:
            raise NotFetched(f"{scheme}: is not among the schemes that inputs may come from", permanent=True)
        return scheme

    def _open(self, uri: str, scheme: str) -> tuple[BinaryIO, int | None]:
        import fsspec  # takes 60 ms, which only a fetch needs to spend

        if scheme in ("http", "https"):
            stream = self._http_stream(uri, scheme, {})
            length = stream.r.headers.get("Content-Length")
            encoded = stream.r.headers.get("Content-Encoding")
            return stream, int(length) if length and not encoded else None
        options: dict[str, Any] = {"skip_instance_cache": False, **dict(dict(self.options).get(scheme, ()))}
        files, path = fsspec.core.url_to_fs(uri, **options)
        size = files.size(path)
        return files.open(path, "rb"), size

    def _http_stream(self, uri: str, scheme: str, headers: dict[str, str]) -> Any:
        """One stream, without a HEAD first and without a total limit: a genome takes longer than five minutes."""
        import aiohttp
        import fsspec

        options: dict[str, Any] = {"skip_instance_cache": False, **dict(dict(self.options).get(scheme, ()))}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
        options.setdefault("client_kwargs", {"timeout": timeout})
        files = fsspec.filesystem(scheme, **options)
        asked = {"headers": {**files.kwargs.get("headers", {}), **headers}} if headers else {}
        return files.open(uri, "rb", block_size=0, size=1, **asked)  # a size: then it asks no HEAD


def version_of(headers: Any) -> str:
    """The version that an HTTP answer's headers name: a strong ETag alone, a weak one with the time of the last change."""
    tag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if tag and not tag.startswith("W/"):
        return str(tag)
    return " ".join(part for part in (tag, modified) if modified and part)


def file_version(status: os.stat_result) -> str:
    """The version of a file of this machine: another one has another time, size or inode."""
    return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"


def file_section(descriptor: int, start: int, name: str) -> Section:
    """A range of an open file of this machine, which is closed with the section's stream."""
    status = os.fstat(descriptor)
    stream = os.fdopen(descriptor, "rb", buffering=0)
    stream.seek(start)
    version = file_version(status)
    return Section(
        stream,
        status.st_size,
        version,
        name,
        stat.S_IMODE(status.st_mode),
        unchanged=lambda: file_version(os.fstat(stream.fileno())) == version,
    )


def _unknown(scheme: str, error: Exception) -> NotFetched:
    hint = _EXTRAS.get(scheme, "fsspec knows no such scheme, or its package is missing")
    return NotFetched(f"cannot fetch {scheme}: uris: {hint} ({error})", permanent=True)


def put(path: str, uri: str) -> None:
    """Write a file to an object store, with the credentials of the environment. Blocks.

    Raises:
        NotFetched: It cannot be written; `permanent` if trying again is no use.
    """
    scheme = urlsplit(uri).scheme.lower()
    try:
        import fsspec

        files, key = fsspec.core.url_to_fs(uri)
        files.put_file(path, key)
    except (ImportError, ValueError) as error:
        hint = _EXTRAS.get(scheme, "fsspec knows no such scheme, or its package is missing")
        raise NotFetched(f"cannot write {scheme}: uris: {hint} ({error})", permanent=True) from error
    except Exception as error:  # each of fsspec's file systems has errors of its own
        told = failure(uri, error)
        raise NotFetched(
            str(told).replace("cannot fetch", "cannot write", 1), permanent=told.permanent
        ) from error


@contextmanager
def _refusals(uri: str, scheme: str) -> Iterator[None]:
    """Turn errors of any file system into `NotFetched` while a dataset is looked for or opened."""
    try:
        yield
    except NotFetched:
        raise
    except FileNotFoundError as error:
        raise NotFetched(f"there is no {uri}", permanent=True) from error
    except (ImportError, ValueError) as error:
        raise _unknown(scheme, error) from error
    except Exception as error:  # each of fsspec's file systems has errors of its own
        raise failure(uri, error) from error


def failure(uri: str, error: Exception) -> NotFetched:
    """An error of a file system as a failed transfer."""
    status = getattr(error, "status", None)
    said = f"answered {status}" if status else f"{type(error).__name__}: {error}"
    refused = isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError"
    hint = "; give the service credentials (AWS_ACCESS_KEY_ID …)" if refused and uri.startswith("s3") else ""
    return NotFetched(f"cannot fetch {uri}: {said}{hint}", permanent=refused or status in _GONE_FOR_GOOD)
