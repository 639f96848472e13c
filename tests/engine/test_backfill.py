"""Promised starts over time: kept to the ms while estimates are exact, bounded while they are wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.virtual.drive import Drive, Fate
from flowsched.engine.events import EngineEvent
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.state.work import GroupKey
from flowsched.engine.step import Step
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.scheduling.policy.framework import Profile
from flowsched.workflow.document.decode import check_workflow

SECOND = 1_000
HOUR = 3_600 * SECOND


def document(pods: int, cpu: int, runtime_s: int, name: str = "w") -> dict[str, object]:
    worker = {"replicas": pods, "command": ["x"], "resources": {"cpu": cpu}}
    stage = {"name": "s", "gang": True, "estimate": {"runtime": f"{runtime_s}s"}, "roles": {"worker": worker}}
    return {"name": name, "stages": [stage]}


Job = tuple[int, int, int, int]  #: submitted at (s), pods, cores of each, runtime (s)
JOBS = st.tuples(st.integers(0, 30), st.integers(1, 6), st.integers(1, 4), st.integers(1, 20))


def promised_and_started(
    jobs: Sequence[Job], cores: Sequence[int], profile: Profile
) -> dict[str, tuple[int | None, int]]:
    """Per workflow the first start that it was promised, and when it started; those that fit nowhere are left out."""
    first: dict[str, int] = {}

    def observe(state: EngineState, step: Step, events: Sequence[EngineEvent], now: int) -> None:
        for reservation in state.round.reservations:
            key = state.work.groups[reservation.group]
            assert isinstance(key, GroupKey)
            first.setdefault(key.workflow, reservation.start_ms)

    nodes = [NodeInfo(f"n{at}", count * 1_000, 8 << 30) for at, count in enumerate(cores)]
    drive = Drive(EngineState(policy=PolicyState(profile=profile)), nodes, observe=observe)
    runs = [
        drive.submit(f"w{at}", check_workflow(document(pods, cpu, runtime, f"w{at}")), at=at_s * SECOND)
        for at, (at_s, pods, cpu, runtime) in enumerate(sorted(jobs))
        if sum(count // cpu for count in cores) >= pods
    ]
    drive.run(until=HOUR)
    return {run.id: (first.get(run.id), int(run.stages[0].times[:, 4].max())) for run in runs}


@settings(deadline=None, max_examples=30)
@given(st.lists(JOBS, min_size=1, max_size=12), st.lists(st.integers(2, 6), min_size=1, max_size=3))
def test_no_promise_is_broken_while_estimates_are_exact(jobs: list[Job], cores: list[int]) -> None:
    """Gangs come one after the other; each that was promised a start begins then or before, whatever was let in since."""
    profile = Profile(order="fifo")
    for promised, started in promised_and_started(jobs, cores, profile).values():
        assert started >= 0
        assert promised is None or started <= promised


def test_the_first_that_waits_is_promised_a_start_one_after_the_other() -> None:
    """Four cores run for 10 s; three gangs of four wait for 10, 20 and 30 s."""
    jobs = [(0, 4, 1, 10)] * 4
    found = promised_and_started(jobs, [4], Profile(order="fifo"))
    assert [promised for promised, _ in found.values()] == [None, 10_000, 20_000, 30_000]


def test_small_jobs_that_overrun_put_no_gang_off_for_ever() -> None:
    """A stream of jobs said to take 1 s takes 8 s each: a gang of the whole cluster starts after two rounds of them."""
    profile = Profile()

    def fate(pod: Pod) -> Fate:
        return Fate(5_000 if pod.gang is not None and pod.gang.roster.size == 8 else 8_000)

    nodes = [NodeInfo(f"n{at}", 4_000, 8 << 30) for at in range(2)]
    drive = Drive(EngineState(policy=PolicyState(profile=profile)), nodes, fate=fate)
    for at in range(100):
        drive.submit(f"small{at}", check_workflow(document(1, 1, 1, "small")), at=at * 400)
    gang = drive.submit("gang", check_workflow(document(8, 1, 5, "gang")), at=10_100)
    drive.run(until=100_000)
    started = gang.stages[0].times[:, 4]
    assert started.min() == started.max()
    assert 10_100 < started.max() <= 10_100 + 2 * 8_000
