"""Another policy comes into force by an event; and each cycle can be recorded as it is decided."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from flowsched.engine.admission import recorded_idle
from flowsched.engine.events import ProfileChanged
from flowsched.engine.step import step
from flowsched.errors import FlowschedError
from flowsched.scheduling.explain.recording import Draft, plan_bytes, replayed, unpacked
from flowsched.scheduling.policy.extension import guarded, offered, plugin
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.values import replace
from tests.engine.scene import Scene, node

DEFAULT = PROFILES["flowsched"]
SLEEPERS = {"name": "s", "scatter": {"count": 2}, "command": ["sleep", "1"], "resources": {"cpu": 1}}


@plugin("filter")
def nowhere(snapshot: Any, shape: Any) -> Any:
    """No node."""
    return np.zeros(len(snapshot), dtype=np.bool_), "are closed"


CLOSED = replace(DEFAULT, name="closed", filters=(guarded(offered("nowhere", nowhere), {}),))  # type: ignore[arg-type]


def test_what_waits_is_looked_at_again_under_another_profile() -> None:
    """The step that brings the profile decides by it."""
    scene = Scene(node(), node("n1"))
    scene.tell(ProfileChanged(CLOSED))
    scene.submit("w", SLEEPERS)
    assert scene.last.launches == []
    (reason,) = scene.state.round.reasons.values()
    assert reason.message == "no node allows task: of 2 ready nodes 2 nodes are closed"
    scene.tell(ProfileChanged(replace(DEFAULT, name="wide", packing="spread")))
    assert [pod.node for pod in scene.last.launches] == ["n0", "n1"]
    assert scene.state.round.reasons == {}


def test_a_profile_that_was_not_committed_with_its_step_is_not_in_force() -> None:
    """A dropped step takes it back; the event is offered again."""
    scene = Scene()
    result = step(scene.state, [ProfileChanged(CLOSED)], scene.now)
    assert scene.state.policy.profile is CLOSED
    result.drop()
    assert scene.state.policy.profile is DEFAULT


def test_only_the_queue_that_names_a_profile_has_it() -> None:
    """Others go on as before; inputs of its work are staged or not as its own profile says."""
    scene = Scene(node(cpu=4))
    scene.tell(ProfileChanged(replace(DEFAULT, queues={"closed": CLOSED})))
    scene.submit("a", SLEEPERS, queue="closed")
    assert scene.last.launches == []
    scene.submit("b", SLEEPERS)
    assert {pod.workflow for pod in scene.last.launches} == {"b"}


def test_a_cycle_is_recorded_as_it_is_decided() -> None:
    """With what was free before anything was placed, each look once, and nothing when nobody asks."""
    scene = Scene(node(cpu=3))
    scene.tape = []
    scene.submit("w", SLEEPERS)
    assert len(scene.last.launches) == 2
    (draft,) = scene.tape
    assert isinstance(draft, Draft)
    record = unpacked(draft.packed())
    assert record.inputs["snapshot"].used.tolist() == [[0, 0, 0, 0, 0]]
    plan = json.loads(record.plan)
    assert plan["placements"][0]["nodes"] == [[0, 0]]
    assert plan_bytes(replayed(record)) == record.plan
    idle = unpacked(recorded_idle(scene.state, scene.now).packed())
    assert idle.inputs["snapshot"].used[:, 0].tolist() == [2000]
    assert list(idle.inputs["backlog"]) == []


def test_a_cycle_that_cannot_be_recorded_decides_all_the_same() -> None:
    """A program may have put any function into the profile; whoever asked for the snapshot is told."""

    def everywhere(snapshot: Any, shape: Any) -> Any:
        return np.ones(len(snapshot), dtype=np.bool_), ""

    scene = Scene()
    scene.tell(ProfileChanged(replace(DEFAULT, filters=(everywhere,))))
    scene.tape = []
    scene.submit("w", SLEEPERS)
    assert len(scene.last.launches) == 2
    (told,) = scene.tape
    assert isinstance(told, FlowschedError)
    assert "is no plugin of an entry point" in str(told)
