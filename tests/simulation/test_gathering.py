"""Gangs on a virtual clock: nobody gets anywhere until all are there."""

from __future__ import annotations

from bench.trainings import FLOWSCHED, HOUR, KUBE, MINUTE, machines, simulate, single, training


def test_the_clock_of_a_gang_starts_with_its_last_member() -> None:
    """Two cores of three are free at once, the third after 4 min: 10 min of work are done after 14, and 8 core minutes are lost."""
    early = single("early", 4 * MINUTE)
    late = training("late", 10 * MINUTE, 1, servers=0, workers=3, worker_cpu="1")
    got = simulate([early, late], machines(1, 3), KUBE)
    assert got.started["late"] == 4 * MINUTE
    assert got.ended["late"] == 14 * MINUTE
    assert got.waited_core_ms == 2 * 4 * MINUTE - 2


def test_a_gang_that_is_placed_whole_waits_for_nobody() -> None:
    """The same jobs with gangs: it gets no core before it gets all."""
    early = single("early", 4 * MINUTE)
    late = training("late", 10 * MINUTE, 1, servers=0, workers=3, worker_cpu="1")
    got = simulate([early, late], machines(1, 3), FLOWSCHED)
    assert (got.ended["late"], got.waited_core_ms) == (14 * MINUTE, 0)


def test_members_without_patience_wait_for_ever() -> None:
    """Nothing is left to happen: that is a deadlock, not a timeout."""
    jobs = [training(name, MINUTE, servers=0, workers=2, worker_cpu="1") for name in ("a", "b")]
    got = simulate(jobs, machines(1, 2), KUBE)
    assert (got.stuck, got.stuck_cores, got.ended, got.verdict) == (True, 2.0, {}, "DEADLOCK")
    assert got.order == ["a/worker-0", "b/worker-0"]


def test_a_member_that_loses_its_patience_frees_its_core_for_a_while() -> None:
    """The first gives up, the second gets its core, meets, and is done; then the first, anew."""
    jobs = [training(n, 5 * MINUTE, servers=0, workers=2, worker_cpu="1", attempts=9) for n in ("a", "b")]
    patience = {"a": 10 * MINUTE, "b": 11 * MINUTE}
    got = simulate(
        jobs, machines(1, 2), KUBE, patience_ms=lambda pod: patience[pod.workflow], until_ms=3 * HOUR
    )
    assert got.verdict == "all done"
    assert got.ended["b"] < got.ended["a"]
    assert got.restarts == 1


def test_those_who_met_in_time_are_not_given_up() -> None:
    """The last comes after 4 of 5 min of patience: the others' patience does not end them at minute 5."""
    early = single("early", 4 * MINUTE)
    late = training("late", 10 * MINUTE, servers=0, workers=3, worker_cpu="1")
    got = simulate([early, late], machines(1, 3), KUBE, patience_ms=lambda pod: 5 * MINUTE)
    assert (got.ended["late"], got.restarts) == (14 * MINUTE, 0)
