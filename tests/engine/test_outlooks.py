"""What would let a waiting task start, asked of the engine's memory."""

from __future__ import annotations

from flowsched.engine.explain import explain, situations_of
from flowsched.scheduling.explain.remedies import altered, outlook
from flowsched.statement import Statement
from tests.engine.scene import Scene, node

A = {"name": "a", "command": ["x"]}


def test_a_waiting_stage_can_be_asked_about() -> None:
    """A pod of 4 cores on a node that has 2 left: half of them would do, and then it really starts."""
    scene = Scene(node(cpu=4))
    scene.submit("v", A | {"resources": {"cpu": 2}})
    scene.submit("w", A | {"resources": {"cpu": 4}, "estimate": {"runtime": "1m"}})
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert told.group is not None
    situation = situations_of(scene.state, [told.group], scene.now)[told.group]
    found = outlook(situation)
    assert found.binds == (("task", "cpu"),)
    first = next(each for each in found.suggestions if each.kind == "request")
    assert (first.what, first.was, first.to) == ("cpu", 4000, 2000)
    assert altered(situation.copy(), first, Statement()).starts()


def test_asking_leaves_the_engine_as_it_was() -> None:
    """The copy is private: a later step decides as if nobody had asked."""
    asked, other = Scene(node(cpu=4)), Scene(node(cpu=4))
    for scene in (asked, other):
        scene.submit("v", A | {"resources": {"cpu": 3}})
        scene.submit("w", A | {"resources": {"cpu": 4}})
    (told,) = explain(asked.state, asked.runs["w"], asked.now)
    (situation,) = situations_of(asked.state, [told.group or 0], asked.now).values()
    outlook(situation)
    for scene in (asked, other):
        scene.end("fs-v-a-0-0")
    assert asked.launched == other.launched == ["fs-w-a-0-0"]
    assert asked.state.cluster.snapshot.used.tolist() == other.state.cluster.snapshot.used.tolist()


def test_who_waits_no_more_cannot_be_asked_about() -> None:
    """What it asked for is forgotten with its reason."""
    scene = Scene(node(cpu=2))
    scene.submit("v", A | {"resources": {"cpu": 2}})
    scene.submit("w", A | {"resources": {"cpu": 2}})
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert list(scene.state.round.refused) == [told.group]
    scene.end("fs-v-a-0-0")
    assert scene.state.round.refused == {}
    assert situations_of(scene.state, [told.group or 0], scene.now) == {}
