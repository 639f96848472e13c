"""Sources of a node's datasets: another node's agent, or an origin at an allowed address. Blocks, and runs in threads."""

from __future__ import annotations

import http.client
import ipaddress
import secrets
import socket
import tarfile
import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlencode, urlsplit

import aiohttp

from flowsched.cluster.kubernetes.agent.trees import unpack
from flowsched.cluster.node.cache import Entry, stored_name
from flowsched.cluster.node.origins import (
    CONTENT_RANGE,
    Body,
    Forbidden,
    NotFetched,
    Origins,
    Section,
    copy_stream,
)
from flowsched.cluster.node.ranges import changed_at
from flowsched.cluster.node.space import check_room
from flowsched.cluster.node.transfers import OriginSource, Source
from flowsched.executor.protocol import Transfer

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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


@dataclass(frozen=True, slots=True)
class SsrfGuard:
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
        allowed = [network for network in map(ipaddress.ip_network, self.networks) if address in network]
        if address in METADATA:
            passes = any(network.prefixlen == network.max_prefixlen for network in allowed)
        elif address.is_link_local:
            passes = any(network.is_link_local for network in allowed)
        else:
            public = address.is_global and not (address.is_multicast or address.is_reserved)
            passes = bool(allowed) or public
        if not passes:
            raise Forbidden(f"{host} is not an address that inputs may come from")

    def socket_factory(self, info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one address that a name has; aiohttp asks before each connection."""
        family, kind, protocol, _, address = info
        self.check(address[0])
        return socket.socket(family, kind, protocol)

    async def __call__(self, **options: Any) -> Any:
        """Make fsspec's HTTP session. It checks the address of each connection that it opens."""
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


class Sources:
    """The places that this node's datasets come from.

    Args:
        origins: The places outside that may be fetched from.
        bearer: The key that the agent shows to other agents.
    """

    def __init__(self, origins: Origins, bearer: str) -> None:
        self._origins = origins
        self._bearer = bearer
        self._connections: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()

    def of(self, order: Transfer, url: str) -> Source:
        """The source that an order names. `url`: of its node's agent."""
        if order.source is None:
            return OriginSource(self._origins, order.uri)
        return AgentSource(self, order.uri, order.source, url, order.version)

    def connect(self, node: str, url: str) -> http.client.HTTPConnection:
        """A connection to another node's agent, which `let_go` ends.

        Raises:
            NotFetched: It cannot be reached.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise NotFetched(f"{url!r} is no agent's address", permanent=True)
        kind: Any = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = cast("http.client.HTTPConnection", kind(parts.hostname, parts.port, timeout=CONNECT_S))
        with self._lock:
            self._connections.add(connection)
        try:
            connection.connect()
        except OSError as error:
            self.let_go(connection)
            raise NotFetched(f"{node} ({url}) cannot be reached: {error}") from error
        connection.sock.settimeout(STALLED_S)
        return connection

    def let_go(self, connection: http.client.HTTPConnection) -> None:
        """Hang up."""
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def ask(
        self, connection: http.client.HTTPConnection, url: str, uri: str, more: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """Ask an agent for a dataset."""
        base = urlsplit(url).path.rstrip("/")
        headers = {"Authorization": f"Bearer {self._bearer}", "Accept-Encoding": "identity", **more}
        connection.request("GET", f"{base}/v1/datasets?{urlencode({'uri': uri})}", headers=headers)
        return connection.getresponse()

    def close(self) -> None:
        """Cut the connections, so that no thread waits for a peer."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(2)


# ---- another agent ----


@dataclass(frozen=True, slots=True)
class AgentSource:
    """A dataset on another node.

    Args:
        sources: Has the connections.
        uri: The dataset.
        node: The node.
        url: Where its agent answers.
        version: That ranges are asked for; "" = any. Which version came is to be looked at all the same.
    """

    sources: Sources
    uri: str
    node: str
    url: str
    version: str = ""

    def section(self, start: int, end: int) -> Section:
        """See `Source`."""
        connection = self.sources.connect(self.node, self.url)
        wanted = {"Range": f"bytes={start}-{end - 1}"}
        if self.version:
            wanted["If-Match"] = f'"{wire_name(self.version)}"'
        try:
            answer = self.sources.ask(connection, self.url, self.uri, wanted)
            close = partial(self.sources.let_go, connection)
            return self._section_of(answer, start, Body(answer, self.uri, None, self._unsent, close))
        except BaseException as error:
            self.sources.let_go(connection)
            if isinstance(error, _BROKEN):
                raise self._unsent(error) from error
            raise

    def copy(self, into: Path, block_bytes: int) -> Generator[int, None, Entry]:
        """See `Source`."""
        connection = self.sources.connect(self.node, self.url)
        try:
            return (yield from self._receive(connection, into, block_bytes))
        except _BROKEN as error:
            raise self._unsent(error) from error
        finally:
            self.sources.let_go(connection)

    def _receive(
        self, connection: http.client.HTTPConnection, into: Path, block_bytes: int
    ) -> Generator[int, None, Entry]:
        answer = self.sources.ask(connection, self.url, self.uri, {})
        if answer.status != 200:
            why = f"{self.node} answered {answer.status} for {self.uri}"
            raise NotFetched(why, lost=answer.status == 404)
        headers = answer.headers
        length, size = (int(headers[name]) for name in ("Content-Length", "X-Flowsched-Size"))
        name = stored_name(unquote(headers["X-Flowsched-Name"]))
        version = headers.get("X-Flowsched-Version")  # an older agent tells none
        check_room(into, length)
        body = Body(answer, f"{self.uri} from {self.node}", length, self._unsent)
        directory = headers.get("X-Flowsched-Directory") == "1"
        if directory:
            came = yield from unpack(body, into / name)
        else:
            came = yield from copy_stream(body, into / name, block_bytes)
        while body.read(1 << 16):
            pass
        if came != size:
            raise NotFetched(f"{self.uri} came as {came} bytes and should be {size}")
        version = f"copy-{secrets.token_hex(8)}" if version is None else unquote(version)
        return Entry(self.uri, size, name, directory, version)

    def _section_of(self, answer: http.client.HTTPResponse, start: int, body: Body) -> Section:
        """The section that an agent's answer holds.

        Raises:
            NotFetched: It is none.
        """
        headers, node, uri = answer.headers, self.node, self.uri
        if answer.status == 404:
            raise NotFetched(f"{node} no longer has {uri}", lost=True)
        if answer.status == 412:
            if headers.get("X-Flowsched-Whole") == "1":
                raise changed_at(uri, node, unquote(headers.get("X-Flowsched-Version", "")))
            raise NotFetched(f"{node} has pieces of another version of {uri}", lost=True)
        if answer.status == 200 or headers.get("X-Flowsched-Directory") == "1":
            raise NotFetched(f"{uri} moves as a whole: {node} gives no ranges of it", undivided=True)
        if answer.status != 206:
            raise NotFetched(f"{node} answered {answer.status} for a part of {uri}")
        found = CONTENT_RANGE.fullmatch(headers["Content-Range"])
        if found is None or int(found[1]) != start:
            raise NotFetched(f"{node} sent another part of {uri}: {headers['Content-Range']}")
        return Section(
            body,
            int(found[2]),
            unquote(headers["X-Flowsched-Version"]),
            stored_name(unquote(headers["X-Flowsched-Name"])),
            int(headers["X-Flowsched-Mode"], 8) & 0o777,
            headers["X-Flowsched-Whole"] == "1",
        )

    def _unsent(self, error: Exception) -> NotFetched:
        return NotFetched(f"{self.node} did not send {self.uri}: {type(error).__name__}: {error}")


#: Errors of a connection, of a tar stream, and (the last two) of headers.
_BROKEN: Final = (
    http.client.HTTPException, tarfile.TarError, ConnectionError, TimeoutError, ValueError, TypeError,
)  # fmt: skip


def wire_name(name: str) -> str:
    """A file name as a header can have it; `unquote` gives it back."""
    return quote(name, safe="")
