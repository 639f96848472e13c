"""`flowsched simulate --policy FILE` with a profile that limits the users of a queue, or gives their tasks a timeout."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation.policies import simulated
from flowsched.simulation.world import World
from flowsched.values import replace
from tests.simulation.small import CLUSTER, workload


def under(**limits: int) -> World:
    """Two workflows without a user, of tasks of two cores and of one, on twelve cores, where queue `default` has these limits."""
    flowsched = PROFILES["flowsched"]
    profile = replace(flowsched, queues={"default": replace(flowsched, **limits)})
    return simulated(profile, CLUSTER, [workload("one"), workload("two")])


def most(world: World, weight: str = "") -> float:
    """The most tasks that ran at once; with `weight` "cores" the most cores that they had."""
    lines: list[dict[str, Any]] = [line for line in world.lines if "task" in line]
    steps = [(line["start"], line[weight] if weight else 1) for line in lines]
    steps += [(line["end"], -line[weight] if weight else -1) for line in lines]
    held = peak = 0.0
    for _, change in sorted(steps):
        held += change
        peak = max(peak, held)
    return peak


def test_without_limits_they_use_all_cores() -> None:
    world = under()
    assert (most(world, "cores"), world.unfinished) == (12, [])


@pytest.mark.parametrize(
    ("limit", "weight", "peak"),
    [({"max_cores_per_user": 3}, "cores", 3), ({"max_tasks_per_user": 2}, "", 2)],
)
def test_one_user_has_no_more_than_its_limit(limit: dict[str, int], weight: str, peak: int) -> None:
    """Both workflows are of one user, and both come to their end."""
    world = under(**limit)
    assert (most(world, weight), world.unfinished) == (peak, [])


def test_a_task_that_is_larger_than_the_limit_never_starts() -> None:
    world = under(max_cores_per_user=1)
    assert world.lines == []
    assert world.unfinished[0].endswith(
        "may have 1 CPU in queue default (max_cores_per_user of the profile); this needs 2 CPU"
    )


@pytest.mark.parametrize("limit", [{"default_timeout_ms": 22_000}, {"max_timeout_ms": 22_000}])
def test_a_task_ends_at_the_timeout_of_its_queue(limit: dict[str, int]) -> None:
    """An alignment takes 20 to 29 s, and the traces state no timeout: some are ended after 22 s, at each attempt."""
    world = under(**limit)
    late = [line for line in world.lines if line.get("outcome") == "timeout"]
    assert late
    assert {round(line["end"] - line["start"]) for line in late} == {22}
    assert max(line["end"] - line["start"] for line in world.lines if "task" in line) < 22.1
    assert len(world.unfinished) == 2
    assert all("Timeout" in each for each in world.unfinished)
