"""HTTP/1.1 on the wire, as much of it as calls to an API server need: a request to bytes, bytes to a reply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

#: Of a reply: what is longer than this before its body, or between two chunks, is no reply.
LONGEST_HEAD_BYTES: Final = 64 << 10
_LONGEST_CHUNK_LINE: Final = 1 << 10
_END: Final = b"\r\n\r\n"
#: These never have a body.
_BARE: Final = (204, 304)


class NotHttp(Exception):
    """What has arrived is no reply."""


class Reply(NamedTuple):
    """A reply. `retry_after` is as the server wrote it; `kept` says whether the connection may be used again."""

    status: int
    body: bytes
    retry_after: str
    kept: bool


def preamble(host: str, headers: Mapping[str, str]) -> bytes:
    """The header lines that requests have in common.

    Raises:
        ValueError: One of them would break out of its line.
    """
    lines = {"Host": host, **headers}
    if any(not text.isprintable() or not text.isascii() for pair in lines.items() for text in pair):
        raise ValueError("a header holds what no header may hold")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()


def request(method: str, target: str, common: bytes, body: bytes | None, content_type: str) -> bytes:
    """A whole request.

    Args:
        method: As in HTTP.
        target: Path and query, escaped already.
        common: `preamble`.
        body: None = there is none.
        content_type: Of the body.

    Raises:
        ValueError: The target would break out of its line.
    """
    if not target.isascii() or not target.isprintable() or " " in target:
        raise ValueError(f"not a path: {target!r}")
    if body is None:
        told = "Content-Length: 0\r\n" if method in ("POST", "PUT", "PATCH") else ""
        return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), target.encode(), common, told.encode())
    return b"%b %b HTTP/1.1\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), target.encode(), common, content_type.encode(), len(body), body,
    )  # fmt: skip


class Reader:
    """Reads replies, one after the other, from a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._body = bytearray()
        self._trailing = False  #: the last chunk has been read, what follows are trailers

    @property
    def begun(self) -> bool:
        """Whether something of a reply has arrived."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> Reply | None:
        """Take what has arrived; the reply, once it is complete.

        Raises:
            NotHttp: It is no reply, or something follows it that nobody has asked for.
        """
        self._buffer += data
        if self._head is None and not self._begin():
            return None
        head = self._head
        assert head is not None
        if head.chunked:
            return self._finish(bytes(self._body)) if self._chunks() else None
        if head.length is None or len(self._buffer) < head.length:
            return None
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        return self._finish(body)

    def end(self) -> Reply | None:
        """The connection has ended: so has a reply that says no length. None if there is none, or a piece of one."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            return None
        return self._finish(bytes(self._buffer), kept=False)

    def _begin(self) -> bool:
        """Read the head, if it is there; what only says that an answer will follow is passed over."""
        while True:
            end = self._buffer.find(_END)
            if end < 0:
                if len(self._buffer) > LONGEST_HEAD_BYTES:
                    raise NotHttp("the head of the reply does not end")
                return False
            head = _read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(_END)]
            if head.status >= 200:
                self._head = head
                return True

    def _chunks(self) -> bool:
        """Read chunks as far as they are there; whether that was all."""
        at = 0
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > _LONGEST_CHUNK_LINE:
                    raise NotHttp("a chunk does not begin as chunks do")
                break
            if self._trailing:
                if end == at:
                    del buffer[: end + 2]
                    return True
                at = end + 2
                continue
            size = _hexadecimal(bytes(buffer[at:end]))
            if size == 0:
                self._trailing = True
                at = end + 2
                continue
            if len(buffer) < end + 2 + size + 2:
                break
            self._body += buffer[end + 2 : end + 2 + size]
            if buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise NotHttp("a chunk is longer than it says")
            at = end + 4 + size
        del buffer[:at]
        return False

    def _finish(self, body: bytes, *, kept: bool = True) -> Reply:
        head = self._head
        assert head is not None
        if self._buffer and kept:
            raise NotHttp("more has arrived than was asked for")
        self._head, self._body, self._trailing = None, bytearray(), False
        return Reply(head.status, body, head.retry_after, kept and head.kept)


class _Head(NamedTuple):
    """What a head says. `length` None = as long as the connection."""

    status: int
    length: int | None
    chunked: bool
    kept: bool
    retry_after: str


def _read_head(raw: bytes) -> _Head:
    first, *lines = raw.split(b"\r\n")
    if not first.startswith(b"HTTP/1.") or not first[9:12].isdigit():
        raise NotHttp(f"not HTTP: {first[:40]!r}")
    status, kept = int(first[9:12]), first[7:8] == b"1"
    length: int | None = None
    chunked, retry_after = False, ""
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                told = value.strip()
                if not told.isdigit() or length not in (None, int(told)):
                    raise NotHttp("the reply's length is none")
                length = int(told)
            case b"transfer-encoding":
                chunked = b"chunked" in value.lower()
            case b"connection":
                kept = kept and b"close" not in value.lower()
            case b"retry-after":
                retry_after = value.strip().decode("latin-1")
    if status in _BARE:
        return _Head(status, 0, False, kept, retry_after)
    return _Head(status, None if chunked else length, chunked, kept, retry_after)


def _hexadecimal(line: bytes) -> int:
    """The size of a chunk, without its extensions."""
    digits = line.partition(b";")[0].strip()
    try:
        if digits[:1] in (b"-", b"+"):
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise NotHttp(f"not the size of a chunk: {digits[:40]!r}") from None
