"""Queues and users through whole steps: who yields, what is remembered, and what a restart or a failed commit does to it."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.delta import StageWrite, TaskWrite
from flowsched.engine.events import Recovered, Tick
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.state.usage import Payer
from tests.engine.scene import GIB, Scene, node

HOUR = 3_600_000
DAY = 24 * HOUR


def tasks(count: int, **more: Any) -> dict[str, Any]:
    return {"name": "s", "scatter": {"count": count}, "command": ["x"], "resources": {"cpu": 1}, **more}


def by_workflow(scene: Scene) -> dict[str, int]:
    """How many pods of each workflow the last step launched."""
    found: dict[str, int] = {}
    for pod in scene.last.launches:
        workflow = scene.state.work.pods[pod.name].workflow
        found[workflow] = found.get(workflow, 0) + 1
    return found


def test_two_users_of_a_queue_share_what_comes_free() -> None:
    """Ann has taken everything; as her tasks end, bob gets as many as she has."""
    scene = Scene(node(cpu=4))
    scene.submit("a", tasks(20), user="ann")
    assert by_workflow(scene) == {"a": 4}
    scene.submit("b", tasks(20), user="bob")
    scene.end(*scene.launched or sorted(scene.pods))
    assert by_workflow(scene) == {"a": 2, "b": 2}


@pytest.mark.parametrize("apart", [{"user": ("ann", "bob")}, {"queue": ("red", "blue")}])
def test_two_that_cannot_have_the_same_take_turns_to_have_more(apart: dict[str, tuple[str, str]]) -> None:
    """Three cores for two users, or two queues: as tasks end one by one, each gets half of all starts."""
    ((key, (one, other)),) = apart.items()
    scene = Scene(node(cpu=3))
    scene.tell(
        scene.accepted("a", tasks(40), **{key: one}),
        scene.accepted("b", tasks(40), **{key: other}),
    )
    running = list(scene.launched)
    started = {"a": 0, "b": 0}
    for _ in range(30):
        scene.tell(Tick(), after=1000)
        scene.end(running.pop(0))
        (name,) = scene.launched
        running.append(name)
        started[scene.state.work.pods[name].workflow] += 1
    assert abs(started["a"] - started["b"]) <= 1, started


def test_who_used_the_cluster_yesterday_yields_today() -> None:
    """Ann's day on all four cores counts: of the first four she gets one; a user who was never there the others."""
    scene = Scene(node(cpu=4))
    scene.submit("a", tasks(4), user="ann")
    scene.tell(Tick(), after=DAY)
    scene.end(*scene.pods)
    scene.tell(
        scene.accepted("c", tasks(9), user="ann"),
        scene.accepted("b", tasks(9), user="bob"),
    )
    assert by_workflow(scene) == {"b": 3, "c": 1}


def test_a_step_that_was_not_written_leaves_who_was_served_as_it_was() -> None:
    """A dropped placement did not serve anybody."""
    scene = Scene(node(cpu=4))
    before = dict(scene.state.cluster.snapshot.usage.served_queues)
    made = step(scene.state, [scene.accepted("a", tasks(1))], scene.now)
    assert scene.state.cluster.snapshot.usage.served_queues == {**before, "default": scene.now}
    made.drop()
    assert scene.state.cluster.snapshot.usage.served_queues == before
    assert list(scene.state.cluster.snapshot.usage.queues) == []


def test_usage_is_written_once_in_a_step_of_time() -> None:
    """A 64th of a day is 22.5 minutes; a row an account, with what it had until the step began."""
    scene = Scene(node(cpu=4))
    scene.submit("a", tasks(2), user="ann")
    scene.tell(Tick(), after=20 * 60_000)
    assert scene.deltas[-1].usage == []
    scene.tell(Tick(), after=3 * 60_000)
    (row,) = scene.deltas[-1].usage
    assert (row.queue, row.user, row.at_ms, row.served_ms) == ("default", "ann", 22 * 60_000 + 30_000, 1000)
    assert row.past["cpu"] == 2668937178  # 2,000 mCPU x 1,349,000 ms x 2 ** (-1/64)
    scene.tell(Tick(), after=60_000)
    assert scene.deltas[-1].usage == []


def test_a_restart_remembers_what_was_used() -> None:
    """Rows of SQL and the pod that still runs: the new leader's account is the old one's, to within a unit."""
    old = Scene(node(cpu=4))
    old.submit("a", tasks(1), user="ann")
    (name,) = old.launched
    old.start(name)
    old.tell(Tick(), after=3 * HOUR)
    rows = old.deltas[-1].usage
    assert len(rows) == 1
    old.tell(Tick(), after=10 * 60_000)

    state = EngineState(policy=PolicyState(secret=b"secret"))
    state.cluster.snapshot.usage.load(rows, state.cluster.snapshot.axes)
    step(state, [NodeChanged(node(cpu=4))], old.now).keep()
    run = old.runs["a"]
    stage = run.stages[0]
    written = TaskWrite(
        "a", 0, 0, int(stage.task_state[0]), int(stage.attempt[0]), "n0", 0, 2, "", None, 1000, None, None, 1000, 1000, None, 0, 0,
    )  # fmt: skip
    remembered = Remembered(
        "a", 1, "RUNNING", "", 0, False, False, [StageWrite("a", 0, "RUNNING", {}, 0, None, "", {})],
        [written], [],
    )  # fmt: skip
    again = rebuild_run(state, run.spec, run.graph, remembered)
    step(state, [Recovered(again, (old.pods[name],))], old.now).keep()
    ann, later = Payer("default", "ann"), old.now + 30 * 60_000
    for each in (state, old.state):
        each.cluster.snapshot.usage.begin(later, DAY)
    found, expected = state.cluster.snapshot.usage.faded()[ann], old.state.cluster.snapshot.usage.faded()[ann]
    assert expected[0] > 90
    assert expected[1] == 0 or expected[1] < GIB
    assert found == expected
