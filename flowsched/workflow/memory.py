"""Memory that fits: how much memory the first try of a task gets, by the peaks of earlier tasks of its kind.

A request above a task's peak holds memory that other tasks could use. One below it ends the task at its peak, and the task runs
again with the full amount that it asks for. `first_request` chooses the amount with the least expected cost. It knows samples and
costs, and neither nodes nor the tasks that wait for memory. `Fitted` says what one such try saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from flowsched.workflow.resources import format_bytes

#: Requests that are compared: the largest peak and so many thousandths of it.
_MARGINS: Final = (
    10, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400, 500, 750,
    1_000, 1_500, 2_000, 3_000, 5_000, 8_000, 12_000, 20_000, 40_000,
)  # fmt: skip
_PER_MILLE: Final = 1_000
#: Peaks of a kind are taken to differ by this part of the largest (2 %), beside what was seen. With 1 %, rangeland fails 1.3 % of
#: its tries.
_PRIOR: Final = 50
#: Probabilities are whole numbers of this.
_ONE: Final = 1 << 40
#: A failure counts as so many tries with all that was asked for. With 2, mag fails 1.5 % of its tries.
_FAILURE: Final = 5
#: Each task that waits for one of so long a runtime counts a tenth of such a try, and for a shorter one its part of that.
_LONG_MS: Final = 600_000
_WAITING: Final = 10
#: Added to the largest peak: little beside any request that matters, and enough where peaks are nearly nothing.
_LEAST_BYTES: Final = 64 << 20


def first_request(peaks: Sequence[int], asked_bytes: int, runtime_ms: int, waiting: int) -> int:
    """The memory of the first try of a task, in bytes.

    Args:
        peaks: The peaks of earlier tasks of the kind, at least 1 byte each, in any order.
        asked_bytes: The memory that the task asks for. A try that runs out of memory is followed by one that gets this.
        runtime_ms: How long the task is expected to run.
        waiting: How many tasks cannot start before it has ended.

    Returns:
        At most `asked_bytes`; that where no sample is known, or where a failure would cost more than the memory is worth.
    """
    if not peaks:
        return asked_bytes
    largest = max(peaks) + _LEAST_BYTES
    # A failure holds the first request for nothing, and what waits for the task waits longer.
    delay = asked_bytes * waiting * min(runtime_ms, _LONG_MS) // (_LONG_MS * _WAITING)
    failure = asked_bytes * _FAILURE + delay
    best, least = asked_bytes, asked_bytes * _ONE
    for margin in _MARGINS:
        request = largest + largest * margin // _PER_MILLE
        if request >= asked_bytes:
            break
        cost = request * _ONE + _exceeding(peaks, request - largest) * (request + failure)
        if cost < least:
            best, least = request, cost
    return best


def _exceeding(peaks: Sequence[int], beyond: int) -> int:
    """How probable it is that the next peak exceeds the largest one by more than `beyond` bytes, in parts of `_ONE`.

    The next of n + 1 equal draws is the largest with probability 1 / (n + 1). By how much it is larger follows from the distances
    of the others to the smallest. With an exponential tail of unknown scale, and S the sum of the distances, the excess is above
    x with probability (S / (S + x)) ** n.
    """
    count, least = len(peaks), min(peaks)
    spread = sum(peaks) - count * least + max(peaks) // _PRIOR
    probability = _ONE // (count + 1)
    for _ in range(count):
        probability = probability * spread // (spread + beyond)
    return probability


class Fitted(msgspec.Struct, frozen=True):
    """The memory of a try that was given less than its task asks for, from its binding to its end."""

    asked_bytes: int
    given_bytes: int
    held_ms: int
    in_vain: bool  #: it ran out of memory: without a fitted request there had been no such try

    @property
    def asked_byte_ms(self) -> int:
        """The memory x time that the task would have held with all that it asks for."""
        return 0 if self.in_vain else self.asked_bytes * self.held_ms

    @property
    def given_byte_ms(self) -> int:
        """The memory x time that it held."""
        return self.given_bytes * self.held_ms


def fitted_text(asked_bytes: int, given_bytes: int, whose: str) -> str:
    """The memory that was asked for and that was given, for people. `whose`: from or to how many."""
    return f"memory: asked {format_bytes(asked_bytes)}, given {format_bytes(given_bytes)} ({whose})"
