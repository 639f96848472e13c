"""Workflows over HTTP: submit, list, look at, command. Each handler is one question to the service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web

from flowsched.api.parameters import TEXT, idempotency_key, path_text, read_body, read_json, task_of
from flowsched.api.routes import PREFIX, Call, Query
from flowsched.workflow.run.states import ReportedState
from flowsched.workflow.views import CancelledView, ExplanationView, TaskView, WorkflowView, encode

#: How many entries one page may have.
LARGEST_PAGE: Final = 1000
#: Larger answers are packed in a thread: 500 kB take some 15 ms.
PACKED_HERE_BYTES: Final = 32 << 10

Limit = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_PAGE, description="Most entries of one page.")]
Label = Annotated[
    str,
    msgspec.Meta(pattern="^[^=]+=", description="Only with this label: `key=value`.", examples=["key=value"]),
]
PageToken = Annotated[str, msgspec.Meta(description="`next_page_token` of the page before.")]
TaskStateName = Annotated[
    Literal[
        "PENDING", "QUEUED", "STAGING", "ALLOCATED", "BINDING", "RUNNING", "RELEASING",
        "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED",
    ],
    msgspec.Meta(description="Only tasks in this state."),
]  # fmt: skip
StageName = Annotated[str, msgspec.Meta(description="Only this stage.")]
Reason = Annotated[
    str,
    msgspec.Meta(
        max_length=1000,
        description="Why, for those who look at it later.",
        extra_json_schema={"pattern": TEXT},
    ),
]


#: How a time is given.
_MOMENT: Final = "a span before now (`7d`), or a date or time"


class WorkflowsQuery(Query, frozen=True, kw_only=True):
    """Which workflows to list."""

    state: Annotated[ReportedState, msgspec.Meta(description="Only workflows in this state.")] | None = None
    name: Annotated[str, msgspec.Meta(description="Only workflows of this name.")] | None = None
    queue: Annotated[str, msgspec.Meta(description="Only workflows of this queue.")] | None = None
    label: Label | None = None
    run: Annotated[str, msgspec.Meta(description="The calls of this run, each as a workflow.")] | None = None
    ref: (
        Annotated[str, msgspec.Meta(description="The beginning of an id, or a name.", max_length=200)] | None
    ) = None
    search: (
        Annotated[
            str, msgspec.Meta(description="Any part of a name, or the beginning of an id.", max_length=200)
        ]
        | None
    ) = None
    user: (
        Annotated[str, msgspec.Meta(description="Only workflows whose document names this user.")] | None
    ) = None
    since: (
        Annotated[str, msgspec.Meta(max_length=64, description=f"Submitted from then on: {_MOMENT}.")] | None
    ) = None
    until: (
        Annotated[str, msgspec.Meta(max_length=64, description=f"Submitted before then: {_MOMENT}.")] | None
    ) = None
    live: Annotated[
        bool, msgspec.Meta(description="Only workflows that have not ended, without runs in `ENGINE`.")
    ] = False
    limit: Limit = 100
    page_token: PageToken | None = None


class TasksQuery(Query, frozen=True, kw_only=True):
    """Which tasks of a workflow to list."""

    stage: StageName | None = None
    state: TaskStateName | None = None
    limit: Limit = 100
    page_token: PageToken | None = None


class TimelineQuery(Query, frozen=True, kw_only=True):
    """Which tasks of a workflow."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=50_000, description="Most tasks of one page.")] = 10_000
    page_token: PageToken | None = None


class AttemptsQuery(Query, frozen=True, kw_only=True):
    """Which attempts of a workflow."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=2_000, description="Most attempts of one page.")] = 1_000
    page_token: PageToken | None = None


class ExplainQuery(Query, frozen=True, kw_only=True):
    """The stage to explain."""

    stage: StageName | None = None


class CommandBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reason of a command. The whole body may be left out."""

    reason: Reason | None = None


class CancelBody(CommandBody, kw_only=True, forbid_unknown_fields=True):
    """Which workflows to cancel."""

    workflows: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=200)]],
        msgspec.Meta(min_length=1, max_length=LARGEST_PAGE, description="Ids."),
    ]


class EndBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a run has ended, as its engine says."""

    state: Literal["SUCCEEDED", "FAILED", "CANCELLED"]
    reason: Reason = ""


def answer(view: object, status: int = 200) -> web.Response:
    """A view, or a list of views, as JSON."""
    return web.Response(body=encode(view), status=status, content_type="application/json")


async def submit_workflow(call: Call[Query]) -> web.Response:
    """202 when it was accepted, 200 when the same body had been accepted under the same key before.

    Decoding is the service's, in a thread where a body is large: the loop goes on meanwhile.
    """
    limits = call.serving.limits
    key = idempotency_key(call.request)
    raw = await read_body(call.request, limits.body_bytes, limits)
    submitted = await call.service.submit(
        raw, idempotency_key=key, traceparent=call.request.headers.get("traceparent")
    )
    submitted = msgspec.structs.replace(submitted, url=f"{PREFIX}/workflows/{submitted.id}")
    response = answer(submitted, 202 if submitted.created else 200)
    response.headers["Location"] = submitted.url
    return response


async def list_workflows(call: Call[WorkflowsQuery]) -> bytes:
    """One page: live ones, then those that have ended, each newest first. One that ends between two pages may come twice."""

    async def listed() -> bytes:
        return encode(await call.service.list_workflows(**msgspec.structs.asdict(call.query)))

    return await call.serving.lists.ask(call.query, listed)


async def get_timeline(call: Call[TimelineQuery]) -> web.Response:
    """Tasks as columns, packed for clients that can unpack: numbers shrink to a fifth."""
    workflow = path_text(call.request, "workflow")
    view = await call.service.timeline(workflow, **msgspec.structs.asdict(call.query))
    response = web.Response(
        body=encode(view), content_type="application/json", zlib_executor_size=PACKED_HERE_BYTES
    )
    response.enable_compression()
    return response


async def explain_task(call: Call[Query]) -> list[ExplanationView]:
    """Why one task does not run, or why it went to its node."""
    workflow, stage, index = task_of(call)
    return await call.service.explain(workflow, stage=stage, index=index)


async def cancel_workflows(call: Call[Query]) -> CancelledView:
    """One transaction for all of them."""
    body = await read_json(call.request, CancelBody, call.serving.limits)
    ids = list(dict.fromkeys(body.workflows))
    return await call.service.cancel_all(ids, _reason(body))


async def cancel_task(call: Call[Query]) -> TaskView:
    """As if it had failed for good."""
    task = task_of(call)
    body = await read_json(call.request, CommandBody, call.serving.limits)
    return await call.service.cancel_task(*task, _reason(body))


async def report_end(call: Call[Query]) -> WorkflowView:
    """The engine's word counts more than what its tasks tell."""
    body = await read_json(call.request, EndBody, call.serving.limits)
    run = path_text(call.request, "workflow")
    return await call.service.report_end(run, body.state, body.reason)


def command(kind: str) -> Callable[[Call[Query]], Awaitable[WorkflowView]]:
    """The handler of `cancel` (after its answer nothing starts any more), `pause`, `resume` or `retry`."""

    async def command(call: Call[Query]) -> WorkflowView:
        workflow = path_text(call.request, "workflow")
        body = await read_json(call.request, CommandBody, call.serving.limits)
        return await call.service.command(workflow, kind, _reason(body))

    return command


def _reason(body: CommandBody) -> dict[str, Any] | None:
    return {"reason": body.reason} if body.reason else None
