"""The JSON Schema of a workflow document, for editors and for programs that write documents.

It declares the keys of each object, as the tables of keys do. Only `decode` checks objects against each other (names that
exist, cycles, widths): every document that `decode` accepts is valid under this schema, not the other way round.
`make schema` prints it to `workflow.schema.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from flowsched.workflow.document.decode import STAGE, WORKFLOW
from flowsched.workflow.document.keys import Schema
from flowsched.workflow.document.policies import POLICY
from flowsched.workflow.document.stage import INPUT, OUTPUT, RESOURCES, ROLE, TOLERATION

IDENTIFIER: Final = "urn:flowsched:workflow-document"
_PLAIN: Final = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
_PARTS: Final = r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?(?:ms|[dhms]))+"
_QUANTITY: Final = r"^ *\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)? *$"
_AMOUNTS: Final[Schema] = {
    "quantity": {
        "description": "A Kubernetes quantity: a number, or text as 500m, 2G (2·1000³), 8Gi (8·1024³), 1e3.",
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": _QUANTITY, "maxLength": 64},
        ],
        "examples": [4, 0.5, "500m", "8Gi"],
    },
    "duration": {
        "description": "Seconds as a number, or text as 25m, 1h30m, 90s, 250ms, 1d.",
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": f"^ *(?:{_PLAIN}|{_PARTS}) *$"},
        ],
        "examples": ["25m", "1h30m", 90],
    },
}


def workflow_schema() -> Schema:
    """The schema, with the limits of the documentation."""
    named = (RESOURCES, STAGE, ROLE, INPUT, OUTPUT, POLICY, TOLERATION)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": IDENTIFIER,
        "title": "flowsched workflow",
        **WORKFLOW.schema,
        "$defs": {**_AMOUNTS, **{table.name: table.definition for table in named}},
    }


def printed(schema: Mapping[str, Any] | None = None) -> str:
    """The text of `workflow.schema.json`."""
    return json.dumps(schema or workflow_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(printed(), end="")
