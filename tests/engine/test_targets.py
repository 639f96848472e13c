"""Whoever has been staged to several nodes waits for one of them only while it has a reason to."""

from __future__ import annotations

from typing import Any

from flowsched.engine.backlog import collect
from flowsched.engine.state.work import GroupKey
from flowsched.executor.protocol import ReplicaSeen
from flowsched.scheduling.pod_group import Home
from tests.engine.scene import Scene, node

MB = 1_000_000
GB = 1_000 * MB
RATES = {"nic_in_rate": 100 * MB, "nic_out_rate": 100 * MB, "disk_rate": 500 * MB}


def wrote(name: str, **more: Any) -> dict[str, Any]:
    """A task that writes 3 GB."""
    output = [{"name": "o", "path": "o"}]
    return {
        "name": name,
        "command": ["x"],
        "outputs": output,
        "estimate": {"runtime": "5s", "output": 3 * GB},
        **more,
    }


def staged_thrice(*before: dict[str, Any]) -> Scene:
    """Three small nodes have the 300 MB that a task reads; its 3 GB will be gathered on the only large one, which has not."""
    small = [node(f"n{at}", cpu=4, labels={"size": "small"}, **RATES) for at in range(3)]
    scene = Scene(*small, node("big", cpu=32, **RATES))
    scene.tell(*(ReplicaSeen("s3://lab/x", f"n{at}", 300 * MB) for at in range(3)))
    if before:
        scene.submit("before", *before)
        scene.start(*scene.launched)
    scene.state.work.staged_on[GroupKey("w", 0, -1, 0)] = (0, 1, 2)
    read = [{"name": "i", "uri": "s3://lab/x", "size": 300 * MB}]
    gathered = [{"name": each, "from": f"{each}.o"} for each in ("use", "other")]
    scene.submit(
        "w",
        wrote("use", inputs=read),
        wrote("other", resources={"cpu": 16}),
        {"name": "take", "command": ["x"], "inputs": gathered, "resources": {"cpu": 32}},
    )
    return scene


def test_who_has_been_staged_to_three_nodes_may_go_to_a_fourth_that_is_better() -> None:
    """All nodes are idle: it is copied to where its output will be gathered, rather than to wait for room that there is."""
    scene = staged_thrice()
    assert [(order.uri, order.dest) for order in scene.last.transfers] == [("s3://lab/x", "big")]
    assert scene.states("w", "use") == "STAGING"


def test_who_has_been_staged_to_three_nodes_waits_for_them_while_they_are_full() -> None:
    """Other work holds all cores of the three: nothing is copied once more."""
    full = {"name": "full", "command": ["x"], "scatter": {"count": 3}, "resources": {"cpu": 4}}
    scene = staged_thrice({**full, "anti_affinity": "node", "selector": {"size": "small"}})
    assert list(scene.last.transfers) == []
    assert scene.states("w", "use") == "QUEUED"


def test_they_are_waited_for_also_while_somebody_else_has_been_promised_room() -> None:
    """A gang that does not fit has the cycle's promise of their room: who comes after it stays all the same, and is told why."""
    full = {"name": "full", "command": ["x"], "scatter": {"count": 3}, "resources": {"cpu": 4}}
    small = {"anti_affinity": "node", "selector": {"size": "small"}, "estimate": {"runtime": "9s"}}
    roles = {"a": {"replicas": 3, "command": ["x"], "resources": {"cpu": 4}}}
    gang = {"name": "gang", "gang": True, "roles": roles}
    scene = staged_thrice({**full, **small}, {**gang, "selector": {"size": "small"}})
    assert list(scene.last.transfers) == []
    told = [each.message for each in scene.state.round.reasons.values()]
    assert told[1:] == ["its inputs have been copied to several nodes; it waits for room on one of them"]


def test_what_comes_home_is_looked_at_anew_for_who_still_waits() -> None:
    """One of two writers finds no node; the other runs away from where both are gathered, and pushes what it wrote. When that
    has come nothing is on its way any more, though nothing of the one that waits has changed.
    """
    scene = Scene(node("n0", cpu=32, **RATES), node("n1", cpu=4, labels={"at": "n1"}, **RATES))
    gathered = [{"name": each, "from": f"{each}.o"} for each in ("held", "away")]
    scene.submit(
        "w",
        wrote("held", selector={"at": "nowhere"}),
        wrote("away", selector={"at": "n1"}),
        {"name": "take", "command": ["x"], "inputs": gathered, "resources": {"cpu": 32}},
    )
    [name] = scene.launched
    scene.start(name)
    assert (homes(scene), coming(scene)) == ([Home(0, 3 * GB, ("w", "2", "0"))], [3 * GB])
    scene.end(name, size=3 * GB, after=5_000)
    assert coming(scene) == [3 * GB]
    [push] = scene.last.transfers
    scene.arrive(push)
    assert (homes(scene), coming(scene)) == ([Home(0, 3 * GB, ("w", "2", "0"))], [0])


def coming(scene: Scene) -> list[int]:
    """Of the gather nodes of all who wait, the bytes that others will bring there."""
    found = homes(scene)
    return [scene.state.cluster.snapshot.coming_bytes(home) for home in found if home is not None]


def homes(scene: Scene) -> list[Home | None]:
    """Of all who wait."""
    return [each.group.home for each in collect(scene.state, scene.now).candidates.values()]
