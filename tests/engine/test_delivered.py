"""What container tasks read and deliver outside of the caches, as the engine counts it. Literal stories."""

from __future__ import annotations

from typing import Any

from flowsched.executor.protocol import ContainerReport, DeliveredFile, PodEnded, Usage
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
    report = ContainerReport((), (DeliveredFile("/o", "s3://lab/o", 7 * MB),))
    s.tell(PodEnded("fs-w-a-0-0", s.now, 0, usage=Usage(cpu_ms=5), container=report), after=2_000)
    assert s.state.work.estimates.samples("w", "a") == 1
    assert s.state.work.estimates.output_bytes("w", "a") is None
