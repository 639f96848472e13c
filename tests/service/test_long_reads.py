"""Long reads over the leader's memory: the event loop serves other requests between their slices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flowsched.control import service
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import process


async def test_ten_clients_that_ask_at_once_get_their_slices_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on after each slice of 2 stages; it was after one slice of each of the ten clients."""
    rounds, seen = 0, []
    original = service.explain_stage

    def counted(*arguments: Any, **more: Any) -> Any:
        seen.append(rounds)
        return original(*arguments, **more)

    async def turning() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(service, "explain_stage", counted)
    monkeypatch.setattr(service, "EXPLAINED", 2)
    stages = [{"name": f"s{n}", "command": ["x"], "resources": {"cpu": 100}} for n in range(6)]
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(lambda _: Outcome())) as made:
        made.lead()
        await made.ready()
        ident = (await made.service.submit(json.dumps({"name": "w", "stages": stages}).encode())).id
        while not (await made.service.workflow(ident)).counts.get("QUEUED"):
            await asyncio.sleep(0.01)
        loop = asyncio.create_task(turning())
        told = await asyncio.gather(*(made.service.explain(ident) for _ in range(10)))
        loop.cancel()
    assert [len(each) for each in told] == [6] * 10
    assert len(seen) == 60
    assert max(map(seen.count, seen)) == 2


async def test_the_slices_of_one_answer_look_through_the_reasons_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slices of 2 stages are read from one set of facts while no step is made: each slice looked through all reasons."""
    made_facts = []
    original = service.Facts

    def counted(*arguments: Any) -> Any:
        made_facts.append(1)
        return original(*arguments)

    monkeypatch.setattr(service, "EXPLAINED", 2)
    stages = [{"name": f"s{n}", "command": ["x"], "resources": {"cpu": 100}} for n in range(6)]
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(lambda _: Outcome())) as made:
        made.lead()
        await made.ready()
        ident = (await made.service.submit(json.dumps({"name": "w", "stages": stages}).encode())).id
        while not (await made.service.workflow(ident)).counts.get("QUEUED"):
            await asyncio.sleep(0.01)
        monkeypatch.setattr(service, "Facts", counted)
        for _ in range(50):  # a step may come between two slices: they need facts of its outcome
            made_facts.clear()
            views = await made.service.stages(ident)
            assert [each.waiting and each.waiting.code for each in views] == ["LargerThanNode"] * 6
            if len(made_facts) == 1:
                break
    assert len(made_facts) == 1
