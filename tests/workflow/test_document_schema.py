"""The published JSON Schema and the decoder agree."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from test_document_mutations import damaged
from valid_documents import EVERYTHING, GERMLINE, Json, document, faults_of, stage

import flowsched.workflow
from flowsched.errors import InvalidRequest
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.document.schema import printed

PUBLISHED = Path(flowsched.workflow.__file__).with_name("workflow.schema.json")
WORKFLOWS = Path(__file__).parents[2] / "workflows"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(PUBLISHED.read_text()))


def test_the_published_file_is_the_schema() -> None:
    """`python -m flowsched.workflow.document.schema` writes it anew."""
    assert PUBLISHED.read_text() == printed()


def test_the_schema_is_one() -> None:
    """Of draft 2020-12."""
    jsonschema.Draft202012Validator.check_schema(json.loads(PUBLISHED.read_text()))


def test_every_property_is_described() -> None:
    """For editors that show it."""

    def undescribed(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        here = [
            f"{path}.{name}"
            for name, inner in schema.get("properties", {}).items()
            if isinstance(inner, dict) and not inner.get("description") and not inner.get("const")
        ]
        return here + [p for name, inner in schema.items() for p in undescribed(inner, f"{path}.{name}")]

    schema = json.loads(PUBLISHED.read_text())
    missing = [path for path in undescribed(schema, "$") if not path.endswith(".nodeAffinity")]
    assert missing == []


@pytest.mark.parametrize("value", [GERMLINE, EVERYTHING], ids=["germline", "everything"])
def test_good_documents_are_valid(value: Json) -> None:
    """For both."""
    assert faults_of(value) == []
    VALIDATOR.validate(value)


@pytest.mark.parametrize("name", sorted(path.name for path in WORKFLOWS.glob("*.json")))
def test_the_workflows_of_this_repository_are_valid(name: str) -> None:
    """For both, once relative files have their folder in front, as the client does."""
    value = json.loads((WORKFLOWS / name).read_text())
    VALIDATOR.validate(value)
    for part in value["stages"]:
        for entry in part.get("inputs", ()):
            if "uri" in entry:
                entry["uri"] = f"/folder/{entry['uri']}"
    assert faults_of(value) == []


def one(**more: Any) -> Json:
    return document(stage(**more))


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        document(),
        {**one(), "nmae": 1},
        {**one(), "priority": "high"},
        {**one(), "queue": "a b"},
        one(command=[]),
        one(gang="yes"),
        one(roles={"w": {}}),
        one(gang=True, roles={"a.b": {}}),
        one(gang=True, roles={"w": {"replicas": 0}}),
        one(scatter={"items": [1], "count": 1}),
        one(scatter={"items": [None]}),
        one(resources={"cpu": "4x"}),
        one(resources={"memroy": 1}),
        one(env={"A": True}),
        one(env={"1A": "x"}),
        one(secrets={"A": "two words"}),
        one(inputs=[{"name": "i", "uri": "/x", "match": "all"}]),
        one(inputs=[{"name": "i", "from": "nodot"}]),
        one(outputs=[{"name": "o", "path": "/o"}]),
        one(timeout="5 min"),
        one(policies=[{"event": "*", "on": "*", "action": "ignore"}]),
        one(when={"outcome": 1}),
        one(io={"read": "fast"}),
    ],
)
def test_documents_with_a_fault_of_form_are_invalid(value: object) -> None:
    """For both."""
    assert faults_of(value) != []
    assert not VALIDATOR.is_valid(value)


@settings(max_examples=200)
@given(damaged())
def test_whatever_the_decoder_accepts_is_valid(value: Json) -> None:
    """The schema may be more lenient, never stricter."""
    try:
        check_workflow(value)
    except InvalidRequest:
        return
    VALIDATOR.validate(value)


@pytest.mark.parametrize(
    "stages",
    [
        [stage("a", needs=["b"])],
        [stage("a", outputs=[{"name": "o", "path": "../o"}])],
        [stage("a"), stage("a")],
    ],
)
def test_what_only_the_decoder_knows(stages: list[Json]) -> None:
    """Names, folders and cycles are beyond a schema."""
    value = document(*stages)
    VALIDATOR.validate(value)
    assert faults_of(value) != []
