"""Origins of datasets: files of this machine, HTTP servers, object stores. It reads them all through fsspec."""

from __future__ import annotations

import hashlib
import io
import os
import re
import ssl
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.safe_paths import DEEPEST, Unsafe
from flowsched.cluster.local.runner.trees import file_version
from flowsched.cluster.local.runner.uploads import EXTRAS, object_version
from flowsched.cluster.node.cache import read_only
from flowsched.cluster.node.space import check_room
from flowsched.executor.protocol import Fingerprint
from flowsched.workflow.document.uris import file_path

#: HTTP statuses after which trying again is no use.
_GONE_FOR_GOOD: Final = frozenset({400, 401, 403, 404, 405, 410, 414, 451})
#: aiohttp follows so many redirects.
_REDIRECTS: Final = 10

#: First byte and size of all, of a 206.
CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})")
#: An answer of HTTP up to so many bytes is read in one call.
_SHORT_BYTES: Final = 64 << 10
#: Object stores are asked for so much at a time.
_STORE_BLOCK: Final = 16 << 20

#: The characters of a URL that are sent as they are: all others are escaped.
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))


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
        full: bool = False,
    ) -> None:
        super().__init__(message)
        self.lost = lost
        self.permanent = permanent
        self.changed = changed
        self.undivided = undivided
        self.version = version
        self.emptied = emptied  #: the part that its destination had is gone
        self.full = full


class Forbidden(OSError):
    """An address that inputs may not come from: trying again is no use."""


class Stream(Protocol):
    """Bytes that are read once."""

    def read(self, amount: int, /) -> bytes:
        """Up to so many bytes; b"" at the end."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Body:
    """A stream from elsewhere: it ends at its length or fails as a transfer does. It counts its bytes.

    Args:
        stream: The stream that is read.
        name: Its name in the error when it ends too early.
        expected: How many bytes should come; None = not known.
        unread: An error of reading as a failed transfer; default `failure`.
        close: Closes other things with it.
        version: Its version by its source; "" = the source names none.
    """

    def __init__(
        self,
        stream: Stream,
        name: str,
        expected: int | None = None,
        unread: Callable[[Exception], NotFetched] | None = None,
        close: Callable[[], object] = lambda: None,
        version: str = "",
    ) -> None:
        self.version = version
        self._stream = stream
        self._name = name
        self.expected = expected
        self._unread = unread or (lambda error: failure(name, error))
        self._close = close
        self.came_bytes = 0

    def read(self, amount: int, /) -> bytes:
        """Read up to so many bytes; b"" at the end.

        Raises:
            NotFetched: It ends too early, or cannot be read.
        """
        try:
            block = self._stream.read(amount)
        except Exception as error:  # each of fsspec's file systems has errors of its own, and so have sockets
            raise self._unread(error) from error
        if not block and amount and self.expected not in (None, self.came_bytes):
            raise NotFetched(f"{self._name} ended after {self.came_bytes} of {self.expected} bytes")
        self.came_bytes += len(block)
        return block

    def close(self) -> None:
        """Read no more."""
        self._stream.close()
        self._close()


class Section(msgspec.Struct, frozen=True):
    """A range of a dataset that is being read: its bytes, and the dataset that they are a part of.

    Args:
        stream: At the range's first byte; it may go on after the last.
        total: Bytes of the whole dataset.
        version: The holder's name of this version; equal names, equal bytes.
        name, mode: Of its file.
        whole: Whether the holder has all of it.
        unchanged: Asked at the end: whether it was still the same version then.
    """

    stream: Stream
    total: int
    version: str
    name: str
    mode: int = 0o644
    whole: bool = True
    unchanged: Callable[[], bool] = lambda: True


class Origins(msgspec.Struct, frozen=True):
    """The places that may be fetched from, and how fast.

    Args:
        allowed_roots: Folders below which files of this machine may be taken; None = see `bounds`. Files below one are reached
            from it by descriptor, since others may be changing them meanwhile.
        schemes: Schemes beside `file` that may be fetched; None = all that fsspec knows.
        options: Per scheme, the options of fsspec (credentials, endpoints).
        bounds: Which files of this machine may be taken; None = by `allowed_roots` alone.
    """

    allowed_roots: Sequence[Path] | None = None
    schemes: frozenset[str] | None = None
    options: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    bounds: Bounds | None = None

    def local_path(self, uri: str) -> Path | None:
        """The path that a uri names on this machine; None if it is of another scheme.

        Raises:
            NotFetched: It is outside of the allowed roots, or neither a uri nor an absolute path.
        """
        path = file_path(uri, os.path.lexists)
        if path is None:
            if urlsplit(uri).scheme in ("", "file"):
                raise NotFetched(f"{uri!r} is neither an absolute path nor a uri", permanent=True)
            return None
        roots = None if self.allowed_roots is None else [str(root) for root in self.allowed_roots]
        refused = (self.bounds or Bounds(allowed=roots)).refusal(path, whole=True)
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

    def section(self, uri: str, start: int, end: int, name: str) -> Section:
        """Open a range of a dataset. Blocks.

        Raises:
            NotFetched: It cannot be opened; `undivided` if it can only be had as a whole.
            Unsafe: It is neither a file nor a folder, or lies behind a link that was made meanwhile.
        """
        path = self.local_path(uri)
        if path is None:
            return self.open_section(uri, start, end, name)
        descriptor = self._open_path(path)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotFetched(f"{path} is a folder, which moves as a whole", undivided=True)
        return file_section(descriptor, start, name)

    def copy(
        self, uri: str, target: Path, block_bytes: int, expect: Callable[[str], object] = lambda _: None
    ) -> Generator[int, None, int]:
        """Copy a whole dataset, a file or a folder. Blocks.

        Args:
            uri: Of the dataset.
            target: The file or folder to be made.
            block_bytes: To be moved at a time.
            expect: Told the version that is read; raises where that is not the wanted one.

        Yields:
            The bytes of each block.

        Returns:
            The bytes of all its files.

        Raises:
            NotFetched: It cannot be had.
            Unsafe: It is, or holds, something that is neither a file nor a folder nor a link.
            OSError: It cannot be written.
        """
        path = self.local_path(uri)
        if path is not None:
            descriptor = self._open_path(path)
            try:
                expect(_path_state(path, descriptor).version)
                total = yield from copy_open(descriptor, target, block_bytes)
                expect(_path_state(path, descriptor).version)  # it may have been written to meanwhile
                return total
            finally:
                os.close(descriptor)
        if not uri.endswith("/") or uri.startswith(("http:", "https:")):
            return (yield from self._fetch(uri, target, block_bytes, expect))
        expect(self._state(uri).version)
        total = 0
        for name in self.listing(uri):
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            total += yield from self._fetch(uri + name, file, block_bytes)
        expect(self._state(uri).version)
        return total

    def _open_path(self, path: Path) -> int:
        """Open a file or folder of this machine that `local_path` has allowed."""
        if self.allowed_roots is None:
            return safe_paths.open_any(None, str(path))
        roots = (Path(os.path.realpath(root)) for root in self.allowed_roots)
        root = next((root for root in roots if path.is_relative_to(root)), path)
        if root == path:
            raise Unsafe("it is the whole of an allowed folder")
        *way, name = path.relative_to(root).parts
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with safe_paths.folder(top, way) as parent:
                return safe_paths.open_any(parent, name)
        finally:
            os.close(top)

    def _fetch(
        self, uri: str, target: Path, block_bytes: int, expect: Callable[[str], object] = lambda _: None
    ) -> Generator[int, None, int]:
        body = self.open(uri)
        try:
            expect(body.version)
            check_room(target.parent, body.expected or 0)
            return (yield from copy_stream(body, target, block_bytes))
        finally:
            body.close()

    def open(self, uri: str) -> Body:
        """Open a dataset elsewhere. Blocks.

        Raises:
            NotFetched: It cannot be opened.
        """
        scheme = self._allowed(uri)
        with _refusals(uri, scheme):
            if scheme in ("http", "https"):
                stream = self._http_stream(uri, scheme, {})
                length = stream.r.headers.get("Content-Length")
                return Body(stream, uri, int(length) if length else None, version=version_of(stream.r))
            files, path = self._store(uri, scheme)
            size, stored = files.size(path), files.open(path, "rb")
            return Body(stored, uri, size, version=object_version(getattr(stored, "details", None) or {}))

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
        stream = self._http_stream(uri, scheme, {"Range": f"bytes={start}-{end - 1}"})
        answer = stream.r
        version = version_of(answer)
        span = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status != 206 or span is None or int(span[1]) != start or not version:
            stream.close()
            why = "it tells no ETag" if answer.status == 206 and span is not None else "it gives no ranges"
            raise NotFetched(f"{uri} moves as a whole: {why}", undivided=True)
        return Section(Body(stream, uri), int(span[2]), version, name)

    def _stored_section(self, uri: str, scheme: str, start: int, name: str) -> Section:
        files, path = self._store(uri, scheme)
        files.invalidate_cache(files._parent(path))  # it may have been listed before it changed
        stream = files.open(path, "rb", block_size=_STORE_BLOCK, cache_type="readahead")
        version = object_version(getattr(stream, "details", None) or {})
        if not version or not isinstance(stream.size, int):
            stream.close()
            raise NotFetched(f"{uri} moves as a whole: its store tells no ETag", undivided=True)
        stream.seek(start)
        return Section(Body(stream, uri), stream.size, version, name)

    def fingerprint(self, uri: str, *, by_content: bool = False) -> Fingerprint:
        """The fingerprint of a dataset's content as it is now. Blocks.

        Args:
            uri: Of the dataset.
            by_content: Read files of this machine, too, and digest them.

        Raises:
            NotFetched: It cannot be had, or its store does not say which version it has.
            Unsafe: It is neither a file nor a folder.
            OSError: It cannot be read.
        """
        path = self.local_path(uri)
        if path is None:
            found = self._state(uri)
            if not found.version:
                raise NotFetched(
                    f"{uri}: its server tells neither an ETag nor when it was changed", permanent=True
                )
            return found
        descriptor = self._open_path(path)
        try:
            found = _path_state(path, descriptor)
            content = _path_digest(path, descriptor) if by_content else ""
            if content and _path_state(path, descriptor).version != found.version:
                raise NotFetched(f"{uri} has changed while it was read")
            return msgspec.structs.replace(found, content=content)
        finally:
            os.close(descriptor)

    def all_may_read(self, path: Path, status: os.stat_result) -> bool:
        """Whether users of all kinds may read a file: it and the folders on the way to it, from the allowed one on, let others in.
        The caller may read more, as root does. Blocks.
        """
        roots = [Path(os.path.realpath(root)) for root in self.allowed_roots or ()]
        folders = [each for each in path.parents if any(map(each.is_relative_to, roots))]
        readable = status.st_mode & stat.S_IROTH
        return self.allowed_roots is None or bool(
            readable and all(each.stat().st_mode & stat.S_IXOTH for each in folders)
        )

    def _state(self, uri: str) -> Fingerprint:
        """The fingerprint of a dataset in its store, which is not on this machine; without a version if its store names none."""
        scheme = self._allowed(uri)
        with _refusals(uri, scheme):
            if scheme not in ("http", "https"):
                return self._stored_state(uri, scheme)
            stream = self._http_stream(uri, scheme, {"Range": "bytes=0-0"})
            modified = stream.r.headers.get("Last-Modified", "")
            stream.close()
            size = _size_of(stream.r)
            moment = parsedate_to_datetime(modified) if modified else None
            return Fingerprint(
                version_of(stream.r), _ms(moment), size_bytes=int(size) if size.isdecimal() else None
            )

    def _stored_state(self, uri: str, scheme: str) -> Fingerprint:
        """The version, size and last change of an object, or of a folder of objects."""
        files, path = self._store(uri, scheme)
        files.invalidate_cache(files._parent(path))
        found = files.find(path, detail=True) if uri.endswith("/") else {path: files.info(path)}
        tags = {name: object_version(each) for name, each in found.items()}
        moments = [
            each["LastModified"] for each in found.values() if isinstance(each.get("LastModified"), datetime)
        ]
        sizes = [each.get("size") for each in found.values()]
        total = sum(size for size in sizes if size is not None) if None not in sizes else None
        return Fingerprint(folder_version(tags), _ms(max(moments, default=None)), size_bytes=total)

    def listing(self, uri: str) -> list[str]:
        """The names below a folder of an object store (a uri that ends in a slash), relative to it, in order. Blocks.

        Raises:
            NotFetched: It cannot be listed, or there is nothing.
        """
        scheme = self._allowed(uri)
        with _refusals(uri, scheme):
            files, path = self._store(uri, scheme)
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
        if scheme not in ("http", "https") and "::" in uri:
            raise NotFetched(f"{uri!r} chains file systems, which inputs may not", permanent=True)
        if self.schemes is not None and scheme not in self.schemes:
            raise NotFetched(f"{scheme}: is not among the schemes that inputs may come from", permanent=True)
        return scheme

    def _store(self, uri: str, scheme: str) -> tuple[Any, str]:
        """The file system of fsspec that has a uri, and the path of the uri there."""
        import fsspec  # takes 60 ms, which only a fetch needs to spend

        return fsspec.core.url_to_fs(uri, **self._options_of(scheme))  # type: ignore[no-any-return]

    def _options_of(self, scheme: str) -> dict[str, Any]:
        return dict(dict(self.options).get(scheme, ()))

    def _http_stream(self, uri: str, scheme: str, headers: dict[str, str]) -> _Answer:
        """One stream of the bytes that the server stores, without a HEAD first and without a total limit: a genome takes longer
        than five minutes.
        """
        import aiohttp
        import fsspec

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
        client = {
            "timeout": timeout,
            "auto_decompress": False,
            "requote_redirect_url": False,
            "request_class": _request_as_written(),
        }
        options: dict[str, Any] = {
            "skip_instance_cache": False,
            "encoded": True,
            "client_kwargs": client,
            **self._options_of(scheme),
        }
        files = fsspec.filesystem(scheme, **options)
        asked = {"Accept-Encoding": "identity", **files.kwargs.get("headers", {}), **headers}

        async def ask() -> tuple[Any, bytes | None]:
            session = await files.set_session()
            answer = await session.get(files.encode_url(uri), **{**files.kwargs, "headers": asked})
            try:
                files._raise_not_found_for_status(answer, uri)
                is_short = answer.content_length is not None and answer.content_length <= _SHORT_BYTES
                return answer, await answer.read() if is_short else None
            except BaseException:
                answer.close()
                raise

        return _Answer(files.loop, *fsspec.asyn.sync(files.loop, ask))


class _Answer:
    """The answer of an HTTP server, which comes in the loop of fsspec's thread. A short body has come with its head: each call into
    that loop costs half a millisecond, and a connection whose answer has been read whole takes the next question.

    Args:
        loop: Of fsspec's thread.
        r: The answer, as aiohttp has it.
        body: All of its body; None = it is read piece by piece.
    """

    def __init__(self, loop: Any, r: Any, body: bytes | None) -> None:
        self.r = r
        self._loop = loop
        self._body = None if body is None else io.BytesIO(body)

    def read(self, amount: int, /) -> bytes:
        """See `Stream`."""
        if self._body is not None:
            return self._body.read(amount)
        import fsspec

        return bytes(fsspec.asyn.sync(self._loop, self.r.content.read, amount))

    def close(self) -> None:
        """See `Stream`."""
        if self._body is None:
            self._loop.call_soon_threadsafe(self.r.close)


@cache
def _request_as_written() -> Any:
    """A request that sends its URL, or the one it is redirected to, as it is written, since a signature may cover it."""
    import aiohttp
    from yarl import URL

    class Request(aiohttp.ClientRequest):
        def __init__(self, method: str, url: URL, **more: Any) -> None:
            written = quote(str(url), safe=_ASCII, errors="surrogateescape")
            super().__init__(method, URL(written, encoded=True), **more)

    return Request


def copy_stream(
    stream: Stream, target: Path, block_bytes: int, mode: int = 0o644
) -> Generator[int, None, int]:
    """Write what a stream gives into a new file, read-only for all later users. Blocks.

    Yields:
        The bytes of each block.

    Returns:
        The bytes of the file.
    """
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, read_only(mode))
    total = 0
    try:
        while block := stream.read(block_bytes):
            safe_paths.write_all(writing, block)
            total += len(block)
            yield len(block)
    finally:
        os.close(writing)
    return total


def copy_open(reading: int, target: Path, block_bytes: int, depth: int = 0) -> Generator[int, None, int]:
    """Copy an open file or folder in bytes; links in a folder stay links. Blocks.

    Yields:
        The bytes of each block.

    Returns:
        The bytes of all files.

    Raises:
        Unsafe: It holds something that is neither a file nor a folder nor a link.
        OSError: It cannot be read or written.
    """
    status = os.fstat(reading)
    if not stat.S_ISDIR(status.st_mode):
        check_room(target.parent, status.st_size)
        with open(reading, "rb", buffering=0, closefd=False) as file:
            return (yield from copy_stream(file, target, block_bytes, stat.S_IMODE(status.st_mode)))
    if depth > DEEPEST:
        raise Unsafe(f"it has more than {DEEPEST} folders in each other")
    os.mkdir(target, 0o755)
    total = 0
    for name in sorted(os.listdir(reading)):
        if stat.S_ISLNK(os.stat(name, dir_fd=reading, follow_symlinks=False).st_mode):
            os.symlink(os.readlink(name, dir_fd=reading), target / name)
            continue
        inner = safe_paths.open_any(reading, name)
        try:
            total += yield from copy_open(inner, target / name, block_bytes, depth + 1)
        finally:
            os.close(inner)
    return total


# ---- versions: which copies are copies of the same ----
#
# The one place that says what a source calls the version of a dataset. Fingerprints, copies and ranges compare these.


def version_of(answer: Any) -> str:
    """The version that an HTTP answer names: a strong ETag alone, else a weak one, the time of the last change, and the size.

    "" where it names neither a strong ETag nor a time.
    """
    tag, modified = answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")
    if tag and not tag.startswith("W/"):
        return str(tag)
    if not modified:
        return ""
    return " ".join(filter(None, (tag, modified, _size_of(answer))))


def _size_of(answer: Any) -> str:
    """The bytes of all that an HTTP server stores, by its answer for a part or for all; "" where it says nothing."""
    part = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return str(part[2] if part is not None else answer.headers.get("Content-Length", ""))


def folder_version(tags: Mapping[str, str]) -> str:
    """The version of the objects of a folder, by the version of each; that of the object itself where there is one alone.

    "" where the store names no version of one of them, or there is none.
    """
    if not tags or not all(tags.values()):
        return ""
    return next(iter(tags.values())) if len(tags) == 1 else _digest_of(sorted(tags.items()))


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _path_state(path: Path, descriptor: int) -> Fingerprint:
    """The version, size and last change of an open file or folder of this machine. Of a folder those of its tree.

    Raises:
        Unsafe: It is neither a file nor a folder.
    """
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return Fingerprint(file_version(status), status.st_mtime_ns // 1_000_000, size_bytes=status.st_size)
    found, newest, size = [], status.st_mtime_ns, 0
    for name, each in _tree(path, status):
        newest = max(newest, each.st_mtime_ns)
        if stat.S_ISDIR(each.st_mode):
            found.append((name, "folder"))
        elif stat.S_ISLNK(each.st_mode):
            found.append((name, _link_version(path / name)))
        else:
            found.append((name, file_version(each)))
            size += each.st_size
    return Fingerprint(_digest_of(found), newest // 1_000_000, size_bytes=size)


def _link_version(link: Path) -> str:
    """Of a link in a folder: where it leads, and the version of the file there."""
    try:
        there = file_version(os.stat(link))
    except OSError:
        there = ""
    return f"{os.readlink(link)} {there}"


def _path_digest(path: Path, descriptor: int) -> str:
    """A digest of the content of an open file or folder of this machine; of links in a folder, where they lead."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return _file_digest(os.dup(descriptor))
    found = []
    for name, each in _tree(path, status):
        if stat.S_ISREG(each.st_mode):
            found.append((name, _file_digest(path / name)))
        elif stat.S_ISLNK(each.st_mode):
            found.append((name, os.readlink(path / name)))
        else:
            found.append((name, f"{stat.S_IFMT(each.st_mode)}"))
    return _digest_of(found)


def _tree(path: Path, status: os.stat_result) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in a folder, with its status, in an order that depends on the names alone."""
    if not stat.S_ISDIR(status.st_mode):
        raise Unsafe("it is neither a file nor a folder")
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted((*names, *folders)):
            file = os.path.join(folder, name)
            yield os.path.relpath(file, path), os.lstat(file)


def _file_digest(file: Path | int) -> str:
    with open(file, "rb", buffering=0) as reading:
        reading.seek(0)
        return hashlib.file_digest(reading, "sha256").hexdigest()


def _digest_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()


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
    hint = EXTRAS.get(scheme, "fsspec knows no such scheme, or its package is missing")
    return NotFetched(f"cannot fetch {scheme}: uris: {hint} ({error})", permanent=True)


@contextmanager
def _refusals(uri: str, scheme: str) -> Iterator[None]:
    """Turn errors of any file system into `NotFetched` while a dataset is looked for or opened."""
    try:
        yield
    except NotFetched:
        raise
    except FileNotFoundError as error:
        raise NotFetched(f"there is no {uri}", permanent=True) from error
    except Exception as error:  # each of fsspec's file systems has errors of its own
        if isinstance(error, (ImportError, ValueError)) and not _astray(error):
            raise _unknown(scheme, error) from error
        raise failure(uri, error) from error


def failure(uri: str, error: Exception) -> NotFetched:
    """An error of a file system as a failed transfer."""
    status = getattr(error, "status", None)
    astray = _astray(error)
    text = astray or (f"answered {status}" if status else _no_connection(error))
    text = text or f"{type(error).__name__}: {error}"
    refused = isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError"
    hint = "; give the service credentials (AWS_ACCESS_KEY_ID …)" if refused and uri.startswith("s3") else ""
    permanent = bool(
        refused
        or astray
        or status in _GONE_FOR_GOOD
        or any(isinstance(each, Forbidden) for each in _causes(error))
    )
    return NotFetched(f"cannot fetch {uri}: {text}{hint}", permanent=permanent)


def _astray(error: Exception) -> str:
    """The fault of a server's redirect, or of its certificate: it stays. "" for other errors.

    A host that no name server knows is none of this: its name may be a minute old.
    """
    match type(error).__name__:  # aiohttp is not loaded unless an input comes over HTTP
        case "TooManyRedirects":
            return f"its server redirects in a circle, or more than {_REDIRECTS} times"
        case "NonHttpUrlRedirectClientError" | "InvalidUrlRedirectClientError":
            return f"its server redirects to {str(getattr(error, 'url', error))!r}, which is no http or https URL"
        case "ClientConnectorCertificateError":
            below = getattr(error, "certificate_error", None)
            return (
                f"its server's certificate is not valid ({getattr(below, 'verify_message', None) or below})"
            )
    return ""


def _no_connection(error: Exception) -> str:
    """Why there was no connection, in the system's words; "" if it was something else."""
    below = getattr(
        error, "os_error", None
    )  # of aiohttp's errors, which name flags of TLS and addresses besides
    if isinstance(below, ssl.SSLError):
        return f"no connection (TLS: {(below.reason or str(below)).lower().replace('_', ' ')})"
    if isinstance(below, OSError) and below.errno:
        return f"no connection ({os.strerror(below.errno) if below.errno > 0 else below.strerror})"
    return "no answer in time" if isinstance(error, TimeoutError) else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
