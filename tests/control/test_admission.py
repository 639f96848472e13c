"""How much may live at a time: what is beyond is refused with the numbers, and accepted once something has ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from flowsched.app import LimitSettings, Settings, running
from flowsched.control import admission
from flowsched.control.admission import Admission, LiveLimits
from flowsched.errors import Conflict, TooLarge, TooMuch
from flowsched.scheduling.policy.framework import Profile
from flowsched.store.workflows import Workflows
from tests.cluster.fake import FakeProcesses
from tests.control.test_bounds import fresh_postgres, postgres_server, postgres_url, url
from tests.service.processes import process

__all__ = ["fresh_postgres", "postgres_server", "postgres_url", "url"]


def document(tasks: int, padding: int = 0) -> bytes:
    """A workflow whose tasks no node can take."""
    stage = {
        "name": "a",
        "scatter": {"count": tasks},
        "command": ["x" * padding or "x"],
        "resources": {"cpu": 900},
    }
    return json.dumps({"name": "w", "stages": [stage]}).encode()


async def test_tasks_that_live_are_bounded_over_all_workflows(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accepted up to the limit, refused beyond it with all three numbers, accepted again after a cancel."""
    monkeypatch.setattr(admission, "RECOUNT_S", 0.0)
    async with process(url, tmp_path, FakeProcesses()) as one:
        service = one.service
        service._admission = Admission(one.writer, Workflows(one.database), LiveLimits(100, 1 << 20), Profile)
        one.lead()
        await one.ready()
        first = (await service.submit(document(60))).id
        with pytest.raises(TooMuch, match=r"have 60 tasks, this one has 41, and the limit is 100 .*cancel"):
            await service.submit(document(41))
        await service.submit(document(40))
        assert (await service.command(first, "cancel")).state == "CANCELLED"
        await service.submit(document(60))
        with pytest.raises(TooLarge, match=r"this workflow has 101 tasks; .* may have 100"):
            await service.submit(document(101))


async def test_documents_sent_at_the_same_time_do_not_pass_the_limit_together(tmp_path: Path) -> None:
    """What was let through and is not committed yet counts."""
    async with process(str(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.service._admission = Admission(
            one.writer, Workflows(one.database), LiveLimits(100, 1 << 20), Profile
        )
        sent = [one.service.submit(document(30)) for _ in range(10)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert sorted(type(each).__name__ for each in answers) == ["SubmittedView"] * 3 + ["TooMuch"] * 7


async def test_bytes_of_documents_are_bounded_too_and_the_answer_is_a_429(tmp_path: Path) -> None:
    """Over HTTP: 429 with the numbers and when to come again, for TES tasks as well."""
    settings = Settings(port=0, root=tmp_path, log_level="error", limits=LimitSettings(max_live_bytes="3000"))
    async with running(settings) as up, aiohttp.ClientSession(up.url) as http:
        async with http.post("/api/v1/workflows", data=document(1, 1_500)) as answer:
            assert answer.status == 202
        async with http.post("/api/v1/workflows", data=document(1, 1_500)) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
            said = (await answer.json())["detail"]
        assert "the limit is 3,000 (serve --max-live-bytes)" in said
        async with http.post("/api/v1/workflows", data=document(1, 3_000)) as answer:
            assert answer.status == 413
        task = {"executors": [{"image": "x", "command": ["x" * 1_500]}]}
        async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
            assert answer.status == 429
        async with http.post("/api/v1/workflows", data=document(1)) as answer:
            assert answer.status == 202


async def test_a_repeat_of_what_was_accepted_gives_its_id_while_the_service_is_full(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that did not hear the first answer needs no room: it gets the first id, even if the limits were lowered since."""
    monkeypatch.setattr(admission, "RECOUNT_S", 0.0)
    async with process(url, tmp_path, FakeProcesses()) as one:
        service = one.service
        for limits in (LiveLimits(100, 1 << 20), LiveLimits(10, 1 << 20)):
            service._admission = Admission(one.writer, Workflows(one.database), limits, Profile)
            first = await service.submit(document(100), idempotency_key="k")
            with pytest.raises((TooMuch, TooLarge)):
                await service.submit(document(100), idempotency_key="another")
            again = await service.submit(document(100), idempotency_key="k")
            assert (again.id, again.created) == (first.id, False)
            with pytest.raises(Conflict, match="another request body"):
                await service.submit(document(99), idempotency_key="k")


async def test_a_tes_task_that_is_sent_again_gives_its_id_while_the_service_is_full(tmp_path: Path) -> None:
    """Cromwell and others send a create again when its answer was lost."""
    settings = Settings(port=0, root=tmp_path, log_level="error", limits=LimitSettings(max_live_tasks=1))
    task = {
        "description": "one",
        "executors": [{"image": "x", "command": ["x"]}],
        "resources": {"cpu_cores": 900},
        "tags": {"of": "a run"},
    }
    async with running(settings) as up, aiohttp.ClientSession(up.url) as http:
        ids = []
        for _ in range(2):
            async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
                assert answer.status == 200, await answer.text()
                ids.append((await answer.json())["id"])
        async with http.post("/ga4gh/tes/v1/tasks", json=task | {"name": "another"}) as answer:
            assert answer.status == 429
    assert ids[0] == ids[1]
