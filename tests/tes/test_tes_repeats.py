"""A create whose answer was lost is sent again: it makes no second task, and two that were meant to be two stay two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flowsched.api.server import build_api
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import process
from tests.tes.conftest import BOTH, TES, Tes, World

PLAIN: dict[str, Any] = {"name": "x", "executors": [{"image": "a", "command": ["x"]}]}
#: As Cromwell sends it: the description is of one attempt of one call.
CALL: dict[str, Any] = {
    **PLAIN,
    "description": "7f0d:BackendJobDescriptorKey_CommandCallNode_W.a:-1:1",
    "tags": {"workflow_id": "7f0d"},
}
MINUTE = 60_000


@pytest.fixture
def world() -> World:
    """Pods run until the end of the test."""
    return World(outcome=lambda pod: Outcome(runtime_ms=600_000))


@BOTH
@pytest.mark.parametrize("body", [PLAIN, CALL])
async def test_five_at_once_are_one(tes: Tes, body: dict[str, Any]) -> None:
    """Under all prefixes, as a client tries them."""
    prefixes = [TES, "/v1", "", TES, "/v1"]
    made = await asyncio.gather(*(tes.create(body, prefix=prefix) for prefix in prefixes))
    assert len(set(made)) == 1
    assert len((await tes.list())["tasks"]) == 1


async def test_a_described_task_is_the_same_as_long_as_it_lives(tes: Tes, world: World) -> None:
    """An hour later too; another attempt has another description."""
    first = await tes.create(CALL)
    world.skew_ms = 60 * MINUTE
    assert await tes.create(CALL) == first
    assert await tes.create({**CALL, "description": CALL["description"][:-1] + "2"}) != first


@pytest.mark.parametrize("body", [PLAIN, {**PLAIN, "description": "d"}, {**PLAIN, "tags": {"a": "b"}}])
async def test_a_task_that_says_little_of_itself_is_the_same_for_a_minute(
    tes: Tes, world: World, body: dict[str, Any]
) -> None:
    """Two identical tasks may be meant."""
    world.stop_clock()
    first = await tes.create(body)
    world.skew_ms = MINUTE - 1_000
    assert await tes.create(body) == first
    world.skew_ms = MINUTE + 1_000
    second = await tes.create(body)
    assert second != first
    assert await tes.create(body) == second


async def test_a_task_that_ended_and_was_asked_for_is_another_the_next_time(tes: Tes, world: World) -> None:
    """Who has polled it has its id: sending it again means it again."""
    world.outcome = lambda pod: Outcome(runtime_ms=5)
    first = await tes.create(CALL)
    await tes.until(first)
    assert await tes.create(CALL) != first


async def test_a_task_that_ended_before_its_client_knew_is_not_run_again(tes: Tes, world: World) -> None:
    """The answer to the create was lost, and the task was short."""
    world.outcome = lambda pod: Outcome(runtime_ms=5)
    first = await tes.create(CALL)
    async with asyncio.timeout(120):
        while (await (await tes.api.get(f"/api/v1/workflows/{first}")).json())["state"] != "SUCCEEDED":
            await asyncio.sleep(0.01)
    assert await tes.create(CALL) == first
    world.skew_ms = MINUTE + 1_000
    assert await tes.create(CALL) != first


async def test_an_idempotency_key_says_it_all(tes: Tes, world: World) -> None:
    """Same key, same task, for good; other keys, other tasks; the same key with another body is a conflict."""
    first = await tes.create(PLAIN, **{"Idempotency-Key": "k1"})
    world.skew_ms = 60 * MINUTE
    assert await tes.create(PLAIN, **{"Idempotency-Key": "k1"}) == first
    assert await tes.create(PLAIN, **{"Idempotency-Key": "k2"}) != first
    answer = await tes.api.post(
        f"{TES}/tasks", json={**PLAIN, "name": "y"}, headers={"Idempotency-Key": "k1"}
    )
    assert answer.status == 409


async def test_a_key_of_another_face_is_another_key(tes: Tes) -> None:
    """The same key for a workflow and for a TES task."""
    document = {"name": "w", "stages": [{"name": "a", "command": ["x"]}]}
    headers = {"Idempotency-Key": "k"}
    assert (await tes.api.post("/api/v1/workflows", json=document, headers=headers)).status == 202
    assert await tes.create(PLAIN, **headers) == await tes.create(PLAIN, **headers)


async def test_two_clients_do_not_get_each_other_s_tasks(tes: Tes) -> None:
    """Told apart by program and credentials."""
    first = await tes.create(CALL, **{"User-Agent": "one"})
    assert await tes.create(CALL, **{"User-Agent": "two"}) != first


@pytest.mark.postgresql
async def test_two_replicas_make_one_task_of_what_both_were_sent(
    fresh_postgres: Callable[[], str], tmp_path: Path
) -> None:
    """Decided in the transaction: at once, and when an old task of the same key is over for both."""
    world = World(outcome=lambda pod: Outcome(runtime_ms=600_000))
    url = fresh_postgres()
    async with (
        process(url, tmp_path / "one", FakeProcesses(), "one", clock=world.clock) as one,
        process(url, tmp_path / "two", FakeProcesses(), "two", clock=world.clock) as two,
        TestClient(TestServer(build_api(one.service))) as first,
        TestClient(TestServer(build_api(two.service))) as second,
    ):
        seen = []
        for minutes in range(4):
            world.skew_ms = minutes * (MINUTE + 1_000)
            answers = await asyncio.gather(
                *(client.post(f"{TES}/tasks", json=PLAIN) for client in [first, second] * 5)
            )
            ids = {(await answer.json())["id"] for answer in answers}
            assert len(ids) == 1
            seen += ids
        assert len(set(seen)) == 4
        ident = seen[-1]
        for client in (first, second):
            assert await (await client.get(f"{TES}/tasks/{ident}")).json() == {"id": ident, "state": "QUEUED"}
