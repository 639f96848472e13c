"""A token bucket without a clock: it says until when to wait. Whoever asks first is served first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
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
