"""Nodes that are lost in a simulation: what ran there runs again, what lay there is made or fetched again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flowsched.errors import InvalidRequest
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation import simulate
from flowsched.simulation.clusters import Loss, losses_of
from flowsched.simulation.policies import simulated
from flowsched.simulation.reading import Running
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.world import STORAGE, World
from flowsched.values import replace
from tests.simulation.small import CLUSTER, MB, workload

WORK = workload()


def lines(world: World, key: str = "task") -> list[dict[str, Any]]:
    """The lines of attempts, or of copies."""
    return [line for line in world.lines if key in line]


@pytest.mark.parametrize("policy", ["flowsched", "kube-like", "volcano-like"])
@pytest.mark.parametrize("at", [0.5, 4.0, 9.0, 20.0, 31.0, 38.0, 47.0, 60.0])
@pytest.mark.parametrize("back", [None, 15.0])
def test_every_task_succeeds_although_a_node_is_lost(policy: str, at: float, back: float | None) -> None:
    """At whatever moment: all 23 tasks succeed, nothing runs on n1 while it is gone, and every lost attempt has a higher one."""
    loss = Loss(1, at, None if back is None else at + back)
    world = simulated(policy, CLUSTER, [WORK], [loss])
    ran = lines(world)
    assert len({line["task"] for line in ran if line["outcome"] == "succeeded"}) == 23
    until = float("inf") if loss.back_s is None else loss.back_s
    assert not [each for each in ran if each["node"] == "n1" and each["end"] > at and each["start"] < until]
    for each in ran:
        if each["outcome"] == "lost":
            assert (each["node"], each["end"]) == ("n1", at)
            later = [line["attempt"] for line in ran if line["task"] == each["task"] and line["start"] >= at]
            assert later
            assert min(later) > each["attempt"]
    for each in lines(world, "transfer"):
        assert "n1" not in (each["from"], each["to"]) or each["end"] <= at or each["start"] >= until


def test_attempts_on_the_node_are_lines_of_the_trace() -> None:
    """At 20 s, n1 aligns two samples: two attempts are lost, and the two tasks run a second time."""
    ran = lines(simulated("flowsched", CLUSTER, [WORK], [Loss(1, 20.0)]))
    lost = [line["task"] for line in ran if line["outcome"] == "lost"]
    assert len(lost) == 2
    assert all(task.startswith("align_") for task in lost)
    assert [Counter(line["task"] for line in ran)[task] for task in lost] == [2, 2]


def test_what_lay_only_there_is_made_again() -> None:
    """Sorted files on a lost node are read by the merge later: their producers succeed twice."""
    ran = lines(simulated("flowsched", CLUSTER, [WORK], [Loss(0, 47.0), Loss(1, 47.5, 48.0)]))
    twice = [
        task
        for task, count in Counter(e["task"] for e in ran if e["outcome"] == "succeeded").items()
        if count > 1
    ]
    assert [task for task in twice if task.startswith(("align_", "sort_"))]


def test_large_files_are_fetched_again_although_pieces_of_them_were_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 MB come in pieces of 50 MB: n1 is lost with some of them, comes back, and fetches all six again."""
    monkeypatch.setattr(simulate, "PIECE_BYTES", 50 * MB)
    world = Simulation(CLUSTER, [WORK], PROFILES["flowsched"], losses=[Loss(1, 5.0, 6.0)]).run()
    came = [e for e in lines(world, "transfer") if (e["transfer"], e["to"]) == ("reference", "n1")]
    before = {e["offset"] for e in came if e["end"] <= 5}
    after = [e["offset"] for e in came if e["start"] >= 6]
    assert 0 < len(before) < 6
    assert sorted(after) == [0, 50 * MB, 100 * MB, 150 * MB, 200 * MB, 250 * MB]
    assert len({e["task"] for e in lines(world) if e["outcome"] == "succeeded"}) == 23


def test_losses_are_the_same_every_time() -> None:
    """Two runs with two losses write the same trace."""
    losses = [Loss(0, 12.5, 40.0), Loss(2, 30.0)]
    first, second = (simulated("flowsched", CLUSTER, [WORK], losses).lines for _ in range(2))
    assert first == second


def test_a_world_forgets_all_that_was_on_a_node() -> None:
    """A copy to n0 breaks off, a file on it is gone from its disk and its memory, and nothing follows."""
    world = World(CLUSTER, [WORK])
    ended: list[str] = []
    file = {each.name: (0, number) for number, each in enumerate(WORK.files)}
    world.copy(file["reads0"], STORAGE, 0, "stage", lambda: ended.append("reads0"))
    world.proceed(1.0)
    flow = world.copy(file["reference"], STORAGE, 0, "stage", lambda: ended.append("reference"))
    world.proceed(2.0)
    assert world.fail(0) == [flow]
    world.proceed(100.0)
    assert ended == ["reads0"]
    assert (world.at[file["reads0"]], file["reads0"] in world.caches[0]) == ({STORAGE}, False)


def test_an_attempt_that_is_lost_while_it_starts_reads_nothing() -> None:
    """A start-up of 5 s, lost after 2: the trace has the attempt and no copy."""
    world = World(replace(CLUSTER, startup=5.0), [WORK])
    running = Running(0, 0, 0, ready=0.0, start=0.0)
    world.run(running)
    world.proceed(2.0)
    world.lose(running, "lost")
    world.proceed(100.0)
    assert [(line.get("outcome"), line["end"]) for line in world.lines] == [("lost", 2.0)]


def test_losses_are_read_as_people_write_them() -> None:
    """Seconds; with a second moment if the node comes back; once more after that."""
    asked = ["n2@600", "n0@10.5-20", "n0@30"]
    assert losses_of(asked, CLUSTER) == (Loss(0, 10.5, 20.0), Loss(0, 30.0), Loss(2, 600.0))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["n1"], "NODE@SECONDS was expected"),
        (["n7@5"], "no node 'n7'; it has n0, n1, n2 (3 in all)"),
        (["n1@9-9"], "comes back at 9 s, which is not after 9 s"),
        (["n1@9", "n1@12"], "n1 cannot be lost at 12 s, it is gone since 9 s"),
    ],
)
def test_losses_that_make_no_sense_are_refused(asked: list[str], said: str) -> None:
    """With what was expected, or what there is."""
    with pytest.raises(InvalidRequest) as caught:
        losses_of(asked, CLUSTER)
    assert said in str(caught.value)
