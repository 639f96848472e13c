"""The OpenAPI document says what the routes do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient
from fake_service import FakeService

from flowsched.api.openapi import openapi
from flowsched.api.routes import Policy
from flowsched.api.table import ROUTES
from flowsched.workflow.document.decode import decode_workflow

DOCUMENT: dict[str, Any] = msgspec.json.decode(openapi(ROUTES))


def references(value: Any) -> Iterator[str]:
    """Every `$ref`."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_is_described() -> None:
    """Under its method and path, with its policy."""
    described = {(m.upper(), p) for p, methods in DOCUMENT["paths"].items() for m in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        assert ("security" in operation) == (route.access is not Policy.OPEN)
        assert operation["summary"]
        inside = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert inside == set(re.findall(r"{(\w+)}", route.path))


def test_operations_have_names_of_their_own() -> None:
    """Generators of clients need them."""
    names = [o["operationId"] for methods in DOCUMENT["paths"].values() for o in methods.values()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    """And every struct that is described is used."""
    schemas = DOCUMENT["components"]["schemas"]
    used = set(references(DOCUMENT))
    assert used == {f"#/components/schemas/{name}" for name in schemas}


def test_the_shape_is_that_of_openapi() -> None:
    """The fields that the specification asks for, of the kinds it asks for."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(DOCUMENT["info"])
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            assert all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
            for response in operation["responses"].values():
                assert response["description"]
                assert all("schema" in content for content in response["content"].values())
            for parameter in operation["parameters"]:
                assert parameter["in"] in ("path", "query", "header")
                assert "schema" in parameter


def test_parameters_are_described_as_they_are_decoded() -> None:
    """Ranges, choices and defaults, from the structs."""
    operation = DOCUMENT["paths"]["/api/v1/workflows"]["get"]
    found = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    label = found["label"]
    assert (label["pattern"], label["maxLength"]) == ("^[^=]+=", 1024)
    assert label["allOf"] == [{"pattern": r"^[^\x00-\x1f\x7f-\x9f]*$"}]  # as every text
    assert found["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert "SUCCEEDED" in found["state"]["enum"]
    assert found["live"] == {"type": "boolean", "default": False}
    words = "state name queue label run ref search user since until live limit page_token"
    assert set(found) == set(words.split())


def test_a_workflow_document_is_described_by_its_own_schema() -> None:
    """The one that is published for editors."""
    operation = DOCUMENT["paths"]["/api/v1/workflows"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Workflow"}
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["Workflow"]["properties"]["stages"]["items"] == {
        "$ref": "#/components/schemas/Workflow.stage"
    }
    assert "command" in schemas["Workflow.stage"]["properties"]


def test_an_accepted_workflow_leads_on() -> None:
    """Links from the submission: the id of the answer is what other operations ask for."""
    links = DOCUMENT["paths"]["/api/v1/workflows"]["post"]["responses"]["202"]["links"]
    assert links["get_workflow"]["parameters"] == {"workflow": "$response.body#/id"}
    assert links["get_task"]["parameters"] == {
        "workflow": "$response.body#/id",
        "stage": "$request.body#/stages/0/name",
        "index": 0,
    }


def test_an_event_is_described_as_it_is_framed() -> None:
    """Fields of text; `data` holds JSON, at the end that of the workflow."""
    answer = DOCUMENT["paths"]["/api/v1/workflows/{workflow}/events"]["get"]["responses"]["200"]
    data = answer["content"]["text/event-stream"]["schema"]["properties"]["data"]
    assert data["contentSchema"] == {
        "anyOf": [{"$ref": "#/components/schemas/EventView"}, {"$ref": "#/components/schemas/WorkflowView"}]
    }


def test_the_example_is_a_document_that_is_accepted() -> None:
    """It is what people copy first."""
    body = DOCUMENT["paths"]["/api/v1/workflows"]["post"]["requestBody"]["content"]["application/json"]
    spec = decode_workflow(msgspec.json.encode(body["example"]))
    assert [stage.name for stage in spec.stages] == ["greet", "join"]


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.method == "GET"], ids=lambda route: route.name
)
async def test_answers_are_of_the_media_types_described(
    api: TestClient, service: FakeService, route: Any
) -> None:
    """Each GET: success and, where it has a parameter, the 404."""
    workflow = service.add(state="SUCCEEDED", source="align", labels={"wes_workflow_type": "WDL"})
    service.documents[workflow] = b"{}"
    service.write("vcf", "calls.vcf", b"x")
    described = DOCUMENT["paths"][route.path]["get"]["responses"]
    for ident in (workflow, "nope"):
        plan = "p1" if ident == workflow else "nope"
        values = {"workflow": ident, "stage": "align", "index": 0, "name": "vcf", "id": ident, "plan": plan}
        values |= {"run": ident, "task": "align.0"}
        path = route.path.format(**values) if "{" in route.path else route.path
        answer = await api.get(path)
        assert answer.content_type in described[str(answer.status)]["content"]
        answer.close()
