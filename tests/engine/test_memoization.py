"""The engine takes results that the cache of results has, and makes anew what is not there any more."""

from __future__ import annotations

from typing import Any

from flowsched.engine.delta import CacheKeyWrite
from flowsched.engine.events import LookedUp
from flowsched.engine.memoization import Hit, ShardLookup
from flowsched.executor.protocol import ReplicaSeen
from flowsched.workflow.run.states import TaskState
from tests.engine.scene import Scene, node


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["true"], "cache": True, "outputs": [{"name": "o", "path": "o"}], **more}


def reads(name: str, parent: str, **more: Any) -> dict[str, Any]:
    return stage(name, inputs=[{"name": "i", "from": f"{parent}.o"}], **more)


def scene() -> Scene:
    made = Scene(node(), node("n1"))
    made.state.policy.memoizing = True
    return made


def miss(shard: int = 0) -> ShardLookup:
    return ShardLookup(shard, "k", "p", "{}", (), "it has not succeeded before")


def hit(stage_name: str, shard: int = 0, workflow: str = "old") -> ShardLookup:
    outputs = (("o", f"flowsched:{workflow}/{stage_name}/{shard}/0/o", 7, None),)
    return ShardLookup(shard, "k", "p", "{}", (Hit(f"{workflow}/{stage_name}/{shard}", workflow, outputs),))


def there(stage_name: str, shard: int = 0, node: str = "n0") -> ReplicaSeen:
    return ReplicaSeen(f"flowsched:old/{stage_name}/{shard}/0/o", node, 7)


def test_a_memoized_task_waits_for_its_look_up() -> None:
    """It is asked for once, and runs when there is no result; the key is written with why."""
    s = scene()
    s.submit("w", stage("a"))
    assert (s.last.lookups, s.launched) == ([("w", 0)], [])
    s.tell(after=1_000)
    assert s.launched == []
    s.tell(LookedUp("w", 0, (miss(),)))
    assert s.launched == ["fs-w-a-0-0"]
    assert s.last.delta.cache_keys == [
        CacheKeyWrite("w", 0, 0, "k", "p", "{}", "", "it has not succeeded before", 2_000)
    ]


def test_other_tasks_are_not_looked_up() -> None:
    """No stage of a workflow that does not ask for it, and none where nothing answers."""
    s = scene()
    s.submit("w", stage("a", cache=False))
    assert (s.last.lookups, s.launched) == ([], ["fs-w-a-0-0"])
    s.state.policy.memoizing = False
    s.submit("v", stage("a"))
    assert (s.last.lookups, s.launched) == ([], ["fs-v-a-0-0"])


def test_a_workflow_that_resumes_looks_all_up() -> None:
    """Whatever its stages say."""
    s = scene()
    s.submit("w", stage("a", cache=False), resume="old")
    assert s.last.lookups == [("w", 0)]


def test_a_result_is_taken() -> None:
    """The task succeeds without a pod, says whose result it has, and the next stage reads that."""
    s = scene()
    s.tell(there("a"))
    s.submit("w", stage("a"), reads("b", "a", cache=False))
    s.tell(LookedUp("w", 0, (hit("a"),)))
    assert s.states("w", "a") == "SUCCEEDED"
    assert s.launched == ["fs-w-b-0-0"]
    assert s.pods["fs-w-b-0-0"].inputs[0].uris == ("flowsched:old/a/0/0/o",)
    delta = s.last.delta
    assert [(row.stage, row.reason) for row in delta.tasks if row.stage == 0] == [(0, "CACHED old/a/0")]
    assert [(each.uri, each.attempt) for each in delta.outputs] == [("flowsched:old/a/0/0/o", 0)]
    assert delta.stages[0].totals["cached"] == 1
    assert (delta.cache_keys[0].source, delta.cache_keys[0].why) == ("old", "old/a/0")
    assert ("task.cached", {"stage": "a", "index": 0, "attempt": 0, "source": "old/a/0"}) in [
        (event.kind, event.body) for event in delta.events
    ]
    s.start("fs-w-b-0-0")
    s.end("fs-w-b-0-0")
    assert s.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"


def test_some_shards_have_results() -> None:
    """Only the others run."""
    s = scene()
    s.tell(there("a", 1))
    s.submit("w", stage("a", scatter={"count": 3}))
    s.tell(LookedUp("w", 0, (miss(0), hit("a", 1), miss(2))))
    assert s.launched == ["fs-w-a-0-0", "fs-w-a-2-0"]


def test_a_gang_takes_a_result_as_a_whole() -> None:
    """All its members succeed; the stage ends."""
    s = scene()
    s.tell(there("g"))
    role = {"replicas": 2, "command": ["true"]}
    s.submit(
        "w",
        {
            "name": "g",
            "gang": True,
            "cache": True,
            "roles": {"r": role},
            "outputs": [{"name": "o", "path": "o"}],
        },
    )
    s.tell(LookedUp("w", 0, (hit("g"),)))
    assert (s.states("w", "g"), s.launched) == ("SUCCEEDED SUCCEEDED", [])


def test_a_result_that_no_node_has_is_not_taken() -> None:
    """The task runs; why is written."""
    s = scene()
    s.submit("w", stage("a"))
    s.tell(LookedUp("w", 0, (hit("a"),)))
    assert s.launched == ["fs-w-a-0-0"]
    assert s.last.delta.cache_keys[0].why == "old/a/0 is the same, but no node has its outputs any more"


def test_what_lies_between_is_needed_only_where_it_is_read() -> None:
    """The result of b is there, that of a, which only b reads, is not: nothing runs."""
    s = scene()
    s.tell(there("b"))
    s.submit("w", stage("a"), reads("b", "a"))
    s.tell(LookedUp("w", 0, (hit("a"),)))
    assert (s.states("w", "a"), s.last.lookups) == ("SUCCEEDED", [("w", 1)])
    s.tell(LookedUp("w", 1, (hit("b"),)))
    assert s.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"


def test_what_lies_between_is_made_anew_where_it_is_read() -> None:
    """B has no result, and no node has the output of a: a runs. Then b is looked up again, because it reads another dataset."""
    s = scene()
    s.submit("w", stage("a"), reads("b", "a"))
    s.tell(LookedUp("w", 0, (hit("a"),)))
    s.tell(LookedUp("w", 1, (miss(),)))
    assert s.launched == ["fs-w-a-0-1"]
    assert (s.states("w", "a"), s.states("w", "b")) == ("BINDING", "PENDING")
    s.start("fs-w-a-0-1")
    s.end("fs-w-a-0-1")
    assert s.last.lookups == [("w", 1)]
    s.tell(LookedUp("w", 1, (miss(),)))
    assert s.launched == ["fs-w-b-0-0"]
    assert s.pods["fs-w-b-0-0"].inputs[0].uris == ("flowsched:w/a/0/1/o",)


def test_a_taken_result_that_is_lost_is_made_anew() -> None:
    """Its node is gone before the reader starts."""
    s = scene()
    s.tell(there("a"))
    s.submit("w", stage("a"), reads("b", "a", cache=False))
    s.tell(LookedUp("w", 0, (hit("a"),)))
    s.gone("fs-w-b-0-0", lost=("flowsched:old/a/0/0/o",))
    assert s.launched == ["fs-w-a-0-1"]


def test_late_answers_change_nothing() -> None:
    """The workflow was cancelled, is unknown, or was answered before."""
    s = scene()
    s.tell(there("a"))
    s.submit("w", stage("a"))
    s.command("w", "cancel")
    assert s.tell(LookedUp("w", 0, (hit("a"),))).delta.cache_keys == []
    assert s.tell(LookedUp("x", 0, (hit("a"),))).delta.cache_keys == []
    s.submit("v", stage("a"))
    s.tell(LookedUp("v", 0, (miss(),)))
    s.tell(LookedUp("v", 0, (hit("a"),)))
    assert s.states("v", "a") == TaskState.BINDING.name


def test_a_step_that_is_not_durable_leaves_no_trace() -> None:
    """The same answer can be given again."""
    s = scene()
    s.tell(there("a"))
    s.submit("w", stage("a"))
    from flowsched.engine.step import step

    dropped = step(s.state, [LookedUp("w", 0, (hit("a"),))], s.now)
    dropped.drop()
    assert s.states("w", "a") == "QUEUED"
    s.tell(LookedUp("w", 0, (hit("a"),)))
    assert s.state_of("w") == "SUCCEEDED: a SUCCEEDED"
