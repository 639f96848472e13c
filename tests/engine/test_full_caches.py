"""Caches with a limit: what goes, what stays, who waits, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

from flowsched.engine.events import Stored, Tick
from flowsched.engine.explain import explain
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged, ReplicaSeen
from flowsched.values import replace
from tests.engine.scene import Scene, node

MB = 1_000_000


def reader(name: str, uri: str, size: int = 40 * MB, **more: Any) -> dict[str, Any]:
    """A stage that reads one dataset from outside."""
    return {"name": name, "command": ["x"], "inputs": [{"name": "i", "uri": uri, "size": size}], **more}


def dropped(scene: Scene) -> list[tuple[str, str]]:
    """What the last step dropped: (uri, node)."""
    return [(drop.uri, drop.node) for drop in scene.last.drops]


def held(scene: Scene, at: int = 0) -> int:
    """Bytes that count in a node's cache."""
    caches = scene.state.cluster.catalogue.caches
    assert caches is not None
    return caches.of[at].used


def finish(scene: Scene, size: int = 0) -> None:
    """Copies arrive, pods start and end, until nothing is left to do."""
    for _ in range(40):
        orders = scene.last.transfers
        launches = [pod.name for pod in scene.last.launches]
        if not orders and not launches:
            return
        scene.tell(
            *(scene.arrival(order) for order in orders),
            *(scene.ending(name, size=size) for name in launches),
            after=10,
        )


def why(scene: Scene, ident: str) -> list[tuple[str, str]]:
    """Why a workflow's tasks wait: (code, message)."""
    return [(told.code, told.message) for told in explain(scene.state, scene.runs[ident], scene.now)]


def test_without_a_limit_nothing_is_counted() -> None:
    """Nodes that may hold what comes cost nothing: there is no book."""
    scene = Scene(node())
    scene.submit("w", reader("a", "s3://lab/x"))
    finish(scene)
    assert scene.state.cluster.catalogue.caches is None


def test_what_nobody_needs_makes_room_for_what_is_read() -> None:
    """Only a workflow that has ended read x; y needs its room. The drop is in the step that orders the copy, and in its rows."""
    scene = Scene(node(cache_bytes=70 * MB))
    scene.submit("v", reader("a", "s3://lab/x"))
    finish(scene)
    assert held(scene) == 40 * MB
    scene.submit("w", reader("a", "s3://lab/y"))
    assert dropped(scene) == [("s3://lab/x", "n0")]
    assert [order.uri for order in scene.last.transfers] == ["s3://lab/y"]
    assert [(row.uri, row.present) for row in scene.last.delta.replicas] == [("s3://lab/x", False)]
    assert held(scene) == 40 * MB
    finish(scene)
    scene.nothing_left()


def test_what_a_later_stage_reads_outlives_what_nobody_does() -> None:
    """The dataset x is read by a stage that waits for its parent, z by nobody any more: z goes although it was used last."""
    scene = Scene(node(cache_bytes=100 * MB))
    parent = {"name": "p", "command": ["x"]}
    late = reader("late", "s3://lab/x", needs=["p", "early"])
    scene.submit("w", reader("early", "s3://lab/x"), parent, late)
    scene.arrive(scene.last.transfers[0])
    scene.end("fs-w-early-0-0")
    scene.submit("v", reader("a", "s3://lab/z"))
    scene.arrive(scene.last.transfers[0])
    scene.end("fs-v-a-0-0")
    scene.submit("u", reader("a", "s3://lab/y"))
    assert dropped(scene) == [("s3://lab/z", "n0")]


def test_least_recently_used_knows_nothing_of_later_stages() -> None:
    """The same story under `eviction: lru`: x goes."""
    scene = Scene(node(cache_bytes=100 * MB))
    scene.state.policy.profile = replace(scene.state.policy.profile, eviction="lru")
    parent = {"name": "p", "command": ["x"]}
    late = reader("late", "s3://lab/x", needs=["p", "early"])
    scene.submit("w", reader("early", "s3://lab/x"), parent, late)
    scene.arrive(scene.last.transfers[0])
    scene.end("fs-w-early-0-0")
    scene.now += 10
    scene.submit("v", reader("a", "s3://lab/z"))
    scene.arrive(scene.last.transfers[0])
    scene.end("fs-v-a-0-0")
    scene.submit("u", reader("a", "s3://lab/y"))
    assert dropped(scene) == [("s3://lab/x", "n0")]


def test_what_a_running_task_reads_stays_and_who_waits_is_told_so() -> None:
    """The cache holds 40 of 70 MB for a running task; another that needs 40 MB waits, with numbers, and goes when that ends."""
    scene = Scene(node(cache_bytes=70 * MB))
    scene.submit("v", reader("a", "s3://lab/x"))
    scene.arrive(scene.last.transfers[0])
    scene.submit("w", reader("a", "s3://lab/y"))
    assert dropped(scene) == []
    assert scene.last.transfers == []
    assert why(scene, "w") == [
        (
            "CacheFull",
            "cache of n0 full: of 70 MB 40 MB are read by tasks there or wait for them; it needs 40 MB",
        )
    ]
    scene.end("fs-v-a-0-0")
    assert dropped(scene) == [("s3://lab/x", "n0")]
    assert [order.uri for order in scene.last.transfers] == ["s3://lab/y"]


def test_a_task_goes_where_there_is_cache_for_it() -> None:
    """n0 has more cores free, and no cache; the task goes to n1."""
    scene = Scene(node("n0", cpu=8, cache_bytes=70 * MB), node("n1", cpu=2, cache_bytes=70 * MB))
    scene.submit("v", reader("a", "s3://lab/x", selector={"kubernetes.io/hostname": "n0"}) | {"selector": {}})
    first = scene.last.transfers[0]
    scene.arrive(first)
    scene.submit("w", reader("a", "s3://lab/y"))
    assert [order.dest for order in scene.last.transfers] == [{"n0": "n1", "n1": "n0"}[first.dest]]


def test_expected_outputs_take_room_before_they_are_written() -> None:
    """A task that will write 50 MB runs in a cache of 70 MB; a second of the same kind waits for it."""
    scene = Scene(node(cache_bytes=70 * MB))
    writer = {
        "name": "a", "command": ["x"], "scatter": {"count": 2}, "outputs": [{"name": "o", "path": "o"}],
        "estimate": {"output": "50M"},
    }  # fmt: skip
    scene.submit(
        "w", writer, {"name": "b", "command": ["x"], "inputs": [{"name": "i", "from": "a.o", "match": "all"}]}
    )
    assert scene.launched == ["fs-w-a-0-0"]
    assert why(scene, "w")[0][0] == "CacheFull"


def test_the_last_copy_of_what_is_still_read_stays_and_so_does_a_result() -> None:
    """The output of a is read by b, which waits for a task that runs; r's output is a result: neither makes room for y."""
    scene = Scene(node(cache_bytes=100 * MB))
    out = [{"name": "o", "path": "o"}]
    scene.submit(
        "w",
        {"name": "a", "command": ["x"], "outputs": out},
        {"name": "long", "command": ["x"]},
        {"name": "b", "command": ["x"], "needs": ["long"], "inputs": [{"name": "i", "from": "a.o"}]},
    )
    scene.submit("r", {"name": "a", "command": ["x"], "outputs": out})
    scene.end("fs-w-a-0-0", "fs-r-a-0-0", size=40 * MB)
    scene.submit("v", reader("a", "s3://lab/y"))
    assert dropped(scene) == []
    assert why(scene, "v") == [
        (
            "CacheFull",
            "cache of n0 full: of 100 MB 80 MB are results or nowhere else; it needs 40 MB; results stay until their"
            " workflows expire (serve --keep-days), or give nodes more cache (serve --cache)",
        )
    ]
    scene.tell(Stored("flowsched:r/a/0/0/o"))
    assert dropped(scene) == [("flowsched:r/a/0/0/o", "n0")]


def test_outputs_that_only_their_workflow_read_go_when_it_has_ended() -> None:
    """The chain's intermediate makes room, its result does not."""
    scene = Scene(node(cache_bytes=100 * MB))
    out = [{"name": "o", "path": "o"}]
    scene.submit(
        "w",
        {"name": "a", "command": ["x"], "outputs": out},
        {"name": "b", "command": ["x"], "inputs": [{"name": "i", "from": "a.o"}], "outputs": out},
    )
    finish(scene, size=40 * MB)
    assert scene.state_of("w").startswith("SUCCEEDED")
    scene.submit("v", reader("a", "s3://lab/y"))
    assert dropped(scene) == [("flowsched:w/a/0/0/o", "n0")]


def test_two_gangs_that_each_need_most_of_all_disks_run_one_after_the_other() -> None:
    """Each reads 60 MB on both nodes of 100 MB: neither holds a half that the other waits for."""
    scene = Scene(*(node(name, cpu=8, cache_bytes=100 * MB) for name in ("n0", "n1")))
    arrivals = []
    for ident in ("v", "w"):
        gang = reader("g", f"s3://lab/{ident}", 60 * MB, gang=True, anti_affinity="node")
        gang["roles"] = {"member": {"replicas": 2, "command": ["x"], "resources": {"cpu": 2}}}
        arrivals.append(scene.accepted(ident, gang))
    scene.tell(*arrivals)
    assert scene.states("v", "g") == "STAGING STAGING"
    assert scene.states("w", "g") == "QUEUED QUEUED"
    assert why(scene, "w")[0][0] == "CacheFull"
    finish(scene)
    assert scene.state_of("v") == "SUCCEEDED: g SUCCEEDED"
    assert scene.state_of("w") == "SUCCEEDED: g SUCCEEDED"
    scene.nothing_left()


def test_producers_that_fill_all_caches_do_not_stand_still() -> None:
    """Four pairs of 40 MB each gather in a cache of 100 MB: what has been written and cannot be read yet gives way."""
    scene = Scene(node(cpu=1, cache_bytes=100 * MB))
    out = [{"name": "o", "path": "o"}]
    writer = {"command": ["x"], "scatter": {"count": 4}, "outputs": out, "estimate": {"output": "40M"}}
    scene.submit(
        "w",
        {"name": "a", **writer},
        {"name": "b", **writer},
        {
            "name": "c", "command": ["x"], "scatter": {"count": 4},
            "inputs": [{"name": n, "from": f"{n}.o", "match": "index"} for n in ("a", "b")],
        },
    )  # fmt: skip
    for _ in range(60):
        launches = [pod.name for pod in scene.last.launches]
        if scene.state_of("w").startswith("SUCCEEDED"):
            break
        scene.tell(*([scene.ending(name, size=40 * MB) for name in launches] or [Tick()]), after=1_000)
    assert scene.state_of("w").startswith("SUCCEEDED")


def test_an_input_larger_than_any_cache_is_told_and_nothing_is_dropped_for_it() -> None:
    """With both numbers; the step asks for no other look."""
    scene = Scene(node(cache_bytes=30 * MB))
    scene.submit("w", reader("a", "s3://lab/x"))
    assert why(scene, "w") == [
        ("CacheFull", "it reads 40 MB, and the largest cache may hold 30 MB: give nodes more cache")
    ]
    assert scene.last.wake_ms is None


def test_a_cache_whose_limit_shrinks_is_trimmed() -> None:
    """By what nobody needs, in the same step."""
    scene = Scene(node(cache_bytes=100 * MB))
    scene.submit("w", reader("a", "s3://lab/x"))
    finish(scene)
    scene.tell(NodeChanged(node(cache_bytes=20 * MB)))
    assert dropped(scene) == [("s3://lab/x", "n0")]


def test_a_drop_that_is_taken_back_leaves_the_books_as_they_were() -> None:
    """The commit failed: the copy is there, and the same step decides the same again."""
    scene = Scene(node(cache_bytes=70 * MB))
    scene.submit("v", reader("a", "s3://lab/x"))
    finish(scene)
    accepted = scene.accepted("w", reader("a", "s3://lab/y"))
    result = step(scene.state, [accepted], scene.now)
    assert [drop.uri for drop in result.drops] == ["s3://lab/x"]
    result.drop()
    dataset = scene.state.cluster.catalogue.find("s3://lab/x")
    assert dataset is not None
    assert scene.state.cluster.catalogue.nodes_of(dataset) == {0}
    assert held(scene) == 40 * MB
    again = step(scene.state, [scene.accepted("w", reader("a", "s3://lab/y"))], scene.now)
    assert [drop.uri for drop in again.drops] == ["s3://lab/x"]


def test_a_copy_that_was_not_deleted_is_known_again() -> None:
    """The executor tells that it is still there (after a crash, or because a pod reads it): it counts, and may go later."""
    scene = Scene(node(cache_bytes=70 * MB))
    scene.submit("v", reader("a", "s3://lab/x"))
    finish(scene)
    scene.submit("w", reader("a", "s3://lab/y"))
    finish(scene)
    assert held(scene) == 40 * MB
    scene.tell(ReplicaSeen("s3://lab/x", "n0", 40 * MB))
    assert dropped(scene) == [("s3://lab/y", "n0")]  # used longer ago, and as little needed
    assert held(scene) == 40 * MB


def test_an_output_that_another_run_reads_by_its_name_has_no_origin_before_its_upload() -> None:
    """Nodes alone have it. A limited cache notes its readers, and that makes it no file of a storage."""
    scene = Scene(node(cache_bytes=100 * MB), node("n1", cache_bytes=100 * MB))
    name = "flowsched:v/a/0/0/o"
    scene.tell(ReplicaSeen(name, "n1", 40 * MB))
    late = reader("b", "s3://lab/o", needs=["p"])
    accepted = scene.accepted("w", {"name": "p", "command": ["x"]}, reader("a", "s3://lab/o"), late)
    accepted.run.versions["s3://lab/o"] = name
    scene.tell(accepted)
    dataset = scene.state.cluster.catalogue.find(name)
    assert dataset is not None
    assert scene.state.cluster.catalogue.origins[dataset] is False
    scene.tell(Stored(name))
    assert scene.state.cluster.catalogue.origins[dataset] is True
