"""Requests that clients send and that were once answered with something else than they deserve."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer
from fake_service import LIMITS, FakeService

from flowsched.api.routes import PREFIX, Policy
from flowsched.api.server import build_api
from flowsched.api.table import ALIASES, ROUTES

LISTS = [f"{PREFIX}/{name}" for name in ("workflows", "queues", "nodes", "plans", "plugins", "profile")]


@pytest.mark.parametrize("path", [*LISTS, "/ga4gh/tes/v1/tasks", "/v1/tasks", "/tasks", "/service-info", "/"])
async def test_head_on_a_list_has_its_headers_and_no_body(api: TestClient, path: str) -> None:
    """It was a 405 everywhere but at the health checks (RFC 9110: GET and HEAD are what every server has)."""
    wanted, found = await api.get(path), await api.head(path)
    assert (found.status, await found.read()) == (wanted.status, b"")
    assert (found.content_type, found.content_length) == (wanted.content_type, wanted.content_length)


async def test_head_on_an_output_says_its_size_and_sends_none_of_it(
    api: TestClient, service: FakeService
) -> None:
    workflow = service.add()
    service.write("bam", "a.bam", b"x" * 100_000)
    answer = await api.head(f"{PREFIX}/workflows/{workflow}/tasks/align/0/outputs/bam")
    assert (answer.status, answer.content_length, await answer.read()) == (200, 100_000, b"")
    assert (await api.get("/livez")).status == 200


async def test_head_on_a_log_that_is_followed_ends(api: TestClient, service: FakeService) -> None:
    workflow = service.add()
    answer = await api.head(f"{PREFIX}/workflows/{workflow}/tasks/align/0/logs?follow=true")
    assert (answer.status, await answer.read()) == (200, b"")


async def test_head_needs_the_token_too(service: FakeService) -> None:
    async with TestClient(TestServer(build_api(service, token="secret", limits=LIMITS))) as client:
        for path in LISTS:
            assert (await client.head(path)).status == 401


@pytest.mark.parametrize("prefix", ["/ga4gh/tes/v1", "/v1", ""])
async def test_a_slash_at_the_end_of_tes_paths_changes_nothing(api: TestClient, prefix: str) -> None:
    """Some clients join paths so; a redirect would turn their POST into a GET."""
    body = {"executors": [{"image": "a", "command": ["b"]}]}
    made = await api.post(f"{prefix}/tasks/", json=body)
    assert made.status == 200, await made.text()
    ident = (await made.json())["id"]
    for path in ("/tasks/", "/service-info/", f"/tasks/{ident}/"):
        assert (await api.get(prefix + path)).status == 200
    assert (await api.post(f"{prefix}/tasks/{ident}:cancel/")).status == 200


def test_every_path_is_served_with_a_slash_under_the_same_policy() -> None:
    """No spelling gets round the token."""
    router = build_api(FakeService(), token="secret").router
    served = {(route.method, route.resource.canonical) for route in router.routes() if route.resource}
    for route in (*ROUTES, *ALIASES):
        if route.access is not Policy.OPEN and route.path != "/":
            assert (route.method, f"{route.path}/") in served


@pytest.mark.parametrize("path", [f"{PREFIX}/workflows/", f"{PREFIX}/queues/", "/tasks/"])
async def test_a_slash_at_the_end_does_not_get_round_the_token(service: FakeService, path: str) -> None:
    async with TestClient(TestServer(build_api(service, token="secret", limits=LIMITS))) as client:
        assert (await client.get(path)).status == 401
        assert (await client.post(path, json={})).status == 401
