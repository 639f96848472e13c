"""The service's clock: ms since the epoch that go on at the speed of time and never jump.

It starts at the wall clock and counts elapsed time from there. An operator, NTP's first step after a boot or the move of a virtual
machine may set the wall clock while the service runs. Timeouts, back-offs, leases, retention and durations are differences of two
readings, so a jump would end or stall all of them at once. The clock absorbs a jump: it reports the jump, goes on as before, and
follows the wall clock by at most one part in `SLEW` of the time that passes. A duration is therefore never wrong by more than that.
The clock follows small corrections (NTP) at once.

Elapsed time includes the time for which the machine was suspended (Linux: CLOCK_BOOTTIME), because that time has passed for
everything outside the machine.

After a restart the clock starts at the wall clock again. Where several processes share a database server, each of them takes the
server's clock for the wall clock (`set_to`): what one leader wrote, the next one compares with its own time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: The clock follows the wall clock by one part in so many of the time that passes: an hour in 100 hours, a drift of 500 ppm
#: (the most that NTP slews by) at once. Twice as many: a timeout is half as wrong while a jump is absorbed, for twice as long.
SLEW: Final = 100
#: The wall clock jumped if two readings differ by so much more or less than the time that passed between them.
JUMP_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


def elapsed_ns() -> int:
    """Time since the boot, suspended or not, where the system counts that; else since some moment."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()


def elapsed_s() -> float:
    """As `elapsed_ns`, in seconds: for deadlines that must not wait for a suspended machine."""
    return elapsed_ns() / 1e9


class ServiceClock:
    """One clock for all of a process. Safe to read from any thread.

    Args:
        wall_ns: Reads the wall clock.
        elapsed: Reads the elapsed time, which never goes back.
        jumped: The clock calls it with the ms by which the wall clock has jumped (negative: back).
    """

    def __init__(
        self,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = elapsed_ns,
        jumped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._wall_ns, self._elapsed, self._jumped = wall_ns, elapsed, jumped
        self._lock = threading.Lock()
        self._now, self._read_at = wall_ns(), elapsed()
        self._behind = 0  #: ns that the wall clock was ahead at the last reading

    def set_to(self, server_ms: int) -> int:
        """Take a clock that has just said `server_ms` for the wall clock. Not while this process leads: this clock may jump then.

        Returns:
            By how many ms the clock jumps; 0 where both are less than a second apart: it then follows.
        """
        with self._lock:
            server, elapsed = server_ms * _NS_PER_MS, self._elapsed()
            self._wall_ns = lambda: server + self._elapsed() - elapsed
            jump = server - (self._now + max(0, elapsed - self._read_at))
            if abs(jump) < JUMP_NS:
                return 0
            self._now, self._read_at, self._behind = server, elapsed, 0
        return jump // _NS_PER_MS

    def now_ms(self) -> int:
        """Milliseconds since the epoch, never less than before."""
        with self._lock:
            wall, elapsed = self._wall_ns(), self._elapsed()
            passed = max(0, elapsed - self._read_at)
            behind = wall - (self._now + passed)
            jump = behind - self._behind
            most = passed // SLEW
            correction = min(max(behind, -most), most)
            self._now += passed + correction
            self._read_at, self._behind = elapsed, behind - correction
            now = self._now
        if abs(jump) >= JUMP_NS:
            self._jumped(jump // _NS_PER_MS)
        return now // _NS_PER_MS
