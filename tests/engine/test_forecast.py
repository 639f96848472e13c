"""What is told of starts and runtimes to those who ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from bench.virtual.drive import Drive, Fate
from flowsched.engine.explain import explain
from flowsched.engine.forecast import Margins, expected_starts, spread_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.round import Answers
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.scheduling.explain.forecast import Start
from flowsched.scheduling.plan import ReasonCode
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.estimates import Measured
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from tests.engine.scene import Scene, node

SECOND = 1_000


def document(name: str, pods: int, said_s: int | None = None) -> dict[str, object]:
    worker = {"replicas": pods, "command": ["x"], "resources": {"cpu": 1}}
    stage: dict[str, object] = {"name": "s", "gang": True, "roles": {"worker": worker}}
    if said_s is not None:
        stage["estimate"] = {"runtime": f"{said_s}s"}
    return {"name": name, "stages": [stage]}


def waiting(runtimes_s: list[int]) -> Drive:
    """Four cores; tasks of one kind ran one after the other for so long; one more runs, and a gang of four waits for its core."""
    took = {f"r{at}": runtime for at, runtime in enumerate(runtimes_s)}

    def fate(pod: Pod) -> Fate:
        return Fate(took.get(pod.workflow, 100) * SECOND)

    drive = Drive(EngineState(), [NodeInfo("n", 4_000, 8 << 30)], fate=fate)
    for ident in took:
        drive.submit(ident, check_workflow(document("kind", 1)))
    drive.run()
    drive.submit("last", check_workflow(document("kind", 1)), at=drive.now)
    drive.run(until=drive.now)
    drive.submit("gang", check_workflow(document("gang", 4, said_s=60)), at=drive.now)
    drive.run(until=drive.now)
    return drive


def test_a_start_is_told_with_the_interval_of_what_it_waits_for() -> None:
    """Twenty of a kind took 10 s to 29 s: a gang that waits for one more of them starts then, give or take."""
    drive = waiting(list(range(10, 30)))
    (reservation,) = drive.state.round.reservations
    start = expected_starts(drive.state, [reservation.group], drive.now)[reservation.group].first
    low, middle, high = (each - drive.now for each in (start.low_ms, start.start_ms, start.high_ms))
    assert 0 <= low < 10 * SECOND
    assert 16 * SECOND < middle < 24 * SECOND
    assert 32 * SECOND < high <= 43 * SECOND
    assert start == expected_starts(drive.state, [reservation.group], drive.now)[reservation.group].first


def test_explain_says_whose_estimate_counts_and_how_good_it_is() -> None:
    """The gang goes by its document; the kind that was seen twenty times by what was learned."""
    drive = waiting(list(range(10, 30)))
    (told,) = explain(drive.state, drive.state.work.runs["gang"], drive.now)
    assert told.estimate == "runs for 1m, as its document says"
    assert told.start_low_ms is not None
    assert told.start_high_ms is not None
    assert told.start_low_ms < told.start_high_ms
    drive.submit("more", check_workflow(document("kind", 4)), at=drive.now)
    drive.run(until=drive.now)
    (told,) = explain(drive.state, drive.state.work.runs["more"], drive.now)
    assert told.estimate == "runs for 20s, learned from 20; eight of ten between 11.1s and 27.9s"


@given(st.lists(st.integers(1, 600), min_size=5, max_size=24))
def test_a_spread_ascends(runtimes_s: list[int]) -> None:
    """However many runtimes were seen: a higher level is never below a lower one."""
    state = EngineState()
    spec = check_workflow(document("kind", 1))
    run = WorkflowRun("w", spec, StageGraph(spec), 1)
    for runtime in runtimes_s:
        state.work.estimates.learn("kind", "s", runtime * SECOND, Measured())
    spread = spread_of(state, run, run.stages[0], 0)
    assert spread is not None
    assert list(spread) == sorted(spread)


def test_the_interval_of_few_samples_ascends() -> None:
    """Six runs of about 8 s: eight of ten of the next take between 6.1 s and 10.4 s."""
    drive = waiting([7, 8, 8, 8, 8, 9])
    drive.submit("more", check_workflow(document("kind", 4)), at=drive.now)
    drive.run(until=drive.now)
    (told,) = explain(drive.state, drive.state.work.runs["more"], drive.now)
    assert told.estimate == "runs for 8s, learned from 6; eight of ten between 6.1s and 10.4s"


def test_asking_changes_nothing() -> None:
    """The same step follows whether somebody has asked or not."""
    asked, other = waiting([10] * 6), waiting([10] * 6)
    explain(asked.state, asked.state.work.runs["gang"], asked.now)
    asked.run()
    other.run()
    ends = [drive.ended["gang"].stages[0].times.tolist() for drive in (asked, other)]
    assert ends[0] == ends[1]


def test_the_interval_holds_the_start_that_stands_above_it() -> None:
    """A reservation whose moment has come, or is far away, beside scenarios that end at other times: what is said of it agrees."""
    drive = waiting(list(range(10, 30)))
    (reservation,) = drive.state.round.reservations
    reasons = drive.state.round.reasons
    for start_ms in (drive.now, drive.now + 3_600 * SECOND):
        reason = structs.replace(reasons[reservation.group], start_ms=start_ms)
        drive.state.round.reasons = Answers({**reasons, reservation.group: reason}.copy)
        (told,) = explain(drive.state, drive.state.work.runs["gang"], drive.now)
        assert told.start_ms is not None
        assert told.start_low_ms is not None
        assert told.start_high_ms is not None
        assert told.start_low_ms <= told.start_ms <= told.start_high_ms < drive.now + 43 * SECOND


def busy(bags: int, tasks: int, cores: int = 4) -> Drive:
    """All cores run tasks of 100 s, and bags of tasks of 60 s wait."""
    drive = Drive(EngineState(), [NodeInfo("n", cores * 1_000, 8 << 30)], fate=lambda _: Fate(100 * SECOND))
    stage = {"name": "s", "command": ["x"], "resources": {"cpu": 1}}
    for name, count, said in (("first", cores, "100s"), *((f"b{at}", tasks, "60s") for at in range(bags))):
        scatter = {**stage, "scatter": {"count": count}, "estimate": {"runtime": said}}
        drive.submit(name, check_workflow({"name": name, "stages": [scatter]}), at=drive.now)
        drive.run(until=drive.now)
    return drive


def test_a_bag_is_told_when_its_first_and_its_last_task_start() -> None:
    """Without a reservation too: the second bag waits for the first, and the last of its eight tasks for its first."""
    drive = busy(2, 8)
    found = {run: explain(drive.state, drive.state.work.runs[run], drive.now)[-1] for run in ("b0", "b1")}
    for told in found.values():
        assert told.start_low_ms is not None
        assert told.start_high_ms is not None
        assert told.last_high_ms is not None
        assert told.start_low_ms < told.start_high_ms < told.last_high_ms
    assert found["b0"].start_ms < found["b1"].start_ms  # type: ignore[operator]


def test_a_large_bag_is_planned_in_parts() -> None:
    """Four hundred tasks of a minute on four cores: the last one starts after an hour and a half, more or less."""
    drive = busy(1, 400)
    (group,) = drive.state.round.refused
    last = expected_starts(drive.state, [group], drive.now)[group].last
    assert 70 * 60 * SECOND < last.start_ms - drive.now < 150 * 60 * SECOND


def test_a_long_bag_is_spread_no_more_than_its_sum() -> None:
    """Twenty rounds on 16 cores. Drawn one by one, the middle of its last start is at 1467 s, and the bag behind it goes then."""
    drive = busy(2, 320, cores=16)
    bag, behind = drive.state.round.refused
    found = expected_starts(drive.state, [bag, behind], drive.now)
    last, next_ = (each - drive.now for each in (found[bag].last.start_ms, found[behind].first.start_ms))
    assert 0.75 * 1467 * SECOND < last < 1.25 * 1467 * SECOND
    assert 0.5 * 1467 * SECOND < next_ < 1.25 * 1467 * SECOND


def test_a_bag_that_is_first_leaves_parts_for_the_groups_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five parts, as for 1,000 nodes: each of three bags of twenty tasks has one at least."""
    monkeypatch.setattr("flowsched.scheduling.explain.forecast._WORK", 5 * 11)
    drive = busy(3, 20)
    groups = list(drive.state.round.refused)
    assert list(expected_starts(drive.state, groups, drive.now)) == groups


def test_a_group_that_waits_for_more_than_room_has_no_start() -> None:
    """It waits for its queue's cap: no end of a task is known to change that."""
    drive = busy(1, 4)
    (group,) = drive.state.round.refused
    reasons = drive.state.round.reasons
    reason = structs.replace(reasons[group], code=ReasonCode.QUEUE_LIMIT)
    drive.state.round.reasons = Answers({group: reason}.copy)
    assert expected_starts(drive.state, [group], drive.now) == {}


def test_margins_adapt_to_what_comes() -> None:
    """A start after its interval adds to the late margin 9 % of it; one within takes 1 % off both."""
    told = Start(10, 20, 30)
    assert Margins(0.5, 0.5).after(told, 31) == Margins(pytest.approx(0.495), pytest.approx(0.545))
    assert Margins(0.5, 0.5).after(told, 9) == Margins(pytest.approx(0.545), pytest.approx(0.495))
    assert Margins(0.1, 2.5).after(told, 31) == Margins(0.1, 2.5)


def test_no_group_goes_before_a_bag_that_is_first() -> None:
    """Its interval begins where the scenarios begin; that of another group earlier, but not in the past."""
    told = Start(1_100, 1_200, 1_300)
    assert Margins().widened(told, 1_000, leads=True) == Start(1_100, 1_200, 1_360)
    assert Margins().widened(told, 1_000, leads=False) == Start(1_000, 1_200, 1_400)


def test_the_last_task_of_a_bag_never_starts_before_its_first() -> None:
    """A bag that leads has no early margin for its first start, and one for its last."""
    drive = busy(1, 1)
    (group,) = drive.state.round.refused
    found = expected_starts(drive.state, [group], drive.now)[group]
    assert found.last.low_ms >= found.first.low_ms > drive.now
    assert found.last.start_ms >= found.first.start_ms
    assert found.last.high_ms >= found.first.high_ms


def test_a_gang_placed_pod_by_pod_whose_first_role_is_placed_harms_no_forecast() -> None:
    """Stock clusters place pods one by one: the driver runs, and two workers find no room. A bag behind them still has a start."""
    scene = Scene(node(cpu=2), profile="kube-like")
    roles = {"driver": {"command": ["x"]}, "worker": {"replicas": 3, "command": ["x"]}}
    job = {"name": "g", "gang": True, "roles": roles, "estimate": {"runtime": "60s"}}
    scene.submit("w", job)
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]
    scene.submit("v", {"name": "b", "command": ["x"], "estimate": {"runtime": "60s"}})
    wanted = set(scene.state.round.refused)
    assert len(wanted) == 2
    assert len(expected_starts(scene.state, wanted, scene.now)) == 1
