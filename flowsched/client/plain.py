"""One request over the standard library alone: for commands that other programs start thousands of times.

`session` needs asyncio and aiohttp, which take longer to import than such a command takes to run. Here is no connection pool,
no stream and no error tree: a status and bytes, or `Unreachable`.
"""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

#: A URL without its scheme.
_PLACE: Final = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[!-~]*)?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
#: An answer beyond this is none of ours.
LARGEST_ANSWER: Final = 4 << 20


class Unreachable(Exception):
    """No server answered, or not in HTTP. The message names the URL. Whether the request arrived is not known."""


class Answer(NamedTuple):
    """What came back, whatever its status."""

    status: int
    content: bytes
    retry_after_s: float  #: what the server asked for, 0 if nothing


def wrong_url(url: str) -> str | None:
    """Why a URL cannot be asked; None if it can."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return None
    except ValueError:
        pass
    if "://" not in url and _PLACE.fullmatch(url):
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
        body: What is sent; None sends nothing.
        headers: Further headers.
        timeout_s: Longest silence, in seconds.

    Raises:
        Unreachable: No connection, no answer in time, or no HTTP.
    """
    parts = urlsplit(url)
    connection = _connection(parts, timeout_s)
    try:
        connection.request(
            method, parts.path or "/", body=body, headers={"Connection": "close", **(headers or {})}
        )
        response = connection.getresponse()
        content = response.read(LARGEST_ANSWER)
        return Answer(response.status, content, _seconds(response.getheader("Retry-After")))
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(
            f"no answer from {parts.scheme}://{parts.netloc.rpartition('@')[2]} ({_why(error)})"
        ) from error
    finally:
        connection.close()


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout_s, context=context
        )
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isascii() and text.isdigit() else 0.0
