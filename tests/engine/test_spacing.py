"""Starts that are spaced out, where a node's disk is what tasks wait for."""

from __future__ import annotations

from typing import Any

from flowsched.engine.events import Tick
from flowsched.engine.explain import explain
from flowsched.executor.nodes import NodeInfo
from tests.engine.scene import Scene, node

MB = 1_000_000


def disk(name: str = "n0", rate: int = 100 * MB, cpu: int = 4) -> NodeInfo:
    """Four cores and a disk of 100 MB/s."""
    return node(name, cpu, disk_rate=rate)


def writer(name: str = "write", width: int = 4, runtime: str = "10s", size: int = 500 * MB) -> dict[str, Any]:
    """Tasks of one core that run 10 s and write 500 MB: four of them keep a disk busy for 20 s."""
    return {
        "name": name, "scatter": {"count": width}, "command": ["x"], "estimate": {"runtime": runtime},
        "io": {"write": size},
    }  # fmt: skip


def ticks(on: Scene, moments: list[int]) -> list[list[str]]:
    """What is launched at each of these moments (ms)."""
    told = []
    for moment in moments:
        on.now = moment
        on.tell(Tick())
        told.append(on.launched)
    return told


def test_one_starts_at_a_time_as_fast_as_the_disk_takes_their_bytes() -> None:
    """500 MB take 5 s: at 1, 6, 11 and 16 s. A look in between starts nobody, and who waits is told when he may."""
    on = Scene(disk())
    on.submit("w", writer())
    assert on.launched == ["fs-w-write-0-0"]
    assert on.last.wake_ms == 6_000
    told = [(reason.code, reason.message) for reason in explain(on.state, on.runs["w"], on.now)]
    assert told[:1] == [
        ("IoBudget", "the disk is what tasks like it wait for: one starts at a time, the next in 5 s")
    ]
    assert ticks(on, [3_000, 6_000, 11_000, 16_000]) == [
        [], ["fs-w-write-1-0"], ["fs-w-write-2-0"], ["fs-w-write-3-0"],
    ]  # fmt: skip
    on.end(*on.pods)
    on.nothing_left()


def test_shards_with_inputs_of_their_own_are_spaced_out_too() -> None:
    """Each is a group by itself, and all are looked at in one step."""
    on = Scene(disk())
    inputs = [{"name": "i", "uri": "s3://lab/{index}", "size": 1000}]
    on.submit("w", {**writer(width=3), "inputs": inputs})
    on.tell(*(on.arrival(order) for order in on.last.transfers))
    assert on.launched == ["fs-w-write-0-0"]
    assert ticks(on, [5_999, 6_000]) == [[], ["fs-w-write-1-0"]]


def test_every_node_has_its_own_disk() -> None:
    """Two nodes: two at once, then two more."""
    on = Scene(disk("n0"), disk("n1"))
    on.submit("w", writer())
    assert sorted(pod.node for pod in on.last.launches) == ["n0", "n1"]
    assert [len(each) for each in ticks(on, [6_000])] == [2]


def test_a_disk_that_nobody_waits_for_takes_all_at_once() -> None:
    """The first node's is a hundred times as fast: four start there and one on the other, whose disk says when the next may."""
    on = Scene(disk("n0", 10_000 * MB), disk("n1"))
    on.submit("w", writer(width=6))
    assert sorted(pod.node for pod in on.last.launches) == ["n0"] * 4 + ["n1"]
    assert on.last.wake_ms == 6_000


def test_the_next_starts_where_the_disk_is_free_first() -> None:
    """After 5 s on one node, after 10 s on the other."""
    on = Scene(disk("n0"), disk("n1", 50 * MB))
    on.submit("w", writer(width=6))
    assert len(on.launched) == 2
    assert on.last.wake_ms == 6_000


def test_tasks_that_compute_for_longer_start_at_once() -> None:
    """A minute each, of which all four write 20 s: the disk is no hurry. Nor is it if nobody knows how fast it is."""
    on = Scene(disk())
    on.submit("w", writer(runtime="60s"))
    assert len(on.launched) == 4
    unknown = Scene(disk(rate=0))
    unknown.submit("w", writer())
    assert len(unknown.launched) == 4


def test_cores_that_others_could_use_do_not_wait() -> None:
    """Somebody waits who writes nothing: all start as they find room, since a core that waits for a disk is lost for him.

    One of whom nothing is known does not count: he may write as well.
    """
    compute = {"name": "compute", "command": ["x"], "resources": {"cpu": 2}}
    for known, launched in ((True, 2), (False, 1)):
        on = Scene(disk())
        stage = compute | {"estimate": {"runtime": "5s"}} if known else compute
        on.tell(on.accepted("v", stage), on.accepted("w", writer()))
        assert on.launched == ["fs-v-compute-0-0", "fs-w-write-0-0", "fs-w-write-1-0"][: 1 + launched]


def test_gangs_start_whole() -> None:
    """Members of a gang that writes as much are not kept apart."""
    on = Scene(disk())
    ring = {"worker": {"replicas": 4, "command": ["x"], "io": {"write": 500 * MB}}}
    on.submit("w", {"name": "g", "gang": True, "roles": ring, "estimate": {"runtime": "10s"}})
    assert len(on.launched) == 4


def test_of_tasks_that_are_alike_only_the_short_ones_wait_for_the_disk() -> None:
    """The same bytes in 60 s and in 10 s: a node full of the first is not held up by its disk, one full of the second is.

    No task has shown that the first take 60 s. They move as much as the others, so these wait all the same.
    """
    on = Scene(disk(cpu=8))
    on.tell(
        on.accepted("v", writer("slow", width=2, runtime="60s")), on.accepted("w", writer("fast", width=2))
    )
    assert sorted(on.launched) == ["fs-v-slow-0-0", "fs-v-slow-1-0", "fs-w-fast-0-0"]


def test_more_tasks_than_find_room_start_one_at_a_time_until_one_has_ended() -> None:
    """They declare 1,000 s, a hundred times what they take: whatever they compute, those that start together write together."""
    on = Scene(disk())
    on.submit("w", writer(width=4, runtime="1000s"))
    assert len(on.launched) == 4  # all find room at once
    on = Scene(disk())
    on.submit("w", writer(width=5, runtime="1000s"))
    assert on.launched == ["fs-w-write-0-0"]
    assert on.last.wake_ms == 6_000


def test_tasks_that_a_slow_disk_would_hold_back_for_long_start_at_once() -> None:
    """Each writes for 50 s, so spacing four out would take a fifth of the 1,000 s that they declare: too much if that is right."""
    on = Scene(disk())
    on.submit("w", writer(width=5, runtime="1000s", size=5_000 * MB))
    assert len(on.launched) == 4


def test_tasks_that_read_the_same_from_the_disk_start_together() -> None:
    """Two stages read the same 500 MB: the node's memory serves both. One that reads another file waits for its turn."""
    on = Scene(disk())
    read = {"command": ["x"], "io": {"read": 500 * MB}, "estimate": {"runtime": "10s"}}
    on.submit(
        "w",
        *(
            {"name": name, **read, "inputs": [{"name": "i", "uri": f"s3://lab/{file}", "size": 500 * MB}]}
            for name, file in (("a", "x"), ("b", "x"), ("c", "y"))
        ),
    )
    launched = on.launched
    while on.last.transfers:
        on.tell(*(on.arrival(order) for order in on.last.transfers))
        launched += on.launched
    assert sorted(launched) == ["fs-w-a-0-0", "fs-w-b-0-0"]
