"""Plans over HTTP: as JSON, or in the form in which Cromwell takes submissions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from flowsched.api.handlers.workflows import Limit, PageToken, answer
from flowsched.api.parameters import read_body, read_form
from flowsched.api.routes import PREFIX, Call, Query
from flowsched.aside import aside
from flowsched.errors import InvalidRequest
from flowsched.workflow.document.reader import read_document
from flowsched.workflow.views import PlanBody

#: Cromwell's own names of the parts. Inputs may come in several, of which a later one wins.
_SOURCE: Final = "workflowSource"
_IMPORTS: Final = "workflowDependencies"
_INPUTS: Final = ("workflowInputs", *(f"workflowInputs_{number}" for number in range(2, 6)))
#: Parts that mean nothing to a plan.
_IGNORED: Final = (
    "workflowType",
    "workflowTypeVersion",
    "workflowOptions",
    "workflowRoot",
    "labels",
    "workflowOnHold",
)


class PlansQuery(Query, frozen=True, kw_only=True):
    """Which plans to list."""

    run: Annotated[str, msgspec.Meta(description="Only the plan of this run.")] | None = None
    limit: Limit = 100
    page_token: PageToken | None = None


async def create_plan(call: Call[Query]) -> web.Response:
    """201 with the plan."""
    limits = call.serving.limits
    if call.request.content_type == "multipart/form-data":
        parts = {part.name: part.data for part in await read_form(call.request, limits)}
        body = await aside(sum(map(len, parts.values())), _submission, parts)
    else:
        raw = await read_body(call.request, limits.body_bytes, limits)
        body = await aside(len(raw), _decoded, raw)
    view = await call.service.plans.create(body)
    made = answer(view, 201)
    made.headers["Location"] = f"{PREFIX}/plans/{view.id}"
    return made


def _decoded(raw: bytes) -> PlanBody:
    try:
        return msgspec.convert(read_document(raw), PlanBody)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The body is no plan request: {error}") from error


def _submission(parts: Mapping[str, bytes]) -> PlanBody:
    """Cromwell's own form: what is posted there can be posted here."""
    unknown = sorted(parts.keys() - {_SOURCE, _IMPORTS, *_INPUTS, *_IGNORED, "run"})
    if unknown:
        raise InvalidRequest(
            f"The form has unknown parts: {', '.join(unknown)[:200]}; Cromwell's names are expected"
        )
    if _SOURCE not in parts:
        raise InvalidRequest(f"The form has no part {_SOURCE}, which is the WDL")
    inputs: dict[str, Any] | None = None
    for name in _INPUTS:
        if name in parts:
            inputs = {**(inputs or {}), **_object(name, parts[name])}
    return PlanBody(
        source=_text(_SOURCE, parts[_SOURCE]),
        imports=base64.b64encode(parts.get(_IMPORTS, b"")).decode(),
        inputs=inputs,
        run=_text("run", parts.get("run", b"")),
    )


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8: {error}") from error


def _object(name: str, raw: bytes) -> dict[str, Any]:
    try:
        value = read_document(raw)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is no JSON object of inputs")
    return value
