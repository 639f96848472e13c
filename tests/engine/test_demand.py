"""What was learned of tasks' disk traffic admits the next of their kind. Literal stories: one node whose disk carries 100 MB/s."""

from __future__ import annotations

from typing import Any

from flowsched.engine.events import Accepted
from flowsched.engine.explain import explain, situations_of
from flowsched.engine.recovery import reclaim
from flowsched.engine.step import step
from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import PodEnded, Usage
from flowsched.scheduling.explain.remedies import altered, outlook
from flowsched.scheduling.state.snapshot import IO
from flowsched.statement import Statement
from flowsched.values import replace
from tests.engine.scene import Scene, node

MB = 1_000_000
#: A second of CPU and 100 MB: on a disk of 100 MB/s 50 MB/s alone. Half of that over 0.9 of the disk, in three binary digits.
USED = Usage(cpu_ms=1_000, disk_bytes=100 * MB)
COUNTED = 29_360_128


def sort(count: int, **more: Any) -> dict[str, Any]:
    """A bag of tasks of one core."""
    return {"name": "sort", "command": ["x"], "resources": {"cpu": 1}, "scatter": {"count": count}} | more


def end(scene: Scene, *tasks: int, usage: Usage = USED, workflow: str = "w") -> None:
    """Tasks end, having used so much."""
    names = [f"fs-{workflow}-sort-{task}-0" for task in tasks]
    scene.start(*names)
    scene.tell(*(PodEnded(name, scene.now, 0, usage=usage) for name in names), after=2_000)


def taught(**more: Any) -> Scene:
    """A node of 8 cores on which five of `w` have ended, and the three others have too."""
    scene = Scene(node(cpu=8, disk_rate=100 * MB))
    scene.submit("w", sort(8))
    assert len(scene.launched) == 8
    end(scene, *range(8), **more)
    return scene


def again(scene: Scene, *stages: dict[str, Any], workflow: str = "w2") -> list[str]:
    """The same workflow comes once more; what is launched in ten seconds: of tasks that a disk keeps busy one starts at a time."""
    accepted = scene.accepted(workflow, *stages)
    run = accepted.run
    run.spec = replace(run.spec, name="w")
    scene.tell(Accepted(run))
    launched = scene.launched
    for _ in range(10):
        scene.tell(after=1_000)
        launched += scene.launched
    return launched


def test_as_many_start_as_the_disk_was_learned_to_carry() -> None:
    """Each counts for 29 MB/s: three of eight, though there are eight cores. When one ends, the next begins."""
    scene = taught()
    assert again(scene, sort(8)) == ["fs-w2-sort-0-0", "fs-w2-sort-1-0", "fs-w2-sort-2-0"]
    assert scene.state.cluster.snapshot.used[0, IO] == 3 * COUNTED
    end(scene, 1, workflow="w2")
    assert scene.launched == ["fs-w2-sort-3-0"]


def test_the_first_sample_counts() -> None:
    """The offer that was kept is made anew with it: the next starts by itself, though four cores are free."""
    scene = Scene(node(cpu=4, disk_rate=100 * MB))
    scene.submit("w", sort(12))
    end(scene, 0, 1, 2, 3)
    assert scene.launched == ["fs-w-sort-4-0"]
    assert scene.state.cluster.snapshot.used[0, IO] == COUNTED


def test_what_was_learned_stays_with_an_offer_whose_expected_runtime_changes() -> None:
    """A task of another run of the same kind ends, slower than those before: what waits is offered with the new runtime, and what
    is measured of it is still taken for its own, not for others'.
    """
    scene = taught()
    assert len(again(scene, sort(3))) == 3
    assert again(scene, sort(1), workflow="w3") == []
    scene.start("fs-w2-sort-1-0")
    scene.tell(PodEnded("fs-w2-sort-1-0", scene.now, 0, usage=USED), after=2_100)
    assert scene.launched == ["fs-w3-sort-0-0"]
    end(scene, 0, 2, workflow="w2")
    scene.tell(LoadMeasured(nodes=(Load("n0", 50 * MB, -1),)), after=5_000)
    assert scene.state.cluster.others == {}


def test_what_a_person_said_wins() -> None:
    """It says 10 MB/s: all eight."""
    scene = taught()
    assert len(again(scene, sort(8, io={"read": f"{10 * MB}/s"}))) == 8


def test_a_profile_can_leave_it_to_what_people_say() -> None:
    """0 % of the disk: nothing learned counts. 45 %: one and a half times as much as two."""
    for percent, expected in ((0, 8), (45, 1)):
        scene = taught()
        scene.state.policy.profile = replace(scene.state.policy.profile, io_fill_percent=percent)
        assert len(again(scene, sort(8))) == expected


def test_what_memory_gave_and_nobody_measured_counts_for_nothing() -> None:
    """Nothing went to the disk; or the executor cannot tell."""
    for usage in (Usage(cpu_ms=1_000, disk_bytes=0), Usage(cpu_ms=1_000, read_bytes=100 * MB)):
        scene = taught(usage=usage)
        assert len(again(scene, sort(8))) == 8


def test_where_no_node_states_a_rate_nothing_is_counted() -> None:
    """There is no budget to count against."""
    scene = Scene(node(cpu=8, disk_rate=0))
    scene.submit("w", sort(8))
    end(scene, *range(8))
    assert len(again(scene, sort(8))) == 8


def test_a_demand_beyond_a_disk_runs_alone() -> None:
    """On a node whose disk is a tenth as fast as the fastest, each task would fill it: one by one, but none waits for ever."""
    scene = Scene(node(cpu=8, disk_rate=100 * MB), node("slow", cpu=8, disk_rate=10 * MB))
    scene.submit("w", sort(8))
    end(scene, *range(8))
    launched = again(scene, sort(8))
    assert sorted(scene.pods[name].node for name in launched) == ["n0", "n0", "n0", "slow"]
    slow = next(name for name in launched if scene.pods[name].node == "slow")
    end(scene, int(slow.split("-")[3]), workflow="w2")
    launched = scene.launched
    scene.tell(after=10_000)
    assert [scene.pods[name].node for name in launched + scene.launched] == ["slow"]


def test_who_waits_is_told_of_what_was_learned() -> None:
    """The reason with its numbers, what was counted and from how many; room on the disk or a node would do."""
    scene = taught()
    again(scene, sort(8))
    told = explain(scene.state, scene.runs["w2"], scene.now)[0]
    assert told.code == "IoBudget"
    assert (told.numbers["need_io"], told.numbers["best_free_io"]) == (29_360_128, 11_919_616)
    assert told.estimate.endswith("; 29 MB/s disk bandwidth are counted for it, learned from 8 that ended")
    assert told.start_ms is not None
    assert told.group is not None
    situation = situations_of(scene.state, [told.group], scene.now)[told.group]
    found = outlook(situation)
    assert ("task", "io") in found.binds
    assert [(each.kind.value, each.what) for each in found.suggestions] == [
        ("free", "io"),
        ("node", ""),
        ("request", "io"),
    ]
    assert all(altered(situation.copy(), each, Statement()).starts() for each in found.suggestions)


def test_a_step_that_is_dropped_has_learned_nothing() -> None:
    """The rows were not written: the first end is offered again, and nothing is known of the next."""
    scene = Scene(node(cpu=16, disk_rate=100 * MB))
    scene.submit("w", sort(8))
    scene.start("fs-w-sort-0-0")
    first = PodEnded("fs-w-sort-0-0", scene.now, 0, usage=USED)
    step(scene.state, [first], scene.now).drop()
    assert len(again(scene, sort(8))) == 8


def test_what_runs_again_after_a_restart_counts_as_before() -> None:
    """Of the disk, too: what was said, and what was learned."""
    scene = taught()
    again(scene, sort(1), sort(1, name="said", io={"read": f"{10 * MB}/s"}))
    state, run = scene.state, scene.runs["w2"]
    before = state.cluster.snapshot.used.tolist()
    assert before[0][IO] == COUNTED + 10 * MB
    launches = [scene.pods[name] for name in ("fs-w2-sort-0-0", "fs-w2-said-0-0")]
    for name in ("fs-w2-sort-0-0", "fs-w2-said-0-0"):
        state.cluster.snapshot.unclaim(name, Statement())
    assert state.cluster.snapshot.used[0, IO] == 0
    assert reclaim(state, run, launches, Statement(), 0) == []
    assert state.cluster.snapshot.used.tolist() == before


def test_what_nobody_measured_is_not_learned_as_nothing() -> None:
    """Kubelets tell neither CPU time nor memory, their agents the disk's bytes: 0 of what every process uses is no sample."""
    scene = taught(usage=Usage(disk_bytes=100 * MB, bytes_local=5))
    kind = ("w", "sort")
    assert scene.state.work.estimates.cpu_ms(*kind) is None
    assert scene.state.work.estimates.memory_request(*kind, 9, 0) == 9
    assert scene.state.work.estimates.moved_bytes(*kind) is None
    assert scene.state.work.estimates.disk_bytes(*kind) == 100 * MB


def test_a_writer_goes_to_the_faster_of_two_disks() -> None:
    """6 GB take 3 s on the disk of 2 GB/s and 40 s on that of 150 MB/s: the small node, which packs better, is no choice."""
    fast, slow = node("fast", cpu=32, disk_rate=2_000 * MB), node("slow", cpu=8, disk_rate=150 * MB)
    for nodes in ((fast, slow), (slow, fast)):
        scene = Scene(*nodes)
        scene.submit("w", sort(1, io={"write": 6_000 * MB}, estimate={"runtime": "10s"}))
        assert [scene.pods[name].node for name in scene.launched] == ["fast"]
