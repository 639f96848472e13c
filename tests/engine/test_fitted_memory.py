"""Memory that fits: the requests of first attempts, attempts that run out of it, and what a restart keeps."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.control.views import stage_sums
from flowsched.engine.events import Accepted, Tick
from flowsched.engine.explain import explain
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.errors import InvalidDocument
from flowsched.executor.protocol import PodEnded, Usage
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.views import FittedMemoryView
from tests.engine.scene import Scene, node

GIB = 1 << 30


def align(count: int = 1, **more: Any) -> dict[str, Any]:
    """A bag of tasks that ask for 4 GiB each, with memory that fits."""
    stage = {"name": "align", "command": ["x"], "fit_memory": True, "resources": {"memory": "4Gi"}}
    return stage | {"scatter": {"count": count}} | more


def end(scene: Scene, *names: str, gib: float) -> None:
    """Tasks end well, having used so much memory."""
    scene.start(*names)
    usage = Usage(max_rss_bytes=int(gib * GIB))
    scene.tell(*(PodEnded(name, scene.now, 0, usage=usage) for name in names), after=2_000)


def taught(*stages: dict[str, Any]) -> Scene:
    """Eight tasks of `w` have used 1 GiB each; the same workflow, with these stages, comes once more as `w2`."""
    scene = Scene(node(cpu=8, memory_bytes=32 * GIB))
    scene.submit("w", align(8))
    end(scene, *scene.launched, gib=1)
    again(scene, "w2", *stages)
    return scene


def again(scene: Scene, workflow: str, *stages: dict[str, Any]) -> None:
    accepted = scene.accepted(workflow, *stages)
    accepted.run.spec = replace(accepted.run.spec, name="w")
    scene.tell(Accepted(accepted.run))


def given(scene: Scene) -> list[int]:
    """MiB of each pod that the last step launched."""
    return [scene.pods[name].memory_bytes >> 20 for name in scene.launched]


def test_the_first_tasks_of_a_kind_get_what_they_ask_for_and_later_ones_what_those_have_used() -> None:
    """Eight of 4 GiB used 1 GiB each; the next get that and a margin, and the node books no more than that."""
    scene = Scene(node(cpu=8, memory_bytes=32 * GIB))
    scene.submit("w", align(8))
    assert given(scene) == [4096] * 8
    end(scene, *scene.launched, gib=1)
    again(scene, "w2", align(2))
    assert given(scene) == [FITTED] * 2
    assert scene.state.cluster.snapshot.used[0, 1] == sum(
        scene.pods[name].memory_bytes for name in scene.launched
    )


def test_tasks_that_wait_are_offered_with_what_was_learned_meanwhile() -> None:
    """Two of four have room at 4 GiB. Once they have ended, the other two need no more than they used."""
    scene = Scene(node(cpu=4))
    scene.submit("w", align(4))
    assert given(scene) == [4096] * 2
    end(scene, *scene.launched, gib=1)
    assert max(given(scene)) < 2048
    assert len(scene.launched) == 2


def test_out_of_fitted_memory_is_free_and_the_next_attempt_gets_all_that_was_asked_for_at_once() -> None:
    """One attempt is allowed. The fitted one does not count, and no back-off follows; the next does, and the task fails."""
    scene = taught(align())
    scene.end("fs-w2-align-0-0", code=137, reason="OOMKilled")
    assert scene.launched == ["fs-w2-align-0-1"]
    assert given(scene) == [4096]
    assert scene.last.delta.tasks[-1].charged == 0
    scene.end("fs-w2-align-0-1", code=137, reason="OOMKilled")
    assert scene.state_of("w2") == "FAILED: align FAILED"


def test_memory_grows_from_what_was_asked_for() -> None:
    """Fitted, 4 GiB, 6 GiB: the factor starts with the second failure."""
    scene = taught(align(retry={"attempts": 2, "memory_factor": 1.5}))
    scene.end("fs-w2-align-0-0", code=137, reason="OOMKilled")
    assert given(scene) == [4096]
    scene.end("fs-w2-align-0-1", code=137, reason="OOMKilled")
    scene.tell(Tick(), after=1_000)
    assert given(scene) == [6144]


def test_no_policy_hears_of_it() -> None:
    """The document says that exit code 137 fails the stage: this one comes of the fitted memory."""
    policies = [{"event": "task_failed", "exit_codes": [137], "action": "fail_stage"}]
    scene = taught(align(policies=policies))
    scene.end("fs-w2-align-0-0", code=137, reason="OOMKilled")
    assert given(scene) == [4096]


def test_other_failures_count() -> None:
    """Exit code 1 with fitted memory is the task's own."""
    scene = taught(align())
    scene.end("fs-w2-align-0-0", code=1)
    assert scene.state_of("w2") == "FAILED: align FAILED"


def test_a_restart_keeps_that_the_fitted_memory_was_too_little() -> None:
    """The row of the task that waits for its second attempt brings back 4 GiB, also where nothing fits memory any more."""
    scene = taught(align())
    scene.end("fs-w2-align-0-0", code=137, reason="OOMKilled")
    (row,) = scene.last.delta.tasks[-1:]
    run = scene.runs["w2"]
    rows = Remembered("w2", 2, "RUNNING", "", 0, False, False, scene.last.delta.stages, [row], [])
    rebuilt = rebuild_run(scene.state, run.spec, StageGraph(run.spec), rows)
    assert rebuilt.stages[0].memory_steps.tolist() == [128]


def test_a_limit_shrinks_in_proportion() -> None:
    """It is twice the request, and stays that."""
    scene = taught(align(limits={"memory": "8Gi"}))
    (name,) = scene.launched
    assert scene.pods[name].memory_limit_bytes == 2 * scene.pods[name].memory_bytes
    assert given(scene) == [FITTED]


def test_a_stage_that_says_nothing_does_as_the_profile_of_its_queue_says() -> None:
    """By default it gets what it asks for; so does a program that is told an amount, whatever the profile says."""
    silent = align()
    del silent["fit_memory"]
    told = silent | {"command": ["java", "-Xmx3g"]}
    scene = taught(silent)
    assert given(scene) == [4096]
    scene.state.policy.profile = replace(scene.state.policy.profile, fit_memory=True)
    again(scene, "w3", silent)
    assert given(scene) == [FITTED]
    again(scene, "w4", told)
    assert given(scene) == [4096]
    again(scene, "w5", told | {"fit_memory": True})
    assert given(scene) == [FITTED]
    again(scene, "w6", silent | {"fit_memory": False})
    assert given(scene) == [4096]


def test_a_gang_cannot_say_that_its_memory_fits() -> None:
    """Its members are placed together, with what they ask for."""
    stage = {"name": "g", "gang": True, "fit_memory": True, "roles": {"w": {"command": ["x"]}}}
    with pytest.raises(InvalidDocument, match="false in a gang"):
        check_workflow({"name": "w", "stages": [stage]})


def test_no_file_tells_the_client_of_an_attempt_that_ran_out_of_fitted_memory() -> None:
    """The next attempt tells it, if that runs out of memory too."""
    left = [{"path": "/x/rc", "content": "79", "reason": "OOMKilled"}]
    steps = {"steps": [{"command": ["x"], "image": "busybox"}], "files": {"leave": left}}
    stage = {**align(), **steps}
    del stage["command"]
    scene = taught(stage)
    scene.end("fs-w2-align-0-0", code=137, reason="OOMKilled")
    pods = [scene.pods[f"fs-w2-align-0-{attempt}"] for attempt in (0, 1)]
    assert [len(pod.container.leave) for pod in pods if pod.container is not None] == [0, 1]
    assert [(pod.is_last, pod.is_fitted) for pod in pods] == [(True, True), (True, False)]


def test_explain_says_what_was_asked_and_what_is_given() -> None:
    """Of a task that waits."""
    scene = taught(align(40))
    texts = [found.estimate for found in explain(scene.state, scene.runs["w2"], scene.now) if found.estimate]
    assert any(f"memory: asked 4 GiB, given {SHOWN} (from 8 tasks)" in text for text in texts)


def test_attempts_say_what_they_asked_for_and_were_given_and_their_stage_what_was_saved() -> None:
    """2.92 of 4 GiB are saved for 2 s and, until it is lost, for 1 s. For 3 s 1.08 GiB are held in vain."""
    scene = taught(align(3))
    first, second, third = scene.launched
    scene.start(first, second, third)
    scene.end(first, after=2_000)
    (end,) = scene.last.delta.ends
    assert (end.usage["memory_asked_bytes"], end.usage["memory_given_bytes"] >> 20) == (4 * GIB, FITTED)
    scene.end(second, code=137, reason="OOMKilled", after=1_000)
    scene.start("fs-w2-align-1-1")
    scene.end("fs-w2-align-1-1", after=1_000)
    (end,) = scene.last.delta.ends
    assert "memory_asked_bytes" not in end.usage
    scene.gone(third)
    run = scene.runs["w2"]
    (row,) = scene.last.delta.stages
    assert {name: row.totals[name] for name in ("fitted", "fitted_asked_mib", "fitted_given_mib")} == {
        "fitted": 3,
        "fitted_asked_mib": 3 * 4096,
        "fitted_given_mib": 3 * FITTED,
    }
    assert row.totals["memory_saved_gib_ms"] == 5_833 - 3_251 + 11_665
    rows = Remembered("w2", 2, "RUNNING", "", 0, False, False, [row], [], [])
    rebuilt = rebuild_run(scene.state, run.spec, StageGraph(run.spec), rows)
    assert rebuilt.stages[0].totals.tolist() == run.stages[0].totals.tolist()
    assert not any("fitted" in row.totals for row in scene.deltas[1].stages)


def test_a_stage_that_is_many_calls_adds_them_up() -> None:
    """Two calls of another engine's run, 4 and 8 GiB, and one that got all that it asked for."""
    calls = [
        {"fitted": 1, "fitted_asked_mib": 4096, "fitted_given_mib": 1024, "memory_saved_gib_ms": 7_200_000},
        {"fitted": 1, "fitted_asked_mib": 8192, "fitted_given_mib": 3072, "memory_saved_gib_ms": -3_600_000},
        {"core_ms": 1},
    ]
    assert stage_sums(calls)["fitted_memory"] == FittedMemoryView(
        attempts=2, asked_bytes=6 * GIB, given_bytes=2 * GIB, saved_gib_hours=1.0
    )
    assert stage_sums(calls[2:])["fitted_memory"] is None


#: 1 GiB, 64 MiB, and 2 % more, in MiB.
FITTED = 1109
SHOWN = "1.1 GiB"
