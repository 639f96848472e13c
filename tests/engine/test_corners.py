"""Corners that no other story reaches: each of these tests kills a mutant that had survived."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.virtual.drive import Drive, Fate
from flowsched.engine.events import Command, Revived, Tick
from flowsched.engine.explain import explain
from flowsched.engine.recovery import reclaim
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import NodeChanged, PodEnded, PodStarted, ReplicaSeen
from flowsched.statement import Statement
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.run.advance import Advance
from flowsched.workflow.run.moves import Ended
from tests.engine.scene import Scene, node

A = {"name": "a", "command": ["x"]}
READS = [{"name": "i", "uri": "s3://lab/x", "size": 1000}]


def gang(workers: int, least: int, **more: Any) -> dict[str, Any]:
    roles = {"worker": {"replicas": workers, "min": least, "command": ["w"]}}
    return {"name": "g", "gang": True, "retry": {"attempts": 3}, "roles": roles, **more}


def test_members_that_were_not_placed_are_of_the_next_generation_too() -> None:
    """Attempt 1 for all three, although the third had no attempt 0."""
    scene = Scene(node(cpu=2))
    scene.submit("w", gang(3, 1))
    scene.end("fs-w-g-0-0", code=1)
    scene.end("fs-w-g-1-0", code=143, reason="Released")
    assert scene.runs["w"].stages[0].attempt.tolist() == [1, 1, 1]


def test_what_fails_in_a_stage_that_has_failed_is_not_tried_again() -> None:
    """It has attempts left, and its stage has not."""
    scene = Scene()
    policies = [{"exit_codes": [9], "action": "fail_stage"}]
    scene.submit("w", A | {"scatter": {"count": 2}, "retry": {"attempts": 5}, "policies": policies})
    scene.end("fs-w-a-0-0", code=9)
    scene.end("fs-w-a-1-0", code=1)
    assert scene.states("w", "a") == "FAILED CANCELLED"
    assert scene.state_of("w") == "FAILED: a FAILED"


def test_a_cancel_is_not_weakened_by_what_comes_after_it() -> None:
    """Members that come back for another attempt are cancelled instead, whichever comes first."""
    scene = Scene()
    scene.submit("w", gang(3, 3))
    scene.end("fs-w-g-0-0", code=1)
    assert scene.states("w", "g") == "QUEUED RELEASING RELEASING"
    scene.command("w", "cancel")
    assert scene.states("w", "g") == "CANCELLED RELEASING RELEASING"
    scene.end("fs-w-g-1-0", "fs-w-g-2-0", code=143, reason="Released")
    assert scene.state_of("w") == "CANCELLED: g CANCELLED"


def test_a_shard_that_comes_back_to_a_failed_stage_is_cancelled() -> None:
    """Shard 0 is being released for its next attempt when shard 1 fails for good."""
    scene = Scene(node(cpu=4))
    policies = [{"exit_codes": [9], "action": "fail_stage"}]
    scene.submit("w", gang(2, 2, scatter={"count": 2}, policies=policies))
    scene.end("fs-w-g-0-0", code=1)
    scene.end("fs-w-g-2-0", code=9)
    scene.end("fs-w-g-1-0", "fs-w-g-3-0", code=143, reason="Released")
    assert scene.states("w", "g") == "CANCELLED CANCELLED FAILED CANCELLED"
    assert scene.state_of("w") == "FAILED: g FAILED"


def test_old_news_told_to_a_run_itself_changes_nothing() -> None:
    """Whoever asks `advance` with an attempt that is over gets False."""
    scene = Scene()
    scene.submit("w", A)
    scene.gone("fs-w-a-0-0")
    run = scene.runs["w"]
    advance, stage = Advance(run, Statement(), scene.now), run.stages[0]
    assert not advance.started(stage, 0, 0, 5)
    assert not advance.ended(stage, 0, 0, 5, Ended(0))
    assert not advance.gone(stage, 0, 0, 5, "Lost")
    assert not advance.ended(stage, 0, 7, 5, Ended(0))
    assert scene.states("w", "a") == "BINDING"


def test_a_start_that_is_told_again_is_not_the_start() -> None:
    """The first moment counts; and nothing of it is left in the next attempt."""
    scene = Scene()
    scene.submit("w", A)
    scene.tell(PodStarted("fs-w-a-0-0", 1_100), after=200)
    scene.tell(PodStarted("fs-w-a-0-0", 1_900), after=800)
    assert scene.runs["w"].stages[0].times[0, 4] == 1_100
    scene.gone("fs-w-a-0-0")
    assert scene.runs["w"].stages[0].times[0].tolist() == [2_000, -1, -1, 2_000, -1, -1]


def test_a_retry_begins_with_all_its_attempts() -> None:
    """Two were used up; the retry has two again."""
    scene = Scene()
    scene.submit("w", A | {"retry": {"attempts": 2}})
    scene.end("fs-w-a-0-0", code=1)
    scene.tell(Tick(), after=1_000)
    scene.end("fs-w-a-0-1", code=1)
    assert scene.state_of("w") == "FAILED: a FAILED"
    scene.tell(Revived(scene.runs["w"]))
    scene.end("fs-w-a-0-2", code=1)
    assert scene.states("w", "a") == "QUEUED"


def test_a_pod_knows_whether_an_attempt_follows_its_failure() -> None:
    """Of two attempts the second is the last; an attempt that was lost is none of them."""
    scene = Scene()
    scene.submit("w", A | {"retry": {"attempts": 2}})
    scene.gone("fs-w-a-0-0")
    scene.tell(Tick(), after=1_000)
    scene.end("fs-w-a-0-1", code=1)
    scene.tell(Tick(), after=1_000)
    assert [pod.is_last for pod in scene.pods.values()] == [False, False, True]
    scene.submit("v", A)
    assert scene.pods["fs-v-a-0-0"].is_last


def test_a_handler_of_which_a_part_has_run_is_skipped_by_a_retry_that_needs_none() -> None:
    """One of its gangs had ended well, a member of it cancelled before it was placed: what comes after the stage runs."""
    scene = Scene(node(cpu=3))
    handler = gang(2, 1, scatter={"count": 2}, when="failure", needs=["a"], retry={"attempts": 1})
    last = A | {"name": "b", "needs": ["g"]}
    scene.submit("w", A | {"retry": {"attempts": 1}}, handler, last)
    scene.end("fs-w-a-0-0", code=1)
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0", "fs-w-g-2-0"]
    scene.end("fs-w-g-0-0", code=1)
    scene.end("fs-w-g-1-0", code=143, reason="Released")
    assert scene.states("w", "g") == "FAILED CANCELLED BINDING CANCELLED"
    scene.end("fs-w-g-2-0")
    assert scene.state_of("w") == "FAILED: a FAILED, g FAILED, b SKIPPED"
    scene.tell(Revived(scene.runs["w"]))
    scene.end("fs-w-a-0-1")
    assert scene.states("w", "g") == "SKIPPED SKIPPED SUCCEEDED CANCELLED"
    scene.end("fs-w-b-0-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, g SKIPPED, b SUCCEEDED"


def test_staging_takes_until_the_bytes_are_there() -> None:
    """200 ms, with a step in between in which nothing came."""
    scene = Scene()
    scene.submit("w", A | {"inputs": READS})
    order = scene.last.transfers[0]
    scene.tell(Tick(), after=100)
    scene.tell(scene.arrival(order), after=100)
    scene.end("fs-w-a-0-0")
    assert scene.runs["w"].totals() == {"SUCCEEDED": 1}
    assert scene.runs["w"].stages[0].totals.tolist()[:5] == [0, 200, 0, 0, 1000]


def test_a_source_that_loses_the_bytes_again_and_again_is_no_reason_to_give_up() -> None:
    """Ten times: only the origin's own failures are counted."""
    scene = Scene()
    scene.submit("w", A | {"inputs": READS})
    order = scene.last.transfers[0]
    for _ in range(10):
        scene.miss(order, lost=True)
        assert scene.last.transfers == [order]
    assert scene.states("w", "a") == "STAGING"


def test_two_groups_that_want_one_copy_do_not_both_pay() -> None:
    """The second found it ordered."""
    scene = Scene()
    scene.submit("v", A | {"inputs": READS})
    order = scene.last.transfers[0]
    scene.submit("w", A | {"inputs": READS})
    scene.arrive(order)
    moved = [int(scene.runs[ident].stages[0].moved[0]) for ident in "vw"]
    assert moved == [1000, 0]


def test_a_gang_of_which_some_lack_bytes_binds_nobody() -> None:
    """Two nodes of one core; the input is on one of them: both members are STAGING until it is on both."""
    scene = Scene(node("n0", cpu=1), node("n1", cpu=1))
    scene.tell(ReplicaSeen("s3://lab/x", "n0", 1000))
    scene.submit("w", gang(2, 2, inputs=READS))
    assert scene.launched == []
    assert scene.states("w", "g") == "STAGING STAGING"
    scene.arrive(scene.last.transfers[0])
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]


def test_what_has_all_been_placed_is_not_ready_any_more() -> None:
    """The set of ready stages is what a step walks over."""
    scene = Scene()
    scene.submit("w", A)
    assert scene.state.work.ready == set()


def test_a_task_that_only_waits_has_no_row() -> None:
    """QUEUED and STAGING are derived after a restart: a million of them are not written."""
    scene = Scene(node(cpu=1))
    scene.submit("v", A)
    scene.submit("w", A)
    assert scene.last.delta.tasks == []
    scene.submit("u", A | {"inputs": READS})
    assert scene.last.delta.tasks == []


def test_a_replica_that_was_dropped_in_a_dropped_step_is_still_there() -> None:
    """The undo log covers the catalogue."""
    scene = Scene()
    scene.tell(ReplicaSeen("s3://lab/x", "n0", 1000))
    step(scene.state, [ReplicaSeen("s3://lab/x", "n0", 0, present=False)], scene.now).drop()
    assert scene.state.cluster.catalogue.nodes_of(0) == frozenset({0})


def test_nothing_is_learned_from_failures() -> None:
    """How long it took to fail is no runtime."""
    scene = Scene()
    scene.submit("w", A | {"retry": {"attempts": 2}})
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", code=1, after=700)
    assert scene.state.work.estimates.runtime_ms("w", "a") is None


def test_nothing_is_learned_from_an_end_before_the_launch() -> None:
    """The attempt had run before a backup was restored; the launch found its result. How long it took is not known any more."""
    scene = Scene()
    scene.tell(Tick(), after=10_000)
    scene.submit("w", A)
    scene.start("fs-w-a-0-0")
    scene.tell(PodEnded("fs-w-a-0-0", scene.now - 5_000, 0))
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    assert scene.state.work.estimates.runtime_ms("w", "a") is None


def test_what_ran_is_learned_though_its_clock_tells_whole_seconds() -> None:
    """Kubernetes says in which second a pod ended: launched at 10.9 s and gone within it, it ended "at 10 s"."""
    scene = Scene()
    scene.tell(Tick(), after=10_900)
    scene.submit("w", A)
    scene.start("fs-w-a-0-0")
    scene.tell(PodEnded("fs-w-a-0-0", scene.now - 900, 0))
    assert scene.state.work.estimates.runtime_ms("w", "a") is not None


def test_a_second_accepted_does_not_replace_the_first() -> None:
    """It holds another run, with nothing in it."""
    scene = Scene()
    scene.submit("w", A)
    first = scene.runs["w"]
    scene.tell(scene.accepted("w", A))
    assert scene.state.work.runs["w"] is first
    assert scene.launched == []


def test_a_small_workflow_ends_at_exactly_the_expected_moment() -> None:
    """100 ms to copy, 2 s for a, 3 s for the longest b, half a second for each start."""
    spec = check_workflow(
        {
            "name": "w",
            "stages": [
                A | {"inputs": [{"name": "i", "uri": "s3://lab/x", "size": 11_700_000}]},
                {"name": "b", "needs": ["a"], "command": ["x"], "scatter": {"count": 2}},
            ],
        }
    )
    nodes = [NodeInfo("n0", 4_000, 8 << 30)]
    drive = Drive(
        EngineState(), nodes, fate=lambda pod: Fate(2_000 if pod.stage == "a" else 2_000 + 1_000 * pod.index),
        startup_ms=500,
    )  # fmt: skip
    run = drive.submit("w", spec)
    drive.run()
    assert (run.state, run.started_ms, run.ended_ms) == ("SUCCEEDED", 0, 6_100)
    assert run.stages[0].totals.tolist()[:5] == [0, 100, 2_000, 0, 11_700_000]
    assert run.stages[1].totals.tolist()[:5] == [0, 0, 5_000, 0, 0]


def test_a_driven_cancel_ends_at_once() -> None:
    """The pod is taken away in the same moment."""
    drive = Drive(EngineState(), [NodeInfo("n0", 4_000, 8 << 30)], fate=lambda _: Fate(60_000))
    run = drive.submit("w", check_workflow({"name": "w", "stages": [A]}))
    drive.at(1_500, Command("w", "cancel"))
    drive.run()
    assert (run.state, run.ended_ms) == ("CANCELLED", 1_500)


def test_who_shall_end_cancelled_does_not_end_well_because_its_stage_does() -> None:
    """Shard 0 failed, its other member is being taken away; then shard 1 completes the stage by a policy."""
    scene = Scene()
    policies = [{"exit_codes": [9], "action": "fail_stage"}, {"exit_codes": [3], "action": "complete_stage"}]
    scene.submit("w", gang(2, 2, scatter={"count": 2}, policies=policies))
    scene.end("fs-w-g-0-0", code=9)
    scene.end("fs-w-g-2-0", code=3)
    scene.end("fs-w-g-1-0", "fs-w-g-3-0", code=143, reason="Released")
    assert scene.states("w", "g") == "FAILED CANCELLED SUCCEEDED SUCCEEDED"
    assert scene.state_of("w") == "SUCCEEDED: g SUCCEEDED"


def test_staging_counts_from_the_first_target() -> None:
    """The node it was given first went away after 100 ms, the bytes reached the second 100 ms later: 200 ms in all."""
    scene = Scene(node("n0"), node("n1"))
    scene.submit("w", A | {"inputs": READS})
    first = scene.last.transfers[0].dest
    scene.tell(NodeChanged(node(first, ready=False)), after=100)
    (order,) = scene.last.transfers
    scene.tell(scene.arrival(order), after=100)
    scene.end("fs-w-a-0-0")
    assert scene.runs["w"].stages[0].totals.tolist()[:5] == [0, 200, 0, 0, 1000]


def test_a_gang_that_waits_with_more_memory_is_explained_for_each_member() -> None:
    """Worker 0 was out of memory, 2 x 6 GiB do not fit 8: both wait for the same reason."""
    scene = Scene(node(cpu=4))
    role = {"replicas": 2, "command": ["w"], "resources": {"memory": "3Gi"}}
    retry = {"attempts": 3, "memory_factor": 2}
    scene.submit("w", {"name": "g", "gang": True, "retry": retry, "roles": {"worker": role}})
    scene.end("fs-w-g-0-0", code=137, reason="OOMKilled")
    scene.end("fs-w-g-1-0", code=143, reason="Released")
    scene.tell(Tick(), after=1_000)
    assert scene.launched == []
    told = [(e.code, e.tasks) for e in explain(scene.state, scene.runs["w"], scene.now)]
    assert told == [("LargerThanCluster", 2)]


def test_the_largest_io_that_can_be_said_is_placed() -> None:
    """4Pi to read and to write: their cost fits 64 bits, and the task runs."""
    scene = Scene(node())
    scene.submit("w", {"name": "s", "command": ["x"], "io": {"read": "4Pi", "write": "4Pi"}})
    assert scene.launched == ["fs-w-s-0-0"]


def test_a_task_is_one_of_the_pods_that_a_node_takes() -> None:
    """A kubelet refuses the pod after the last it takes, however little it asks for; a restart counts the same."""
    few = node(cpu=4, extended={"pods": 2})
    scene = Scene(few)
    scene.submit("w", {"name": "s", "command": ["x"], "scatter": {"count": 5}, "resources": {"cpu": "100m"}})
    assert scene.launched == ["fs-w-s-0-0", "fs-w-s-1-0"]
    scene.end("fs-w-s-0-0")
    assert scene.launched == ["fs-w-s-2-0"]
    again = EngineState()
    again.cluster.snapshot.put_node(few)
    reclaim(again, scene.runs["w"], scene.pods.values(), Statement(), 0)
    assert again.cluster.snapshot.used.tolist() == scene.state.cluster.snapshot.used.tolist()
    assert again.cluster.snapshot.used[0, again.cluster.snapshot.axes.index("pods")] == 2


def test_an_eviction_leaves_a_member_that_was_cancelled_as_it_is() -> None:
    """Its stage is closed, so it joins no gang any more: it gets neither an attempt nor a goal that no row would have."""
    scene = Scene(node(cpu=3))
    policies = [{"exit_codes": [9], "action": "fail_stage"}]
    scene.submit("w", gang(2, 1, scatter={"count": 2}, policies=policies))
    scene.end("fs-w-g-0-0", code=9)
    run = scene.runs["w"]
    stage = run.stages[0]
    assert scene.states("w", "g") == "FAILED RELEASING BINDING CANCELLED"
    Advance(run, Statement(), scene.now).evict(stage, np.array([2]), "Preempted", "for another")
    assert stage.attempt.tolist() == [0, 0, 0, 0]
    assert stage.goal[3] == 0
