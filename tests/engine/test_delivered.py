"""What container tasks read and deliver outside of the caches, as the engine counts it. Literal stories."""

from __future__ import annotations

from typing import Any

from flowsched.engine.backlog import expected
from flowsched.engine.events import LookedUp
from flowsched.engine.state import EngineState
from flowsched.engine.telemetry import relearn
from flowsched.executor.protocol import ContainerReport, DeliveredFile, PodEnded, ReplicaSeen, Usage
from flowsched.values import replace
from tests.engine.scene import Scene, node

MB = 1_000_000


def scene() -> Scene:
    s = Scene(node("n0"), node("n1"))
    s.state.policy.memoizing = True
    return s


def steps(name: str, cpu: int = 1, **files: Any) -> dict[str, Any]:
    """A stage as an engine sends it."""
    return {"name": name, "steps": [{"command": ["x"]}], "files": files, "resources": {"cpu": cpu}}


def test_what_a_task_delivers_by_itself_is_not_taken_for_nothing() -> None:
    """Its outputs go to places outside, so what it writes for others is unknown, and not 0 bytes."""
    s = scene()
    s.submit("w", steps("a", outputs=[{"path": "/o", "uri": "s3://lab/o"}]))
    s.start("fs-w-a-0-0")
    report = ContainerReport((), (DeliveredFile("/o", "s3://lab/o", 7 * MB, "tag"),))
    s.tell(PodEnded("fs-w-a-0-0", s.now, 0, usage=Usage(cpu_ms=5), container=report), after=2_000)
    assert s.state.work.estimates.samples("w", "a") == 1
    assert s.state.work.estimates.output_bytes("w", "a") is None


def test_the_reader_of_a_delivered_object_goes_to_its_copy() -> None:
    """The copy on n1 has the version that the reader's look finds: the task starts there at once, and nothing is copied."""
    s = scene()
    name = "s3://lab/o#version=" + "a" * 32
    s.tell(ReplicaSeen(name, "n1", 200 * MB))
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": name}, sizes={name: 200 * MB}))
    assert [(pod.name, pod.node) for pod in s.last.launches] == [("fs-w-b-0-0", "n1")]
    assert s.last.transfers == []


def test_a_copy_of_an_overwritten_object_is_not_read() -> None:
    """The look finds another version: its bytes come from the store, and the copy of the old ones goes."""
    s = scene()
    old, new = ("s3://lab/o#version=" + letter * 32 for letter in "ab")
    s.tell(ReplicaSeen(old, "n1", 200 * MB))
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": new}, sizes={new: 100 * MB}))
    assert [(order.uri, order.source, order.size_bytes) for order in s.last.transfers] == [
        (new, None, 100 * MB)
    ]
    assert [(drop.uri, drop.node) for drop in s.last.drops] == [(old, "n1")]


def test_the_size_that_a_document_states_goes_before_that_of_the_store() -> None:
    """Otherwise the two would take turns."""
    s = scene()
    name = "s3://lab/o#version=" + "a" * 32
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o", "size": "5M"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": name}, sizes={name: 200 * MB}))
    assert [order.size_bytes for order in s.last.transfers] == [5 * MB]


def test_files_that_are_read_where_they_lie_count_as_read() -> None:
    """Their bytes are a part of the sample, and of what is expected of the next of the kind."""
    s = scene()
    for number, size in enumerate((10, 20, 30, 40, 50)):
        pod = arrives(s, f"w{number}", size * MB)
        s.start(pod)
        s.tell(PodEnded(pod, s.now + size * 1_000, 0), after=size * 1_000)
    arrives(s, "w5", 100 * MB)
    stage = s.runs["w5"].stages[0]
    assert stage.local.tolist() == [100 * MB]
    assert expected(s.state, s.runs["w5"], stage, ()) == (100_000, 100_000)


def test_files_of_unknown_size_do_not_count_as_nothing() -> None:
    """Five tasks of unknown size took 80 s. They change nothing of what is expected by size."""
    s = scene()
    for number, size in enumerate((10, 20, 30, 40, 50)):
        pod = arrives(s, f"w{number}", size * MB)
        s.start(pod)
        s.tell(PodEnded(pod, s.now + size * 1_000, 0), after=size * 1_000)
    for number in range(5):
        pod = arrives(s, f"v{number}")
        s.start(pod)
        s.tell(PodEnded(pod, s.now + 80_000, 0), after=80_000)
    arrives(s, "w", 100 * MB)
    assert s.state.work.estimates.samples("w", "a") == 10
    assert s.state.work.estimates.typical_size("w", "a") == 30 * MB
    assert expected(s.state, s.runs["w"], s.runs["w"].stages[0], ()) == (100_000, 100_000)


def test_what_tasks_of_unknown_size_took_is_known_all_the_same() -> None:
    """Also after a restart, where their rows have 0 bytes. One task of known size is too few to say more."""
    state = EngineState()
    for size, runtime_ms in ((0, 70_000), (0, 80_000), (5 * MB, 1_000), (0, 90_000)):
        relearn(state, "w", "a", runtime_ms, size, {}, {})
    assert state.work.estimates.runtime_ms("w", "a", 100 * MB) == 80_000


def arrives(s: Scene, ident: str, size: int | None = None) -> str:
    """A task of the kind `w/a` that reads one file of so many bytes in place; its pod."""
    accepted = s.accepted(ident, steps("a", inputs=[{"path": "/i", "uri": "/data/i"}]))
    accepted.run.spec = replace(accepted.run.spec, name="w")
    if size is not None:
        accepted.run.placed_bytes[0] = size
    s.tell(accepted)
    assert s.launched == [f"fs-{ident}-a-0-0"]
    return s.launched[0]
