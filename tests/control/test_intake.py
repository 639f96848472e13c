"""Intake: submissions that follow each other wait for one another, commands wait for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowsched.control import intake
from flowsched.control.intake import Documents, Intake
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows


class Slow:
    """A dispatcher whose last step took long."""

    took_s = 3_600.0

    def __init__(self, started: bool) -> None:
        self.started = started

    def tell(self, events: Any) -> None:
        raise AssertionError(f"nothing was accepted, and {events} was told")


@asynccontextmanager
async def looking(folder: Path, monkeypatch: Any, dispatcher: Any) -> AsyncIterator[tuple[Intake, list[str]]]:
    """An intake that has looked once, and what it looks for."""
    looks: list[str] = []

    class Counting(Workflows):
        async def accepted_after(self, seq: int) -> Any:
            looks.append("submissions")
            return await super().accepted_after(seq)

        async def commands(self, limit: int = 1) -> Any:
            looks.append("commands")
            return await super().commands(limit)

    monkeypatch.setattr(intake, "_LONGEST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(intake, "Workflows", Counting)
    async with await Database.open(str(folder / "intake.db")) as database:
        made = Intake(database, Documents(Workflows(database)), dispatcher, last_seq=0, clock=lambda: 0)
        running = asyncio.create_task(made.run())
        while len(looks) < 2:
            await asyncio.sleep(0.01)
        yield made, looks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("started", [True, False])
async def test_a_stream_of_submissions_is_taken_in_together(
    tmp_path: Path, monkeypatch: Any, started: bool
) -> None:
    """After an expensive step the next look for submissions is put off; a command that somebody waits for is read at once."""
    async with looking(tmp_path, monkeypatch, Slow(started)) as (made, looks):
        for _ in range(20):
            made.wake(urgent=False)
            await asyncio.sleep(0.005)
        assert looks == ["submissions", "commands"]
        made.wake(urgent=True)
        while len(looks) < 4:
            await asyncio.sleep(0.01)
    assert looks == ["submissions", "commands"] * 2


@pytest.mark.parametrize(("started", "seen"), [(True, 2), (False, 1)])
async def test_after_a_step_that_started_nothing_the_pause_is_longer(
    tmp_path: Path, monkeypatch: Any, started: bool, seen: int
) -> None:
    """What is submitted next most likely waits, too."""
    monkeypatch.setattr(intake, "_PAUSE_PER_STEP", 0.0)
    async with looking(tmp_path, monkeypatch, Slow(started)) as (made, looks):
        made.wake(urgent=False)
        await asyncio.sleep(0.5)
    assert looks.count("submissions") == seen
