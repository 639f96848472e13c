"""The service's clock under wall clocks that jump, drift and stand still. Time is a parameter: none of these tests waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.clock import ServiceClock, elapsed_s

S = 1_000_000_000
HOUR = 3_600 * S
DAY = 24 * HOUR
START = 1_700_000_000 * S


class World:
    """A wall clock and elapsed time that tests set."""

    def __init__(self) -> None:
        self.wall, self.elapsed = START, 5 * S
        self.jumps: list[int] = []
        self.clock = ServiceClock(
            wall_ns=lambda: self.wall, elapsed=lambda: self.elapsed, jumped=self.jumps.append
        )

    def passes(self, time: int, wall: int | None = None) -> int:
        """So much time passes, and the wall clock shows so much more; ms since the start by the clock."""
        self.elapsed += time
        self.wall += time if wall is None else wall
        return self.clock.now_ms() - START // 1_000_000


def test_without_a_jump_it_is_the_wall_clock() -> None:
    world = World()
    assert [world.passes(S // 2), world.passes(S // 2), world.passes(HOUR)] == [500, 1_000, 3_601_000]
    assert world.jumps == []


def test_an_hour_forward_ends_no_timeout_of_half_an_hour_in_nine_seconds() -> None:
    """It is told once, and after nine seconds nine have passed; an hour later the clock is 36 s nearer to the wall's."""
    world = World()
    assert world.passes(9 * S, 9 * S + HOUR) == 9_090
    assert world.jumps == [3_600_000]
    assert world.passes(HOUR) == 9_090 + 3_636_000
    assert world.jumps == [3_600_000]


def test_an_hour_back_stalls_nothing() -> None:
    """Time goes on, a hundredth slower, and never back."""
    world = World()
    assert world.passes(10 * S, 10 * S - HOUR) == 9_900
    assert world.jumps == [-3_600_000]
    assert world.passes(100 * S) == 9_900 + 99_000


def test_twenty_years_forward_are_not_followed() -> None:
    world = World()
    assert world.passes(S, 20 * 365 * DAY) == 1_010
    assert world.passes(30 * DAY) == 1_010 + 30 * 86_400_000 * 101 // 100
    assert len(world.jumps) == 1


def test_a_jump_is_absorbed_in_a_hundred_times_its_length_and_no_more() -> None:
    """Ten seconds forward: after 1,000 seconds the two clocks agree again, and go on to."""
    world = World()
    world.passes(S, 11 * S)
    for _ in range(1_000):
        world.passes(S)
    assert world.clock.now_ms() == world.wall // 1_000_000
    world.passes(HOUR)
    assert world.clock.now_ms() == world.wall // 1_000_000


def test_what_ntp_slews_is_followed_and_not_told() -> None:
    """500 ppm for an hour, read every second."""
    world = World()
    for _ in range(3_600):
        world.passes(S, S + 500_000)
    assert world.clock.now_ms() == world.wall // 1_000_000
    assert world.jumps == []


@given(st.lists(st.tuples(st.integers(0, HOUR), st.integers(-20 * 365 * DAY, 20 * 365 * DAY)), max_size=30))
def test_it_never_goes_back_and_no_duration_is_wrong_by_more_than_a_hundredth(
    steps: list[tuple[int, int]],
) -> None:
    world = World()
    before, passed = world.clock.now_ms(), 0
    begin = before
    for time, wall in steps:
        world.passes(time, wall)
        now = world.clock.now_ms()
        passed += time
        assert now >= before
        assert abs((now - begin) - passed / 1e6) <= passed / 1e8 + 1
        before = now


def test_elapsed_time_goes_on() -> None:
    first = elapsed_s()
    assert elapsed_s() >= first > 0


def test_the_clock_of_a_database_is_taken_over_at_once() -> None:
    """A machine is an hour ahead: the clock jumps back, and follows the database's from then on, whatever the machine's shows."""
    world = World()
    at = (START - HOUR) // 1_000_000
    assert world.clock.set_to(at) == -3_600_000
    assert world.passes(10 * S, HOUR) == -3_600_000 + 10_000
    assert world.jumps == []


def test_the_clock_of_a_database_is_followed_where_it_is_near() -> None:
    """Half a second ahead: no moment is left out, and none comes twice."""
    world = World()
    assert world.clock.set_to(START // 1_000_000 + 500) == 0
    assert [world.passes(S), world.passes(HOUR)] == [1_010, 3_601_500]
