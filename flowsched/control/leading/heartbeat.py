"""The event loop's heartbeat: how long the loop was held, and by which function.
from flowsched.log_lines import get_logger

A coroutine notes every 50 ms that the loop moves. When it does not, a thread notes which function the loop runs. On a busy machine
a loop is late although no function holds it. A loop therefore counts as held only for the CPU time that its own thread uses between
two beats.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from flowsched.log_lines import get_logger

log = get_logger(__name__)

BEAT_S: Final = 0.05
#: No function may hold the loop for longer.
HELD_S: Final = 0.2
#: The log has the longest stall of so many seconds.
QUIET_S: Final = 60.0
_HERE: Final = str(Path(__file__).resolve().parents[2])


class Stall(msgspec.Struct, frozen=True):
    """One time that a function held the loop.

    Args:
        seconds: CPU time of the loop's thread between two beats.
        by: The innermost function of flowsched that the thread saw, "" if it saw none.
    """

    seconds: float
    by: str


class Heartbeat:
    """Watches the loop that `run` runs on.

    Args:
        stalled: `Heartbeat` calls it with each stall, on the loop.
    """

    def __init__(self, stalled: Callable[[Stall], None]) -> None:
        self._stalled = stalled
        self._thread_id = 0
        self._beat_at = 0.0
        self._seen = ""
        self._end = threading.Event()

    async def run(self) -> None:
        """Beat for ever."""
        self._thread_id = threading.get_ident()
        self._beat_at = time.monotonic()
        used = time.thread_time()
        watching = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        watching.start()
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                now_used = time.thread_time()
                held, by = now_used - used, self._seen
                used, self._seen, self._beat_at = now_used, "", time.monotonic()
                if held > HELD_S:
                    self._stalled(Stall(held, by))
        finally:
            self._end.set()

    def _watch(self) -> None:
        """Note which function the loop runs while it does not beat."""
        while not self._end.wait(BEAT_S):
            if time.monotonic() - self._beat_at > 2 * BEAT_S:
                self._seen = _ours(sys._current_frames().get(self._thread_id)) or self._seen


def _ours(frame: FrameType | None) -> str:
    """The innermost function of this package on a stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_HERE) and code.co_filename != __file__:
            return f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


class Warnings:
    """Logs stalls, the longest of a minute."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told_at = float("-inf")
        self._times = 0
        self._longest = Stall(0.0, "")

    def __call__(self, stall: Stall) -> None:
        """Count a stall, and log the longest when it is time."""
        self._times += 1
        self._longest = max(self._longest, stall, key=lambda each: each.seconds)
        now = self._monotonic()
        if now - self._told_at >= QUIET_S:
            longest = self._longest
            log.warning(
                "the event loop was held", ms=round(longest.seconds * 1000), by=longest.by, times=self._times
            )
            self._told_at, self._times, self._longest = now, 0, Stall(0.0, "")
