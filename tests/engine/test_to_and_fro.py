"""Taking back over hours of a virtual clock: shares come to what was agreed, and nothing goes to and fro."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.virtual.drive import Drive, Fate
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import Step
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.workflow.document.decode import check_workflow

HOUR = 3_600_000


class Watched:
    """A cluster of 16 cores, two queues, and a count of who was taken away and who holds what."""

    def __init__(self, *queues: Queue, runtime_ms: int) -> None:
        state = EngineState(policy=PolicyState(queues=QueueTree(queues)))
        nodes = [NodeInfo(f"n{i}", 4_000, 64 << 30) for i in range(4)]
        self.evicted: Counter[str] = Counter()
        self.drive = Drive(state, nodes, fate=lambda _: Fate(runtime_ms), observe=self.observe)

    def observe(self, state: EngineState, step: Step, events: Any, now: int) -> None:
        self.evicted += Counter(row.body["reason"] for row in step.delta.events if row.kind == "task.evicted")

    def submit(
        self, name: str, queue: str, count: int, at: int = 0, priority: int = 0, gang: int = 0
    ) -> None:
        resources = {"cpu": 1, "memory": "1Mi"}
        work: dict[str, Any] = {
            "name": "s",
            "scatter": {"count": count},
            "command": ["x"],
            "resources": resources,
        }
        if gang:
            role = {"replicas": gang, "command": ["x"], "resources": resources}
            work = {"name": "s", "scatter": {"count": count}, "gang": True, "roles": {"worker": role}}
        document = {"name": name, "queue": queue, "priority": priority, "stages": [work]}
        self.drive.submit(name, check_workflow(document), at=at)

    def cores(self, queue: str) -> int:
        return self.drive.state.cluster.snapshot.queue_usage(queue)[0] // 1000


def test_a_queue_gets_its_share_back_once_and_keeps_it() -> None:
    """A has all 16 cores for an hour a task; b, of three times its weight, gets 12, and for half an hour nothing moves any more."""
    world = Watched(Queue("a", weight=1), Queue("b", weight=3), runtime_ms=HOUR)
    world.submit("first", "a", 40)
    world.submit("second", "b", 40, at=60_000)
    world.drive.run(until=120_000)
    assert (world.cores("a"), world.cores("b")) == (4, 12)
    assert world.evicted == {"Reclaimed": 12}
    world.drive.run(until=1_800_000)
    assert (world.cores("a"), world.cores("b")) == (4, 12)
    assert world.evicted == {"Reclaimed": 12}


def test_gangs_that_do_not_divide_a_share_do_not_chase_each_other() -> None:
    """Of equal queues one runs gangs of five, the other single tasks: one gang fits its half, and the other five cores stay."""
    world = Watched(Queue("a", weight=1, guarantee=(1000,)), Queue("b", weight=1), runtime_ms=HOUR)
    world.submit("first", "a", 40)
    world.submit("second", "b", 6, at=60_000, gang=5)
    world.drive.run(until=1_800_000)
    assert (world.cores("a"), world.cores("b")) == (11, 5)
    assert world.evicted == {"Reclaimed": 5}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "other"]),
            st.integers(1, 25),
            st.integers(0, 2),
            st.sampled_from([0, 0, 3, 5]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(1, 3),
)
def test_everything_ends_and_nobody_is_taken_away_without_end(
    jobs: list[tuple[str, int, int, int]], weight: int
) -> None:
    """Whatever comes to three queues: all of it succeeds, and each workflow that comes costs every core one eviction at most."""
    world = Watched(Queue("a", weight=weight), Queue("b", guarantee=(6000,)), runtime_ms=300_000)
    for number, (queue, count, priority, gang) in enumerate(jobs):
        world.submit(f"w{number}", queue, min(count, 4) if gang else count, number * 60_000, priority, gang)
    world.drive.run(max_steps=5_000)
    assert {run.state.value for run in world.drive.ended.values()} == {"SUCCEEDED"}
    assert len(world.drive.ended) == len(jobs)
    assert world.evicted.total() <= 16 * len(jobs)
