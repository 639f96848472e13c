"""The OpenAPI 3.1 document, generated from the route table and the structs: it says what they say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from flowsched import __version__
from flowsched.api.problems import MEDIA
from flowsched.api.routes import Answer, Policy, Route
from flowsched.workflow.schema import workflow_schema
from flowsched.workflow.views import ProblemView

_REFERENCES: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)}")

#: What can go wrong on a route, beside what it lists itself.
_PROBLEMS: Final = {
    400: "The request cannot be understood.",
    401: "A token is required.",
    403: "Another origin or host name.",
    404: "There is no such thing.",
    409: "The present state does not allow it.",
    413: "A limit is exceeded.",
    422: "The document has faults, or asks for what this installation cannot do.",
    500: "A bug; the log has the cause.",
    503: "Not available now: try again.",
}


def openapi(routes: Sequence[Route[Any]]) -> bytes:
    """The whole document as JSON."""
    kinds = [kind for kind in _kinds(routes) if _structs(kind)]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "flowsched",
                "version": __version__,
                "description": "Workflows, their tasks, and the queues and nodes they run on. "
                "Errors are RFC 9457 problem details; unknown query parameters are errors. "
                "Fields are only ever added to answers.",
            },
            "paths": paths,
            "components": {
                "schemas": {**components, "Workflow": _workflow()},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _workflow() -> dict[str, Any]:
    """The schema of documents; its `$id` stays, so that its own `$ref`s mean itself."""
    return {name: part for name, part in workflow_schema().items() if name != "$schema"}


def _kinds(routes: Sequence[Route[Any]]) -> list[Any]:
    kinds: dict[Any, None] = {ProblemView: None}
    for route in routes:
        for answer in route.answers.values():
            kinds[answer.type] = None
        if route.body is not None:
            kinds[route.body.type] = None
    return list(kinds)


def _structs(kind: Any) -> bool:
    parts = get_args(kind) or (kind,)
    return any(isinstance(part, type) and issubclass(part, msgspec.Struct) for part in parts)


def _operation(route: Route[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route),
    }
    if route.policy is not Policy.OPEN:
        found["security"] = [{"token": []}, {}]
    if route.body is not None:
        schema = (
            _schema(route.body.type) if route.body.type else {"$ref": _REFERENCES.format(name="Workflow")}
        )
        found["requestBody"] = {
            "description": route.body.about,
            "required": route.body.required,
            "content": {"application/json": {"schema": schema}},
        }
    return found


def _parameters(route: Route[Any]) -> list[dict[str, Any]]:
    inside = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0} if name == "index" else {"type": "string"},
        }
        for name in _PARAMETER.findall(route.path)
    ]
    headers = [
        {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
        for name, about in route.headers.items()
    ]
    return inside + [_query(field) for field in msgspec.structs.fields(route.query)] + headers


def _query(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components([field.type], ref_template=_REFERENCES)
    choices = [_inlined(part, components) for part in schema.pop("anyOf", [schema])]
    (shape,) = [choice for choice in choices if choice.get("type") != "null"]
    about = shape.pop("description", "")
    if field.default is not None and field.default is not msgspec.NODEFAULT:
        shape["default"] = field.default
    return {"name": field.encode_name, "in": "query", "description": about, "schema": shape}


def _inlined(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """An enumeration in place: parameters are easier to read so."""
    reference = schema.pop("$ref", None)
    found = dict(components[reference.rpartition("/")[2]]) if reference else {}
    return {**{key: value for key, value in found.items() if key != "title"}, **schema}


def _responses(route: Route[Any]) -> dict[str, Any]:
    found = {str(status): _response(answer) for status, answer in route.answers.items()}
    problem = {MEDIA: {"schema": {"$ref": _REFERENCES.format(name="ProblemView")}}}
    for status in _possible(route):
        found.setdefault(str(status), {"description": _PROBLEMS[status], "content": problem})
    return found


def _possible(route: Route[Any]) -> list[int]:
    """Which problems a route can answer with."""
    if route.policy is Policy.OPEN:
        return [400, 500]
    possible = [400, 401, 403, 500, 503]
    if "{" in route.path:
        possible.append(404)
    if route.body is not None:
        possible += [409, 413, 422]
    return sorted(possible)


def _response(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.about}
    if answer.headers:
        found["headers"] = {
            name: {"description": about, "schema": {"type": "string"}}
            for name, about in answer.headers.items()
        }
    found["content"] = {answer.media: {"schema": _schema(answer.type) if answer.type else {"type": "string"}}}
    return found


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCES)
    return schema
