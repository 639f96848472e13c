"""Targets that were chosen before anybody knew what is written are given up for better ones, before a byte has moved."""

from __future__ import annotations

from typing import Any

from flowsched.executor.protocol import Transfer
from tests.engine.scene import Scene, node

MB = 1_000_000
GB = 1_000 * MB


def cluster() -> Scene:
    """Two nodes of 32 cores with links of 100 MB/s; eight copies may come from outside at a time, three to a node."""
    rates = {"nic_in_rate": 100 * MB, "nic_out_rate": 100 * MB, "disk_rate": 500 * MB}
    return Scene(node("n0", cpu=32, **rates), node("n1", cpu=32, **rates))


def stages(**estimate: Any) -> tuple[dict[str, Any], ...]:
    """Twelve tasks that read 100 MB each from outside; one gathers what they wrote, if anybody knows how much that is."""
    make = {
        "name": "make",
        "command": ["x"],
        "scatter": {"count": 12},
        "inputs": [{"name": "i", "uri": "s3://lab/{index}", "size": 100 * MB}],
        "outputs": [{"name": "o", "path": "o"}],
        "estimate": {"runtime": "5s", **estimate},
        "resources": {"cpu": 1, "memory": "100M"},
    }
    take = {"name": "take", "command": ["x"], "inputs": [{"name": "o", "from": "make.o"}]}
    return make, take


def targets(scene: Scene) -> list[str]:
    """Where tasks that wait for their bytes wait for them, by task."""
    names = scene.state.cluster.snapshot.names
    at = {
        int(task): names[int(target)]
        for group in scene.state.data.staging.values()
        for task, target in zip(group.tasks, group.nodes, strict=True)
    }
    return [at.get(task, "-") for task in range(12)]


def test_who_waits_for_its_first_byte_goes_where_its_output_will_be_gathered() -> None:
    """Half of the targets are on either node. The first output has a gigabyte: what has begun to move stays, all else goes home."""
    scene = cluster()
    scene.submit("w", *stages())
    assert sorted(targets(scene)) == ["n0"] * 6 + ["n1"] * 6
    begun = list(scene.last.transfers)
    first = next(order for order in begun if order.dest == "n0")
    scene.arrive(first)
    [name] = scene.launched
    scene.start(name)
    moving = {uri: dest for uri, dest in ((o.uri, o.dest) for o in begun) if dest == "n1"}
    scene.end(name, size=GB, after=5_000)
    away = {f"s3://lab/{task}" for task, at in enumerate(targets(scene)) if at == "n1"}
    assert away == set(moving)
    assert 0 < len(away) < 6


def test_nothing_is_given_up_where_nobody_gathers_enough() -> None:
    """The first output has a kilobyte: targets stay as they were."""
    scene = cluster()
    scene.submit("w", *stages())
    before = targets(scene)
    scene.arrive(scene.last.transfers[0])
    [name] = scene.launched
    scene.start(name)
    task = int(name.split("-")[-2])
    scene.end(name, size=1_000, after=5_000)
    assert targets(scene) == [*before[:task], "-", *before[task + 1 :]]


def test_what_was_given_up_is_not_remembered_as_staged() -> None:
    """A task that has been to a node before waits for it with a promise; one that only might have gone there does not."""
    scene = cluster()
    scene.submit("w", *stages())
    first = next(order for order in scene.last.transfers if order.dest == "n0")
    scene.arrive(first)
    [name] = scene.launched
    scene.start(name)
    scene.end(name, size=GB, after=5_000)
    for group in scene.state.data.staging.values():
        key = scene.state.work.groups[group.key]
        assert scene.state.work.staged_on[key] == tuple(group.nodes.tolist())


def output(scene: Scene, order: Transfer) -> None:
    """One task has its bytes, and writes a gigabyte."""
    scene.arrive(order)
    [name] = scene.launched
    scene.start(name)
    scene.end(name, size=GB, after=5_000)


def test_others_keep_their_targets() -> None:
    """A stage whose output nobody gathers waits for its first byte as well; so does one that has a piece on its node."""
    scene = cluster()
    aside = {"inputs": [{"name": "i", "uri": "s3://lab/aside", "size": 100 * MB}]}
    scene.submit("w", *stages(), {"name": "aside", "command": ["x"], **aside})
    [other] = [number for number, group in scene.state.data.staging.items() if group.stage == 2]
    landed = next(number for number in reversed(scene.state.data.staging) if number != other)
    for dataset, at in scene.state.data.staging[landed].pending:
        scene.state.cluster.catalogue.land(dataset, at, 0)
    output(scene, next(order for order in scene.last.transfers if order.dest == "n0"))
    assert {other, landed} <= set(scene.state.data.staging)


def test_targets_are_thought_about_once() -> None:
    """The second output says nothing new: no target changes for it."""
    scene = cluster()
    scene.submit("w", *stages())
    first, second, *_ = [order for order in scene.last.transfers if order.dest == "n0"]
    output(scene, first)
    before = set(scene.state.data.staging)
    output(scene, second)
    assert set(scene.state.data.staging) < before
