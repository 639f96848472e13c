"""How much memory the first try of a task gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.workflow.estimates import Estimates, Measured
from flowsched.workflow.memory import first_request

GIB = 1 << 30
MINUTE = 60_000


def margin(*peaks: float, asked: int = 64, runtime_ms: int = MINUTE, waiting: int = 0) -> float:
    """The first request beside the largest peak; peaks and `asked` in GiB."""
    request = first_request([int(peak * GIB) for peak in peaks], asked * GIB, runtime_ms, waiting)
    return request / (max(peaks) * GIB)


@given(
    st.lists(st.integers(1, 1 << 40), max_size=32),
    st.integers(0, 1 << 40),
    st.integers(1, 10**9),
    st.integers(0, 10**6),
)
def test_a_request_is_never_above_what_is_asked_nor_below_what_was_used(
    peaks: list[int], asked: int, runtime_ms: int, waiting: int
) -> None:
    """Without a sample it is what is asked."""
    request = first_request(peaks, asked, runtime_ms, waiting)
    assert min(asked, max(peaks, default=asked)) <= request <= asked


def test_equal_peaks_need_a_small_margin_and_wide_ones_a_large_one() -> None:
    """Eight of 35.7 to 35.8 GiB: less than 6 % more. Eight of 5 to 10: more than a quarter."""
    assert margin(35.7, 35.72, 35.73, 35.75, 35.75, 35.75, 35.76, 35.8) < 1.06
    assert margin(5, 6, 6, 7, 7, 8, 9, 10) > 1.25


def test_more_samples_of_one_spread_need_a_smaller_margin() -> None:
    """One, four and sixteen of 8 GiB."""
    assert margin(8) > margin(8, 8, 8, 8) > margin(*[8] * 16) > 1


def test_the_margin_grows_with_what_a_failure_costs() -> None:
    """A minute, and nothing waits; two hours, and a thousand tasks wait."""
    peaks = (7, 7.5, 8, 8, 8.2)
    assert (
        margin(*peaks)
        < margin(*peaks, waiting=1_000)
        < margin(*peaks, runtime_ms=120 * MINUTE, waiting=1_000)
    )


def test_a_long_task_that_much_waits_for_gets_all_that_it_asks_for_until_more_is_known() -> None:
    """SPADES of mag: two short ones have ended, with 9 and 12 of 64 GiB; the long ones need 24."""
    assert first_request([9 * GIB, 12 * GIB], 64 * GIB, 25 * MINUTE, 2_000) > 40 * GIB


def test_a_task_that_reads_more_than_any_known_one_gets_more() -> None:
    """SALMON_QUANT of rnaseq: samples read 6 GB and used 7 GiB, the next reads 20 GB, and uses 17.5."""
    estimates = Estimates()
    for _ in range(8):
        estimates.learn("w", "s", MINUTE, Measured(6 * 10**9, memory_bytes=7 * GIB))
    small, large = (estimates.memory_request("w", "s", 36 * GIB, 0, size * 10**9) for size in (6, 20))
    assert small < 7.5 * GIB
    assert 17.5 * GIB < large < 36 * GIB


def test_what_was_not_measured_fits_nothing() -> None:
    """Tasks have ended, without a peak: the next gets what it asks for."""
    estimates = Estimates()
    before = estimates.learn("w", "s", MINUTE, Measured(5))
    assert estimates.memory_request("w", "s", GIB, 0, 9) == GIB
    estimates.learn("w", "s", MINUTE, Measured(5, memory_bytes=GIB // 8))
    assert estimates.memory_request("w", "s", GIB, 0) < GIB // 2
    estimates.recall(before)
    assert estimates.memory_request("w", "s", GIB, 0) == GIB
