"""Accounting: what attempts held from their binding to their end, in the sums of their stage."""

from __future__ import annotations

from flowsched.engine.delta import StageWrite
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from tests.engine.scene import Scene, node

RESOURCES = {"cpu": "1500m", "memory": "1Gi"}


def held(scene: Scene, ident: str, stage: str) -> dict[str, int]:
    """The last row that was written of a stage, without what is not held."""
    run = scene.runs[ident]
    rows = [row for delta in scene.deltas for row in delta.stages if row.stage == run.number_of(stage)]
    return {name: rows[-1].totals[name] for name in ("core_ms", "gpu_ms", "memory_gib_ms", "running_ms")}


def test_an_attempt_counts_from_its_binding() -> None:
    """It was bound, took 2 s to start and ran for 8 s: 10 s of 1.5 cores and 1 GiB were held."""
    scene = Scene(node(cpu=4))
    scene.submit("w", {"name": "a", "command": ["x"], "resources": RESOURCES})
    scene.now += 2_000
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", after=8_000)
    assert held(scene, "w", "a") == {
        "core_ms": 15_000,
        "gpu_ms": 0,
        "memory_gib_ms": 10_000,
        "running_ms": 8_000,
    }


def test_waiting_for_room_costs_nothing() -> None:
    """Two tasks of 3 cores on 4 cores, 5 s each, one after the other: 30 core-seconds, though the second waited for 5 s."""
    scene = Scene(node(cpu=4))
    stage = {"name": "a", "command": ["x"], "scatter": {"count": 2}, "resources": {"cpu": 3, "memory": 0}}
    scene.submit("w", stage)
    for task in (0, 1):
        scene.start(f"fs-w-a-{task}-0")
        scene.end(f"fs-w-a-{task}-0", after=5_000)
    assert held(scene, "w", "a")["core_ms"] == 30_000


def test_waiting_that_ends_with_a_cancel_counts() -> None:
    """Two tasks wait 200 s for cores that no node has, a third one for its input; what is not ready does not wait."""
    scene = Scene(node(cpu=4))
    reads = [{"name": "i", "uri": "s3://lab/x", "size": 1000}]
    scene.submit(
        "w",
        {"name": "large", "command": ["x"], "scatter": {"count": 2}, "resources": {"cpu": 64}},
        {"name": "reads", "command": ["x"], "inputs": reads},
        {"name": "later", "command": ["x"], "needs": ["large"]},
    )
    scene.now += 200_000
    scene.command("w", "cancel")
    waited = {
        stage.spec.name: dict(zip(("queued_ms", "staging_ms"), stage.totals[:2].tolist(), strict=True))
        for stage in scene.runs["w"].stages
    }
    assert waited == {
        "large": {"queued_ms": 400_000, "staging_ms": 0},
        "reads": {"queued_ms": 0, "staging_ms": 200_000},
        "later": {"queued_ms": 0, "staging_ms": 0},
    }


def test_failed_attempts_and_grown_memory_count() -> None:
    """4 s with 1 GiB that were not enough, 1 s of back-off that costs nothing, 6 s with 2 GiB: 4 + 12 GiB-seconds."""
    scene = Scene(node(cpu=4))
    retry = {"attempts": 2, "memory_factor": 2}
    scene.submit("w", {"name": "a", "command": ["x"], "resources": RESOURCES, "retry": retry})
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", code=137, reason="OOMKilled", after=4_000)
    scene.tell(after=1_000)
    assert scene.launched == ["fs-w-a-0-1"]
    scene.start("fs-w-a-0-1")
    scene.end("fs-w-a-0-1", after=6_000)
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    assert held(scene, "w", "a") == {
        "core_ms": 15_000,
        "gpu_ms": 0,
        "memory_gib_ms": 16_000,
        "running_ms": 10_000,
    }


def test_lost_and_cancelled_attempts_count() -> None:
    """3 s on a node that was lost, then 2 s until a user cancelled and 1 s until the process was gone: 6 GPU-seconds."""
    scene = Scene(node(cpu=4, gpus=2))
    scene.submit("w", {"name": "a", "command": ["x"], "resources": {"cpu": 1, "gpu": 1}})
    scene.start("fs-w-a-0-0")
    scene.now += 3_000
    scene.gone("fs-w-a-0-0", reason="NodeLost")
    scene.start("fs-w-a-0-1")
    scene.now += 2_000
    scene.command("w", "cancel")
    scene.end("fs-w-a-0-1", code=143, reason="Released", after=1_000)
    assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    assert (held(scene, "w", "a")["gpu_ms"], held(scene, "w", "a")["core_ms"]) == (6_000, 6_000)


def test_each_role_of_a_gang_counts_with_its_own() -> None:
    """A leader with 1 core and two workers with 2 cores and a GPU each, for 10 s: 50 core-seconds, 20 GPU-seconds."""
    scene = Scene(node(cpu=8, gpus=2))
    roles = {
        "leader": {"replicas": 1, "command": ["x"], "resources": {"cpu": 1}},
        "worker": {"replicas": 2, "command": ["x"], "resources": {"cpu": 2, "gpu": 1}},
    }
    scene.submit("w", {"name": "train", "gang": True, "roles": roles})
    names = scene.launched
    assert len(names) == 3
    scene.start(*names)
    scene.end(*names, after=10_000)
    assert (held(scene, "w", "train")["core_ms"], held(scene, "w", "train")["gpu_ms"]) == (50_000, 20_000)


def test_a_petabyte_for_a_year_is_no_overflow() -> None:
    """In bytes x ms that would be 3.5e25, where 64 bits end at 9.2e18."""
    scene = Scene(NodeInfo("n0", 4_000, 1 << 50))
    scene.submit("w", {"name": "a", "command": ["x"], "resources": {"cpu": 1, "memory": "1024Ti"}})
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", after=365 * 86_400_000)
    assert held(scene, "w", "a")["memory_gib_ms"] == (1 << 20) * 365 * 86_400_000


def test_rows_of_before_the_accounting_are_read() -> None:
    """They have five sums; the others begin at nothing."""
    spec = check_workflow({"name": "w", "stages": [{"name": "a", "command": ["x"]}]})
    old = {"queued_ms": 1, "staging_ms": 2, "running_ms": 3, "bytes_local": 4, "bytes_moved": 5}
    stages = [StageWrite("w", 0, "RUNNING", {}, 10, None, "", old)]
    rows = Remembered("w", 1, "RUNNING", "", 10, False, False, stages, [], [])
    run = rebuild_run(EngineState(), spec, StageGraph(spec), rows)
    assert run.stages[0].totals.tolist() == [1, 2, 3, 4, 5] + [0] * 8
