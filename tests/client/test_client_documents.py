"""Documents before they are sent: paths made absolute, workflows built in Python."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from flowsched import Workflow
from flowsched.client.documents import absolute_uri, resolve_uris, resolved_bytes

FOLDER = PurePosixPath("/lab/run 1")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("data/x.fa", "/lab/run 1/data/x.fa"),
        ("./data/{item}.fq", "/lab/run 1/data/{item}.fq"),
        ("../shared/x", "/lab/shared/x"),
        ("file:data/x", "file:///lab/run 1/data/x"),
        ("/abs/x", "/abs/x"),
        ("file:/abs/x", "file:///abs/x"),
        ("file:///abs/x", "file:///abs/x"),
        ("s3://lab/x", "s3://lab/x"),
        ("HTTPS://lab/x", "HTTPS://lab/x"),
        ("//host/x", "//host/x"),
        ("", ""),
        ("ünïcode/x", "/lab/run 1/ünïcode/x"),
    ],
)
def test_a_relative_uri_gets_its_folder(uri: str, expected: str) -> None:
    """And every other one stays."""
    assert absolute_uri(uri, FOLDER) == expected  # type: ignore[arg-type]


def test_only_inputs_change_and_the_document_is_not_modified() -> None:
    """Commands and outputs may hold relative paths of the task's own folder."""
    document = {
        "name": "x",
        "stages": [
            {"name": "a", "command": ["./a"], "inputs": [{"name": "i", "uri": "i.txt"}, {"name": "j", "from": "b.j"}]},
            {"name": "b", "outputs": [{"name": "j", "path": "j.txt"}]},
        ],
    }  # fmt: skip
    before = json.dumps(document)
    found = resolve_uris(document, Path("/lab"))
    assert json.dumps(document) == before
    assert found["stages"][0]["inputs"] == [
        {"name": "i", "uri": "/lab/i.txt"},
        {"name": "j", "from": "b.j"},
    ]
    assert found["stages"][1] is document["stages"][1]


@pytest.mark.parametrize(
    "raw",
    [
        b"not json",
        b"[1]",
        b'{"stages": 3}',
        b'{"stages": [3, {"inputs": 4}, {"inputs": [5, {"uri": 6}]}]}',
        b'{"a": 1, "a": 2, "stages": [{"inputs": [{"uri": "x"}]}]}',
        b"[" * 100_000,
        b"\xff",
        b'{"stages": [{"inputs": [{"uri": "s3://x"}]}]}',
    ],
)
def test_what_is_wrong_is_sent_as_it_is(raw: bytes) -> None:
    """The service's faults are about what the user wrote."""
    assert resolved_bytes(raw, Path("/lab")) == raw


def test_references_make_edges() -> None:
    """Each kind of reference is the match it is called by."""
    wf = Workflow("germline", queue="genomics", labels={"sample": "NA1"})
    align = wf.stage(
        "align", command=["./a"], scatter=["L1", "L2"], cpu=4, memory="8Gi", image="bwa:1",
        inputs={"reads": "s3://lab/{item}.fq", "reference": Path("/ref/x.fa")},
        outputs={"bam": "a.bam", "sum": {"path": "sum", "value": True}}, retry={"attempts": 3},
    )  # fmt: skip
    sort = wf.stage("sort", command=["./s"], inputs={"bam": align["bam"].each()}, outputs={"bam": "s.bam"})
    wf.stage("part", command=["./p"], scatter=2, inputs={"bams": sort.output("bam").chunks()}, env={"A": "1"})
    wf.stage("call", command=["./c"], inputs={"bams": sort["bam"].all(), "one": align["sum"]}, needs=["part"])
    wf.gang(
        "train", needs=[sort], roles={"ps": {"replicas": 2, "command": ["ps"], "cpu": 2, "completes": False}}
    )
    assert wf.to_document() == {
        "name": "germline",
        "queue": "genomics",
        "labels": {"sample": "NA1"},
        "stages": [
            {
                "name": "align",
                "scatter": {"items": ["L1", "L2"]},
                "command": ["./a"],
                "container": {"image": "bwa:1"},
                "resources": {"cpu": 4, "memory": "8Gi"},
                "retry": {"attempts": 3},
                "inputs": [
                    {"name": "reads", "uri": "s3://lab/{item}.fq"},
                    {"name": "reference", "uri": "/ref/x.fa"},
                ],
                "outputs": [
                    {"name": "bam", "path": "a.bam"},
                    {"name": "sum", "path": "sum", "value": True},
                ],
            },
            {
                "name": "sort",
                "command": ["./s"],
                "inputs": [{"name": "bam", "from": "align.bam", "match": "index"}],
                "outputs": [{"name": "bam", "path": "s.bam"}],
            },
            {
                "name": "part",
                "scatter": {"count": 2},
                "command": ["./p"],
                "env": {"A": "1"},
                "inputs": [{"name": "bams", "from": "sort.bam", "match": "chunk"}],
            },
            {
                "name": "call",
                "command": ["./c"],
                "needs": ["part"],
                "inputs": [
                    {"name": "bams", "from": "sort.bam", "match": "all"},
                    {"name": "one", "from": "align.sum"},
                ],
            },
            {
                "name": "train",
                "gang": True,
                "roles": {
                    "ps": {"replicas": 2, "command": ["ps"], "completes": False, "resources": {"cpu": 2}}
                },
                "needs": ["sort"],
            },
        ],
    }


def test_numbers_of_numpy_are_numbers() -> None:
    """Wherever a number may stand; what comes out is JSON. Times and paths of Python are texts."""
    wf = Workflow("x", priority=np.int64(3))  # type: ignore[arg-type]
    wf.stage(
        "a", command=["true"], cpu=np.int64(1), memory=np.int64(1 << 20), gpu=np.float32(0.5), disk=np.uint8(7),  # type: ignore[arg-type]
        scatter=np.int64(3), retry={"attempts": np.int32(2)}, timeout=timedelta(seconds=1.5), env={"A": Path("/x")},  # type: ignore[arg-type, dict-item]
    )  # fmt: skip
    wf.gang(
        "g",
        roles={
            "w": {"replicas": np.int64(2), "command": ["b"], "env": {"A": Path("/x")}, "cpu": np.float64(0.5)}
        },
    )
    wf.stage("c", command=["true"], scatter=np.arange(2))  # type: ignore[arg-type]
    document = json.loads(json.dumps(wf.to_document()))
    assert document["priority"] == 3
    assert document["stages"] == [
        {
            "name": "a",
            "scatter": {"count": 3},
            "command": ["true"],
            "env": {"A": "/x"},
            "resources": {"cpu": 1, "memory": 1 << 20, "disk": 7, "gpu": 0.5},
            "retry": {"attempts": 2},
            "timeout": "1500ms",
        },
        {
            "name": "g",
            "gang": True,
            "roles": {"w": {"replicas": 2, "command": ["b"], "env": {"A": "/x"}, "resources": {"cpu": 0.5}}},
        },
        {"name": "c", "scatter": {"items": [0, 1]}, "command": ["true"]},
    ]


def test_building_a_document_loads_no_http_library() -> None:
    """Nor SQL nor numpy; the SDK itself loads neither of the latter two."""
    program = (
        "import sys, flowsched; flowsched.Workflow('x');"
        "assert not {'aiohttp', 'sqlalchemy', 'numpy'} & set(sys.modules);"
        "flowsched.Client;"
        "assert not {'sqlalchemy', 'numpy', 'flowsched.control', 'flowsched.api'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_keys_of_a_mapping_give_shards() -> None:
    """They have an order; a mapping itself is refused."""
    wf = Workflow("w")
    wf.stage("a", command=["x"], scatter={"S1": 1, "S2": 2}.keys())
    assert wf.to_document()["stages"][0]["scatter"] == {"items": ["S1", "S2"]}


def test_a_path_stays_a_path() -> None:
    """No `%` in it is an escape."""
    wf = Workflow("w")
    wf.stage("a", command=["x"], inputs={"r": Path("/lab/a%20b#1")})
    assert wf.to_document()["stages"][0]["inputs"] == [{"name": "r", "uri": "/lab/a%20b#1"}]
