"""What is learned from tasks that have finished."""

from __future__ import annotations

from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.estimates import KINDS, RUNTIME, Estimates, Measured, weights


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


def test_few_are_longer_than_the_high_estimate() -> None:
    """Of 1 to 30, one in twenty: 29; of one alone: that one."""
    assert learned(*range(1, 31)).high_ms("w", "s") == 29
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
    estimates.recall(before)
    assert estimates.runtime_ms("w", "s") == 17
    assert estimates.high_ms("w", "s") == 31
    before = estimates.learn("w", "new", 5)
    estimates.recall(before)
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


def grown(*samples: tuple[int, int]) -> Estimates:
    """From (bytes read, ms) pairs; each also writes twice what it reads, and 10 bytes."""
    estimates = Estimates()
    for size, runtime in samples:
        estimates.learn("w", "s", runtime, Measured(size, output_bytes=2 * size + 10))
    return estimates


def test_below_five_samples_the_size_of_the_input_says_nothing() -> None:
    """Four samples on a line: the middle of them, however much is read."""
    estimates = grown((100, 10), (200, 20), (300, 30), (400, 40))
    assert estimates.runtime_ms("w", "s", 1_000) == 30
    assert estimates.output_bytes("w", "s", 1_000) == 610


def test_from_five_samples_on_amounts_follow_the_input() -> None:
    """Bytes on a line, and time in proportion, are told for a size that was never seen."""
    estimates = grown((100, 10), (200, 20), (300, 30), (400, 40), (500, 50))
    assert estimates.runtime_ms("w", "s", 1_000) == 100
    assert estimates.output_bytes("w", "s", 1_000) == 2_010
    assert estimates.output_bytes("w", "s", 0) == 105  # half the least that was seen: a line ends somewhere


def test_what_does_not_follow_the_input_stays_a_constant() -> None:
    """Times that go up and down while sizes grow: their middle."""
    estimates = grown((100, 50), (200, 49), (300, 51), (400, 49), (500, 51))
    assert estimates.runtime_ms("w", "s", 10_000) == 50


def test_a_straggler_does_not_bend_the_line() -> None:
    """Nine in proportion and one that took a thousand times as long: a tenth more of input is a tenth more of time."""
    estimates = grown(*[(100 * n, 1_000 * n) for n in range(1, 10)], (500, 5_000_000))
    assert estimates.runtime_ms("w", "s", 1_000) == 10_000


def test_the_outputs_of_a_shard_are_told_apart() -> None:
    """Two outputs: each by its name, and both together; one output needs no name."""
    estimates = Estimates()
    estimates.learn("w", "s", 5, Measured(0, output_bytes=30), {"big": 20, "small": 10})
    assert estimates.output_bytes("w", "s", 0, "big") == 20
    assert estimates.output_bytes("w", "s", 0, "small") == 10
    assert estimates.output_bytes("w", "s") == 30
    estimates.learn("w", "one", 5, Measured(0, output_bytes=7), {"only": 7})
    assert estimates.output_bytes("w", "one", 0, "only") == 7


def test_a_rate_is_derived_from_cpu_time_and_bytes() -> None:
    """8 s of CPU on 4 cores and 600 MB at 100 MB/s: 8 s, of which 75 MB each second."""
    estimates = Estimates()
    estimates.learn("w", "s", 8_000, Measured(0, 8_000, 500_000_000, 100_000_000, disk_bytes=600_000_000))
    assert estimates.io_rate("w", "s", 0, 4, 100_000_000) == 75_000_000
    assert estimates.io_rate("w", "never", 0, 4, 100_000_000) is None


def test_what_memory_gives_is_no_demand_on_a_disk() -> None:
    """4 s of CPU, and of the 600 MB that were read 100 MB came from the disk, in 1 s: 20 MB/s. Unseen: none."""
    estimates = Estimates()
    estimates.learn("w", "s", 5_000, Measured(0, 4_000, 600_000_000, 0, disk_bytes=100_000_000))
    assert estimates.io_rate("w", "s", 0, 1, 100_000_000) == 20_000_000
    estimates.learn("w", "unseen", 99_000, Measured(0, 4_000, 600_000_000, 0))
    assert estimates.io_rate("w", "unseen", 0, 1, 100_000_000) is None


def test_the_shortest_wait_of_a_kind_counts_as_time_of_a_run_alone() -> None:
    """1 s of CPU and 1 s of disk; the quickest of three took 4 s. The others had to share the disk, and say nothing more."""
    estimates = Estimates()
    for runtime_ms in (9_000, 4_000, 30_000):
        estimates.learn("w", "s", runtime_ms, Measured(0, 1_000, disk_bytes=100_000_000))
    assert estimates.io_rate("w", "s", 0, 1, 100_000_000) == 25_000_000
    estimates.learn("w", "s", 2_000, Measured(0, 1_000, disk_bytes=100_000_000))
    assert estimates.io_rate("w", "s", 0, 1, 100_000_000) == 50_000_000


def test_what_was_not_measured_is_not_taken_for_zero() -> None:
    """One of two samples has no bytes: the other's count alone."""
    estimates = Estimates()
    estimates.learn("w", "s", 5, Measured(0, output_bytes=40))
    estimates.learn("w", "s", 5, Measured(0))
    assert estimates.output_bytes("w", "s") == 40
    assert estimates.cpu_ms("w", "s") is None


def test_priorities_count_half_a_deviation() -> None:
    """Of 100, 200 and 300 the middle is 200 and the deviation 100; a user's word wins; strangers get what their pipeline takes."""
    estimates = learned(100, 200, 300)
    assert estimates.weight_ms("w", "s") == 250
    stages = [{"name": name, "command": ["x"], "resources": {"cpu": 1}} for name in ("s", "said", "new")]
    stages[1]["estimate"] = {"runtime": "90s"}
    spec = check_workflow({"name": "w", "stages": stages})
    assert weights(estimates, spec) == [250, 90_000, 90_000]
    assert weights(Estimates(), check_workflow({"name": "x", "stages": stages[:1]})) == [60_000]


def test_quantiles_lie_between_samples() -> None:
    """Of 1 to 9 the levels are the samples; beyond the first and last nothing is claimed."""
    trend = learned(*range(100, 1_000, 100)).trend("w", "s", RUNTIME)
    assert trend is not None
    assert [trend.quantile(0, level) for level in (10, 100, 500, 850, 900, 990)] == [
        100,
        100,
        500,
        850,
        900,
        900,
    ]


def test_kinds_that_were_learned_since_a_moment_are_named() -> None:
    """The latest first; of a moment long past it is not known."""
    estimates = learned(5)
    before = estimates.learned
    estimates.learn("w", "other", 7)
    assert estimates.learned_since(before) == [("w", "other")]
    assert estimates.learned_since(estimates.learned) == []
    for runtime in range(9_000):
        estimates.learn("w", "s", runtime)
    assert estimates.learned_since(before) is None
