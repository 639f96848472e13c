"""What tasks read from a disk of 100 MB/s where memory holds 300 MB, and what they share of it, in seconds written out."""

from __future__ import annotations

import pytest

from flowsched.simulation.reading import Running
from flowsched.simulation.world import World
from flowsched.values import replace
from tests.simulation.made_up import Told, made
from tests.simulation.small import CLUSTER, MB

FIVE = "abcde"
SMALL_MEMORY = replace(CLUSTER, nodes=tuple(replace(node, cache=300 * MB) for node in CLUSTER.nodes))


def world(held: str = "") -> World:
    """Five files of 100 MB lie on n0; its memory holds some, the last of `held` used last. Two tasks read them all."""
    tasks = {f"read_{at}": Told(FIVE, [f"out{at}"]) for at in range(2)}
    files = dict.fromkeys(FIVE, 100 * MB) | {"out0": MB, "out1": MB}
    cluster = World(SMALL_MEMORY, [made(SMALL_MEMORY, tasks, files)])
    number = {file.name: at for at, file in enumerate(cluster.workloads[0].files)}
    for name in FIVE:
        cluster.at[0, number[name]].add(0)
    for name in held:
        cluster.caches[0].touch((0, number[name]), 100 * MB)
    return cluster


def reader(cluster: World, task: int, start: float) -> Running:
    """Let one of the tasks start at a moment."""
    running = Running(0, task, 0, ready=0.0, start=start)
    cluster.later(start, lambda: cluster.run(running))
    return running


def began(cluster: World) -> dict[str, float]:
    """When each task that succeeded began to compute."""
    cluster.proceed(1000)
    return {line["task"]: line["run_start"] for line in cluster.lines if line.get("outcome") == "succeeded"}


def test_a_task_reads_only_what_memory_does_not_hold_as_it_goes_through_its_files() -> None:
    """Memory holds a, b and c, a used last: d and e are read from the disk, 200 MB in 2 s."""
    cluster = world(held="cba")
    running = reader(cluster, 0, 0.0)
    assert began(cluster) == pytest.approx({"read_0": 2.0})
    assert running.disk_bytes == 201 * MB


def test_what_is_read_first_pushes_out_what_would_be_read_last() -> None:
    """Memory holds c, d and e: a pushes out c, b pushes out d, and so on; all five are read, in 5 s."""
    cluster = world(held="cde")
    reader(cluster, 0, 0.0)
    assert began(cluster) == pytest.approx({"read_0": 5.0})


def test_two_who_read_side_by_side_read_once_what_memory_cannot_hold() -> None:
    """500 MB are read once, in 5 s, for both."""
    cluster = world()
    first, second = reader(cluster, 0, 0.0), reader(cluster, 1, 0.0)
    assert began(cluster) == pytest.approx({"read_0": 5.0, "read_1": 5.0})
    assert [first.disk_bytes, second.disk_bytes] == [501 * MB, MB]


def test_who_is_a_little_ahead_waits_for_the_other() -> None:
    """The second comes after 0.1 s and reads the 10 MB it has missed by 5.1 s; both compute then, not one at 5.0 and one at 9.2."""
    cluster = world()
    reader(cluster, 0, 0.0)
    second = reader(cluster, 1, 0.1)
    assert began(cluster) == pytest.approx({"read_0": 5.1, "read_1": 5.1})
    assert second.disk_bytes == pytest.approx(11 * MB, abs=10)


def test_who_is_far_behind_is_not_waited_for_and_reads_all_for_himself() -> None:
    """The second comes after 4 s: the first computes at 5.0. The second then reads the 400 MB it had missed in 4 s; what it got
    along with the first has left memory, so it reads those 100 MB as well, in 1 s. 10 ms go to the output of the first.
    """
    cluster = world()
    reader(cluster, 0, 0.0)
    second = reader(cluster, 1, 4.0)
    assert began(cluster) == pytest.approx({"read_0": 5.0, "read_1": 10.01})
    assert second.disk_bytes == pytest.approx(501 * MB, abs=10)


def test_nobody_waits_for_an_attempt_that_is_lost() -> None:
    """The second, 0.1 s behind, is taken away at 5.05 s: the first computes at once."""
    cluster = world()
    reader(cluster, 0, 0.0)
    second = reader(cluster, 1, 0.1)
    cluster.later(5.05, lambda: cluster.lose(second, "evicted"))
    assert began(cluster) == pytest.approx({"read_0": 5.05})


def test_a_failed_node_reads_nothing_any_more() -> None:
    """n0 fails at 1 s with both on it: nothing is left to happen, and no core is taken."""
    cluster = world()
    lost = [reader(cluster, 0, 0.0), reader(cluster, 1, 0.5)]

    def fail() -> None:
        cluster.fail(0)
        for running in lost:
            cluster.lose(running, "lost")

    cluster.later(1.0, fail)
    assert began(cluster) == {}
    assert cluster.next_moment() is None
    assert cluster.free == [4, 4, 4]
