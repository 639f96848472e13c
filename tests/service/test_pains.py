"""The deadlock of a shared training cluster with real processes: there with kube-like, gone with flowsched."""

from __future__ import annotations

from bench.pains_real import deadlock, too_large


async def test_two_jobs_deadlock_pod_by_pod() -> None:
    """Five and four of six processes run and wait for the others; nothing ever moves again."""
    got = await deadlock("kube-like", 2, still_s=5)
    assert (got.stuck, got.seconds) == (True, {})
    assert got.running == {"job-1": "5 of 6", "job-2": "4 of 6"}
    assert got.order[:4] == ["job-1/ps-0", "job-2/ps-0", "job-1/ps-1", "job-2/ps-1"]


async def test_the_same_two_jobs_finish_as_gangs() -> None:
    """Their members met and computed together: there are 2,262 primes below 20,000."""
    got = await deadlock("flowsched", 2, still_s=60)
    assert sorted(got.seconds) == ["job-1", "job-2"]
    assert set(got.said.values()) == {"2262 primes below 20000"}


async def test_a_gang_larger_than_the_cluster_harms_nobody() -> None:
    """It runs no process and is told why; the small tasks behind it run."""
    got = await too_large("flowsched", small=3, still_s=60)
    assert (len(got.seconds), got.running) == (3, {"big": "0 of 16"})
    assert got.said["big"].startswith("LargerThanCluster: 12 of 16 members fit an empty cluster")
