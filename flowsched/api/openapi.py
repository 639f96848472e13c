"""The OpenAPI 3.1 document, generated from the route table and the structs: it says what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, Final, get_args

import msgspec

from flowsched.api.handlers.tes import TesCreated
from flowsched.api.parameters import HEADERS, LONGEST, TEXT
from flowsched.api.problems import MEDIA
from flowsched.api.routes import Answer, Policy, Process, Route
from flowsched.version import VERSION
from flowsched.workflow.document.schema import workflow_schema
from flowsched.workflow.views import ProblemView, SubmittedView, WorkflowView

SSE: Final = "text/event-stream"
_REFERENCES: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)}")
_SEGMENT: Final = {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": TEXT}

#: Errors that any route may answer, beside those that it lists itself.
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


def openapi(routes: Sequence[Route]) -> bytes:
    """The whole document as JSON."""
    kinds = [kind for kind in _kinds(routes) if _structs(kind)]
    _, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    for schema in components.values():  # msgspec before 0.23 leaves the indentation of docstrings
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    links = {route.name: _link(route) for route in routes if "{" in route.path and not route.alias}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, links)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "flowsched",
                "version": VERSION,
                "description": "Workflows, their tasks, and the queues and nodes they run on. "
                "Errors are RFC 9457 problem details; unknown query parameters are errors. "
                "Fields are only ever added to answers.",
            },
            "paths": paths,
            "components": {
                "schemas": {**components, **_workflow()},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _workflow() -> dict[str, Any]:
    """The schema of documents. Its parts become components beside it: few tools follow a schema with an `$id` of its own."""
    whole = workflow_schema()
    parts = {f"Workflow.{name}": part for name, part in whole.pop("$defs").items()}
    whole = {name: part for name, part in whole.items() if name not in ("$schema", "$id")}
    found: dict[str, Any] = _moved({"Workflow": whole, **parts})
    return found


def _moved(value: Any) -> Any:
    """The same with every reference to a part leading to its component."""
    if isinstance(value, dict):
        return {key: _moved(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_moved(inner) for inner in value]
    if isinstance(value, str) and value.startswith("#/$defs/"):
        return _REFERENCES.format(name=f"Workflow.{value.removeprefix('#/$defs/')}")
    return value


def _kinds(routes: Sequence[Route]) -> list[Any]:
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


def _link(route: Route) -> dict[str, Any]:
    """How a thing that was accepted leads to an operation: by its id, and to the first task of a workflow's first stage."""
    known = {
        "workflow": "$response.body#/id",
        "id": "$response.body#/id",
        "stage": "$request.body#/stages/0/name",
        "index": 0,
    }
    names = _PARAMETER.findall(route.path)
    return {"operationId": route.name, "parameters": {name: known.get(name) for name in names}}


def _operation(route: Route, links: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route, links),
    }
    if route.access is not Policy.OPEN:
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
        if route.body.example is not None:
            found["requestBody"]["content"]["application/json"]["example"] = route.body.example
    return found


def _parameters(route: Route) -> list[dict[str, Any]]:
    inside = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999}
            if name == "index"
            else _SEGMENT,
        }
        for name in _PARAMETER.findall(route.path)
    ]
    headers = [
        {
            "name": name,
            "in": "header",
            "description": about,
            "schema": {"type": "string", "pattern": HEADERS[name]},
        }
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
    if shape.get("type") == "string" and "enum" not in shape:
        shape = {
            "maxLength": LONGEST,
            **shape,
            **({"allOf": [{"pattern": TEXT}]} if "pattern" in shape else {}),
        }
        shape.setdefault("pattern", TEXT)
    return {"name": field.encode_name, "in": "query", "description": about, "schema": shape}


def _inlined(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """An enumeration in place: parameters are easier to read so."""
    reference = schema.pop("$ref", None)
    found = dict(components[reference.rpartition("/")[2]]) if reference else {}
    return {**{key: value for key, value in found.items() if key != "title"}, **schema}


def _responses(route: Route, links: Mapping[str, Any]) -> dict[str, Any]:
    found = {str(status): _response(answer) for status, answer in route.answers.items()}
    for status, answer in route.answers.items():
        begun = {SubmittedView: "workflow", TesCreated: "id"}.get(answer.type) if answer.type else None
        if begun is not None:
            found[str(status)]["links"] = {
                name: link
                for name, link in links.items()
                if begun in link["parameters"] and None not in link["parameters"].values()
            }
    problem = {MEDIA: {"schema": {"$ref": _REFERENCES.format(name="ProblemView")}}}
    for status in _possible(route):
        found.setdefault(str(status), {"description": _PROBLEMS[status], "content": problem})
    return found


def _possible(route: Route) -> list[int]:
    """Which problems a route can answer with."""
    if route.access is Policy.OPEN:
        return [400, 500]
    possible = [400, 401, 403, 500, 503]
    if "{" in route.path:
        possible.append(404)
    if route.body is not None:
        possible += [409, 413, 422]
    elif route.process is Process.LEADER:
        possible.append(409)
    return sorted(possible)


def _response(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.about}
    if answer.headers:
        found["headers"] = {
            name: {"description": about, "schema": {"type": "string"}}
            for name, about in answer.headers.items()
        }
    schema = _schema(answer.type) if answer.type else {"type": "string"}
    found["content"] = {answer.media: {"schema": _frame(schema) if answer.media == SSE else schema}}
    return found


def _frame(event: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream as tools see it: fields of text, of which `data` holds JSON; that of `end` is the workflow."""
    data = {"anyOf": [event, _schema(WorkflowView)]}
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "event": {"type": "string"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
        },
    }


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCES)
    return schema
