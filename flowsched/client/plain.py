"""One request with next to nothing loaded: for commands that other programs start thousands of times.

`session` needs asyncio and aiohttp, which take longer to load than such a command takes to run. Here is no connection pool, no
stream and no error tree: a status and bytes, or `Unreachable`. A request over plain HTTP goes through a bare socket: `http.client`
takes three times as long to load as Python takes to start. All else goes through `http.client`.
"""

from __future__ import annotations

import _socket  # `socket` adds enums and selectors, which take longer to load than the request takes

from flowsched.tokens import plain_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping
    from typing import Final
    from urllib.parse import SplitResult

#: A URL without its scheme.
_PLACE: Final = r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[!-~]*)?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
#: An answer beyond this is none of ours.
LARGEST_ANSWER: Final = 4 << 20


class Unreachable(Exception):
    """No server answered, or not in HTTP. The message names the URL. Whether the request arrived is not known."""


class Answer:
    """An answer of any status.

    Args:
        status: Of HTTP.
        content: The body.
        retry_after: The header Retry-After, "" if there is none.
    """

    def __init__(self, status: int, content: bytes, retry_after: str) -> None:
        self.status = status
        self.content = content
        #: The pause that the server asked for, 0 if none.
        self.retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0


def wrong_url(url: str) -> str | None:
    """Why a URL cannot be asked; None if it can."""
    if plain_url(url) is not None:
        return None
    import re
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return None
    except ValueError:
        pass
    if "://" not in url and re.fullmatch(_PLACE, url):
        return f"{url!r} has no scheme: write http://{url}"
    return f"{url!r} is no URL such as http://127.0.0.1:8470"


def ask(
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> Answer:
    """Ask once, over a connection of its own.

    Args:
        method: As in HTTP.
        url: The whole of it; see `wrong_url`.
        body: The bytes to send; None sends none.
        headers: Further headers.
        timeout_s: Longest silence, in seconds.

    Raises:
        Unreachable: No connection, no answer in time, or no HTTP.
    """
    plain = plain_url(url)
    if plain is None:
        return _ask_any(method, url, body, headers or {}, timeout_s)
    host, port, path = plain
    try:
        return _ask_plain(
            host, port, _request(method, path, f"{host}:{port}", body, headers or {}), timeout_s
        )
    except (OSError, ValueError) as error:
        raise Unreachable(f"no answer from http://{url.split('/', 3)[2]} ({_why(error)})") from error


def _request(method: str, path: str, host: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    """A request in HTTP/1.0, whose answer ends with the connection and comes in one piece."""
    lines = [f"{method} {path or '/'} HTTP/1.0", f"Host: {host}"]
    if body is not None or method == "POST":
        lines.append(f"Content-Length: {len(body or b'')}")
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"the header {name} has a line end in it")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def _ask_plain(host: str, port: int, request: bytes, timeout_s: float) -> Answer:
    connection = _connected(host, port, timeout_s)
    try:
        connection.sendall(request)
        pieces: list[bytes] = []
        size = 0
        while size < LARGEST_ANSWER and (piece := connection.recv(65536)):
            pieces.append(piece)
            size += len(piece)
    finally:
        connection.close()
    head, end, content = b"".join(pieces).partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not end or not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():
        raise ValueError(
            "it closed the connection without an answer" if not head else "it does not speak HTTP"
        )
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    length = fields.get("content-length", "")
    if length.isdecimal() and len(content) < min(int(length), LARGEST_ANSWER - len(head) - 4):
        raise ValueError("the answer broke off")
    return Answer(int(words[1]), content, fields.get("retry-after", ""))


def _connected(host: str, port: int, timeout_s: float) -> _socket.socket:
    """A connection to the first of a host's addresses that takes one."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in _socket.getaddrinfo(
        host.encode(), port, 0, _socket.SOCK_STREAM
    ):
        connection = _socket.socket(family, kind, protocol)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed or OSError(f"{host} has no address")


def _ask_any(
    method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> Answer:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    connection = _connection(parts, timeout_s)
    try:
        connection.request(method, parts.path or "/", body=body, headers={"Connection": "close", **headers})
        response = connection.getresponse()
        content = response.read(LARGEST_ANSWER)
        return Answer(response.status, content, response.getheader("Retry-After") or "")
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(
            f"no answer from {parts.scheme}://{parts.netloc.rpartition('@')[2]} ({_why(error)})"
        ) from error
    finally:
        connection.close()


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    import http.client

    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout_s, context=context
        )
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if untrusted := getattr(error, "verify_message", None):  # of TLS
        return f"its certificate is not trusted: {untrusted}; SSL_CERT_FILE=FILE names that of a private authority"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
