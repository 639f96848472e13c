"""Sources of a node's datasets: another node's agent, or an origin at an allowed address. Blocks, and runs in threads.

A dataset is brought whole, from one place (`bring`), or a range of it is opened (`section`), of which `node.ranges` makes the
dataset.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import secrets
import socket
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from flowsched.cluster.kubernetes import safe_paths
from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.kubernetes.agent.trees import unpack
from flowsched.cluster.kubernetes.orders import line_safe
from flowsched.cluster.kubernetes.safe_paths import Unsafe
from flowsched.cluster.node.cache import Entry, file_name
from flowsched.cluster.node.origins import CONTENT_RANGE, NotFetched, Origins, Section, failure, file_section
from flowsched.cluster.node.ranges import changed_at
from flowsched.cluster.node.rates import Stopped

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Where clouds tell a node about itself, its credentials included. Some of them are ordinary public addresses.
METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, OpenStack, DigitalOcean …
            "169.254.170.2",  # AWS, of containers
            "169.254.170.23",  # AWS, of EKS pods
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS, of EKS pods
            "fd20:ce::254",  # Google
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle
        ),
    )
)

#: IPv6 that carries an IPv4 address to a translator.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(OSError):
    """An address that inputs may not come from."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets public addresses pass, and those in `networks`.

    Args:
        networks: Private ranges that origins may lie in. A metadata address must be named alone (/32, /128), since it
            lies in ranges that people open for other reasons.
    """

    networks: tuple[str, ...] = ()

    def check(self, host: str) -> None:
        """Let an address pass.

        Raises:
            Forbidden: It is neither public nor in one of the networks.
        """
        address = true_address(host)
        allowed = [network for network in self._networks() if address in network]
        if address in METADATA:
            passes = any(network.prefixlen == network.max_prefixlen for network in allowed)
        elif address.is_link_local:
            passes = any(network.is_link_local for network in allowed)
        else:
            public = address.is_global and not (address.is_multicast or address.is_reserved)
            passes = bool(allowed) or public
        if not passes:
            raise Forbidden(f"{host} is not an address that inputs may come from")

    def _networks(self) -> Sequence[Network]:
        return [ipaddress.ip_network(network) for network in self.networks]

    def socket_factory(self, info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one address that a name has; aiohttp asks before each connection."""
        family, kind, protocol, _, address = info
        self.check(address[0])
        return socket.socket(family, kind, protocol)

    async def __call__(self, **options: Any) -> Any:
        """Make fsspec's HTTP session. It checks the address of each connection that it opens."""
        import aiohttp

        connector = aiohttp.TCPConnector(socket_factory=self.socket_factory)
        return aiohttp.ClientSession(connector=connector, **options)


def true_address(host: str) -> Address:
    """The address a connection would really go to: out of what IPv6 wraps it in."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


# ---- agents and origins ----


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
        bearer: What other agents are shown.
        piece_bytes: To be read at a time.
    """

    def __init__(self, origins: Origins, bearer: str, piece_bytes: int = 1 << 20) -> None:
        self._origins = origins
        self._bearer = bearer
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
                version = f"copy-{secrets.token_hex(8)}"  # like no other copy's: it may be of any version
                name, expected = self._from_origin(uri, into, admit), None
            else:
                name, expected, version = self._from_peer(uri, peer, into, admit)
            size = trees.seal(str(into / name))
        except Unsafe as error:
            raise NotFetched(f"{uri} cannot be a dataset: {error}", permanent=True) from error
        if expected is not None and size != expected:
            raise NotFetched(f"{uri} came as {size} bytes and should be {expected}")
        return Entry(uri, size, name, (into / name).is_dir(), version)

    def section(self, uri: str, peer: Peer | None, version: str, start: int, end: int) -> Section:
        """Open a range of a dataset.

        Args:
            uri: Its name.
            peer: Where; None = at its origin.
            version: That a peer is asked for; "" = any. What came is to be looked at all the same.
            start, end: Its first byte, and the one after its last.

        Raises:
            NotFetched: It cannot be had from there.
        """
        if peer is not None:
            return self._peer_section(uri, peer, version, start, end)
        name = stored_name(file_name(uri))
        if not uri.startswith(("http:", "https:")) and "::" in uri:
            raise NotFetched(f"{uri!r} chains file systems, which inputs may not", permanent=True)
        path = self._origins.local_path(uri)
        if path is None:
            try:
                return self._origins.open_section(uri, start, end, name)
            except NotFetched as error:
                raise _refused(error) from error
        try:
            with self._parent(path) as (parent, last):
                if trees.measure(parent, last).directory:
                    raise NotFetched(f"{path} is a folder, which moves as a whole", undivided=True)
                return file_section(safe_paths.open_file(parent, last), start, name)
        except Unsafe as error:
            raise NotFetched(f"{uri} cannot be a dataset: {error}", permanent=True) from error

    def close(self) -> None:
        """Cut the connections, so that no thread waits for a peer."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(2)

    # --- another agent ---------------------------------------------------------------------------------------

    def _peer_section(self, uri: str, peer: Peer, version: str, start: int, end: int) -> Section:
        connection = _connection(peer)
        with self._lock:
            self._connections.add(connection)
        wanted = {"Range": f"bytes={start}-{end - 1}"}
        if version:
            wanted["If-Match"] = f'"{wire_name(version)}"'
        try:
            answer = self._ask(uri, peer, connection, wanted)
            return _section_of(uri, peer, answer, start, lambda: self._let_go(connection))
        except BaseException as error:
            self._let_go(connection)
            if isinstance(
                error, http.client.HTTPException | ConnectionError | TimeoutError | ValueError | TypeError
            ):
                told = f"{type(error).__name__}: {error}"
                raise NotFetched(f"{peer.node} did not send {uri}: {told}") from error
            raise

    def _let_go(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _from_peer(self, uri: str, peer: Peer, into: Path, admit: Admit) -> tuple[str, int, str]:
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
            self._let_go(connection)

    def _ask(
        self, uri: str, peer: Peer, connection: http.client.HTTPConnection, more: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """Ask an agent for a dataset."""
        base = urlsplit(peer.url).path.rstrip("/")
        headers = {"Authorization": f"Bearer {self._bearer}", "Accept-Encoding": "identity", **more}
        try:
            connection.connect()
        except OSError as error:
            raise NotFetched(f"{peer.node} ({peer.url}) cannot be reached: {error}") from error
        connection.sock.settimeout(STALLED_S)
        connection.request("GET", f"{base}/v1/datasets?{urlencode({'uri': uri})}", headers=headers)
        return connection.getresponse()

    def _receive(
        self, uri: str, peer: Peer, connection: http.client.HTTPConnection, into: Path, admit: Admit
    ) -> tuple[str, int, str]:
        answer = self._ask(uri, peer, connection, {})
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
        told = answer.headers.get("X-Flowsched-Version")
        version = (
            f"copy-{secrets.token_hex(8)}" if told is None else unquote(told)
        )  # of an agent that tells none
        return name, size, version

    def _store(self, body: _Body, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while block := body.read(self._piece):
                safe_paths.write_all(fd, block)
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
        with self._parent(path) as (parent, name):
            found = trees.measure(parent, name)
            self._copy_any(parent, name, str(target), admit, found.directory)

    @contextmanager
    def _parent(self, path: Path) -> Iterator[tuple[int, str]]:
        """The folder a path lies in, reached from its allowed root by descriptor, and its name there."""
        allowed = [Path(os.path.realpath(root)) for root in self._origins.allowed_roots or ("/",)]
        root = next(root for root in allowed if path.is_relative_to(root))
        names = path.relative_to(root).parts
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not names:
                raise Unsafe("the whole of an allowed folder")
            with safe_paths.folder(top, names[:-1]) as parent:
                yield parent, names[-1]
        finally:
            os.close(top)

    def _copy_any(self, at: int, name: str, target: str, admit: Admit, directory: bool) -> None:
        if not directory:
            fd = safe_paths.open_file(at, name)
            with open(fd, "rb", buffering=0) as reading:
                body = _Body(cast("BinaryIO", reading), None, admit, "")
                self._store(body, Path(target))
                os.chmod(target, stat.S_IMODE(os.fstat(fd).st_mode) & 0o777 | 0o400)
            return
        os.mkdir(target, 0o755)
        fd = safe_paths.open_folder(at, name)
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
    """A stream that admits its bytes one piece at a time, and counts them."""

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


class _Answer:
    """The body of a section that a peer sends; closing it closes the connection."""

    def __init__(self, answer: http.client.HTTPResponse, let_go: Callable[[], None]) -> None:
        self._answer = answer
        self._let_go = let_go

    def read(self, amount: int) -> bytes:
        """Up to so many bytes; b"" at the end, also if it comes too early."""
        return self._answer.read(amount)

    def close(self) -> None:
        """Hang up."""
        self._let_go()


def _section_of(
    uri: str, peer: Peer, answer: http.client.HTTPResponse, start: int, let_go: Callable[[], None]
) -> Section:
    """The section that an agent's answer holds.

    Raises:
        NotFetched: It is none.
    """
    told = answer.headers
    if answer.status == 404:
        raise NotFetched(f"{peer.node} no longer has {uri}", lost=True)
    if answer.status == 412:
        if told.get("X-Flowsched-Whole") == "1":
            raise changed_at(uri, peer.node, unquote(told.get("X-Flowsched-Version", "")))
        raise NotFetched(f"{peer.node} has pieces of another version of {uri}", lost=True)
    if answer.status == 200 or told.get("X-Flowsched-Directory") == "1":
        raise NotFetched(f"{uri} moves as a whole: {peer.node} gives no ranges of it", undivided=True)
    if answer.status != 206:
        raise NotFetched(f"{peer.node} answered {answer.status} for a part of {uri}")
    found = CONTENT_RANGE.fullmatch(told["Content-Range"])
    if found is None or int(found[1]) != start:
        raise NotFetched(f"{peer.node} sent another part of {uri}: {told['Content-Range']}")
    return Section(
        cast("BinaryIO", _Answer(answer, let_go)),
        int(found[2]),
        unquote(told["X-Flowsched-Version"]),
        stored_name(unquote(told["X-Flowsched-Name"])),
        int(told["X-Flowsched-Mode"], 8) & 0o777,
        told["X-Flowsched-Whole"] == "1",
    )


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
