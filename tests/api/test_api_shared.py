"""Answers that callers share: begun after each question, and made once for all who wait."""

from __future__ import annotations

import asyncio

import pytest

from flowsched.api.routes import Shared


async def test_an_answer_is_begun_after_its_question_and_made_once_for_those_who_wait() -> None:
    """Five callers who come while the first answer is made share the second; another question waits for none."""
    shared, gates, begun = Shared(), [asyncio.Event() for _ in range(3)], 0

    async def answer() -> bytes:
        nonlocal begun
        begun += 1
        number = begun
        await gates[number - 1].wait()
        return b"%d" % number

    async def other() -> bytes:
        return b"other"

    first = asyncio.create_task(shared.ask("list", answer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(shared.ask("list", answer)) for _ in range(5)]
    assert await shared.ask("another", other) == b"other"
    assert begun == 1
    gates[0].set()
    assert await first == b"1"
    gates[1].set()
    assert await asyncio.gather(*later) == [b"2"] * 5
    gates[2].set()
    assert await shared.ask("list", answer) == b"3"
    assert begun == 3


async def test_a_caller_who_leaves_and_an_answer_that_fails_take_no_other_along() -> None:
    """The next caller gets an answer of its own."""
    shared, gate = Shared(), asyncio.Event()

    async def fails() -> bytes:
        await gate.wait()
        raise ValueError("no")

    async def works() -> bytes:
        return b"yes"

    leaving, staying = (asyncio.create_task(shared.ask("list", fails)) for _ in range(2))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(shared.ask("list", works))
    leaving.cancel()
    gate.set()
    with pytest.raises(ValueError, match="no"):
        await staying
    with pytest.raises(ValueError, match="no"):
        await waiting  # it shares the next answer with `staying`, which asked first
    assert await shared.ask("list", works) == b"yes"
