"""Gangs that may go on with fewer members give some back before a whole gang has to go."""

from __future__ import annotations

from typing import Any

from flowsched.engine.step import step
from flowsched.executor.protocol import PodStarted
from tests.engine.scene import Scene, node


def training(workers: int, least: int, grow: bool = True, **more: Any) -> dict[str, Any]:
    """A parameter server, and workers of which so many are needed; a core each."""
    roles = {
        "ps": {"replicas": 1, "command": ["ps"], "completes": False, "resources": {"cpu": 1}},
        "worker": {
            "replicas": workers, "min": least, "grow": grow, "command": ["w"], "resources": {"cpu": 1},
        },
    }  # fmt: skip
    return {"name": "train", "gang": True, "roles": roles, **more}


def bag(count: int) -> dict[str, Any]:
    return {"name": "many", "scatter": {"count": count}, "command": ["x"], "resources": {"cpu": 1}}


def running(workers: int = 3, least: int = 1, **more: Any) -> Scene:
    """A gang that fills its node."""
    scene = Scene(node(cpu=workers + 1))
    scene.submit("low", training(workers, least, **more))
    scene.start(*(f"fs-low-train-{n}-0" for n in range(workers + 1)))
    return scene


def released(scene: Scene, *names: str) -> None:
    scene.end(*names, code=143, reason="Released")


def test_the_highest_members_leave_and_the_gang_goes_on() -> None:
    """Two of three workers make way; the ps and the worker that is needed run on, and with them the gang is done."""
    scene = running(grow=False)
    scene.submit("high", bag(2), priority=1)
    assert scene.released == ["fs-low-train-2-0", "fs-low-train-3-0"]
    assert scene.states("low", "train") == "RUNNING RUNNING RELEASING RELEASING"
    released(scene, "fs-low-train-2-0", "fs-low-train-3-0")
    assert scene.launched == ["fs-high-many-0-0", "fs-high-many-1-0"]
    assert scene.states("low", "train") == "RUNNING RUNNING QUEUED QUEUED"
    scene.end("fs-high-many-0-0", "fs-high-many-1-0")
    assert scene.launched == []  # a role that does not grow gets nobody back
    scene.end("fs-low-train-1-0")
    assert scene.released == ["fs-low-train-0-0"]
    released(scene, "fs-low-train-0-0")
    assert scene.state_of("low") == "SUCCEEDED: train SUCCEEDED"
    assert scene.runs["low"].stages[0].charged.tolist() == [0] * 4
    scene.nothing_left()


def test_history_says_that_the_gang_goes_on() -> None:
    """The event of each member names the taker, and what becomes of the gang."""
    scene = running()
    scene.submit("high", bag(1), priority=1)
    told = [dict(row.body) for row in scene.last.delta.events if row.kind == "task.evicted"]
    assert [(each["index"], each["reason"], each["message"]) for each in told] == [
        (3, "Preempted", "high/many of priority 1 takes its room; its own is 0; its gang goes on without it")
    ]


def test_the_whole_gang_goes_where_its_spare_members_do_not_do() -> None:
    """Three cores are wanted of four, and only two can be spared: all leave, and all come back together."""
    scene = running()
    scene.submit("high", bag(1) | {"resources": {"cpu": 3}}, priority=1)
    assert scene.released == [f"fs-low-train-{n}-0" for n in range(4)]
    released(scene, *scene.released)
    assert scene.launched == ["fs-high-many-0-0"]
    scene.end("fs-high-many-0-0")
    assert scene.launched == [f"fs-low-train-{n}-1" for n in range(4)]


def test_spare_members_go_before_a_whole_gang_that_has_done_less() -> None:
    """Beside it runs a younger gang that needs all its members: it stays."""
    scene = Scene(node(cpu=4), node("n1", cpu=2))
    scene.submit("low", training(3, 1))
    scene.start(*(f"fs-low-train-{n}-0" for n in range(4)))
    scene.tell(after=60_000)
    scene.submit("late", training(1, 1))
    scene.start("fs-late-train-0-0", "fs-late-train-1-0")
    scene.submit("high", bag(2), priority=1)
    assert scene.released == ["fs-low-train-2-0", "fs-low-train-3-0"]


def test_a_gang_that_is_down_to_its_minimum_gives_no_more() -> None:
    """The next taker gets the whole of it."""
    scene = running()
    scene.submit("high", bag(2), priority=1)
    released(scene, *scene.released)
    assert scene.launched == ["fs-high-many-0-0", "fs-high-many-1-0"]
    scene.submit("higher", bag(1), priority=1)
    assert scene.released == ["fs-low-train-0-0", "fs-low-train-1-0"]


def test_a_member_that_ends_last_ends_the_gang_when_it_has_left() -> None:
    """The worker that is needed succeeds while the spare one is still leaving: the gang is done once that is gone."""
    scene = running(workers=2)
    scene.submit("high", bag(1), priority=1)
    assert scene.released == ["fs-low-train-2-0"]
    scene.end("fs-low-train-1-0")
    assert scene.states("low", "train") == "RUNNING SUCCEEDED RELEASING"
    released(scene, "fs-low-train-2-0")
    assert scene.released == ["fs-low-train-0-0"]
    released(scene, "fs-low-train-0-0")
    assert scene.state_of("low") == "SUCCEEDED: train SUCCEEDED"


def test_a_gang_that_starts_anew_has_its_spare_members_again() -> None:
    """A member fails after the gang has shrunk: the next attempt is placed with all for whom there is room."""
    scene = running(retry={"attempts": 2})
    scene.submit("high", bag(1), priority=1)
    released(scene, "fs-low-train-3-0")
    assert scene.states("low", "train") == "RUNNING RUNNING RUNNING QUEUED"
    scene.end("fs-low-train-1-0", code=1)
    scene.end("fs-high-many-0-0")
    released(scene, "fs-low-train-0-0", "fs-low-train-2-0")
    scene.tell(after=60_000)
    again = ["fs-low-train-0-1", "fs-low-train-1-1", "fs-low-train-2-1", "fs-low-train-3-2"]
    assert scene.launched == again


def test_a_policy_on_eviction_keeps_the_gang_whole() -> None:
    """Who says what shall become of a gang that loses a member gets that, not a smaller gang."""
    policy = [{"event": "task_evicted", "action": "restart_gang"}]
    scene = running(policies=policy)
    scene.submit("high", bag(1), priority=1)
    assert scene.released == [f"fs-low-train-{n}-0" for n in range(4)]


def test_a_pod_that_is_bound_but_not_started_is_given_back_too() -> None:
    """The start comes after it was asked to leave: it still leaves."""
    scene = Scene(node(cpu=4))
    scene.submit("low", training(3, 1))
    scene.submit("high", bag(1), priority=1)
    assert len(scene.released) == 1
    name = scene.released[0]
    scene.tell(PodStarted(name, scene.now))
    assert scene.states("low", "train").split().count("RELEASING") == 1
    released(scene, name)
    assert scene.launched == ["fs-high-many-0-0"]


def test_a_dropped_step_leaves_the_gang_whole() -> None:
    """The commit fails: nobody was asked to leave, and the next step asks again."""
    scene = running()
    event = scene.accepted("high", bag(1), priority=1)
    before = scene.states("low", "train")
    dropped = step(scene.state, (event,), scene.now)
    assert len(dropped.releases) == 1
    dropped.drop()
    assert scene.states("low", "train") == before
    scene.tell(event)
    assert len(scene.released) == 1
