"""Routes: method, path, policy, parameters, answers. The table of all routes is `table`.

A route says everything about itself in one value, so that dispatch, access control, the OpenAPI document and
the tests all read the same facts. Nothing is decorated, nothing registers itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
from aiohttp import web

from flowsched.control.service import Service

#: Every route of the API begins so.
PREFIX: Final = "/api/v1"


class Policy(Enum):
    """Which clients may use a route. A route that says nothing has READ if it is a GET, and else WRITE."""

    OPEN = "open"  #: any client that can connect: health checks, and the static pages, which say nothing of this server
    READ = "read"  #: needs the token, where one is set; changes nothing
    WRITE = "write"  #: needs the token, where one is set; refused to pages of other origins


class Process(Enum):
    """Which process answers a route, of several on one database. A standby sends requests on to the leader (`forwarding`)."""

    ANY = "any"  #: each answers from the database
    BEST_LEADER = "best leader"  #: each answers from the database, and the leader with what it knows besides
    LEADER = "leader"  #: needs the leader's memory


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The query parameters of a route; a route without any takes `Query` itself."""

    strict: ClassVar[bool] = True  #: a parameter that is not known is a fault


Q = TypeVar("Q", bound=Query)


class Limits(msgspec.Struct, frozen=True):
    """The most that one request may cost. Beyond a limit the answer is a 4xx that names it."""

    body_bytes: int = 16 << 20  #: a workflow document
    task_bytes: int = 4 << 20  #: a TES task: ten thousand inputs are some 3 MiB, the rest is files' contents
    small_body_bytes: int = 64 << 10  #: any other body
    body_seconds: float = 60.0  #: until a body has arrived
    streams: int = 8192  #: event and log streams open at once (row 29: 5,000 clients come back at once)
    keep_alive_seconds: float = 15.0  #: between comments on a silent event stream
    follow_seconds: float = 0.5  #: between looks at a log that grows
    log_bytes: int = 64 << 10  #: the most of a log that is in memory for one client


class Shared:
    """Answers that callers share who ask the same at the same time. An answer is always begun after the question.

    While one answer is made, the callers who come wait for the next, which is made once for all of them: many users who list cost
    no more than a few.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Task[bytes]] = {}
        self._next: dict[Hashable, asyncio.Task[bytes]] = {}

    async def ask(self, question: Hashable, answer: Callable[[], Awaitable[bytes]]) -> bytes:
        """An answer to a question.

        Args:
            question: Callers with equal questions may share.
            answer: Makes it.
        """
        task = self._next.get(question)
        if task is None:
            task = asyncio.create_task(self._answer(question, answer, self._made.get(question)))
            task.add_done_callback(_retrieve)
            (self._next if question in self._made else self._made)[question] = task
        return await asyncio.shield(task)  # a caller who leaves takes no other's answer along

    async def _answer(
        self, question: Hashable, answer: Callable[[], Awaitable[bytes]], before: asyncio.Task[bytes] | None
    ) -> bytes:
        if before is not None:
            await asyncio.wait([before])
            self._made[question] = self._next.pop(question)
        try:
            return await answer()
        finally:
            if question not in self._next:
                del self._made[question]


def _retrieve(task: asyncio.Task[bytes]) -> None:
    """Retrieve the error of an answer whose callers have left; each caller that is there gets it."""
    if not task.cancelled():
        task.exception()


class Serving(msgspec.Struct):
    """Values that all handlers share: the service, the limits, and the state of this server now."""

    service: Service
    limits: Limits
    token: str | None
    openapi: Callable[[], bytes] = bytes  #: this API's document; takes 0.1 s the first time
    streams: int = 0  #: open now
    lists: Shared = msgspec.field(default_factory=Shared)
    draining: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class Call(msgspec.Struct, Generic[Q], frozen=True):
    """One request to one route, with its decoded query."""

    request: web.Request
    serving: Serving
    query: Q

    @property
    def service(self) -> Service:
        """The service."""
        return self.serving.service


class Answer(msgspec.Struct, frozen=True):
    """One answer of a route: a struct type (or a list of one) as JSON, or text of a media type."""

    about: str
    type: Any = None
    media: str = "application/json"
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)  #: name -> what it says


class Body(msgspec.Struct, frozen=True):
    """The body a route takes."""

    about: str
    type: Any = None  #: a struct; None = a workflow document, which the service itself decodes
    required: bool = True
    example: Mapping[str, Any] | None = None  #: one that is accepted


class Route(msgspec.Struct, frozen=True):
    """One method on one path."""

    method: str
    path: str
    name: str  #: in the OpenAPI document
    #: Gives what is sent: a response; or a view, which is sent as JSON; or JSON as bytes.
    handler: Callable[[Call[Any]], Awaitable[Any]]
    summary: str
    answers: Mapping[int, Answer]
    query: type[Query] = Query
    body: Body | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)  #: request headers with a meaning here
    tag: str = "workflows"
    process: Process = Process.ANY
    policy: Policy | None = None
    alias: bool = False  #: another path of a route that is in the table: not in the OpenAPI document

    @property
    def access(self) -> Policy:
        """Which clients may use it."""
        return self.policy or (Policy.READ if self.method == "GET" else Policy.WRITE)
