"""What tasks are expected to take: the document's word, what was learned, or a prior. Literal stories."""

from __future__ import annotations

from typing import Any

from flowsched.engine.predictor import UNKNOWN_BYTES, expected_runtime, written_bytes
from flowsched.executor.protocol import PodEnded, Usage
from flowsched.scheduling.state.snapshot import IO
from tests.engine.scene import Scene, node

MB = 1_000_000


def stage(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """Tasks of one core."""
    return {"name": name, "command": ["x"], "scatter": {"count": count}, **more}


def ends(on: Scene, name: str, after: int, disk_bytes: int = 0, cpu_ms: int = 100) -> None:
    """A task that runs since it was launched ends after so many ms."""
    on.tell(PodEnded(name, on.now + after, 0, usage=Usage(cpu_ms=cpu_ms, disk_bytes=disk_bytes)), after=after)


def runtime(on: Scene, workflow: str, number: int = 0) -> int | None:
    """The expected runtime of a stage's tasks, which read nothing."""
    run = on.runs[workflow]
    return expected_runtime(on.state, run, run.stages[number], ())[0]


def test_the_time_that_others_took_on_the_disk_is_not_its_runtime() -> None:
    """Four start at once on a disk of 100 MB/s; each writes 100 MB, which takes a second alone, and 4 s among four. Each waits for
    1 s beside: 2.1 s alone with its CPU time, although none ran for less than 5.1 s.
    """
    on = Scene(node(disk_rate=100 * MB))
    on.submit("w", stage("a", 8))
    names = sorted(on.pods)
    on.start(*names)
    ends(on, names[0], 5_100, 100 * MB)
    assert runtime(on, "w") == 2_100


def test_tasks_that_started_later_than_its_bytes_take_did_not_share_the_disk() -> None:
    """The second starts 2 s after the first, whose bytes take one: nothing of 3.1 s is theirs."""
    on = Scene(node(disk_rate=100 * MB))
    on.submit("w", stage("a"))
    on.start("fs-w-a-0-0")
    on.tell(after=2_000)
    on.submit("v", stage("a"))
    on.start("fs-v-a-0-0")
    ends(on, "fs-w-a-0-0", 1_100, 100 * MB)
    assert runtime(on, "w") == 3_100


def test_the_first_that_ends_says_when_the_others_will() -> None:
    """Nothing was known when three began: the fourth is promised a start in an hour. One ends after 20 s; the others will, too."""
    on = Scene(node(cpu=3))
    on.submit("w", stage("a", 3))
    on.start(*sorted(on.pods))
    on.submit("big", stage("b", resources={"cpu": 3}))
    assert [each.start_ms for each in on.state.round.reservations] == [3_601_000]
    ends(on, "fs-w-a-0-0", 20_000)
    assert [each.start_ms < 30_000 for each in on.state.round.reservations] == [True]


def test_a_word_that_tasks_contradict_yields_to_them() -> None:
    """A document says 100 s. Its tasks take 1 s: so those of the same kind are expected to, and after five of them those of
    another kind of which the same document says 50 s half a second. Promises depend on the word still. A word that is wrong by less
    than two stands.
    """
    on = Scene(node(cpu=1))
    on.submit("w", stage("a", 6, estimate={"runtime": "100s"}), stage("b", estimate={"runtime": "50s"}))
    assert (runtime(on, "w"), runtime(on, "w", 1)) == (100_000, 50_000)
    for task in range(5):
        on.start(f"fs-w-a-{task}-0")
        ends(on, f"fs-w-a-{task}-0", 1_000)
        assert (runtime(on, "w"), runtime(on, "w", 1)) == (1_000, 500 if task == 4 else 50_000)
    run = on.runs["w"]
    assert expected_runtime(on.state, run, run.stages[1], ()) == (500, 50_000)
    on.submit("v", stage("a", estimate={"runtime": "1500ms"}))
    assert runtime(on, "v") == 1_500


def test_the_declared_bytes_of_a_task_count_over_the_time_that_it_takes() -> None:
    """200 MB count for nothing before a task has shown in which time it writes them; in 4 s, for half of 50 MB/s."""
    on = Scene(node(cpu=2, disk_rate=100 * MB))
    on.submit("w", stage("a", 9, io={"write": 200 * MB}, estimate={"runtime": "100s"}))
    on.tell(after=3_000)
    assert on.state.cluster.snapshot.used[0, IO] == 0
    on.start(*sorted(on.pods))
    ends(on, "fs-w-a-0-0", 4_000)
    on.tell(after=3_000)
    assert 22 * MB < int(on.state.cluster.snapshot.used[0, IO]) < 28 * MB


def test_outputs_of_unknown_size_are_something_and_then_what_was_written() -> None:
    """Fifty MB before anything is known; then the average of the shards that have ended; in another run what its kind wrote."""
    on = Scene(node(cpu=1))
    out = [{"name": "o", "path": "o"}]
    on.submit("w", stage("a", 3, outputs=out), stage("b"))
    run = on.runs["w"]
    assert written_bytes(on.state, run, run.stages[0]) == UNKNOWN_BYTES
    assert written_bytes(on.state, run, run.stages[0], ()) == 0  # a limited cache refuses nothing for a guess
    assert written_bytes(on.state, run, run.stages[1]) == 0  # nobody could read it
    on.start("fs-w-a-0-0")
    on.end("fs-w-a-0-0", size=7 * MB, after=1_000)
    assert written_bytes(on.state, run, run.stages[0]) == 7 * MB


def test_outputs_of_unknown_size_are_gathered_where_their_writers_read_the_same() -> None:
    """Eight tasks read 10 GB that lie on the second node, and one task reads what they write: all of them run there."""
    on = Scene(node("n0", cpu=8), node("n1", cpu=8))
    index = stage("index", outputs=[{"name": "o", "path": "o"}], resources={"cpu": 8})
    align = stage("align", 8, inputs=[{"name": "i", "from": "index.o"}], outputs=[{"name": "o", "path": "o"}])
    merge = stage("merge", inputs=[{"name": "i", "from": "align.o"}])
    on.submit("other", stage("x", resources={"cpu": 8}))
    busy = on.pods["fs-other-x-0-0"].node
    on.submit("w", index, align, merge)
    there = on.pods["fs-w-index-0-0"].node
    assert there != busy
    on.start("fs-w-index-0-0")
    on.end("fs-w-index-0-0", size=10_000 * MB, after=1_000)
    assert {on.pods[f"fs-w-align-{shard}-0"].node for shard in range(8)} == {there}
    assert set(on.state.data.homes.values()) == {on.state.cluster.snapshot.index[there]}


def test_a_wait_for_a_full_node_is_looked_at_again_when_it_should_have_ended() -> None:
    """It is expected to have room in 5 s, a copy takes longer; what runs there goes on, and goes on: then the copy is better."""
    on = Scene(node("n0", cpu=1), node("n1", cpu=1))
    reads = [{"name": "i", "uri": "s3://lab/x", "size": 4_000 * MB}]
    on.submit("v", stage("a", inputs=reads, estimate={"runtime": "5s"}))
    (order,) = on.last.transfers
    on.arrive(order)
    on.start("fs-v-a-0-0")
    on.submit("w", stage("b", inputs=reads, estimate={"runtime": "5s"}))
    assert on.last.transfers == []
    moments = []
    while not on.last.transfers and on.last.wake_ms is not None and len(moments) < 20:
        on.now = on.last.wake_ms
        moments.append(on.now)
        on.tell()
    assert 2 <= len(moments) < 20
    assert on.last.transfers[0].dest == ({"n0", "n1"} - {order.dest}).pop()


def test_a_word_that_is_wrong_beyond_all_measure_is_bounded() -> None:
    """A millisecond was said of ten hours, and ten years of the next: moments still fit 64 bits, and the step goes on."""
    on = Scene(node(cpu=1))
    on.submit(
        "w",
        stage("a", 5, estimate={"runtime": "1ms"}),
        stage("b", needs=["a"], estimate={"runtime": "3650d"}),
    )
    for task in range(5):
        on.start(f"fs-w-a-{task}-0")
        ends(on, f"fs-w-a-{task}-0", 36_000_000)
    assert on.launched == ["fs-w-b-0-0"]
    assert runtime(on, "w", 1) == 1 << 36


def test_a_task_that_nobody_disturbed_takes_what_it_took() -> None:
    """It asks for eight cores, uses one, and waits for a network: no time of others is taken off, however little it computes."""
    on = Scene(node(cpu=8, disk_rate=100 * MB))
    on.submit("w", stage("a", 4, resources={"cpu": 8}))
    for task, took in enumerate((600_000, 900_000, 1_000_000)):
        on.start(f"fs-w-a-{task}-0")
        ends(on, f"fs-w-a-{task}-0", took, MB, cpu_ms=1_000)
    assert runtime(on, "w") == 900_000


def test_a_task_that_waits_for_a_copy_is_placed_again_when_runtimes_prove_short() -> None:
    """Both read 1 GB on the first node, which has room for one. The document says 1,000 s, so the second has it copied. The first
    takes a second: the other runs there at once, and not when the copy has come.
    """
    link = {"nic_in_rate": 100 * MB, "nic_out_rate": 100 * MB}
    scene = Scene(node("n0", **link), node("n1", **link))
    first = {"name": "a", "command": ["x"], "resources": {"cpu": 4}, "outputs": [{"name": "o", "path": "o"}]}
    second = {
        "name": "b", "command": ["x"], "resources": {"cpu": 4}, "scatter": {"count": 2}, "estimate": {"runtime": "1000s"},
        "inputs": [{"name": "i", "from": "a.o", "match": "all"}],
    }  # fmt: skip
    scene.submit("w", first, second)
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", size=1_000 * MB)
    assert scene.launched == ["fs-w-b-0-0"]
    assert [order.dest for order in scene.last.transfers] == ["n1"]
    scene.start("fs-w-b-0-0")
    scene.end("fs-w-b-0-0", after=1_000)
    assert scene.launched == ["fs-w-b-1-0"]
    assert scene.pods["fs-w-b-1-0"].node == "n0"
