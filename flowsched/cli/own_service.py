"""How `flowsched run` asks the service in its own process: as a client asks over HTTP, but without a port and without HTTP."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from flowsched.client import session
from flowsched.client.session import Streamed, back_off
from flowsched.control.service import Service
from flowsched.errors import FlowschedError, Unavailable
from flowsched.log_lines import get_logger
from flowsched.workflow.views import encode

log = get_logger(__name__)

_WORKFLOWS: Final = "/api/v1/workflows"
#: Parameters that are numbers.
_NUMBERS: Final = ("attempt", "limit", "offset", "tail")
_END: Final = b"event: end\ndata: {}\n\n"


class OwnService:
    """The session (`client.session.Session`) of a client with the service in this process.

    It has the questions of `flowsched run`. A service that waits for its database is asked again, as over HTTP.
    """

    url = "the service in this process"

    def __init__(self, service: Service) -> None:
        self._service = service

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
        """Ask once, and once more while the service waits. See `Session`."""
        given: dict[str, Any] = {
            name: int(text) if name in _NUMBERS else text for name, text in (params or {}).items()
        }
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                match method, *_segments(path):
                    case ("POST",):
                        key = (headers or {}).get("Idempotency-Key")
                        made: Any = await self._service.submit(body or b"", idempotency_key=key)
                    case "POST", workflow, kind:
                        reason = msgspec.json.decode(body) if body else None
                        made = await self._service.command(workflow, kind, reason)
                    case "GET", workflow, "tasks", stage, index, "logs":
                        return await self._log(workflow, stage, int(index), **given)
                    case "GET", *segments:
                        made = await self._answer(segments, given)
                    case _:
                        raise NotImplementedError(f"{method} {path}")
                return made if isinstance(made, bytes) else encode(made), {}
            except Unavailable:
                starting = time.monotonic() - began < session.START_S
                if not again or (attempt >= session.ATTEMPTS and not starting):
                    raise
            except (FlowschedError, NotImplementedError):
                raise
            except Exception as error:
                number = secrets.token_hex(6)
                log.error("request failed", error_id=number, method=method, path=path, exc_info=error)
                raise FlowschedError(
                    f"Something broke inside flowsched; its log has the cause under {number}"
                ) from error
            await asyncio.sleep(back_off(attempt))
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, segments: list[str], given: dict[str, Any]) -> Awaitable[Any]:
        service = self._service
        match segments:
            case []:
                return service.list_workflows(**given)
            case [workflow]:
                return service.workflow(workflow)
            case [workflow, "document" | "stages" | "tasks" | "explain" as what]:
                ask: Callable[..., Awaitable[Any]] = getattr(service, what)
                return ask(workflow, **given)
            case [workflow, "tasks", stage, index]:
                return service.task(workflow, stage, int(index))
        raise NotImplementedError("/".join(segments))

    async def _log(
        self,
        workflow: str,
        stage: str,
        index: int,
        *,
        stream: str,
        limit: int,
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        if tail is not None:
            attempts = (await self._service.task(workflow, stage, index)).attempts
            attempt = attempts[-1].attempt if attempt is None and attempts else attempt
            offset = await self._service.log_start(
                workflow, stage, index, attempt=attempt, stream=stream, tail=tail
            )
        chunk, more = await self._service.logs(
            workflow, stage, index, attempt=attempt, stream=stream, offset=offset, limit=limit
        )
        following = str(offset + len(chunk))
        return chunk, {"Flowsched-Next-Offset": following, "Flowsched-More": "true" if more else "false"}

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Streamed]:
        """The bytes of an output; or the end of a workflow, without its events. See `Session`."""
        match _segments(path):
            case [workflow, "events"]:
                yield Streamed({}, self._end(workflow))
            case [workflow, "tasks", stage, index, "outputs", name]:
                found = await self._service.output(workflow, stage, int(index), name)
                file = quote(found.file_name, safe="", errors="surrogateescape")
                async with aclosing(found.chunks) as chunks:
                    yield Streamed({"Content-Disposition": f"attachment; filename*=UTF-8''{file}"}, chunks)
            case _:
                raise NotImplementedError(path)

    async def _end(self, workflow: str) -> AsyncIterator[bytes]:
        await self._service.ended(workflow)
        yield _END

    async def probe(self, path: str) -> tuple[int, str]:
        """Whether the service is ready."""
        ready, why = self._service.ready()
        return 200 if ready else 503, why

    async def close(self) -> None:
        """There is no connection."""


def _segments(path: str) -> list[str]:
    """The segments below the workflows."""
    return [unquote(part, errors="surrogateescape") for part in path.removeprefix(_WORKFLOWS).split("/")[1:]]
