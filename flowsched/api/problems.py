"""Every error leaves in one form: RFC 9457, `application/problem+json`. Nothing internal is shown."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from flowsched.errors import FlowschedError, TooMuch, Unauthorized, Unavailable
from flowsched.log_lines import get_logger
from flowsched.workflow.views import ProblemView, encode

log = get_logger(__name__)

MEDIA: Final = "application/problem+json"
#: Headers of aiohttp's own errors that mean something to a client.
PRESERVED: Final = ("Allow", "Location", "Retry-After")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer whatever is raised below as a problem."""
    try:
        return await handler(request)
    except FlowschedError as error:
        if error.status >= 500 and not isinstance(error, Unavailable):
            return unexpected(request, error)
        return refused(request, error)
    except web.HTTPException as error:
        return foreign(request, error)
    except ConnectionError:
        if request.transport is not None:
            raise
        # The client has gone. aiohttp logs what is raised with a traceback, and drops an answer without a word.
        return web.Response(status=400)
    except Exception as error:  # noqa: BLE001 (the top of every request, logged with its traceback)
        return unexpected(request, error)


def refused(request: web.Request, error: FlowschedError) -> web.Response:
    """An error that was raised on purpose: its status, its title, its words, its faults."""
    faults = [
        {"path": fault.path, "found": fault.found, "expected": fault.expected}
        for fault in getattr(error, "faults", ())
    ]
    answer = problem(error.status, error.title, str(error), request.path, faults)
    if isinstance(error, Unavailable):
        answer.headers["Retry-After"] = "2"
    if isinstance(error, TooMuch):
        answer.headers["Retry-After"] = "10"
    if isinstance(error, Unauthorized):
        answer.headers["WWW-Authenticate"] = 'Bearer realm="flowsched"'
    return answer


def foreign(request: web.Request, error: web.HTTPException) -> web.StreamResponse:
    """One of aiohttp's own: no route, no such method, a body beyond its limit."""
    if error.status < 400:
        return error
    detail = {
        404: "There is nothing at this path; /api/v1/openapi.json lists what there is",
        405: f"{request.method} is not possible here; {error.headers.get('Allow', 'nothing')} is",
    }.get(error.status, error.reason)
    answer = problem(error.status, error.reason, detail, request.path)
    answer.headers.update({name: error.headers[name] for name in PRESERVED if name in error.headers})
    return answer


def unexpected(request: web.Request, error: BaseException) -> web.Response:
    """A bug, or something that broke: the log has the cause under an id, the client gets the id."""
    number = secrets.token_hex(6)
    log.error("request failed", error_id=number, method=request.method, path=request.path, exc_info=error)
    detail = f"Something broke inside flowsched; its log has the cause under {number}"
    return problem(500, "Internal error", detail, f"urn:flowsched:error:{number}")


def problem(
    status: int, title: str, detail: str, instance: str, faults: list[dict[str, str]] | None = None
) -> web.Response:
    """The answer itself."""
    view = ProblemView(title=title, status=status, detail=detail, instance=instance, faults=faults or [])
    return web.Response(status=status, body=encode(view), content_type=MEDIA)
