"""What the simulated cluster does with bytes and tasks, in seconds written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.simulation.reading import Afterwards, PageCache, Running
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, World
from flowsched.values import replace
from tests.simulation.small import CLUSTER, MB, workload

#: Numbers of the files and jobs of the small workflow, by name.
SMALL = workload()
FILE = {file.name: number for number, file in enumerate(SMALL.files)}
JOB = {job.name: number for number, job in enumerate(SMALL.jobs)}


def world(startup: float = 0.0, work: Workload = SMALL) -> World:
    """An idle cluster: disks, links and the storage's links carry 100 MB/s, the storage's disk 200 MB/s."""
    return World(replace(CLUSTER, startup=startup), [work])


def copied(cluster: World, name: str, source: int, dest: int, kind: str = "stage") -> list[float]:
    """Begin a copy; the list gets the moment at which it ends."""
    ended: list[float] = []
    cluster.copy((0, FILE[name]), source, dest, kind, lambda: ended.append(cluster.now))
    return ended


def test_a_copy_from_the_storage_takes_its_bytes_over_the_link() -> None:
    """300 MB over a link of 100 MB/s: three seconds."""
    cluster = world()
    ended = copied(cluster, "reference", STORAGE, 0)
    cluster.proceed(10)
    assert ended == pytest.approx([3.0])
    assert cluster.at[0, FILE["reference"]] == {STORAGE, 0}


def test_two_nodes_share_the_link_of_the_storage() -> None:
    """Two times 300 MB leave the storage at 50 MB/s each."""
    cluster = world()
    first, second = copied(cluster, "reference", STORAGE, 0), copied(cluster, "reference", STORAGE, 1)
    cluster.proceed(10)
    assert first + second == pytest.approx([6.0, 6.0])


def test_a_peer_with_the_file_in_memory_spares_its_disk() -> None:
    """While n0's disk is half taken, a copy of what its memory holds goes at the full 100 MB/s; one from its disk at 50."""
    for cached, took in ((True, 3.0), (False, 6.0)):
        cluster = world()
        copied(cluster, "reference", STORAGE, 0)
        cluster.proceed(4)
        if not cached:
            cluster.caches[0] = PageCache(0)
        cluster.flow(10_000 * MB, (0,), lambda: None)  # somebody reads n0's disk all the time
        ended = copied(cluster, "reference", 0, 1)
        cluster.proceed(20)
        assert ended == pytest.approx([4.0 + took])


def test_a_direct_read_leaves_nothing_behind() -> None:
    """A read that is not kept takes the link's time, and the node does not hold the file afterwards."""
    cluster = world()
    ended = copied(cluster, "reference", STORAGE, 0, kind="read")
    cluster.proceed(10)
    assert ended == pytest.approx([3.0])
    assert cluster.at[0, FILE["reference"]] == {STORAGE}


def run(cluster: World, job: str, **how: object) -> dict[str, float]:
    """Run one job on n0 from now on. Returns its line in the trace."""
    running = Running(0, JOB[job], 0, ready=0.0, start=cluster.now, **how)  # type: ignore[arg-type]
    cluster.run(running)
    cluster.proceed(cluster.now + 1000)
    return next(line for line in cluster.lines if line.get("task") == job)


def test_a_task_starts_fetches_computes_and_writes() -> None:
    """Align_0 after 2 s of start-up: 300 + 20 MB over one link 3.2 s, 20 s of work, 30 MB to the disk 0.3 s."""
    cluster = world(startup=2.0)
    fetch = tuple((number, STORAGE) for number in SMALL.jobs[JOB["align_0"]].inputs)
    line = run(cluster, "align_0", fetch=fetch)
    assert [line["start"], line["run_start"], line["run_end"], line["end"]] == pytest.approx(
        [0, 5.2, 25.2, 25.5]
    )
    assert cluster.free == [4, 4, 4]
    assert cluster.at[0, FILE["bam0"]] == {0}


def test_a_task_on_mounted_storage_reads_and_writes_there() -> None:
    """Everything shared: the same bytes in, and the output over the link to the storage, not to the disk."""
    cluster = world()
    line = run(cluster, "align_0", shared=True)
    assert [line["run_start"], line["run_end"], line["end"]] == pytest.approx([3.2, 23.2, 23.5])
    assert cluster.at[0, FILE["bam0"]] == {STORAGE}


def test_what_only_one_task_reads_is_not_kept() -> None:
    """On mounted storage the reference, which ten tasks read, stays on the node; the reads of one sample do not."""
    cluster = world()
    run(cluster, "align_0", shared=True)
    kinds = {line["transfer"]: line["kind"] for line in cluster.lines if "transfer" in line}
    assert kinds == {"reference": "stage", "reads0": "read", "bam0": "upload"}


def test_neighbours_share_one_read_of_the_storage() -> None:
    """Three tasks of one node want the reference at once: it leaves the storage once."""
    cluster = world()
    for number in range(2):
        cluster.run(Running(0, JOB[f"align_{number}"], 0, ready=0.0, start=0.0, shared=True))
    cluster.proceed(1000)
    assert [line["transfer"] for line in cluster.lines if line.get("transfer") == "reference"] == [
        "reference"
    ]


def test_an_output_that_is_uploaded_by_its_task_holds_the_cores() -> None:
    """report_0 writes 5 MB straight to the storage; until they are there, its core is taken."""
    cluster = world()
    for name in ("merged",):
        cluster.at[0, FILE[name]].add(0)
    line = run(cluster, "report_0", straight=frozenset({FILE["report0"]}))
    # 80 MB from the disk, 5 s of work, 5 MB over the link
    assert [line["run_start"], line["run_end"], line["end"]] == pytest.approx([0.8, 5.8, 5.85])
    assert cluster.at[0, FILE["report0"]] == {STORAGE}


def test_two_who_read_a_cold_file_read_it_once() -> None:
    """Both reports start on n0 with `merged` on the disk: 80 MB are read once, in 0.8 s, and both compute then."""
    cluster = world()
    cluster.at[0, FILE["merged"]].add(0)
    for number in range(2):
        cluster.run(Running(0, JOB[f"report_{number}"], 0, ready=0.0, start=0.0))
    cluster.proceed(1000)
    assert [line["run_start"] for line in cluster.lines if "task" in line] == pytest.approx([0.8, 0.8])


def test_who_joins_a_read_reads_what_it_has_missed_as_well() -> None:
    """80 MB at 100 MB/s: the one who comes 0.5 s later shares the last 0.3 s and reads the first 50 MB for 0.5 s more."""
    cluster = world()
    cluster.at[0, FILE["merged"]].add(0)
    first = Running(0, JOB["report_0"], 0, ready=0.0, start=0.0)
    cluster.run(first)
    second = Running(0, JOB["report_1"], 0, ready=0.0, start=0.5)
    cluster.later(0.5, lambda: cluster.run(second))
    cluster.proceed(1000)
    began = {line["task"]: line["run_start"] for line in cluster.lines if "task" in line}
    assert began == pytest.approx({"report_0": 0.8, "report_1": 1.3})
    # The file and 5 MB of output; of the file what it had missed, and 7 MB.
    assert [first.disk_bytes, second.disk_bytes] == pytest.approx([85 * MB, 57 * MB])


def test_who_comes_later_reads_for_himself_what_memory_cannot_hold() -> None:
    """The file of 80 MB in a memory of 50: from 0.5 s on both read with half the disk, the second alone from 1.1 s on."""
    small = replace(CLUSTER, nodes=tuple(replace(node, cache=50 * MB) for node in CLUSTER.nodes))
    cluster = World(replace(small, startup=0.0), [SMALL])
    cluster.at[0, FILE["merged"]].add(0)
    cluster.run(Running(0, JOB["report_0"], 0, ready=0.0, start=0.0))
    second = Running(0, JOB["report_1"], 0, ready=0.0, start=0.5)
    cluster.later(0.5, lambda: cluster.run(second))
    cluster.proceed(1000)
    began = {line["task"]: line["run_start"] for line in cluster.lines if "task" in line}
    assert began == pytest.approx({"report_0": 1.1, "report_1": 1.6})
    assert second.disk_bytes >= 80 * MB


def test_what_is_pushed_out_of_memory_while_the_rest_is_read_is_read_from_disk() -> None:
    """The reference of 300 MB was in memory when 20 MB of reads began, and is not when they end: 0.2 s and 3 s."""
    cluster = world()
    for name in ("reference", "reads0"):
        cluster.at[0, FILE[name]].add(0)
    cluster.caches[0].touch((0, FILE["reference"]), 300 * MB)
    cluster.later(0.1, lambda: cluster.caches[0].forget((0, FILE["reference"])))
    assert run(cluster, "align_0")["run_start"] == pytest.approx(3.2)


def test_a_lost_attempt_gives_its_cores_back_and_nothing_else() -> None:
    """Taken away at 10 s: the cores are free, no output exists, and the line says what came of it."""
    cluster = world()
    running = Running(0, JOB["align_0"], 0, ready=0.0, start=0.0, shared=True)
    cluster.run(running)
    cluster.proceed(10)
    cluster.lose(running, "evicted")
    cluster.proceed(1000)
    assert cluster.free == [4, 4, 4]
    assert cluster.at[0, FILE["bam0"]] == set()
    assert [line["outcome"] for line in cluster.lines if "task" in line] == ["evicted"]


def test_the_page_cache_forgets_what_was_used_longest_ago() -> None:
    """Of 100 bytes: a (40) and b (40) are in, a is read again, c (30) comes: b goes."""
    cache = PageCache(100)
    a, b, c = (0, 1), (0, 2), (0, 3)
    cache.touch(a, 40)
    cache.touch(b, 40)
    cache.touch(a, 40)
    cache.touch(c, 30)
    assert [file in cache for file in (a, b, c)] == [True, False, True]
    assert cache.used == 70


#: Numbers of files that are used, in turn; file n has 9 n bytes.
USES = st.lists(st.integers(1, 12), max_size=30)


@given(USES, USES)
def test_what_memory_will_hold_is_what_it_holds_after_the_uses(before: list[int], later: list[int]) -> None:
    """Of 100 bytes: the same files in the same order, the largest too large for it, and nothing has changed until then."""
    cache, other = PageCache(100), PageCache(100)
    for number in before:
        cache.touch((0, number), 9 * number)
        other.touch((0, number), 9 * number)
    held = list(cache.oldest())
    after = Afterwards(cache)
    for number in later:
        assert ((0, number) in after) == ((0, number) in other)
        after.touch((0, number), 9 * number)
        other.touch((0, number), 9 * number)
    assert list(cache.oldest()) == held
    after.keep()
    assert (list(cache.oldest()), cache.used) == (list(other.oldest()), other.used)


def test_the_page_cache_does_not_hold_what_is_larger_than_itself() -> None:
    """101 of 100 bytes: not held, and nothing goes for it."""
    cache = PageCache(100)
    cache.touch((0, 1), 40)
    cache.touch((0, 2), 101)
    assert (0, 1) in cache
    assert (0, 2) not in cache
