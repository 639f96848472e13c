"""Calls of runs whose DAG another engine keeps: what somebody has read ahead of it orders them."""

from __future__ import annotations

from functools import partial
from typing import Any

from flowsched.engine.events import Accepted, CallsRanked
from flowsched.engine.explain import explain
from flowsched.engine.recovery import rank
from flowsched.engine.step import step
from flowsched.executor.protocol import ReplicaSeen
from tests.engine.scene import Scene, calls_of, node


def call(node_name: str, rank_ms: int = 0) -> dict[str, Any]:
    return {"run": "r", "node": node_name, "rank_ms": rank_ms}


STAGE = {"name": "t", "command": ["x"], "resources": {"cpu": 1}}


def test_the_call_with_the_longest_way_behind_it_goes_first() -> None:
    """Room for one: the later one, after which most is still to come, gets it."""
    scene = Scene(node(cpu=1))
    scene.submit("busy", STAGE)
    scene.submit("short", STAGE, call=call("W.short", 60_000))
    scene.submit("long", STAGE, call=call("W.long", 3_600_000))
    scene.submit("unknown", STAGE, call=call("W.unknown"))
    scene.end("fs-busy-t-0-0")
    order = []
    while scene.launched:
        order += scene.launched
        scene.end(*scene.launched)
    assert order == ["fs-long-t-0-0", "fs-short-t-0-0", "fs-unknown-t-0-0"]


def arrive(scene: Scene, ident: str, kind: str, *after: str, run: str = "r") -> None:
    """A call of this kind, whose node has its name, arrives as the service accepts it."""
    seen = call(kind) | {"run": run, "after": list(after)}
    run_of = scene.accepted(ident, STAGE, kind=kind, call=seen).run
    rank(scene.state, run_of)
    scene.tell(Accepted(run_of))


def carried_out(scene: Scene) -> list[str]:
    """All that waits runs, one after the other: the ids in their order."""
    order = []
    while scene.launched:
        order += [name.split("-")[1] for name in scene.launched]
        scene.end(*scene.launched, after=5_000)
    return order


def test_a_call_goes_first_if_long_kinds_are_known_to_follow_its_kind() -> None:
    """The run before has shown it: two kinds follow `split`, and none follows `index`. Nothing else tells them apart."""
    scene = Scene(node(cpu=1))
    for ident, kind, after in (
        ("a", "split", ()),
        ("b", "index", ()),
        ("c", "map", ["split"]),
        ("d", "merge", ["map"]),
    ):
        arrive(scene, ident, kind, *after, run="night-1")
    scene.end("fs-a-t-0-0")
    assert sorted(carried_out(scene)) == ["b", "c", "d"]
    scene.submit("busy", STAGE)
    arrive(scene, "index", "index", run="night-2")
    arrive(scene, "split", "split", run="night-2")
    scene.end("fs-busy-t-0-0")
    assert carried_out(scene) == ["split", "index"]


def test_calls_that_wait_are_ranked_again_with_the_first_edge_of_their_run() -> None:
    """Of one run: the first `map` arrives while an `index` and a `split` wait, and shows that it follows `split`."""
    scene = Scene(node(cpu=1))
    arrive(scene, "first", "split")
    arrive(scene, "index", "index")
    arrive(scene, "second", "split")
    scene.end("fs-first-t-0-0")  # `index` begins, which was there before
    arrive(scene, "index2", "index")
    arrive(scene, "third", "split")
    arrive(scene, "map", "map", "split")
    assert scene.launched == []
    scene.end("fs-index-t-0-0")
    assert carried_out(scene)[:2] == ["second", "third"]


def test_an_edge_is_learned_again_if_its_step_is_undone() -> None:
    """The call arrives again, and the calls that wait get their new ranks then."""
    scene = Scene(node(cpu=1))
    scene.submit("busy", STAGE)
    arrive(scene, "split", "split")
    map_ = scene.accepted("map", STAGE, kind="map", call=call("map") | {"after": ["split"]})
    step(scene.state, [map_], scene.now).drop()
    assert scene.runs["split"].ranks.tolist() == [60_000]
    scene.tell(map_)
    assert scene.runs["split"].ranks.tolist() == [120_000]


def test_calls_that_wait_are_ranked_once_a_step() -> None:
    """Thirty calls of kinds of their own arrive together, while a hundred of their run wait."""
    calls = []
    for arrivals in (1, 30):
        scene = Scene(node(cpu=1))
        scene.submit("busy", STAGE)
        scene.tell(*(scene.accepted(f"m{each}", STAGE, kind="map", call=call("map")) for each in range(100)))
        events = [
            scene.accepted(f"k{each}", STAGE, kind=f"k{each}", call=call(f"k{each}") | {"after": ["map"]})
            for each in range(arrivals)
        ]
        calls.append(calls_of(partial(step, scene.state, events, scene.now))[0])
    assert calls[1] < 3 * calls[0]


def test_the_rank_that_an_engine_or_a_plan_gives_stays() -> None:
    """A first edge ranks waiting calls again: it does not change one that its engine has ranked, nor one ranked by its plan."""
    scene = Scene(node(cpu=1))
    scene.submit("busy", STAGE)
    arrive(scene, "plain", "split")
    scene.submit("engine", STAGE, kind="split", call=call("split", 90_000))
    arrive(scene, "plan", "split")
    scene.tell(CallsRanked({"plan": 100_000, "engine": 1_000}))
    arrive(scene, "map", "map", "split")
    assert scene.runs["plain"].ranks.tolist() == [120_000]
    scene.end("fs-busy-t-0-0")
    assert carried_out(scene) == ["plain", "plan", "engine", "map"]


SORT: dict[str, Any] = STAGE | {
    "inputs": [
        {"name": "bam", "uri": "s3://b/1.bam"},
        {"name": "ref", "uri": "s3://b/ref.fa", "size": 400_000_000},
    ]
}


def test_explain_says_what_is_known_of_a_call_and_from_where() -> None:
    """Twelve of its kind taught the runtime; `align` wrote the larger input, which is on one node; nothing has the reference."""
    scene = Scene(node("n1", cpu=1), node("n2", cpu=1))
    for number in range(12):
        arrive(scene, f"s{number}", "sort")
        scene.start(f"fs-s{number}-t-0-0")
        scene.end(f"fs-s{number}-t-0-0", after=240_000)
    scene.tell(ReplicaSeen("s3://b/1.bam", "n2", 2_900_000_000))
    scene.submit("busy", STAGE | {"scatter": {"count": 2}})
    waits = scene.accepted("waits", SORT, kind="sort", call=call("sort") | {"after": ["align"]})
    scene.tell(waits)
    (found,) = explain(scene.state, waits.run, scene.now)
    assert found.estimate == (
        "runs for 4m, learned from 12 sort tasks; eight of ten between 4m and 4m; "
        "reads 3.1 GiB, 2.7 GiB of it on n2; follows align"
    )
    scene.submit("own", SORT)
    (found,) = explain(scene.state, scene.runs["own"], scene.now)
    assert found.estimate == "runtime unknown, counted as 1m"
