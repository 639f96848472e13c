"""Where a node's datasets come from: another node's agent, or their origin. Everything here blocks, and runs in threads.

A dataset is brought whole, from one place. Pieces of one dataset from several agents at a time would be another `bring`
with the same signature, which is all that `transfers` knows of this module.
"""

from __future__ import annotations

import http.client
import os
import stat
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from flowsched.cluster.cache import Entry, file_name
from flowsched.cluster.kubernetes.agent import beneath, trees
from flowsched.cluster.kubernetes.agent.beneath import Unsafe
from flowsched.cluster.kubernetes.agent.guard import Forbidden
from flowsched.cluster.kubernetes.agent.orders import line_safe
from flowsched.cluster.kubernetes.agent.rates import Stopped
from flowsched.cluster.kubernetes.agent.unpack import unpack
from flowsched.cluster.origins import NotFetched, Origins, failure

CONNECT_S: Final = 10.0
#: A peer or an origin that sends nothing for so long is given up.
STALLED_S: Final = 60.0

#: Called with each piece's bytes before the next is asked for: waits, or raises because there is no room.
Admit = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node's agent."""

    node: str
    url: str


class Sources:
    """Brings datasets.

    Args:
        origins: What may be fetched from outside.
        key: Which the agents share.
        piece_bytes: To be read at a time.
    """

    def __init__(self, origins: Origins, key: bytes, piece_bytes: int = 1 << 20) -> None:
        self._origins = origins
        self._key = key
        self._piece = piece_bytes
        self._connections: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def bring(self, uri: str, peer: Peer | None, into: Path, admit: Admit) -> Entry:
        """Fill a folder with a dataset's one file or folder, sealed.

        Raises:
            NotFetched: It cannot be had from there.
            OSError: This node cannot store it.
        """
        try:
            if peer is None:
                name, expected = self._from_origin(uri, into, admit), None
            else:
                name, expected = self._from_peer(uri, peer, into, admit)
            size = trees.seal(str(into / name))
        except Unsafe as error:
            raise NotFetched(f"{uri} cannot be a dataset: {error}", permanent=True) from error
        if expected is not None and size != expected:
            raise NotFetched(f"{uri} came as {size} bytes and should be {expected}")
        return Entry(uri, size, name, (into / name).is_dir())

    def close(self) -> None:
        """Cut the connections, so that no thread waits for a peer."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(2)

    # --- another agent ---------------------------------------------------------------------------------------

    def _from_peer(self, uri: str, peer: Peer, into: Path, admit: Admit) -> tuple[str, int]:
        connection = _connection(peer)
        with self._lock:
            self._connections.add(connection)
        try:
            return self._receive(uri, peer, connection, into, admit)
        except (
            http.client.HTTPException,
            tarfile.TarError,
            ValueError,
            TypeError,
        ) as error:  # the last two: of its headers
            raise NotFetched(f"{peer.node} did not send {uri}: {type(error).__name__}: {error}") from error
        except (ConnectionError, TimeoutError) as error:
            raise NotFetched(f"{peer.node} did not send {uri}: {error or type(error).__name__}") from error
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _receive(
        self, uri: str, peer: Peer, connection: http.client.HTTPConnection, into: Path, admit: Admit
    ) -> tuple[str, int]:
        base = urlsplit(peer.url).path.rstrip("/")
        headers = {"Authorization": f"Bearer {self._key.decode()}", "Accept-Encoding": "identity"}
        try:
            connection.connect()
        except OSError as error:
            raise NotFetched(f"{peer.node} ({peer.url}) cannot be reached: {error}") from error
        connection.sock.settimeout(STALLED_S)
        connection.request("GET", f"{base}/v1/datasets?{urlencode({'uri': uri})}", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise NotFetched(f"{peer.node} answered {answer.status} for {uri}", lost=answer.status == 404)
        length, size = (int(answer.headers[name]) for name in ("Content-Length", "X-Flowsched-Size"))
        name = stored_name(unquote(answer.headers["X-Flowsched-Name"]))
        body = _Body(
            cast("BinaryIO", answer), length, admit, f"{peer.node} sent {{}} of {length} bytes of {uri}"
        )
        if answer.headers.get("X-Flowsched-Directory") == "1":
            unpack(cast("BinaryIO", body), str(into / name))
        else:
            self._store(body, into / name)
        body.drain()
        return name, size

    def _store(self, body: _Body, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while block := body.read(self._piece):
                beneath.write_all(fd, block)
        finally:
            os.close(fd)

    # --- the origin ------------------------------------------------------------------------------------------

    def _from_origin(self, uri: str, into: Path, admit: Admit) -> str:
        name = stored_name(file_name(uri))
        if not uri.startswith(("http:", "https:")) and "::" in uri:
            raise NotFetched(f"{uri!r} chains file systems, which inputs may not", permanent=True)
        path = self._origins.local_path(uri)
        if path is not None:
            self._copy(path, into / name, admit)
        elif uri.endswith("/") and not uri.startswith(("http:", "https:")):
            for inner in self._origins.listing(uri):
                (into / name / inner).parent.mkdir(parents=True, exist_ok=True)
                self._from_store(uri + inner, into / name / inner, admit)
        else:
            self._from_store(uri, into / name, admit)
        return name

    def _from_store(self, uri: str, target: Path, admit: Admit) -> None:
        try:
            stream, expected = self._origins.open(uri)
        except NotFetched as error:
            raise _refused(error) from error
        try:
            self._store(_Body(stream, expected, admit, f"{uri} ended after {{}} of {expected} bytes"), target)
        except (NotFetched, OSError, Stopped):
            raise
        except Exception as error:  # each of fsspec's file systems has errors of its own
            raise failure(uri, error) from error
        finally:
            stream.close()

    def _copy(self, path: Path, target: Path, admit: Admit) -> None:
        """Copy from a folder of this machine, which others may be changing: from the allowed root on by descriptor."""
        allowed = [Path(os.path.realpath(root)) for root in self._origins.allowed_roots or ("/",)]
        root = next(root for root in allowed if path.is_relative_to(root))
        names = path.relative_to(root).parts
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not names:
                raise Unsafe("the whole of an allowed folder")
            with beneath.folder(top, names[:-1]) as parent:
                found = trees.measure(parent, names[-1])
                self._copy_any(parent, names[-1], str(target), admit, found.directory)
        finally:
            os.close(top)

    def _copy_any(self, at: int, name: str, target: str, admit: Admit, directory: bool) -> None:
        if not directory:
            fd = beneath.open_file(at, name)
            with open(fd, "rb", buffering=0) as reading:
                body = _Body(cast("BinaryIO", reading), None, admit, "")
                self._store(body, Path(target))
                os.chmod(target, stat.S_IMODE(os.fstat(fd).st_mode) & 0o777 | 0o400)
            return
        os.mkdir(target, 0o755)
        fd = beneath.open_folder(at, name)
        try:
            for inner in os.listdir(fd):
                mode = os.stat(inner, dir_fd=fd, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    os.symlink(os.readlink(inner, dir_fd=fd), f"{target}/{inner}")
                else:
                    self._copy_any(fd, inner, f"{target}/{inner}", admit, stat.S_ISDIR(mode))
        finally:
            os.close(fd)


class _Body:
    """A stream whose bytes are admitted one piece at a time, and counted."""

    def __init__(self, stream: BinaryIO, expected: int | None, admit: Admit, short: str) -> None:
        self._stream = stream
        self._expected = expected
        self._admit = admit
        self._short = short  #: what to say of an early end, with a place for the bytes that came
        self._came = 0

    def read(self, amount: int) -> bytes:
        """Read up to so many bytes; b"" at the end, which must not come too early."""
        block = self._stream.read(amount)
        if not block and amount and self._expected is not None and self._came != self._expected:
            raise NotFetched(self._short.format(self._came))
        self._came += len(block)
        self._admit(len(block))
        return block

    def drain(self) -> None:
        """Read what is left."""
        while self.read(1 << 16):
            pass


def stored_name(name: str) -> str:
    """A file name as the cache can have it beside its record: of at most 200 bytes, without what confuses."""
    safe = line_safe(name.replace("/", "_").replace("\0", ""))
    while len(safe.encode("utf-8", "replace")) > 200:
        safe = safe[1:]
    safe = safe.encode("utf-8", "replace").decode()
    return "data" if safe in ("", ".", "..", "meta.json", "meta.json.tmp") else safe


def wire_name(name: str) -> str:
    """A file name as a header can have it; `unquote` gives it back."""
    return quote(name, safe="")


def _connection(peer: Peer) -> http.client.HTTPConnection:
    parts = urlsplit(peer.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise NotFetched(f"{peer.url!r} is no agent's address", permanent=True)
    kind: Any = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return cast("http.client.HTTPConnection", kind(parts.hostname, parts.port, timeout=CONNECT_S))


def _refused(error: NotFetched) -> NotFetched:
    """The same error, for good if the address itself is refused: trying again is no use."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Forbidden):
            return NotFetched(str(error), permanent=True)
        cause = cause.__cause__ or cause.__context__
    return error
