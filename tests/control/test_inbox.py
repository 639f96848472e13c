"""When the dispatcher steps: at once after a pause, and not sooner than a moment after its last step."""

from __future__ import annotations

import asyncio

import pytest

from flowsched.control.leading import dispatch
from flowsched.control.leading.dispatch import Inbox
from flowsched.engine.events import Tick


async def waited_s(inbox: Inbox) -> float:
    """Put an event, and wait for the moment at which it is stepped."""
    loop = asyncio.get_running_loop()
    inbox.put([Tick()], quiet=False)
    began = loop.time()
    await inbox.wait(None)
    assert len(inbox.collect()) == 1
    return loop.time() - began


async def test_after_a_pause_an_event_is_stepped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first event nor one long after the last step waits for others."""
    monkeypatch.setattr(dispatch, "DEBOUNCE_S", 0.5)
    inbox = Inbox()
    assert await waited_s(inbox) < 0.4
    inbox.taken()
    await asyncio.sleep(0.6)
    assert await waited_s(inbox) < 0.4


async def test_events_right_after_a_step_are_stepped_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step begins a moment after the last one ended, with all that has come until then."""
    monkeypatch.setattr(dispatch, "DEBOUNCE_S", 0.2)
    inbox = Inbox()
    await waited_s(inbox)
    inbox.taken()
    inbox.put([Tick()], quiet=False)
    waiting = asyncio.create_task(inbox.wait(None))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    inbox.put([Tick()], quiet=False)
    await waiting
    assert len(inbox.collect()) == 2


async def test_the_pause_is_as_long_as_the_last_round_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short tasks that were started together end in one round; a round of a minute delays the next by half a second only."""
    monkeypatch.setattr(dispatch, "LONGEST_DEBOUNCE_S", 0.5)
    inbox = Inbox()
    await waited_s(inbox)
    for took_s, least, most in ((0.2, 0.19, 0.4), (60.0, 0.49, 0.9)):
        inbox.taken(took_s)
        assert least < await waited_s(inbox) < most
