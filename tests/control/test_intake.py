"""Intake: submissions that follow each other wait for one another, commands wait for nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flowsched.control import intake
from flowsched.control.intake import Documents, Intake
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows


class Slow:
    """A dispatcher whose last step took long."""

    took_s = 3_600.0

    def tell(self, events: Any) -> None:
        raise AssertionError(f"nothing was accepted, and {events} was told")


async def test_a_stream_of_submissions_is_taken_in_together(tmp_path: Path, monkeypatch: Any) -> None:
    """After an expensive step the next look for submissions is put off; a command that somebody waits for is read at once."""
    monkeypatch.setattr(intake, "_LONGEST_PAUSE_S", 3_600.0)
    looks: list[str] = []

    class Counting(Workflows):
        async def accepted_after(self, seq: int) -> Any:
            looks.append("submissions")
            return await super().accepted_after(seq)

        async def commands(self, limit: int = 1) -> Any:
            looks.append("commands")
            return await super().commands(limit)

    monkeypatch.setattr(intake, "Workflows", Counting)
    async with await Database.open(str(tmp_path / "intake.db")) as database:
        made = Intake(database, Documents(Workflows(database)), Slow(), last_seq=0, clock=lambda: 0)  # type: ignore[arg-type]
        running = asyncio.create_task(made.run())
        while len(looks) < 2:
            await asyncio.sleep(0.01)
        for _ in range(20):
            made.wake(urgent=False)
            await asyncio.sleep(0.005)
        assert looks == ["submissions", "commands"]
        made.wake(urgent=True)
        while len(looks) < 4:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert looks == ["submissions", "commands"] * 2
