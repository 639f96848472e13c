"""Limits that a queue's profile sets for users and for timeouts, as clients meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from tests.postgres import fresh_postgres, postgres_server

__all__ = ["fresh_postgres", "postgres_server"]

PROFILE = """
default: lab
profiles:
  lab: {}
  short: {max_timeout_ms: 3600000, default_timeout_ms: 300, max_submitted_tasks_per_user: 10}
queues: {debug: short}
"""


def settings(folder: Path, database: str | None = None) -> Settings:
    (folder / "profile.yaml").write_text(PROFILE)
    return Settings(
        port=0,
        root=folder / "root",
        database=database,
        log_level="error",
        profile=folder / "profile.yaml",
        local=LocalSettings(nodes=1, cpu="1", memory="1Gi"),
    )


def document(tasks: int = 1, **more: Any) -> bytes:
    stage = {
        "name": "a",
        "command": ["sleep", "60"],
        "scatter": {"count": tasks},
        "resources": {"cpu": 9},
        **more,
    }
    return json.dumps({"name": "w", "queue": "debug", "user": "ann", "stages": [stage]}).encode()


async def test_a_timeout_beyond_that_of_the_queue_is_refused(tmp_path: Path) -> None:
    """422 with the place, the queue and the limit. For a TES task, 400 with the place in the words of TES."""
    async with running(settings(tmp_path)) as up, aiohttp.ClientSession(up.url) as http:
        async with http.post("/api/v1/workflows", data=document(timeout="2h")) as answer:
            problem = await answer.json()
        assert answer.status == 422
        assert problem["faults"] == [
            {
                "path": "$.stages[0].timeout",
                "found": "2h",
                "expected": "at most 1h in queue debug (max_timeout_ms of its profile)",
            }
        ]
        task = {
            "executors": [{"image": "x", "command": ["x"]}],
            "resources": {"backend_parameters": {"queue": "debug", "timeout": "2h"}},
        }
        async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
            assert answer.status == 400
            (fault,) = (await answer.json())["faults"]
        assert fault["path"] == "$.resources.backend_parameters.timeout"


async def test_a_user_has_no_more_tasks_in_a_queue_than_it_allows(
    database_url: str | None, tmp_path: Path
) -> None:
    """429 with the numbers, accepted again after a cancel; one workflow that alone has too many is a 413."""
    async with running(settings(tmp_path, database_url)) as up, aiohttp.ClientSession(up.url) as http:
        async with http.post("/api/v1/workflows", data=document(6)) as answer:
            assert answer.status == 202
            first = (await answer.json())["id"]
        async with http.post("/api/v1/workflows", data=document(5)) as answer:
            assert answer.status == 429
            assert (await answer.json())["detail"] == (
                "user ann may have 10 tasks in queue debug (max_submitted_tasks_per_user of its profile); workflows that have not "
                "ended have 6, and this one has 5: send it again when some have ended"
            )
        async with http.post("/api/v1/workflows", data=document(11)) as answer:
            assert answer.status == 413
        async with http.post("/api/v1/workflows", data=document(5).replace(b"ann", b"bob")) as answer:
            assert answer.status == 202
        async with http.post(f"/api/v1/workflows/{first}/cancel", json={}) as answer:
            assert (await answer.json())["state"] == "CANCELLED"
        async with http.post("/api/v1/workflows", data=document(5)) as answer:
            assert answer.status == 202


async def test_a_task_without_a_timeout_has_that_of_its_queue(tmp_path: Path) -> None:
    """The answer to its submission says so, and so does its end."""
    async with running(settings(tmp_path)) as up:
        accepted = await up.service.submit(
            document(resources={"cpu": 1, "memory": "16Mi"}, retry={"attempts": 1})
        )
        assert accepted.notes == ["queue debug ends tasks that state no timeout after 300ms: those of a"]
        async for _ in up.service.events(accepted.id, 0):
            pass
        (attempt,) = (await up.service.attempts(accepted.id)).attempts
    assert attempt.reason == "Timeout"
    assert attempt.message == (
        "it ran longer than its timeout of 0.3 s; "
        "the document states none, so it has that of queue debug (default_timeout_ms of its profile)"
    )
