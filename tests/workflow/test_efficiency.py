"""Efficiency: what attempts used of what they asked for, and what to ask for instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.workflow.efficiency import efficiencies, rounded_cores, rounded_memory, size, whole
from flowsched.workflow.engine_words import quantity
from flowsched.workflow.resources import parse_bytes
from flowsched.workflow.views import AttemptUseView

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MIB, GIB = 1 << 20, 1 << 30


def attempt(
    ran_s: float = 10.0,
    cpu_s: float = 0.0,
    peak: int = 0,
    *,
    stage: str = "align",
    cores: float = 1,
    memory: int = 0,
    code: int | None = 0,
    reason: str = "",
) -> AttemptUseView:
    return AttemptUseView(
        attempt=0, pod="p", node="n", stage=stage, index=0, shard=0, bound_at=BEGIN, started_at=BEGIN,
        ended_at=BEGIN + timedelta(seconds=ran_s), exit_code=code, reason=reason,
        requested={"cpu": round(cores * 1000), "memory": memory},
        usage={"cpu_ms": round(cpu_s * 1000), "max_rss_bytes": peak},
    )  # fmt: skip


def test_sums_and_shares_of_a_stage() -> None:
    """10 s with 3 of 4 cores and 30 s with 1 of 4: 60 of 160 core-seconds; the higher peak counts."""
    (view,) = efficiencies(
        [attempt(10, 30, GIB, cores=4, memory=4 * GIB), attempt(30, 30, 3 * GIB, cores=4, memory=4 * GIB)]
    )
    assert (view.attempts, view.failed, view.running_seconds, view.core_seconds) == (2, 0, 40, 160)
    assert (view.cpu_seconds, view.cpu_efficiency, view.cores_used) == (60, 0.375, 3)
    assert (view.memory_used_bytes, view.memory_efficiency) == (3 * GIB, 0.75)
    assert view.advice == ["cpu: asked for 4 cores, used at most 3: ask for 3"]


def test_what_was_not_measured_is_not_counted_as_idle() -> None:
    """On a cluster without agents nothing is known: no share, no advice. One attempt of two: the share of that one."""
    (view,) = efficiencies([attempt(10, cores=4, memory=8 * GIB)])
    assert (view.cpu_seconds, view.cpu_efficiency, view.memory_used_bytes, view.advice) == (
        None,
        None,
        None,
        [],
    )
    (view,) = efficiencies([attempt(10), attempt(10, 5)])
    assert (view.core_seconds, view.cpu_efficiency) == (20, 0.5)
    assert whole([view])["cpu_efficiency"] == 0.5


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (attempt(memory=8 * GIB, peak=1_288_490_189), "memory: asked for 8 GiB, used at most 1.2 GiB: ask for 1536Mi"),
        (attempt(memory=GIB, peak=1020 * MIB), "memory: asked for 1 GiB, used up to 1020 MiB, 100% of it: ask for 1280Mi"),
        (attempt(peak=100 * MIB), "memory: asked for none, used at most 100 MiB: ask for 128Mi"),
        (attempt(10, 38, cores=1), "cpu: asked for 1 core, used up to 3.8: ask for 4, or limit its threads"),
        (attempt(10, 0.2, cores=2), "cpu: asked for 2 cores, used at most 0.02: ask for 0.1"),
        (
            attempt(memory=2 * GIB, peak=2 * GIB, code=137, reason="OOMKilled"),
            "memory: 1 attempt had too little with 2 GiB: ask for 4Gi",
        ),
    ],
)  # fmt: skip
def test_advice_says_what_to_ask_for(given: AttemptUseView, advice: str) -> None:
    """In the words of a document."""
    (view,) = efficiencies([given])
    assert view.advice == [advice]


@pytest.mark.parametrize(
    "given",
    [
        attempt(memory=GIB, peak=700 * MIB, cpu_s=9),
        attempt(memory=64 * MIB, peak=MIB, cpu_s=9),  # less would save nothing
        attempt(0.5, 0.01, cores=8),  # too short to say anything of its cores
        attempt(10, 10.4, cores=1),  # one thread that computes, and a little
    ],
)
def test_what_fits_is_left_alone(given: AttemptUseView) -> None:
    """No advice."""
    assert efficiencies([given])[0].advice == []


def test_memory_that_was_enough_in_the_end_is_advised() -> None:
    """Two attempts died with 1 and 2 GiB, the third used 3: ask for 3.6 GiB, rounded."""
    (view,) = efficiencies([
        attempt(memory=GIB, peak=GIB, code=137, reason="OOMKilled"),
        attempt(memory=2 * GIB, peak=2 * GIB, code=137, reason="OOMKilled"),
        attempt(memory=4 * GIB, peak=3 * GIB),
    ])  # fmt: skip
    assert view.failed == 2
    assert view.advice == ["memory: 2 attempts had too little with 1 GiB to 2 GiB: ask for 3712Mi"]


def test_memory_that_fits_changes_neither_what_was_asked_for_nor_the_advice() -> None:
    """4 GiB are asked for. 512 MiB were given and not enough, which is no advice; then 1 GiB was given."""
    tries = [
        attempt(memory=512 * MIB, peak=512 * MIB, code=137, reason="OOMKilled"),
        attempt(memory=GIB, peak=800 * MIB),
    ]
    for each in tries:
        each.usage["memory_asked_bytes"] = 4 * GIB
    (view,) = efficiencies(tries)
    assert (view.memory_asked_bytes, view.memory_efficiency) == (4 * GIB, 800 / 4096)
    assert view.advice == ["memory: asked for 4 GiB, used at most 800 MiB: ask for 960Mi"]


def test_what_was_taken_away_has_not_failed() -> None:
    """Of three attempts one was preempted, one ended with exit code 1, one succeeded: one failed."""
    (view,) = efficiencies([attempt(code=143, reason="Released"), attempt(code=1), attempt()])
    assert (view.attempts, view.failed) == (3, 1)


@given(st.integers(1, 1 << 45))
def test_advised_memory_holds_what_was_used(number: int) -> None:
    """Never less than asked of it, at most an eighth or 32 MiB more, and a document reads it as that many bytes."""
    wanted = rounded_memory(number)
    assert number <= wanted <= number + max(number // 8, 32 * MIB)
    assert parse_bytes(quantity(wanted)) == wanted


@given(st.floats(0, 500))
def test_advised_cores_are_enough(used: float) -> None:
    """At most a tenth of a core short (a thread that computes, and a little), at most one too many."""
    assert used - 0.1 <= rounded_cores(used) <= used + 1


def test_sizes_for_people() -> None:
    """Three digits, in the units of documents."""
    assert [size(n) for n in (0, 1023, 1536, 8 * GIB, 150 * MIB)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "8 GiB",
        "150 MiB",
    ]
