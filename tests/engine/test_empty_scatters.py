"""A scatter over no items: its stage does nothing, and that is a success, as in WDL."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.events import Command, Revived
from tests.engine.scene import Scene


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], "outputs": [{"name": "o", "path": "o"}], **more}


def reads(parent: str, match: str | None = None, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "i", "from": f"{parent}.o", **({"match": match} if match else {}), **more}]}


EMPTY: dict[str, Any] = {"scatter": {"items": []}}


@pytest.mark.parametrize("scatter", [{"items": []}, {"count": 0}])
def test_a_workflow_of_nothing_succeeds_at_once(scatter: dict[str, Any]) -> None:
    """No task is launched, and the workflow has ended after its first step."""
    scene = Scene()
    scene.submit("w", stage("a", scatter=scatter))
    assert scene.launched == []
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"


def test_a_stage_that_gathers_nothing_gets_an_empty_list() -> None:
    """It runs, and its input is a manifest without lines."""
    scene = Scene()
    scene.submit("w", stage("a", **EMPTY), stage("b", **reads("a", "all")))
    assert scene.launched == ["fs-w-b-0-0"]
    (given,) = scene.pods["fs-w-b-0-0"].inputs
    assert (given.uris, given.manifest) == ((), True)
    scene.end("fs-w-b-0-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"
    scene.nothing_left()


def test_stages_inherit_that_there_is_nothing() -> None:
    """Shard by shard, also behind a chunk and beside a stage that has shards."""
    scene = Scene()
    scene.submit(
        "w",
        stage("a", **EMPTY),
        stage("b", **reads("a", "index")),
        stage("many", scatter={"count": 2}),
        stage("c", **EMPTY, **reads("many", "chunk")),
    )
    assert scene.launched == ["fs-w-many-0-0", "fs-w-many-1-0"]
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b SUCCEEDED, many RUNNING, c PENDING"
    scene.end("fs-w-many-0-0", "fs-w-many-1-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED, many SUCCEEDED, c SUCCEEDED"


def test_nothing_is_skipped_and_cancelled_as_something_is() -> None:
    """Behind a stage that failed it is skipped; where its run is cancelled it is cancelled; its turn comes after a retry."""
    scene = Scene()
    scene.submit("w", stage("a"), stage("b", needs=["a"], **EMPTY))
    scene.end("fs-w-a-0-0", code=1)
    assert scene.state_of("w") == "FAILED: a FAILED, b SKIPPED"
    scene.tell(Revived(scene.runs["w"]), Command("w", "retry"))
    scene.end("fs-w-a-0-1")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"
    scene.submit("v", stage("a"), stage("b", needs=["a"], **EMPTY))
    scene.command("v", "cancel")
    scene.end("fs-v-a-0-0", code=143, reason="Released")
    assert scene.state_of("v") == "CANCELLED: a CANCELLED, b CANCELLED"


def test_a_condition_on_nothing_does_not_hold() -> None:
    """A `when` that asks for a value of a stage without shards skips its stage."""
    scene = Scene()
    valued = {"outputs": [{"name": "o", "path": "o", "value": True}]}
    scene.submit("w", stage("a", **EMPTY) | valued, stage("b", when={"equals": {"a.o": "yes"}}))
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SKIPPED"
