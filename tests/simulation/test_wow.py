"""What our WOW starts where, and for whom it copies what: nodes of four cores, links of 100 MB/s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.rivals.wow import Wow
from tests.simulation.made_up import Told, made
from tests.simulation.small import CLUSTER, MB


def lived(tasks: Mapping[str, Told], files: Mapping[str, int]) -> list[dict[str, Any]]:
    """The trace of these tasks."""
    return Wow(CLUSTER, [made(CLUSTER, tasks, files)]).run().lines


def copies(lines: list[dict[str, Any]]) -> list[tuple[str, str, str, float]]:
    """(for whom, what, to where, from when on) of copies between nodes, the first first."""
    told = [
        (line["for"], line["transfer"], line["to"], round(line["start"], 3))
        for line in lines
        if line.get("kind") == "stage"
    ]
    return sorted(told, key=lambda copy: copy[3])


def test_a_task_waits_for_its_data_without_any_cores() -> None:
    """Both halves take a whole node each, so one is copied: 100 MB in 1 s, and `join` starts when they are there."""
    tasks = {
        "half_0": Told(writes=["a"], cores=4),
        "half_1": Told(writes=["b"], cores=4),
        "join_0": Told(["a", "b"], ["c"]),
    }
    lines = lived(tasks, {"a": 100 * MB, "b": 100 * MB, "c": MB})
    start = next(line["start"] for line in lines if line.get("task") == "join_0")
    # computed by 1 s, written by 2 s, copied by 3 s
    assert round(start, 3) == 3.0
    assert copies(lines)[0][0] == "join_0"


def test_who_can_start_nowhere_is_copied_for_before_who_can_start_somewhere() -> None:
    """At 3.5 s `near_1` may start on n0, which `near_0` keeps, and misses 50 MB elsewhere; `far` misses 200 MB at least. `far` gets
    the node that both would take first, n1.
    """
    tasks = {
        "one_0": Told(writes=["a", "tiny"], cores=4, seconds=2.99),
        "two_0": Told(writes=["b"], cores=4),
        "three_0": Told(writes=["c"], cores=4),
        "near_0": Told(["a"], ["d"], cores=4, seconds=30),
        "near_1": Told(["a"], ["e"], cores=4, seconds=30),
        "far_0": Told(["b", "c", "tiny"], ["f"], cores=4),
    }
    files = {"a": 50 * MB, "tiny": MB, "b": 200 * MB, "c": 200 * MB, "d": MB, "e": MB, "f": MB}
    began = {(task, node) for task, _, node, moment in copies(lived(tasks, files)) if moment == 3.5}
    assert began == {("far_0", "n1"), ("near_1", "n2")}


def test_a_copy_job_takes_one_file_at_a_time_from_each_holder() -> None:
    """Two holders of two files each: two are under way at once, and those that are read last come first."""
    tasks = {
        "half_0": Told(writes=["a", "b"], cores=4),
        "half_1": Told(writes=["c", "d"], cores=4),
        "third_0": Told(writes=["x"], cores=4),
        "join_0": Told("abcd", ["e"], cores=4),
        "keep_0": Told(["a"], ["f"], cores=4, seconds=100),
        "keep_1": Told(["c"], ["g"], cores=4, seconds=100),
    }
    files = dict.fromkeys("abcd", 100 * MB) | dict.fromkeys("xefg", MB)
    told = [copy for copy in copies(lived(tasks, files)) if copy[0] == "join_0" and copy[2] == "n2"]
    assert [(what, when) for _, what, _, when in sorted(told, key=lambda copy: (copy[3], copy[1]))] == [
        ("b", 3.0), ("d", 3.0), ("a", 5.0), ("c", 5.0),
    ]  # fmt: skip


def test_a_wide_task_of_high_rank_goes_before_narrow_ones_of_low_rank() -> None:
    """Four narrow finals would count more than the one wide task that three others wait for; it goes first all the same."""
    tasks = {f"narrow_{at}": Told(writes=[f"n{at}"], seconds=10) for at in range(12)}
    tasks |= {f"wide_{at}": Told(writes=[f"w{at}"], cores=4, seconds=10) for at in range(3)}
    tasks["after_0"] = Told(["w0", "w1", "w2"], ["z"])
    files = {file: MB for told in tasks.values() for file in told.writes}
    lines = lived(tasks, files)
    at_once = sorted(line["task"] for line in lines if "task" in line and line["start"] == 0)
    assert at_once == ["wide_0", "wide_1", "wide_2"]


def test_of_equal_rank_more_narrow_tasks_go_before_fewer_wide_ones() -> None:
    """Room for twelve cores: twelve tasks of one core, though the wide ones read more."""
    tasks = {f"wide_{at}": Told(["big"], [f"w{at}"], cores=4, seconds=10) for at in range(3)}
    tasks |= {f"narrow_{at}": Told(writes=[f"n{at}"], seconds=10) for at in range(12)}
    files = {file: MB for told in tasks.values() for file in told.writes} | {"big": 100 * MB}
    lines = lived(tasks, files)
    at_once = {line["task"].split("_")[0] for line in lines if "task" in line and line["start"] == 0}
    assert at_once == {"narrow"}


def test_a_task_has_two_targets_at_most() -> None:
    """`join` misses something everywhere, and something happens every 0.3 s while it waits: two nodes get it, not three."""
    tasks = {f"part_{at}": Told(writes=[f"p{at}"], cores=4) for at in range(3)}
    tasks["join_0"] = Told(["p0", "p1", "p2"], ["z"])
    tasks["tick_0"] = Told(["p0"], ["t0"], seconds=0.3)
    tasks |= {f"tick_{at}": Told([f"t{at - 1}"], [f"t{at}"], seconds=0.3) for at in range(1, 9)}
    files = {file: 1000 for told in tasks.values() for file in told.writes}
    files |= {f"p{at}": 100 * MB for at in range(3)}
    targets = {node for task, _, node, _ in copies(lived(tasks, files)) if task == "join_0"}
    assert targets == {"n0", "n1"}


def test_a_node_is_the_target_of_one_copy_job_at_a_time() -> None:
    """Ten tasks want what others' nodes hold: at no moment does a node get files for two of them."""
    tasks = {"make_0": Told(writes=["a"])} | {
        f"use_{at}": Told(["a", f"own{at}"], [f"o{at}"], cores=2, seconds=20) for at in range(10)
    }
    tasks["more_0"] = Told(writes=[f"own{at}" for at in range(10)])
    files = {file: 50 * MB for told in tasks.values() for file in told.writes}
    lines = [line for line in lived(tasks, files) if line.get("kind") == "stage"]
    assert len(lines) > 10
    for moment in {line["start"] for line in lines}:
        now = [line for line in lines if line["start"] <= moment < line["end"]]
        for node in ("n0", "n1", "n2"):
            assert len({line["for"] for line in now if line["to"] == node}) <= 1
