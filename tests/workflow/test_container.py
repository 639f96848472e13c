"""Container tasks and calls: what `steps`, `files` and `call` become, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowsched.errors import InvalidDocument
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.spec import Call, Container, Delivered, Left, LeftFor, Mount, Placed, Step


def document(**more: Any) -> bytes:
    stage = {"name": "t", "steps": [{"command": ["true"], "image": "ubuntu"}], **more}
    return json.dumps({"name": "w", "stages": [stage]}).encode()


def faults(raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidDocument) as refusal:
        decode_workflow(raw)
    return [(fault.path, fault.expected) for fault in refusal.value.faults]


def test_steps_and_files_become_a_container() -> None:
    """Bytes from elsewhere are inputs of the stage; what every node sees is used where it is."""
    steps = [
        {"command": ["a", "b"], "image": "one", "env": {"A": "1"}, "workdir": "/w", "ignore_error": True},
        {"command": ["c"], "image": "two", "stdin": "/i", "stdout": "/o", "stderr": "/e"},
    ]
    files = {
        "inputs": [
            {"path": "/in/a", "uri": "file:///data/a"},
            {"path": "/in/b", "uri": "s3://lab/b", "size": "1Gi"},
            {"path": "/in/c", "content": "text"},
        ],
        "outputs": [{"path": "/o/*.txt", "uri": "/results", "path_prefix": "/o"}],
        "mounts": [{"source": "/host", "path": "/c", "read_only": True}],
        "volumes": ["/v"],
        "leave": [
            {"path": "/c/rc", "content": "143", "reason": "Cancelled"},
            {"path": "/c/rc", "content": "79"},
        ],
    }
    stage = decode_workflow(document(steps=steps, files=files)).stages[0]
    assert stage.container == Container(
        steps=(
            Step(("a", "b"), "one", {"A": "1"}, "/w", ignore_error=True),
            Step(("c",), "two", stdin="/i", stdout="/o", stderr="/e"),
        ),
        inputs=(
            Placed("/in/a", source="/data/a"),
            Placed("/in/b", input="file-1"),
            Placed("/in/c", content="text"),
        ),
        outputs=(Delivered("/o/*.txt", "/results", path_prefix="/o"),),
        mounts=(Mount("/host", "/c", read_only=True),),
        volumes=("/v",),
        leave=(Left("/c/rc", "143", LeftFor.CANCELLED), Left("/c/rc", "79")),
    )
    assert [(i.name, i.uri, i.size_bytes) for i in stage.inputs] == [("file-1", "s3://lab/b", 1 << 30)]
    assert (stage.roles[0].command, stage.roles[0].image) == (("c",), "two")


def test_what_a_container_may_not_say() -> None:
    """Paths are absolute and stay where they are; nothing is written to http."""
    files = {
        "inputs": [{"path": "in", "content": "x"}, {"path": "/a"}],
        "outputs": [{"path": "/a/../b", "uri": "https://host/x"}],
        "mounts": [{"path": "/c"}],
        "leave": [{"path": "/c/rc", "content": "", "reason": "Timeout"}],
    }
    path = "an absolute path of the container, without .. and control characters"
    assert faults(document(files=files)) == [
        ("$.stages[0].files.inputs[0].path", path),
        ("$.stages[0].files.outputs[0].path", path),
        ("$.stages[0].files.mounts[0].source", path),
        ("$.stages[0].files.leave[0].reason", 'one of "OOMKilled", "Cancelled"'),
        ("$.stages[0].files.inputs[1]", "exactly one of uri and content"),
        (
            "$.stages[0].files.outputs[0].uri",
            "/absolute/path, file:///path or s3://bucket/key: nothing can be written to http",
        ),
    ]


def test_steps_stand_alone() -> None:
    """A stage is either a command or steps."""
    assert [path for path, _ in faults(document(command=["x"], outputs=[]))] == [
        "$.stages[0].command",
        "$.stages[0].outputs",
    ]
    assert faults(b'{"name": "w", "stages": [{"name": "t", "command": ["x"], "files": {}}]}') == [
        ("$.stages[0].files", 'no such key without steps: files at paths of a container need "steps"')
    ]


def test_members_of_a_gang_run_the_same_steps() -> None:
    """Roles say how many there are and what they get."""
    roles = {"worker": {"replicas": 3, "resources": {"cpu": 2}, "env": {"A": "1"}}}
    stage = decode_workflow(document(gang=True, roles=roles)).stages[0]
    role = stage.roles[0]
    assert (stage.gang, role.name, role.replicas, role.command, role.image, role.resources.cpu_millicores) == (
        True, "worker", 3, ("true",), "ubuntu", 2000,
    )  # fmt: skip
    assert faults(document(gang=True, roles={"worker": {"command": ["x"]}})) == [
        ("$.stages[0].roles.worker.command", "no such key beside steps: see steps and files")
    ]
    assert faults(document(roles={"worker": {}})) == [
        ("$.stages[0].roles", 'roles only beside "gang": true: members of a gang start together')
    ]


def test_a_call_says_of_which_run_it_is() -> None:
    """Only `run` and `node` are required."""
    call = {"run": "cromwell/1", "node": "W.call", "shard": 3, "after": ["W.first"], "rank_ms": 5000}
    raw = json.dumps({"name": "w", "call": call, "stages": [{"name": "t", "command": ["x"]}]}).encode()
    assert decode_workflow(raw).call == Call(
        run="cromwell/1", run_name="", source="", node="W.call", shard=3, after=("W.first",), rank_ms=5000
    )


def test_a_call_reads_of_calls_that_have_names() -> None:
    """An empty one is a fault, not left out in silence."""
    call = {"run": "cromwell/1", "node": "W.call", "after": ["W.first", ""]}
    raw = json.dumps({"name": "w", "call": call, "stages": [{"name": "t", "command": ["x"]}]}).encode()
    assert faults(raw) == [("$.call.after[1]", "text that is not empty")]
