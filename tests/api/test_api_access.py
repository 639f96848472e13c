"""Who may do what: every route × every identity, path tricks, other people's web pages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer
from fake_service import LIMITS, FakeService

from flowsched.api.access import host_name, is_loopback
from flowsched.api.routes import Policy
from flowsched.api.server import build_api
from flowsched.api.table import ALIASES, ROUTES

#: Written out: a route that is added without a line here fails the first test.
POLICIES = {
    "POST /api/v1/workflows": Policy.WRITE,
    "GET /api/v1/workflows": Policy.READ,
    "GET /api/v1/workflows/{workflow}": Policy.READ,
    "GET /api/v1/workflows/{workflow}/document": Policy.READ,
    "GET /api/v1/workflows/{workflow}/stages": Policy.READ,
    "GET /api/v1/workflows/{workflow}/cache": Policy.READ,
    "GET /api/v1/workflows/{workflow}/tasks": Policy.READ,
    "GET /api/v1/workflows/{workflow}/attempts": Policy.READ,
    "GET /api/v1/workflows/{workflow}/timeline": Policy.READ,
    "GET /api/v1/workflows/{workflow}/tasks/{stage}/{index}": Policy.READ,
    "GET /api/v1/workflows/{workflow}/tasks/{stage}/{index}/logs": Policy.READ,
    "GET /api/v1/workflows/{workflow}/tasks/{stage}/{index}/outputs/{name}": Policy.READ,
    "GET /api/v1/workflows/{workflow}/explain": Policy.READ,
    "GET /api/v1/workflows/{workflow}/tasks/{stage}/{index}/explain": Policy.READ,
    "POST /api/v1/cancel": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/cancel": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/tasks/{stage}/{index}/cancel": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/ended": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/pause": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/resume": Policy.WRITE,
    "POST /api/v1/workflows/{workflow}/retry": Policy.WRITE,
    "GET /api/v1/workflows/{workflow}/events": Policy.READ,
    "GET /api/v1/events": Policy.READ,
    "POST /api/v1/plans": Policy.WRITE,
    "GET /api/v1/plans": Policy.READ,
    "GET /api/v1/plans/{plan}": Policy.READ,
    "DELETE /api/v1/plans/{plan}": Policy.WRITE,
    "GET /api/v1/queues": Policy.READ,
    "PUT /api/v1/queues/{name}": Policy.WRITE,
    "DELETE /api/v1/queues/{name}": Policy.WRITE,
    "GET /api/v1/nodes": Policy.READ,
    "GET /api/v1/profile": Policy.READ,
    "PUT /api/v1/profile": Policy.WRITE,
    "GET /api/v1/plugins": Policy.READ,
    "GET /api/v1/snapshot": Policy.READ,
    "POST /api/v1/nodes/{name}/drain": Policy.WRITE,
    "POST /api/v1/nodes/{name}/uncordon": Policy.WRITE,
    "GET /api/v1/explain/cluster": Policy.READ,
    "GET /api/v1/usage": Policy.READ,
    "POST /scheduler/filter": Policy.READ,
    "POST /scheduler/prioritize": Policy.READ,
    "GET /livez": Policy.OPEN,
    "GET /metrics": Policy.READ,
    "GET /readyz": Policy.OPEN,
    "GET /api/v1/openapi.json": Policy.READ,
    "GET /": Policy.READ,
    "GET /ui": Policy.OPEN,
    "GET /ui/app.js": Policy.OPEN,
    "GET /ui/app.css": Policy.OPEN,
    "GET /ui/icon.svg": Policy.OPEN,
    "GET /docs": Policy.OPEN,
    "GET /docs/docs.js": Policy.OPEN,
    "GET /docs/docs.css": Policy.OPEN,
    **{
        route: policy
        for run in ("", "/runs/{run}")
        for prefix in (f"{run}/ga4gh/tes/v1", f"{run}/v1", run)
        for route, policy in {
            f"GET {prefix}/service-info": Policy.READ,
            f"POST {prefix}/tasks": Policy.WRITE,
            f"GET {prefix}/tasks": Policy.READ,
            f"GET {prefix}/tasks/service-info": Policy.READ,
            f"GET {prefix}/tasks/{{id}}": Policy.READ,
            f"POST {prefix}/tasks/{{id}}:cancel": Policy.WRITE,
        }.items()
    },
    "GET /ga4gh/wes/v1/service-info": Policy.READ,
    "POST /ga4gh/wes/v1/runs": Policy.WRITE,
    "GET /ga4gh/wes/v1/runs": Policy.READ,
    "GET /ga4gh/wes/v1/runs/{run}": Policy.READ,
    "GET /ga4gh/wes/v1/runs/{run}/status": Policy.READ,
    "GET /ga4gh/wes/v1/runs/{run}/tasks": Policy.READ,
    "GET /ga4gh/wes/v1/runs/{run}/tasks/{task}": Policy.READ,
    "POST /ga4gh/wes/v1/runs/{run}/cancel": Policy.WRITE,
}
TOKEN = "s3cret-tökën"
GOOD = {"Authorization": f"Bearer {TOKEN}"}


def basic(credentials: str) -> dict[str, str]:
    """What Go's HTTP client sends for `http://user:password@host`."""
    return {"Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


#: What each identity sends, and whether it is let in where a token is needed.
IDENTITIES = {
    "nobody": ({}, False),
    "wrong token": ({"Authorization": "Bearer wrong"}, False),
    "beginning of the token": ({"Authorization": "Bearer s3cret"}, False),
    "empty token": ({"Authorization": "Bearer "}, False),
    "token without a user": (basic(TOKEN), False),
    "token as a user": (basic(f"{TOKEN}:"), False),
    "wrong password": (basic("flowsched:wrong"), False),
    "beginning of the token as a password": (basic("flowsched:s3cret"), False),
    "token and more as a password": (basic(f"flowsched:{TOKEN}:"), False),
    "empty password": (basic("flowsched:"), False),
    "nothing of Basic": ({"Authorization": "Basic"}, False),
    "no base64": ({"Authorization": f"Basic flowsched:{TOKEN}"}, False),
    "token as a bearer's password": (
        {"Authorization": "Bearer " + basic(f"flowsched:{TOKEN}")["Authorization"][6:]},
        False,
    ),
    "token without a scheme": ({"Authorization": TOKEN}, False),
    "owner": (GOOD, True),
    "owner in capitals": ({"Authorization": f"BEARER {TOKEN}"}, True),
    "token as a password": (basic(f"flowsched:{TOKEN}"), True),
    "token as anybody's password": (basic(f":{TOKEN}"), True),
    "token as a password, in small letters": (
        {"Authorization": "b" + basic(f"x:{TOKEN}")["Authorization"][1:]},
        True,
    ),
}


@pytest.fixture
async def guarded(service: FakeService) -> AsyncIterator[TestClient]:
    """The API with a token."""
    async with TestClient(TestServer(build_api(service, token=TOKEN, limits=LIMITS))) as client:
        yield client


def test_fault_45a_every_route_has_a_written_policy() -> None:
    """Those above, no more and no fewer."""
    assert {f"{route.method} {route.path}": route.access for route in (*ROUTES, *ALIASES)} == POLICIES


def test_every_route_that_aiohttp_knows_is_in_the_table(service: FakeService) -> None:
    """Nothing is added beside it, but HEAD for whatever GET has and ends, and the same paths with a slash at the end."""
    routes = {
        (route.method, route.resource.canonical)
        for route in build_api(service).router.routes()
        if route.resource is not None
    }
    plain = {(method, path.rstrip("/") or path) for method, path in routes}
    heads = {path for method, path in plain if method == "HEAD"}
    gets = {path for method, path in plain if method == "GET"}
    assert {f"{method} {path}" for method, path in plain if method != "HEAD"} == set(POLICIES)
    assert gets - heads == {"/api/v1/workflows/{workflow}/events", "/api/v1/events"}
    assert heads <= gets


@pytest.mark.parametrize("route", POLICIES)
async def test_fault_45a_every_route_and_every_identity(
    guarded: TestClient, service: FakeService, route: str
) -> None:
    """Let in or 401, and a refused one reaches nothing."""
    workflow = service.add(state="FAILED")
    method, path = route.split()
    path = (
        path.format(
            workflow=workflow,
            stage="align",
            index=0,
            name="lab",
            id=workflow,
            plan="p1",
            run=workflow,
            task="align.0",
        )
        if "{" in path
        else path
    )
    body = b"{}" if method != "GET" else None
    for identity, (headers, admitted) in IDENTITIES.items():
        answer = await guarded.request(method, path, headers=headers, data=body)
        if POLICIES[route] is Policy.OPEN or admitted:
            assert answer.status not in (401, 403), identity
        else:
            assert answer.status == 401, identity
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert (await answer.json())["title"] == "A token is required"
            assert (service.commands, service.submissions) == ([], 0)
        answer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/livez/../api/v1/nodes",
        "/livez/%2e%2e/api/v1/nodes",
        "//api/v1/nodes",
        "/api/v1/nodes/livez",
        "/api/v1/nodes?x=/livez",
        "/api/v1/nodes#/livez",
        "/api/v1/nodes;/readyz",
        "/api/v1/workflows/readyz",
        "/api/v1/workflows/%2Freadyz",
        "/livez/",
        "/LIVEZ",
        "/livez%00",
        "/api/v1/%6eodes",
        "/nope",
    ],
)
async def test_fault_45a_no_spelling_gets_round_the_token(guarded: TestClient, path: str) -> None:
    """The raw bytes of the path, as a client that normalises nothing sends them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = (await asyncio.wait_for(reader.read(), 60)).split(b" ")[1]
    writer.close()
    assert status in (b"401", b"400")


@pytest.mark.parametrize(
    "headers", [{"Upgrade": "websocket", "Connection": "Upgrade"}, {"Accept": "text/event-stream"}]
)
async def test_fault_45a_streams_and_upgrades_need_the_token(
    guarded: TestClient, headers: dict[str, str]
) -> None:
    """As everything else does."""
    assert (await guarded.get("/api/v1/events", headers=headers)).status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8470", 200),
        ("127.0.0.1:8470", 200),
        ("127.9.9.9", 200),
        ("[::1]:8470", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8470", 403),
        ("10.0.0.1", 403),
        ("[::ffff:10.0.0.1]", 403),
        ("0x7f000001", 403),
        ("", 403),
    ],
)
async def test_without_a_token_only_this_machine_is_answered(api: TestClient, host: str, status: int) -> None:
    """A page whose owner points evil.example at 127.0.0.1 gets nothing (DNS rebinding)."""
    assert (await api.get("/api/v1/nodes", headers={"Host": host})).status == status
    assert (await api.get("/livez", headers={"Host": host})).status == 200


async def test_with_a_token_any_host_name_will_do(guarded: TestClient) -> None:
    """A rebound page has no token."""
    headers = {**GOOD, "Host": "flowsched.lab.example"}
    assert (await guarded.get("/api/v1/nodes", headers=headers)).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:8470"}, 200),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:8470.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8470"}, 200),
    ],
)
async def test_pages_of_other_origins_change_nothing(
    api: TestClient, service: FakeService, headers: dict[str, str], status: int
) -> None:
    """A form that is posted blindly, a `fetch` without CORS."""
    workflow = service.add()
    answer = await api.post(
        f"/api/v1/workflows/{workflow}/cancel", headers={"Host": "localhost:8470", **headers}
    )
    assert answer.status == status
    assert len(service.commands) == (status == 200)


async def test_fault_46c_every_answer_forbids_what_a_page_does_not_need(api: TestClient) -> None:
    """The policy is strict, on errors and streams too, and the pages keep to it: nothing inline, nothing foreign."""
    for path in ("/", "/ui", "/docs", "/docs/docs.js", "/nope", "/api/v1/nodes", "/api/v1/events"):
        answer = await api.get(path, headers={"Accept": "text/html"})
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        answer.close()
    for path in ("/ui", "/docs"):
        page = await (await api.get(path, headers={"Accept": "text/html"})).text()
        assert "<script>" not in page
        assert "<style" not in page
        assert " style=" not in page
        assert "http" not in page.replace('http-equiv="', "")
    script = await (await api.get("/docs/docs.js")).text()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"):
        assert unsafe not in script


async def test_names_cannot_leave_json(api: TestClient, service: FakeService) -> None:
    """HTML in a name is data: the type is JSON and may not be sniffed."""
    service.add(name="<script>alert(1)</script>")
    answer = await api.get("/api/v1/workflows", headers={"Accept": "text/html"})
    assert answer.content_type == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_what_is_loopback_is_decided_by_the_name_alone() -> None:
    """Nothing is resolved."""
    assert [host_name(host) for host in ("a:1", "[::1]:1", "[::1]", "", ":1")] == ["a", "::1", "::1", "", ""]
    assert [is_loopback(name) for name in ("localhost", "127.1.2.3", "::1", "2130706433", "0", "a")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


async def test_the_page_is_open_and_what_it_shows_is_not(guarded: TestClient) -> None:
    """A browser cannot send a token when it opens a page: the page asks for it."""
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        assert (await guarded.get(path)).status == 200
    assert (await guarded.get("/api/v1/openapi.json")).status == 401
    assert (await guarded.get("/")).status == 401


async def test_a_browser_at_the_root_comes_to_the_page(guarded: TestClient, api: TestClient) -> None:
    """With a token set too: the page asks for it. A program is told that a token is missing."""
    for client in (guarded, api):
        answer = await client.get("/", headers={"Accept": "text/html,*/*"}, allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (302, "/ui")
    page = await guarded.get("/ui")
    assert (page.status, page.content_type) == (200, "text/html")
