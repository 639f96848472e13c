"""The pains of a shared training cluster, on a virtual clock: there with kube-like, gone with flowsched."""

from __future__ import annotations

import pytest

from bench.pains import as_large_as_cluster, deadlock, larger_than_cluster, night, small_waits, stream, twenty
from bench.trainings import FLOWSCHED, KUBE, KUBE_IN_TURN, MINUTE, VOLCANO


@pytest.mark.parametrize("jobs", [2, 5])
def test_jobs_whose_pods_interleave_deadlock_pod_by_pod(jobs: int) -> None:
    """On room for one and a half, none ever ends."""
    got = deadlock(jobs, KUBE)
    assert (got.verdict, got.ended) == ("DEADLOCK", {})


def test_the_order_of_the_deadlock() -> None:
    """One of each in turn, until no core and a half are left together."""
    assert deadlock(2, KUBE).order == [
        "job-1/ps-0", "job-2/ps-0", "job-1/ps-1", "job-2/ps-1",
        "job-1/worker-0", "job-2/worker-0", "job-1/worker-1", "job-2/worker-1", "job-1/worker-2",
    ]  # fmt: skip


@pytest.mark.parametrize(("jobs", "minutes"), [(1, 10), (2, 20), (5, 50)])
@pytest.mark.parametrize("profile", [FLOWSCHED, KUBE_IN_TURN], ids=lambda profile: profile.name)
def test_jobs_that_come_gang_by_gang_finish(jobs: int, minutes: int, profile: object) -> None:
    """Pod by pod too, if nobody's pods come between."""
    assert deadlock(jobs, profile).finished_ms == minutes * MINUTE  # type: ignore[arg-type]


def test_gangs_hold_no_core_in_vain() -> None:
    """Strictly gang by gang they do; with gangs nobody waits on a core."""
    assert deadlock(5, KUBE_IN_TURN).waited_core_ms > 0
    assert deadlock(5, FLOWSCHED).waited_core_ms == 0


def test_a_gang_larger_than_the_cluster_starves_everyone_pod_by_pod() -> None:
    """It holds all twelve cores for ever, and not one of a hundred small jobs behind it runs."""
    got = larger_than_cluster(KUBE)
    assert (got.ended, got.stuck_cores) == ({}, 12.0)


def test_a_gang_larger_than_the_cluster_is_told_so_and_harms_nobody() -> None:
    """All hundred run, and the reason names the cluster."""
    got = larger_than_cluster(FLOWSCHED)
    assert (len(got.ended), got.stuck_cores) == (100, 0.0)
    assert got.reasons["big"].startswith("LargerThanCluster: 12 of 16 members fit an empty cluster")


def test_without_a_promise_a_big_gang_starves_as_long_as_small_ones_come() -> None:
    """All 480 small ones end before it starts, four hours later."""
    got = as_large_as_cluster(VOLCANO)
    assert got.started["big"] == 14_670_000
    assert sum(got.ended[job.name] <= got.started["big"] for job in stream(480)) == 480


def test_where_nobody_may_pass_small_ones_starve_behind_a_big_gang() -> None:
    """Strictly first come, first served: it starts in time, and eight cores idle until then, with two small jobs done."""
    got = as_large_as_cluster(VOLCANO, "fifo")
    assert got.started["big"] == 30 * MINUTE
    assert sum(got.ended[job.name] <= 30 * MINUTE for job in stream(480)) == 2


def test_a_promised_gang_starts_on_time_and_small_ones_fill_in() -> None:
    """Half an hour, to the ms, with 41 small jobs done before it; pod by pod it comes later and they wait seven times as long."""
    ours, stock = as_large_as_cluster(FLOWSCHED), as_large_as_cluster(KUBE)
    assert (ours.promised_ms["big"], ours.started["big"]) == (30 * MINUTE, 30 * MINUTE)
    assert sum(ours.ended[job.name] <= 30 * MINUTE for job in stream(480)) == 41
    assert stock.started["big"] == 45 * MINUTE
    assert sum(small_waits(stock, stream(480))) > 7 * sum(small_waits(ours, stream(480)))


def test_twenty_trainings_at_once_deadlock_unless_somebody_staggers_them() -> None:
    """Six minutes apart, the best gap there is, they take 186 min; all at once with flowsched, at most 140."""
    assert twenty(0, KUBE).verdict == "DEADLOCK"
    assert twenty(6 * MINUTE, KUBE).finished_ms == 186 * MINUTE
    ours = twenty(0, FLOWSCHED).finished_ms
    assert ours is not None
    assert ours <= 140 * MINUTE


def test_at_night_pod_by_pod_cores_are_held_by_members_that_wait() -> None:
    """No training ends; what counts as used computes nothing, so that nobody sees anything idle."""
    got = night(KUBE)
    assert [name for name in got.outcome.ended if name.startswith("job")] == []
    assert got.outcome.waited_core_ms == 491_400_000
    assert got.report.resources["cpu"].idle == 5.5


def test_at_night_every_idle_core_hour_has_a_cause() -> None:
    """58 of 144 core hours compute; the queue's cap keeps 22 idle, and for 64 there is nothing to do."""
    got = night(FLOWSCHED)
    cpu = got.report.resources["cpu"]
    assert (len(got.outcome.ended), cpu.used, cpu.idle) == (6, 58.0, 86.0)
    assert cpu.causes == {"no_demand": 64.0, "quota": 22.0}
