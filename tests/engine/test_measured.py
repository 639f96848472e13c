"""What was measured of disks corrects what is counted. Literal stories: a node of 8 cores whose disk carries 100 MB/s.

What is learned (`test_demand`): 50 MB/s of a task that runs alone, of which 29 MB/s count.
"""

from __future__ import annotations

from flowsched.engine.explain import explain
from flowsched.engine.step import step
from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.explain.recording import plan_bytes, replayed, unpacked
from flowsched.scheduling.policy.framework import Storage
from flowsched.scheduling.state.snapshot import IO
from flowsched.values import replace
from tests.engine.scene import Scene, node
from tests.engine.test_demand import MB, again, end, sort, taught


def measure(scene: Scene, rate: int, ours: int = -1, times: int = 1, name: str = "n0") -> None:
    """The disk of the node is measured, every five seconds; MB/s."""
    for _ in range(times):
        load = Load(name, rate * MB, ours * MB if ours >= 0 else -1)
        scene.tell(LoadMeasured(nodes=(load,)), after=5_000)


def running() -> Scene:
    """Three of the kind run, 50 MB/s each are expected of them; five wait for the disk."""
    scene = taught()
    assert len(again(scene, sort(8))) == 3
    return scene


def test_what_others_use_leaves_less_to_give() -> None:
    """60 MB/s of others': what is left of the disk goes from 100 to 44 MB/s, so one of the kind runs and not three."""
    scene = taught()
    measure(scene, 60, ours=0, times=20)
    assert scene.state.cluster.others == {"n0": 59_809_726}
    assert scene.state.cluster.snapshot.allocatable[0, IO] == 41_279_744
    assert scene.state.cluster.snapshot.disk_rate[0] == 100 * MB
    assert again(scene, sort(8)) == ["fs-w2-sort-0-0"]


def test_when_others_leave_the_disk_it_is_given_again() -> None:
    """The measurement itself lets the next ones start."""
    scene = taught()
    measure(scene, 60, ours=0, times=20)
    again(scene, sort(8))
    launched = []
    for _ in range(20):
        measure(scene, 50, ours=50)
        launched += scene.launched
    assert launched[:2] == ["fs-w2-sort-1-0", "fs-w2-sort-2-0"]


def test_a_disk_that_others_fill_still_runs_one() -> None:
    """A tenth is ours in any case: nobody waits for ever."""
    scene = taught()
    measure(scene, 100, ours=0, times=40)
    assert scene.state.cluster.snapshot.allocatable[0, IO] == 10 * MB
    assert again(scene, sort(8)) == ["fs-w2-sort-0-0"]


def test_a_kind_that_uses_less_than_was_counted_counts_less() -> None:
    """Of 158 MB/s expected 30 are measured: the factor falls towards a fifth, an eighth of the way each time, and more start."""
    scene = running()
    measure(scene, 30, ours=30)
    assert scene.state.work.corrections == {("w", "sort"): 900}
    measure(scene, 30, ours=30, times=60)
    assert scene.state.work.corrections == {("w", "sort"): 200}
    end(scene, 0, workflow="w2")
    for _ in range(10):
        scene.tell(after=1_000)
    assert sum(name.startswith("fs-w2-") for name in scene.pods) == 8


def test_a_kind_that_uses_more_counts_more_but_never_more_than_five_times() -> None:
    """One task of which 5 MB/s were learned, and 60 are measured."""
    scene = running()
    for task in (0, 1, 2, 3, 4, 5, 6):
        end(scene, task, workflow="w2")
    measure(scene, 90, ours=90, times=100)
    assert 1_000 < scene.state.work.corrections["w", "sort"] <= 5_000


def test_a_full_disk_proves_nothing_of_those_who_wait_for_it() -> None:
    """90 of 158 MB/s: more the disk cannot carry. Nothing is counted less."""
    scene = running()
    measure(scene, 90, ours=90, times=20)
    assert scene.state.work.corrections == {}


def test_where_nobody_can_tell_whose_bytes_they_are_they_are_ours_as_far_as_expected() -> None:
    """40 MB/s on a disk on which nobody of ours runs are others'."""
    scene = taught()
    measure(scene, 40, times=20)
    assert scene.state.cluster.others["n0"] > 39 * MB
    scene = running()
    measure(scene, 40, times=20)
    assert scene.state.cluster.others == {}


def test_what_a_person_said_is_not_corrected() -> None:
    """It says 40 MB/s and uses 5: it counts as it was said."""
    scene = Scene(node(cpu=8, disk_rate=100 * MB))
    scene.submit("w", sort(8, io={"read": f"{40 * MB}/s"}))
    measure(scene, 10, ours=10, times=40)
    assert scene.state.work.corrections == {}
    assert scene.state.cluster.snapshot.used[0, IO] == 80 * MB


def test_a_node_that_is_told_of_again_keeps_what_was_measured() -> None:
    """Executors know nothing of it; and a step that is dropped has measured nothing."""
    scene = taught()
    measure(scene, 60, ours=0, times=20)
    scene.tell(NodeChanged(node(cpu=8, disk_rate=100 * MB, labels={"new": "yes"})))
    assert scene.state.cluster.snapshot.allocatable[0, IO] == 41_279_744
    before = (dict(scene.state.cluster.others), scene.state.cluster.snapshot.allocatable.tolist())
    step(scene.state, [LoadMeasured((Load("n0", 0, 0), Load("gone", 1, 1)))], scene.now).drop()
    assert (scene.state.cluster.others, scene.state.cluster.snapshot.allocatable.tolist()) == before


def test_who_waits_is_told_what_was_measured() -> None:
    """Counted against measured: what others use of which disk, and by how much the kind was corrected."""
    scene = running()
    measure(scene, 90, ours=30, times=20)
    told = explain(scene.state, scene.runs["w2"], scene.now)[0]
    assert told.code == "IoBudget"
    assert told.estimate.endswith(
        "; 29 MB/s disk bandwidth are counted for it, learned from 8 that ended"
        "; others were measured to use 58 MB/s disk bandwidth of node n0"
    )


def test_others_on_a_storage_leave_less_to_give() -> None:
    """Of 900 MB/s they use 400: two readers of 202 MB/s go, not four."""
    scene = Scene(node(cpu=16))
    storages = (Storage("nfs", read_rate=1_000 * MB),)
    scene.state.policy.profile = replace(scene.state.policy.profile, storages=storages)
    for _ in range(20):
        scene.tell(LoadMeasured(storages=(Load("nfs/read", 400 * MB, 0),)), after=5_000)
    scene.submit("w", sort(8, io={"read": f"{200 * MB}/s", "storage": "nfs"}))
    assert len(scene.launched) == 2


def test_a_recorded_cycle_replays_with_what_was_measured() -> None:
    """It is in the nodes of the snapshot, and in what groups ask for."""
    scene = taught()
    measure(scene, 60, ours=0, times=20)
    scene.tape = []
    again(scene, sort(8))
    draft, *_ = scene.tape
    record = unpacked(draft.packed())  # type: ignore[union-attr]
    assert plan_bytes(replayed(record)) == record.plan
    assert record.inputs["snapshot"].info(0).disk_busy_rate == 58_720_256
