"""A session over HTTP: one request, tried again where that is safe, and its errors as the errors that the server raised."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

import flowsched.client.session as session
from flowsched.client.plain import wrong_url
from flowsched.client.session import CLOSED, NO_FLOWSCHED, START_S, Streamed, back_off
from flowsched.errors import (
    ConfigurationError,
    Conflict,
    Fault,
    FlowschedError,
    Forbidden,
    InvalidDocument,
    InvalidRequest,
    NotFound,
    NotLeader,
    TooLarge,
    TooMuch,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from flowsched.tokens import default_root, default_url, found, running_url, stopped, stranger_at
from flowsched.version import VERSION
from flowsched.workflow.views import ProblemView

#: A request that has no answer after so long is slow: a caller may want to say so.
SLOW_S: Final = 2.0
#: A stream on which nothing comes for so long is dead: the server sends a comment every 15 s.
SILENCE_S: Final = 45.0

#: Raised before anything was sent: trying again is always safe.
_NOT_SENT: Final = (aiohttp.ClientConnectorError,)
_LOST: Final = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)

#: How a program gives a token. The commands have words of their own.
TOKEN: Final = (
    "give the service's token: token=… of the client, or FLOWSCHED_TOKEN in the environment; `flowsched token` prints it to the "
    "user who runs the service"
)
#: How a program names a workflow otherwise than by its id. Commands do that by themselves.
FIND: Final = "calls take ids: client.find(NAME) gives the newest run of a name"
_ERRORS: Final[Mapping[int, type[FlowschedError]]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Unsupported,
    429: TooMuch,
    503: Unavailable,
}


class HttpSession:
    """Connections to one server."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        timeout: float,
        slow: Callable[[bool], object] | None = None,
        start_timeout: float = START_S,
    ) -> None:
        self._named = bool(url or os.environ.get("FLOWSCHED_SERVER"))
        url = url or default_url()
        wrong = wrong_url(url)
        if wrong is not None:
            raise ConfigurationError(wrong)
        self.url = url.rstrip("/")
        self._start_timeout_s = start_timeout
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._stream_timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=SILENCE_S)
        self._headers = {"User-Agent": f"flowsched/{VERSION}"}
        self._configured = token or os.environ.get("FLOWSCHED_TOKEN") or None
        self._found: str | None = None
        self._http: aiohttp.ClientSession | None = None
        self._closed = False
        self._slow = slow
        self._refused = False  #: the last try: nothing listens

    @property
    def http(self) -> aiohttp.ClientSession:
        """The open session; made on first use, as it belongs to the running loop.

        Raises:
            RuntimeError: The client was closed: a new session would leak.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers, timeout=self._timeout, raise_for_status=False, trust_env=False
            )
        return self._http

    def _authorization(self) -> dict[str, str]:
        """The header with the token: the given one, else the one of a service that this user runs on this machine."""
        if self._configured is None and self._found is None:
            self._found = found(
                self.url
            )  # looked for each time until it is there: the service may come up later
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    @property
    def _token(self) -> str | None:
        return self._configured or self._found

    def _is_outdated(self, status: int) -> bool:
        """Whether a refusal was about a found token, and another one is to be found now: another service has the port."""
        if status != 401 or self._configured is not None:
            return False
        before, self._found = self._found, found(self.url)
        return self._found not in (None, before)

    async def close(self) -> None:
        """Close all connections, for good."""
        self._closed = True
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Ask once, and once more while the server is away. See `Session`."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= dict(headers or {})
        loop = asyncio.get_running_loop()
        slow = self._slow
        timer = None if slow is None else loop.call_later(SLOW_S, lambda: slow(self._refused))
        try:
            return await self._request(method, path, params, body, sent, again)
        finally:
            if timer is not None:
                timer.cancel()

    async def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        sent: Mapping[str, str],
        again: bool,
    ) -> tuple[bytes, Mapping[str, str]]:
        began = time.monotonic()
        for attempt in itertools.count(1):
            stranger = self._stranger()
            if stranger is not None:
                await self._own_service(began, attempt, stranger)
                continue
            try:
                async with self.http.request(
                    method,
                    self.url + path,
                    params=params,
                    data=body,
                    headers={**sent, **self._authorization()},
                    allow_redirects=False,
                ) as response:
                    content = await response.read()
                    if response.status < 300:
                        return content, response.headers
                    error = problem_error(response.status, content)
                    wait = _retry_after(response.headers)
                    if self._is_outdated(response.status) and attempt < session.ATTEMPTS:
                        continue
                    if response.status == 401 and not self._token:
                        if self._named:
                            raise _tokenless(self.url, str(error))
                        await self._own_service(began, attempt, "")
                        continue
                    starting = time.monotonic() - began < self._start_timeout_s
                    if response.status != 503 or not again or (attempt >= session.ATTEMPTS and not starting):
                        raise error
            except aiohttp.InvalidURL:
                example = "http://127.0.0.1:8470"
                raise ConfigurationError(f"{self.url!r} is no URL such as {example}") from None
            except _LOST as lost:
                refused = self._refused = _is_refused(lost)
                starting = refused and time.monotonic() - began < self._start_timeout_s
                last = attempt >= session.ATTEMPTS and not starting
                if last or _tls_error(lost) is not None or not (again or isinstance(lost, _NOT_SENT)):
                    raise self._unreachable(lost) from None
                if refused and self._moved():
                    continue
                wait = 0.0
                if starting:
                    await asyncio.sleep(min(session.START_WAIT_S, back_off(attempt)))
                    continue
            await asyncio.sleep(max(wait, back_off(attempt)))
        raise AssertionError("the last attempt returns or raises")

    def _stranger(self) -> str | None:
        """Find out which other account's service listens at the usual address.

        The client sends no work there, even if that service needs no token. None where the user named an address or has a token
        for it, or where no other account's service listens.
        """
        if self._named or self._configured is not None or self._found is not None:
            return None
        return stranger_at(self.url)

    async def _own_service(self, began: float, attempt: int, stranger: str) -> None:
        """Wait a moment for the service of the data folder, where another one has the usual address.

        Raises:
            Unavailable: It did not come in time.
        """
        if time.monotonic() - began >= self._start_timeout_s:
            account = f"the account {stranger}" if stranger else "another data folder"
            raise Unavailable(
                f"no answer from the service of {default_root()}: it does not run, and what listens at {self.url} belongs to "
                f"{account}. If your `flowsched serve` was refused, its log says so: `flowsched serve --port 8480` takes another "
                f"port. To use that service: --server {self.url} (FLOWSCHED_SERVER), and its token"
            )
        self._refused = True
        if not self._moved():
            await asyncio.sleep(min(session.START_WAIT_S, back_off(attempt)))

    def _moved(self) -> bool:
        """Whether the service of the data folder is found elsewhere now; the next request goes there."""
        url = None if self._named else running_url()
        if url is None or url == self.url:
            return False
        self.url, self._found = url, None
        return True

    def _gone(self, error: BaseException) -> FlowschedError:
        """The error of a request that is not tried again here; the caller's next one looks where the service is now."""
        unavailable = self._unreachable(error)
        if _is_refused(error):
            self._moved()
        return unavailable

    def _unreachable(self, error: BaseException) -> FlowschedError:
        """Say which server could not be reached. Where none was named and nothing listens, it is that of the data folder."""
        last = stopped() if _is_refused(error) and not self._named else None
        if last is None:
            return unreachable(self.url, error)
        root, port = last
        return Unavailable(
            f"no answer from the service of {root}: it listened on port {port} last, and does not run; start it with "
            "`flowsched serve`"
        )

    async def probe(self, path: str) -> tuple[int, str]:
        """Ask once, for a status and a text, whatever they are.

        Raises:
            Unavailable: No server answers.
        """
        try:
            async with self.http.get(self.url + path) as response:
                return response.status, await response.text()
        except _LOST as lost:
            raise self._gone(lost) from None

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streamed]:
        """Open a stream, once.

        Raises:
            FlowschedError: The server answered with an error.
            Unavailable: The connection failed, now or while it was read.
        """
        try:
            async with self.http.get(
                self.url + path,
                params=params,
                headers={**(headers or {}), **self._authorization()},
                timeout=self._stream_timeout,
            ) as response:
                if response.status >= 300:
                    raise problem_error(response.status, await response.read())
                yield Streamed(response.headers, response.content.iter_any())
        except _LOST as error:
            raise self._gone(error) from None


def _tokenless(url: str, refusal: str) -> Unauthorized:
    """The service of a named address wants a token, and none is known. `refusal`: its own words."""
    error = Unauthorized(
        f"{url} asks for a token: none was given, and no service of this user listens there ({refusal})"
    )
    error.add_note(TOKEN)
    return error


def _is_refused(error: BaseException) -> bool:
    """Whether nothing listens at the address."""
    return isinstance(getattr(error, "os_error", None), ConnectionRefusedError)


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), session.LONGEST_WAIT_S) if text.isascii() and text.isdigit() else 0.0


def unreachable(url: str, error: BaseException) -> FlowschedError:
    """Say which server could not be reached, and what to do: `Unavailable`, or `ConfigurationError` where no waiting helps."""
    if isinstance(error, aiohttp.ClientPayloadError):
        return Unavailable(f"the connection to {url} was cut in the middle of an answer")
    if (tls := _tls_error(error)) is not None:
        return _no_tls(url, tls)
    why = "no answer in time" if isinstance(error, TimeoutError) else _system_error(error)
    return Unavailable(f"no answer from {url} ({why}); is `flowsched serve` running there?")


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """The TLS error of a connection that failed; None if it failed otherwise."""
    below = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    return below if isinstance(below, ssl.SSLError) else None


def _no_tls(url: str, error: ssl.SSLError) -> ConfigurationError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"the certificate of {url} is not trusted ({error.verify_message}); of a private authority, "
            "name the file with its certificate: SSL_CERT_FILE=FILE in the environment"
        )
    cause = (error.reason or str(error)).replace("_", " ").lower()
    return ConfigurationError(
        f"no TLS at {url} ({cause}); where no proxy with TLS is in front of the service, its URL begins with http://"
    )


def _system_error(error: BaseException) -> str:
    """The system's words for a connection that failed, without the addresses and flags that aiohttp adds to them."""
    below = getattr(error, "os_error", None)
    if isinstance(below, OSError) and below.errno is not None and below.errno > 0:
        return os.strerror(below.errno).lower()
    return str(error) or type(error).__name__


def problem_error(status: int, content: bytes) -> FlowschedError:
    """The error that the server raised, from its problem document; faults included."""
    try:
        view = msgspec.json.decode(content, type=ProblemView)
    except (msgspec.DecodeError, ValueError):
        title = re.search(
            rb"<title>([^<]{1,200})</title>", content[:2000], re.IGNORECASE
        )  # of a proxy's page
        text = (content[:80] if title is None else title[1]).decode("utf-8", "replace")
        if status in (404, 405, 501):  # others are a proxy's words on the service behind it
            return InvalidRequest(
                f"{NO_FLOWSCHED} (status {status}, and no JSON): name another, --server URL"
            )
        view = ProblemView(title=f"status {status}", status=status, detail=text)
    faults = [
        Fault(fault.get("path", ""), fault.get("found", ""), fault.get("expected", ""))
        for fault in view.faults
    ]
    if status == 422 and faults:
        return InvalidDocument(faults)
    kind = _ERRORS.get(status) or (InvalidRequest if status < 500 else FlowschedError)
    if status == NotLeader.status and view.title == NotLeader.title:
        kind = NotLeader
    error = kind(view.detail or view.title)
    if isinstance(error, Unauthorized):
        error.add_note(TOKEN)
    elif isinstance(error, NotFound) and str(error).startswith("there is no workflow"):
        error.add_note(FIND)
    return error
