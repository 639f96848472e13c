"""HTTP/1.1 from bytes: however it is cut, and whatever a server makes of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.api.http import (
    LONGEST_HEAD_BYTES,
    NotHttp,
    Reader,
    Reply,
    preamble,
    request,
)

LENGTH = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b'5;name=value\r\n{"a":\r\n0A\r\n" \r\n0\r\n\r\n"\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n'
)
BARE = b"HTTP/1.1 204 No Content\r\n\r\n"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
PATIENT = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
REPLIES = {
    LENGTH: Reply(201, b"{}", "", True),
    CHUNKS: Reply(200, b'{"a":" \r\n0\r\n\r\n"}', "", True),
    BARE: Reply(204, b"", "", True),
    BUSY: Reply(429, b"", "3", False),
    PATIENT: Reply(201, b"{}", "", True),
}


def read(reader: Reader, raw: bytes, cuts: list[int]) -> list[Reply]:
    """Feed bytes cut at these places; the replies."""
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    found = [reader.feed(raw[a:b]) for a, b in itertools.pairwise(places)]
    return [reply for reply in found if reply is not None]


@given(st.sampled_from(list(REPLIES)), st.sampled_from(list(REPLIES)), st.lists(st.integers(0, 1000)))
def test_a_reply_is_the_same_however_it_is_cut(first: bytes, second: bytes, cuts: list[int]) -> None:
    """And so is the next one on the same connection."""
    reader = Reader()
    assert read(reader, first, cuts) == [REPLIES[first]]
    assert read(reader, second, cuts) == [REPLIES[second]]


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=5))
def test_whatever_arrives_is_a_reply_or_none(raw: bytes, cuts: list[int]) -> None:
    """Nothing else is raised."""
    try:
        read(Reader(), raw, cuts)
        read(Reader(), LENGTH[:20] + raw, cuts)
        read(Reader(), CHUNKS[:47] + raw, cuts)
    except NotHttp:
        pass


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
        b"x" * (LONGEST_HEAD_BYTES + 1),
    ],
)
def test_what_is_no_reply(raw: bytes) -> None:
    """It is refused rather than guessed at."""
    with pytest.raises(NotHttp):
        Reader().feed(raw)


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    """Old proxies answer so; one that has a length and ends early is no reply."""
    reader = Reader()
    assert reader.feed(b"HTTP/1.0 502 Bad Gateway\r\n\r\nno ba") is None
    assert reader.feed(b"ckend") is None
    assert reader.end() == Reply(502, b"no backend", "", False)
    cut = Reader()
    assert cut.feed(LENGTH[:-1]) is None
    assert cut.begun
    assert cut.end() is None


def test_requests() -> None:
    """Byte by byte."""
    common = preamble("host:6443", {"Authorization": "Bearer x"})
    assert common == b"Host: host:6443\r\nAuthorization: Bearer x\r\n"
    assert request("GET", "/a?b=c", common, None, "") == b"GET /a?b=c HTTP/1.1\r\n" + common + b"\r\n"
    told = b"POST / HTTP/1.1\r\n" + common + b"Content-Type: t\r\nContent-Length: 2\r\n\r\n{}"
    assert request("POST", "/", common, b"{}", "t") == told
    assert request("POST", "/", common, None, "t").endswith(b"Content-Length: 0\r\n\r\n")


@pytest.mark.parametrize("bad", ["/a b", "/a\r\nX: y", "/ü", "/\x00"])
def test_nothing_breaks_out_of_its_line(bad: str) -> None:
    """Neither a path nor a header."""
    with pytest.raises(ValueError, match="not a path"):
        request("GET", bad, b"", None, "")
    with pytest.raises(ValueError, match="header"):
        preamble("host", {"Authorization": f"Bearer {bad.removeprefix('/a b')}\n"})
