"""Queues, nodes and the scheduler's policy over HTTP."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from flowsched.api.parameters import TEXT, path_text, read_body, read_json
from flowsched.api.routes import Call, Query
from flowsched.workflow.resources import parse_duration
from flowsched.workflow.views import NodeView, ProfileView, QueueView

#: A quantity as in documents: a number, or text such as "500m" or "8Gi".
Quantity = (
    Annotated[int, msgspec.Meta(ge=0)]
    | Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(extra_json_schema={"pattern": TEXT, "maxLength": 64})]
)
#: Seconds, or text such as "90s" or "5m".
DURATION: Final = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ms|[dhms]))+$"
_NAMES: Final = {"propertyNames": {"pattern": TEXT}}
_STAYS: Final = "A resource that is not named keeps its amount; null takes it away."
_AMOUNTS: Final = [{"cpu": 4, "memory": "8Gi"}]
Cap = Annotated[
    dict[str, Quantity | None],
    msgspec.Meta(
        description=f"At most so much at once. {_STAYS}", extra_json_schema=_NAMES, examples=_AMOUNTS
    ),
]
Guarantee = Annotated[
    dict[str, Quantity | None],
    msgspec.Meta(description=f"So much is its own. {_STAYS}", extra_json_schema=_NAMES, examples=_AMOUNTS),
]
Parent = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": TEXT, "maxLength": 1024})]


class QueueBody(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A queue's settings; what is left out stays as it is (or at its default, for a new queue)."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=65_535, description="Its share beside its siblings.")] | (
        msgspec.UnsetType
    ) = msgspec.UNSET
    parent: Parent | msgspec.UnsetType | None = msgspec.UNSET
    priority: Annotated[int, msgspec.Meta(ge=-(10**9), le=10**9)] | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    reclaimable: (
        Annotated[
            bool,
            msgspec.Meta(description="Others may take back what it has beyond what it deserves."),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    order: (
        Annotated[
            Literal["best-effort", "fifo"],
            msgspec.Meta(description="best-effort: a group that fits passes others. fifo: no group does."),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    cap: Cap | msgspec.UnsetType = msgspec.UNSET
    guarantee: Guarantee | msgspec.UnsetType = msgspec.UNSET


async def put_queue(call: Call[Query]) -> QueueView:
    """Create or change a queue."""
    queue = path_text(call.request, "name")
    body = await read_json(call.request, QueueBody, call.serving.limits)
    settings = {
        name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET
    }
    return await call.service.put_queue(queue, settings)


class DrainBody(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a node is drained."""

    grace: (
        Annotated[
            str,
            msgspec.Meta(
                description="Pods still running so long after the start are taken away. [run to the end]",
                pattern=DURATION,
                max_length=32,
                examples=["90s", "5m"],
            ),
        ]
        | Annotated[int, msgspec.Meta(ge=0, le=315_360_000)]
        | None
    ) = None
    start: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=64,
                description="From this time (ISO 8601) on no task starts there, before only tasks that will have ended. [now]",
            ),
        ]
        | None
    ) = None
    reason: Annotated[
        str,
        msgspec.Meta(max_length=1000, description="Why.", extra_json_schema={"pattern": TEXT}),
    ] = ""
    by: Annotated[
        str,
        msgspec.Meta(
            max_length=200,
            description="The administrator; it is not checked.",
            extra_json_schema={"pattern": TEXT},
        ),
    ] = ""


async def drain_node(call: Call[Query]) -> NodeView:
    """Start nothing new on a node."""
    node = path_text(call.request, "name")
    body = await read_json(call.request, DrainBody, call.serving.limits)
    grace_ms = None if body.grace is None else parse_duration(body.grace)
    return await call.service.draining.drain(
        node, grace_ms=grace_ms, start=body.start, reason=body.reason, author=body.by
    )


class UsageQuery(Query, frozen=True, kw_only=True):
    """The filters and the grouping of a sum."""

    by: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(queue|user|label:[^\x00-\x1f\x7f-\x9f]+)$",
            max_length=320,
            description="A row for each queue, user, or value of a label.",
            examples=["queue", "user", "label:project"],
        ),
    ] = "queue"
    since: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=64,
                description="Workflows that ended from then on, and those that live: a span before now, or a time (ISO 8601).",
                examples=["7d", "2026-11-01", "2026-11-01T08:00:00Z"],
            ),
        ]
        | None
    ) = None
    until: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=64,
                description="Workflows that ended before then; a date alone includes its day. Live workflows do not count.",
                examples=["1d", "2026-11-30"],
            ),
        ]
        | None
    ) = None
    queue: Annotated[str, msgspec.Meta(max_length=1024, description="Of this queue alone.")] | None = None


async def put_profile(call: Call[Query]) -> ProfileView:
    """Check a document; a good one is in force when this answers."""
    limits = call.serving.limits
    return await call.service.policies.apply(await read_body(call.request, limits.small_body_bytes, limits))


async def get_snapshot(call: Call[Query]) -> web.Response:
    """The next cycle in one file."""
    raw = await call.service.policies.snapshot()
    name = {"Content-Disposition": 'attachment; filename="flowsched-snapshot.zip"'}
    return web.Response(body=raw, content_type="application/zip", headers=name)
