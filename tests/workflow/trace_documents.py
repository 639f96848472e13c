"""Small WfFormat documents: one that was divided (1.5), the same one flat (1.4), and what both mean."""

from __future__ import annotations

import json
from typing import Any

#: split writes two parts, two counts read one part each and the words, join reads both counts.
DIVIDED: dict[str, Any] = {
    "name": "counts",
    "schemaVersion": "1.5",
    "runtimeSystem": {"name": "Makeflow", "version": "7"},
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "split_ID1", "id": "split_ID1", "parents": [], "children": ["count_ID2", "count_ID3"],
                 "inputFiles": ["text"], "outputFiles": ["a", "b"]},
                {"name": "count_ID2", "id": "count_ID2", "parents": ["split_ID1"], "children": ["join_ID4"],
                 "inputFiles": ["a", "words"], "outputFiles": ["na"]},
                {"name": "count_ID3", "id": "count_ID3", "parents": ["split_ID1"], "children": ["join_ID4"],
                 "inputFiles": ["b", "words"], "outputFiles": ["nb"]},
                {"name": "join_ID4", "id": "join_ID4", "parents": ["count_ID2", "count_ID3"], "children": [],
                 "inputFiles": ["na", "nb"], "outputFiles": ["all"]},
            ],
            "files": [
                {"id": "text", "sizeInBytes": 3000}, {"id": "words", "sizeInBytes": 500},
                {"id": "a", "sizeInBytes": 1000}, {"id": "b", "sizeInBytes": 2000},
                {"id": "na", "sizeInBytes": 10}, {"id": "nb", "sizeInBytes": 20}, {"id": "all", "sizeInBytes": 0},
            ],
        },
        "execution": {
            "makespanInSeconds": 30,
            "executedAt": "2020-04-03T12:15:19Z",
            "tasks": [
                {"id": "split_ID1", "runtimeInSeconds": 4.0, "avgCPU": 50.0, "coreCount": 1},
                {"id": "count_ID2", "runtimeInSeconds": 10.0, "avgCPU": 150.0, "memoryInBytes": 100000000,
                 "readBytes": 1500, "writtenBytes": 10},
                {"id": "count_ID3", "runtimeInSeconds": 12, "avgCPU": 80.0, "memoryInBytes": 200000000},
                {"id": "join_ID4", "runtimeInSeconds": 1.5},
            ],
            "machines": [],
        },
    },
}  # fmt: skip

#: The same, as 1.4 says it: files with each task, tasks known by their names, dependencies on one end only.
FLAT: dict[str, Any] = {
    "name": "counts",
    "schemaVersion": "1.4",
    "wms": {"name": "Makeflow", "version": "7"},
    "workflow": {
        "executedAt": "2020-04-03T12:15:19Z",
        "makespanInSeconds": 30,
        "machines": [],
        "tasks": [
            {"name": "split_ID1", "id": "ID1", "category": "split", "type": "compute", "runtimeInSeconds": 4.0,
             "avgCPU": 50.0, "cores": 1, "parents": [], "files": [
                 {"link": "input", "name": "text", "sizeInBytes": 3000},
                 {"link": "output", "name": "a", "sizeInBytes": 1000},
                 {"link": "output", "name": "b", "sizeInBytes": 2000}]},
            {"name": "count_ID2", "id": "ID2", "category": "count", "type": "compute", "runtimeInSeconds": 10.0,
             "avgCPU": 150.0, "memoryInBytes": 100000000, "readBytes": 1500, "writtenBytes": 10,
             "parents": ["split_ID1"], "files": [
                 {"link": "input", "name": "a", "sizeInBytes": 1000},
                 {"link": "input", "name": "words", "sizeInBytes": 500},
                 {"link": "output", "name": "na", "sizeInBytes": 10}]},
            {"name": "count_ID3", "id": "ID3", "category": "count", "type": "compute", "runtimeInSeconds": 12,
             "avgCPU": 80.0, "memoryInBytes": 200000000, "parents": ["ID1"], "children": ["join_ID4"], "files": [
                 {"link": "input", "name": "b", "sizeInBytes": 2000},
                 {"link": "input", "name": "words", "sizeInBytes": 500},
                 {"link": "output", "name": "nb", "sizeInBytes": 20}]},
            {"name": "join_ID4", "id": "ID4", "category": "join", "type": "compute", "runtimeInSeconds": 1.5,
             "parents": ["count_ID2"], "files": [
                 {"link": "input", "name": "na", "sizeInBytes": 10},
                 {"link": "input", "name": "nb", "sizeInBytes": 20},
                 {"link": "output", "name": "all", "sizeInBytes": 0}]},
        ],
    },
}  # fmt: skip


def raw(document: Any) -> bytes:
    """As it is sent."""
    return json.dumps(document).encode()


def changed(path: str, value: Any) -> dict[str, Any]:
    """DIVIDED with something else at a place such as `workflow.specification.tasks.0.id`; None takes it away."""
    document: dict[str, Any] = json.loads(json.dumps(DIVIDED))
    *way, last = path.split(".")
    at: Any = document
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    key: Any = int(last) if isinstance(at, list) else last
    if value is None:
        del at[key]
    else:
        at[key] = value
    return document
