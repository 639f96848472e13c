"""Whatever bytes come: a 4xx that says what is wrong, never a 5xx, never a stalled loop."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from fake_service import LIMITS, FakeService
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowsched.api.handlers.cluster import QueueBody
from flowsched.api.parameters import InvalidParameters, decode_body
from flowsched.api.routes import Limits
from flowsched.api.server import build_api
from flowsched.errors import InvalidRequest
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.views import SubmittedView
from tests.soak import worlds

GOOD = {"name": "x", "stages": [{"name": "a", "command": ["true"]}]}


class DecodingService(FakeService):
    """Decodes as the real service does, in a thread where the body is large."""

    async def submit(
        self, raw: bytes, *, idempotency_key: str | None = None, traceparent: str | None = None
    ) -> SubmittedView:
        await asyncio.to_thread(decode_workflow, raw)
        return SubmittedView(id=self.add("x"))


@pytest.fixture
async def strict() -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(build_api(DecodingService(), limits=LIMITS))) as client:
        yield client


def with_stage(**fields: object) -> bytes:
    return json.dumps({"name": "x", "stages": [{"name": "a", "command": ["true"], **fields}]}).encode()


POISON = {
    "nothing": b"",
    "blank": b"  \n",
    "not JSON": b"hello",
    "half": b'{"name": "x", "stages": [',
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": b'{"name": "\xff"}',
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "NUL byte": b'{"name": "a\x00b"}',
    "NUL escaped": b'{"name": "a\\u0000b", "stages": []}',
    "lone surrogate": b'{"name": "\\ud800", "stages": []}',
    "deep arrays": b"[" * 100_000,
    "deep arrays closed": b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "5,000 digits": with_stage(timeout=0).replace(b'"timeout": 0', b'"timeout": ' + b"9" * 5000),
    "1e400": with_stage(resources={"cpu": 0}).replace(b'"cpu": 0', b'"cpu": 1e400'),
    "NaN": with_stage(resources={"cpu": 0}).replace(b'"cpu": 0', b'"cpu": NaN'),
    "Infinity": with_stage(resources={"cpu": 0}).replace(b'"cpu": 0', b'"cpu": -Infinity'),
    "a key twice": b'{"name": "x", "name": "y", "stages": []}',
    "long text": with_stage(env={"A": "x" * 9_000_000}),
    "a cycle": json.dumps(
        {
            "name": "x",
            "stages": [
                {"name": "a", "command": ["true"], "needs": ["b"]},
                {"name": "b", "command": ["true"], "needs": ["a"]},
            ],
        }
    ).encode(),
    "itself": with_stage(needs=["a"]),
    "nobody": with_stage(needs=["b"]),
    "twice": json.dumps({"name": "x", "stages": [GOOD["stages"][0]] * 2}).encode(),  # type: ignore[index]
    "huge scatter": with_stage(scatter={"count": 10**18}),
    "negative": with_stage(resources={"cpu": -1, "memory": "-5Gi"}),
}


@pytest.mark.parametrize("name", POISON)
async def test_fault_40_and_41_poison_is_refused(strict: TestClient, name: str) -> None:
    """4xx, as a problem with words in it, while the loop goes on turning."""
    longest = 0.0
    going = True

    async def watch() -> None:
        nonlocal longest
        while going:
            began = time.process_time()
            await asyncio.sleep(0.005)
            longest = max(longest, time.process_time() - began)

    watching = asyncio.create_task(watch())
    answer = await strict.post("/api/v1/workflows", data=POISON[name])
    problem = await answer.json()
    going = False
    await watching
    assert answer.status in (400, 413, 422), problem
    assert answer.content_type == "application/problem+json"
    assert problem["detail"]
    assert len(json.dumps(problem)) < 5000
    if answer.status == 422:
        assert all(fault["path"].startswith("$") and fault["expected"] for fault in problem["faults"])
        assert problem["faults"]
    assert longest < 1.0, (
        "of CPU, for the machine is shared; the promise of 200 ms is measured by the benchmark"
    )


VALUES = (None, True, 3, -1, 2.5, "text", [], {}, [None], {"a": None}, "\u202e", [[]])


@pytest.mark.parametrize("place", ["name", "stages", "queue", "priority", "labels"])
async def test_wrong_types_are_faults_with_a_path(strict: TestClient, place: str) -> None:
    """Everywhere at the top: accepted where it is right, else a fault names the place."""
    for value in VALUES:
        answer = await strict.post("/api/v1/workflows", data=json.dumps({**GOOD, place: value}))
        problem = await answer.json()
        assert answer.status in (202, 422), (value, problem)
        if answer.status == 422:
            assert any(fault["path"].startswith(f"$.{place}") for fault in problem["faults"]), problem


@pytest.mark.parametrize(
    "place",
    ["name", "command", "scatter", "inputs", "outputs", "needs", "resources", "limits", "env", "retry", "timeout",
     "gang", "roles", "estimate", "when", "policies", "selector", "tolerations", "io", "cache", "container"],
)  # fmt: skip
async def test_wrong_types_in_a_stage_are_faults_with_a_path(strict: TestClient, place: str) -> None:
    """Everywhere in a stage; never a 5xx."""
    for value in VALUES:
        answer = await strict.post("/api/v1/workflows", data=with_stage(**{place: value}))
        problem = await answer.json()
        assert answer.status in (202, 422), (value, problem)
        if answer.status == 422:
            assert all(fault["path"].startswith("$.stages[0]") for fault in problem["faults"]), problem


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(strict: TestClient) -> None:
    """By its announced length at once: none of it needs to be sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", strict.port)
    head = "POST /api/v1/workflows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"99999999999 bytes; at most 10485760 are accepted" in answer


async def test_a_body_that_grows_beyond_the_limit_is_refused_while_it_comes(strict: TestClient) -> None:
    """Chunked, without a length."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * (1 << 17)

    try:
        answer = await strict.post("/api/v1/workflows", data=endless())
    except (ConnectionError, OSError):
        return  # the server hung up while we were sending: refused as well
    assert answer.status == 413
    assert "which is the limit" in (await answer.json())["detail"]


async def test_a_body_that_does_not_come_is_not_waited_for(service: FakeService) -> None:
    """A client that announces and sends nothing."""
    async with TestServer(build_api(service, limits=Limits(body_seconds=0.5))) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /api/v1/workflows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b"}"), 60)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"did not arrive within" in answer


async def test_a_compressed_bomb_is_not_unpacked(strict: TestClient) -> None:
    """Content-Encoding is refused by name."""
    body = gzip.compress(b" " * (50 << 20))
    headers = {"Content-Encoding": "gzip"}
    answer = await strict.post("/api/v1/workflows", data=body, headers=headers)
    assert answer.status in (400, 413)


async def test_small_bodies_have_a_small_limit(strict: TestClient) -> None:
    """A queue's settings are no place for megabytes."""
    answer = await strict.put("/api/v1/queues/lab", data=b'{"parent": "' + b"x" * 5000 + b'"}')
    assert answer.status == 413


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/workflows/%00",
        "/api/v1/workflows/%ff",
        "/api/v1/workflows/" + "x" * 2000,
        "/api/v1/workflows/a%0d%0aSet-Cookie:x",
        "/api/v1/workflows/wf1/tasks/align/99999999999999999999",
        "/api/v1/workflows/wf1/tasks/align/1.5",
        "/api/v1/workflows/wf1/tasks/align/%D9%A1",
        "/api/v1/workflows?limit=1e3",
        "/api/v1/workflows?limit=99999999999999999999999",
        "/api/v1/workflows?state=%F0%9F%92%A9",
        "/api/v1/workflows?name=%ff",
        "/api/v1/workflows?name=" + "x" * 2000,
        "/api/v1/workflows?label=novalue",
        "/api/v1/workflows?=",
        "/api/v1/workflows?" + "&".join(f"p{n}=1" for n in range(300)),
        "/api/v1/workflows/wf1/events?after=-1",
        "/api/v1/workflows/wf1/events?after=9223372036854775808",
        "/api/v1/workflows/wf1/tasks/align/0/logs?stream=stdin",
        "/api/v1/workflows/wf1/tasks/align/0/logs?offset=-1",
    ],
)
async def test_bad_paths_and_queries_are_the_clients_fault(
    api: TestClient, service: FakeService, path: str
) -> None:
    """4xx for each; the service is not asked for what cannot exist."""
    service.add()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.split(b" ")[1] in (b"400", b"404", b"200"), answer[:300]
    if answer.split(b" ")[1] == b"200":
        assert path.endswith("name=%ff"), "an undecodable filter matches nothing"
    assert b"Set-Cookie:x\r\n" not in answer.split(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    "setting", [{"weight": 0}, {"order": "lifo"}, {"paused": "yes"}, {"cap": None}], ids=str
)
async def test_a_setting_of_a_wrong_kind_changes_no_queue(
    api: TestClient, service: FakeService, setting: dict[str, Any]
) -> None:
    """The fault names it, and the service is not asked."""
    answer = await api.put("/api/v1/queues/lab", json=setting)
    (name,) = setting
    assert (answer.status, (await answer.json())["faults"][0]["path"]) == (400, f"$.{name}")
    assert "lab" not in service.queue_settings


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["weight", "parent", "cap", "paused", "cpu", "x\x00"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_json_is_a_queue_or_a_refusal(value: object) -> None:
    """No value makes the decoder fail in another way, and what passes has the types it says."""
    try:
        body = decode_body(json.dumps(value).encode(), QueueBody)
    except (InvalidRequest, InvalidParameters):
        return
    assert isinstance(value, dict)
    assert set(value) <= {"weight", "parent", "priority", "paused", "cap", "guarantee"}
    assert body is not None


@given(st.binary(max_size=60))
@pytest.mark.soak
@settings(max_examples=worlds(60, 750), deadline=None)
def test_any_bytes_are_a_queue_or_a_refusal(raw: bytes) -> None:
    """The same for what is not JSON at all."""
    try:
        decode_body(raw, QueueBody)
    except (InvalidRequest, InvalidParameters):
        return


async def test_a_tes_task_of_more_than_4_mib_is_refused_before_it_is_read() -> None:
    """A thousand inputs are some 300 KiB; 800,000 tags were accepted, and held the service for seconds."""
    body = b'{"executors":[{"image":"a","command":["b"]}],"description":"' + b"x" * (4 << 20) + b'"}'
    async with TestClient(TestServer(build_api(FakeService()))) as client:
        answered = await client.post("/ga4gh/tes/v1/tasks", data=body)
        said = await answered.json()
    assert answered.status == 413
    assert said["detail"] == f"The body has {len(body)} bytes; at most 4194304 are accepted"
