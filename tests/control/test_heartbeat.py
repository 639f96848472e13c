"""The heartbeat tells a loop that is held from one that only waits for its turn on a busy machine."""

from __future__ import annotations

import asyncio
import time

from structlog.testing import capture_logs

from flowsched.control.leading.heartbeat import Heartbeat, Stall, Warnings
from flowsched.workflow.document.reader import read_document


async def watched(hold: object) -> list[Stall]:
    """What the heartbeat says of a loop on which this is called once."""
    stalls: list[Stall] = []
    beating = asyncio.create_task(Heartbeat(stalls.append).run())
    await asyncio.sleep(0.1)
    assert callable(hold)
    hold()
    await asyncio.sleep(0.2)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    return stalls


def hold_for(seconds: float) -> None:
    """Read documents for so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        read_document(b'{"a": [%s]}' % b",".join([b"1"] * 2_000))


async def test_a_loop_that_computes_is_held_and_by_whom_is_said() -> None:
    """One stall, with the function of flowsched that was seen."""
    (stall,) = await watched(lambda: hold_for(1.0))
    assert stall.seconds >= 1.0
    assert ".py:" in stall.by


async def test_a_loop_that_waits_for_its_turn_is_not_held() -> None:
    """A second without any CPU time is the machine's doing."""
    assert await watched(lambda: time.sleep(1.0)) == []


def test_stalls_are_logged_once_a_minute_with_the_longest() -> None:
    """A poison request a second must not fill the log."""
    now = [0.0]
    warn = Warnings(lambda: now[0])
    with capture_logs() as logged:
        for second in range(120):
            now[0] = float(second)
            warn(Stall(0.3 if second != 30 else 4.1, "f (a.py:1)" if second != 30 else "g (b.py:2)"))
    assert [(entry["ms"], entry["by"], entry["times"]) for entry in logged] == [
        (300, "f (a.py:1)", 1),
        (4100, "g (b.py:2)", 60),
    ]
