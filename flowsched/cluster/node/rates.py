"""The node's disk and network as token buckets that threads and the event loop share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec


class TokenBucket(msgspec.Struct):
    """Bytes per second, handed out in order of asking, so that flows which ask piece by piece share fairly.

    Args:
        rate: Bytes per second; 0 = unlimited.
        free_at: When all that was handed out so far has flowed.
    """

    rate: int
    free_at: float = 0.0

    def reserve(self, amount: int, now: float) -> float:
        """Hand out `amount` bytes and return the moment when the last of them has flowed."""
        if not self.rate:
            return now
        self.free_at = max(self.free_at, now) + amount / self.rate
        return self.free_at


# ---- the rates of one node ----


#: A block takes about so long at the slowest bucket, so that flows take turns often enough.
_BLOCK_S: Final = 0.05
_BLOCK_MIN: Final = 64 << 10


def block_bytes(rates: Iterable[int], most: int = 1 << 20) -> int:
    """How much one flow moves before others have their turn.

    Args:
        rates: Bytes/s of every bucket on its way; 0 = no limit.
        most: Where no bucket is slow.
    """
    slowest = min((rate for rate in rates if rate), default=0)
    return max(_BLOCK_MIN, min(most, int(slowest * _BLOCK_S))) if slowest else most


class Stopped(Exception):
    """The agent is closing; its next start removes half copies."""


class Rates:
    """Limits on the bytes that one node moves.

    Args:
        disk_rate: Bytes/s that are read and written, together; 0 = no limit.
        nic_rate: Bytes/s that come, and as many that go; 0 = no limit.
        now: The buckets' clock.
    """

    def __init__(
        self, disk_rate: int = 0, nic_rate: int = 0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = TokenBucket(disk_rate)
        self._in, self._out = TokenBucket(nic_rate), TokenBucket(nic_rate)
        self._now = now
        self.came_bytes = 0  #: of copies, while they come
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.block_bytes = block_bytes((disk_rate, nic_rate))

    def outgoing_s(self, amount: int) -> float:
        """How long to wait until so many bytes have been read here and sent."""
        return self._wait_s(amount, self._out)

    def admit(self, amount: int) -> None:
        """Wait, in a thread, until so many bytes have come and been written.

        Raises:
            Stopped: The agent is closing.
        """
        with self._lock:
            self.came_bytes += amount
        if self._stopped.wait(self._wait_s(amount, self._in)):
            raise Stopped

    def stop(self) -> None:
        """Let nothing in any more."""
        self._stopped.set()

    def _wait_s(self, amount: int, nic: TokenBucket) -> float:
        with self._lock:
            now = self._now()
            return max(bucket.reserve(amount, now) for bucket in (self._disk, nic)) - now
