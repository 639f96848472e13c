"""What is learned from tasks that have finished."""

from __future__ import annotations

from flowsched.workflow.estimates import KINDS, Estimates


def learned(*runtimes: int) -> Estimates:
    estimates = Estimates()
    for runtime in runtimes:
        estimates.learn("w", "s", runtime)
    return estimates


def test_nothing_is_known_of_what_never_ran() -> None:
    """Neither of another stage, nor of another workflow."""
    estimates = learned(5)
    assert estimates.runtime_ms("w", "other") is None
    assert estimates.runtime_ms("other", "s") is None
    assert estimates.high_ms("w", "other") is None


def test_the_median_is_not_moved_by_one_straggler() -> None:
    """Of 10, 11, 12, 13 and 100,000: 12."""
    assert learned(100_000, 10, 13, 11, 12).runtime_ms("w", "s") == 12


def test_of_two_the_longer_is_expected() -> None:
    """Rather late than a promise that breaks."""
    assert learned(10, 20).runtime_ms("w", "s") == 20


def test_nine_tenths_are_no_longer_than_the_high_estimate() -> None:
    """Of 1 to 20: 19; of one alone: that one."""
    assert learned(*range(1, 21)).high_ms("w", "s") == 19
    assert learned(7).high_ms("w", "s") == 7


def test_only_the_last_thirty_two_count() -> None:
    """What was slow once is forgotten."""
    assert learned(*[900] * 50, *[10] * 16).runtime_ms("w", "s") == 900
    assert learned(*[900] * 50, *[10] * 17).runtime_ms("w", "s") == 10
    assert learned(*[900] * 50, *[10] * 32).high_ms("w", "s") == 10


def test_what_was_learned_can_be_taken_back() -> None:
    """As if the step had not been: also of a kind that was not known before, and beyond the last 32."""
    estimates = learned(*range(1, 33))
    before = estimates.learn("w", "s", 1_000)
    estimates.recall("w", "s", before)
    assert estimates.runtime_ms("w", "s") == 17
    assert estimates.high_ms("w", "s") == 29
    before = estimates.learn("w", "new", 5)
    estimates.recall("w", "new", before)
    assert estimates.runtime_ms("w", "new") is None


def test_the_kinds_that_are_remembered_are_bounded() -> None:
    """Names that hold a date would fill the memory of a service that lives for years: the one learned longest ago goes."""
    estimates = Estimates()
    for number in range(KINDS):
        estimates.learn(f"run-{number}", "s", 1)
    estimates.learn("run-0", "s", 2)
    estimates.learn("one-more", "s", 3)
    assert estimates.runtime_ms("run-1", "s") is None
    assert estimates.runtime_ms("run-0", "s") == 2
    assert estimates.runtime_ms("one-more", "s") == 3
