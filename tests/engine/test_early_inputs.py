"""Inputs from outside move while the parents of their readers run, to the nodes where these will probably run."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.data.prefetch import shards_behind
from flowsched.engine.events import LookedUp
from flowsched.executor.datasets import of_run, versioned
from tests.engine.scene import Scene, node

MB = 1_000_000
URIS = ("s3://lab/0", "s3://lab/1")
VERSIONS = {uri: versioned(uri, "tag") for uri in URIS}
SIZES = dict.fromkeys(VERSIONS.values(), 100 * MB)


def scene() -> Scene:
    s = Scene(node("n0"), node("n1"))
    s.state.policy.memoizing = True
    return s


def pair(link: str = "index", **second: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two tasks, each of which fills a node, and two that each read an output of theirs and 100 MB of their own."""
    filling = {"command": ["x"], "scatter": {"count": 2}, "resources": {"cpu": 4}}
    inputs = [
        {"name": "own", "uri": "s3://lab/{index}"},
        {"name": "o", "from": "first.o", "match": link},
    ]
    return (
        {"name": "first", **filling, "outputs": [{"name": "o", "path": "o"}]},
        {"name": "second", **filling, "inputs": inputs, **second},
    )


def copies(s: Scene) -> list[tuple[str, str, int]]:
    return sorted((order.uri, order.dest, order.ahead) for order in s.last.transfers)


def test_inputs_come_while_the_parents_run_where_these_run() -> None:
    """The leader is asked to look at them once the parents have nodes. Their tasks look again when they are ready."""
    s = scene()
    s.submit("w", *pair())
    assert s.last.lookups == [("w", 1)]
    assert s.last.transfers == []
    s.tell(LookedUp("w", 1, names=VERSIONS, sizes=SIZES))
    assert copies(s) == [(VERSIONS[URIS[0]], "n0", 3), (VERSIONS[URIS[1]], "n1", 3)]
    assert s.last.lookups == []
    assert s.runs["w"].versions == {}
    for order in s.last.transfers:
        s.arrive(order)
    s.start("fs-w-first-0-0", "fs-w-first-1-0")
    s.end("fs-w-first-0-0", "fs-w-first-1-0")
    assert s.last.lookups == [("w", 1)]
    s.tell(LookedUp("w", 1, others=(0, 1), names=VERSIONS, sizes=SIZES))
    assert s.launched == ["fs-w-second-0-0", "fs-w-second-1-0"]
    assert s.last.transfers == []


def test_an_input_that_its_task_finds_changed_is_copied_anew() -> None:
    """A parent has written to it: the copy of what was there before is not read."""
    s = scene()
    s.submit("w", *pair())
    s.tell(LookedUp("w", 1, names=VERSIONS, sizes=SIZES))
    for order in s.last.transfers:
        s.arrive(order)
    s.start("fs-w-first-0-0", "fs-w-first-1-0")
    s.end("fs-w-first-0-0", "fs-w-first-1-0")
    new = {uri: versioned(uri, "other") for uri in URIS}
    s.tell(LookedUp("w", 1, others=(0, 1), names=new, sizes=dict.fromkeys(new.values(), 100 * MB)))
    assert s.launched == []
    assert copies(s) == [(new[URIS[0]], "n0", 0), (new[URIS[1]], "n1", 0)]


def test_a_shard_comes_when_its_own_parents_run() -> None:
    """A node that takes no pods leaves one parent waiting: its child's input stays where it is."""
    s = Scene(node("n0"), node("n1", cpu=1))
    s.state.policy.memoizing = True
    s.submit("w", *pair())
    assert s.states("w", "first") == "BINDING QUEUED"
    s.tell(LookedUp("w", 1, names=VERSIONS, sizes=SIZES))
    assert copies(s) == [(VERSIONS[URIS[0]], "n0", 3)]


@pytest.mark.parametrize(
    ("second", "names"),
    [
        ({"when": {"outcome": "failure"}}, VERSIONS),
        ({}, {uri: of_run(uri, "w") for uri in URIS}),
    ],
)
def test_what_may_not_be_read_stays_where_it_is(second: dict[str, Any], names: dict[str, str]) -> None:
    """Tasks that may be skipped read nothing; a source without versions may give other bytes by then."""
    s = scene()
    s.submit("w", *pair(**second))
    s.tell(LookedUp("w", 1, names=names, sizes=dict.fromkeys(names.values(), 100 * MB)))
    assert s.last.transfers == []


def test_a_paused_run_fetches_nothing_ahead() -> None:
    """Its tasks will not start."""
    s = scene()
    s.submit("w", *pair())
    s.command("w", "pause")
    s.tell(LookedUp("w", 1, names=VERSIONS, sizes=SIZES))
    assert s.last.transfers == []


def test_a_cache_without_room_gets_no_copy_ahead() -> None:
    """Of n0 it may hold 90 MB, of n1 250 MB: what the task on n1 will read comes."""
    s = Scene(node("n0", cache_bytes=90 * MB), node("n1", cache_bytes=250 * MB))
    s.state.policy.memoizing = True
    s.submit("w", *pair())
    assert s.states("w", "first") == "BINDING BINDING"
    s.tell(LookedUp("w", 1, names=VERSIONS, sizes=SIZES))
    assert copies(s) == [(VERSIONS[URIS[1]], "n1", 3)]


def test_inputs_of_a_wide_stage_are_looked_at_for_its_first_shards_alone() -> None:
    """Two thousand wait for one task. More than 256 copies do not come before it ends, and each round would look at all."""
    s = scene()
    one = {"name": "first", "command": ["x"], "outputs": [{"name": "o", "path": "o"}]}
    inputs = [{"name": "own", "uri": "s3://lab/{index}"}, {"name": "o", "from": "first.o", "match": "all"}]
    s.submit("w", one, {"name": "second", "command": ["x"], "scatter": {"count": 2_000}, "inputs": inputs})
    run = s.runs["w"]
    assert shards_behind(run, run.stages[1]).tolist() == list(range(256))
