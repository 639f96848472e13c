"""GA4GH TES 1.1 over HTTP. Where its specification is silent, what Cromwell, py-tes, Snakemake and Toil survive decides.

An answer about a known task is 200 or none at all: some clients give a task up for lost at the first other answer, but all try
again when a connection breaks.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from aiohttp import web

from flowsched.api.parameters import idempotency_key, path_text, read_body
from flowsched.api.routes import Call, Query
from flowsched.errors import Unavailable
from flowsched.version import VERSION
from flowsched.workflow.formats.tes.document import PARAMETERS
from flowsched.workflow.formats.tes.task import Input, Output, TaskExecutor
from flowsched.workflow.views import encode

TES_PREFIX: Final = "/ga4gh/tes/v1"
#: Where clients also look for it. Before each of them, and before `TES_PREFIX`, an endpoint may name the run of its tasks.
OTHER_PREFIXES: Final = ("/v1", "")
RUN_PREFIX: Final = "/runs/{run}"
LARGEST_PAGE: Final = 2047

View = Annotated[
    Literal["MINIMAL", "BASIC", "FULL"], msgspec.Meta(description="How much of each task is shown.")
]
State = Literal[
    "UNKNOWN", "QUEUED", "INITIALIZING", "RUNNING", "PAUSED", "COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR",
    "CANCELED", "PREEMPTED", "CANCELING",
]  # fmt: skip
PageToken = Annotated[str, msgspec.Meta(description="`next_page_token` of the page before.")]


class Ga4ghQuery(Query, frozen=True, kw_only=True):
    """Parameters of a TES or WES route. Like other servers, this one ignores those that it does not know."""

    strict: ClassVar[bool] = False


class ViewQuery(Ga4ghQuery, frozen=True, kw_only=True):
    """How to show a task."""

    view: View = "MINIMAL"


class TesTasksQuery(ViewQuery, frozen=True, kw_only=True):
    """Which tasks to list."""

    name_prefix: Annotated[str, msgspec.Meta(description="Only tasks whose names begin so.")] = ""
    state: Annotated[State, msgspec.Meta(description="Only tasks in this state.")] | None = None
    tag_key: Annotated[list[str], msgspec.Meta(description="Only with these tags.")] = msgspec.field(
        default_factory=list
    )
    tag_value: Annotated[
        list[str], msgspec.Meta(description="Values of these tags, in their order; empty = any.")
    ] = msgspec.field(default_factory=list)
    page_size: Annotated[
        int, msgspec.Meta(ge=0, le=LARGEST_PAGE, description="Most tasks of one page; 0 = 256.")
    ] = 256
    page_token: PageToken | None = None


class TesResources(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The resources that a task requests, in decimal gigabytes."""

    cpu_cores: int = 0
    preemptible: bool = False
    ram_gb: float = 0
    disk_gb: float = 0
    zones: list[str] = []
    backend_parameters: dict[str, str] = {}
    backend_parameters_strict: bool = False


class TesExecutorLog(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one executor went; `stdout` and `stderr` are the ends of what it wrote, at most 10 KiB."""

    exit_code: int
    start_time: str = ""
    end_time: str = ""
    stdout: str = ""
    stderr: str = ""


class TesOutputLog(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file that was delivered; its size is left out from 2 GiB up, which some clients could not read."""

    url: str
    path: str
    size_bytes: str = ""


class TesTaskLog(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One attempt."""

    logs: list[TesExecutorLog]
    outputs: list[TesOutputLog]
    metadata: dict[str, str] = {}
    start_time: str = ""
    end_time: str = ""
    system_logs: list[str] = []


class TesTaskView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A task. MINIMAL has `id` and `state` alone."""

    id: str
    state: State
    name: str = ""
    description: str = ""
    inputs: list[Input] = []
    outputs: list[Output] = []
    resources: TesResources | None = None
    executors: list[TaskExecutor] = []
    volumes: list[str] = []
    tags: dict[str, str] = {}
    logs: list[TesTaskLog] = []
    creation_time: str = ""


class TesCreated(msgspec.Struct):
    """The id of a task that was accepted."""

    id: str


class TesList(msgspec.Struct, omit_defaults=True):
    """One page of tasks, newest first."""

    tasks: list[TesTaskView]
    next_page_token: str = ""


class TesNothing(msgspec.Struct):
    """An empty object."""


class TesServiceType(msgspec.Struct, kw_only=True):
    """Which specification is served."""

    group: str = "org.ga4gh"
    artifact: str = "tes"
    version: str = "1.1.0"


class TesOrganization(msgspec.Struct, kw_only=True):
    """The organization that runs the server."""

    name: str = "flowsched"
    url: str = "https://github.com/flowsched/flowsched"


class TesServiceInfo(msgspec.Struct, kw_only=True):
    """The description of this server."""

    id: str = "org.flowsched"
    name: str = "flowsched"
    type: TesServiceType = msgspec.field(default_factory=TesServiceType)
    organization: TesOrganization = msgspec.field(default_factory=TesOrganization)
    description: str = "GA4GH TES 1.1 over flowsched"
    version: str = VERSION
    storage: list[str]
    tesResources_backend_parameters: list[str] = msgspec.field(
        default_factory=lambda: list(PARAMETERS.values())
    )


class TesOldServiceInfo(msgspec.Struct, kw_only=True):
    """The same in the words of TES 0.x, which Toil and others still ask for."""

    name: str = "flowsched"
    doc: str = "GA4GH TES 1.1 over flowsched"
    storage: list[str]


async def create_tes_task(call: Call[Ga4ghQuery]) -> TesCreated:
    """Accept a task. A repeat gives the id that is there."""
    limits = call.serving.limits
    key = idempotency_key(call.request)
    raw = await read_body(call.request, limits.task_bytes, limits)
    run = path_text(call.request, "run") if "run" in call.request.match_info else ""
    client = _client(call.request, run)
    ident = await call.service.tes.create(raw, client=client, idempotency_key=key, run=run)
    return TesCreated(ident)


def _client(request: web.Request, run: str) -> str:
    """The sender: its program, its credentials and its run. Not its address, which changes on the way through proxies."""
    headers = request.headers
    sender = "\n".join((headers.get("User-Agent", ""), headers.get("Authorization", ""), *[run] * bool(run)))
    return hashlib.sha256(sender.encode("utf-8", "replace")).hexdigest()


async def get_tes_task(call: Call[ViewQuery]) -> bytes:
    """One task. While the database is away a connection is broken rather than answered 503."""
    try:
        return await call.service.tes.get(path_text(call.request, "id"), call.query.view)
    except Unavailable:
        transport = call.request.transport
        if transport is not None:
            transport.abort()
        raise


async def list_tes_tasks(call: Call[TesTasksQuery]) -> bytes:
    """One page of tasks."""
    asked = call.query
    values = [*asked.tag_value, *[""] * len(asked.tag_key)]
    page = await call.service.tes.list(
        asked.view,
        name_prefix=asked.name_prefix,
        state=asked.state,
        tags=list(zip(asked.tag_key, values, strict=False)),
        page_size=asked.page_size or 256,
        token=asked.page_token or None,
    )
    rest: dict[str, Any] = {"next_page_token": page.next_token} if page.next_token else {}
    tail = b"," + encode(rest)[1:] if rest else b"}"
    return b'{"tasks":[' + b",".join(page.tasks) + b"]" + tail


async def cancel_tes_task(call: Call[Ga4ghQuery]) -> TesNothing:
    """Cancel a task; 200 and an empty object in any case, for clients that ask until they hear that."""
    await call.service.tes.cancel(path_text(call.request, "id"))
    return TesNothing()


async def get_tes_service_info(call: Call[Ga4ghQuery]) -> TesServiceInfo:
    """The description of this server."""
    return TesServiceInfo(storage=call.service.tes.storage())


async def get_old_tes_service_info(call: Call[Ga4ghQuery]) -> TesOldServiceInfo:
    """The description of this server, in the words of TES 0.x."""
    return TesOldServiceInfo(storage=call.service.tes.storage())
