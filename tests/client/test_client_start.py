"""A client that was made before its service listens, or whose service does not run."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from fake_service import FakeService

from flowsched import Client, errors, tokens
from flowsched.api.server import build_api
from flowsched.client import session


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The data folder of a user who names no server, and whose usual port is not taken."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("FLOWSCHED_SERVER", "FLOWSCHED_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tokens, "DEFAULT_URL", f"http://127.0.0.1:{free_port()}")
    return tmp_path / "flowsched"


async def test_a_client_waits_for_a_service_that_is_starting_and_finds_it(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """On the port that it announces, however many tries were refused before."""
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    server = TestServer(build_api(FakeService()))
    async with Client() as client:
        before = client.url
        call = asyncio.create_task(client.nodes())
        await asyncio.sleep(0.2)
        assert not call.done()
        await server.start_server()
        try:
            tokens.announce(server.port or 0, "t0", root)
            assert [node.name for node in await call] == ["node-0"]
            assert client.url == f"http://127.0.0.1:{server.port}" != before
        finally:
            await server.close()


async def test_a_client_waits_for_a_service_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens before it leads; a call that may not wait gets the service's words."""
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    asked = 0

    @web.middleware
    async def not_yet(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise web.HTTPServiceUnavailable(text="not yet")
        return await handler(request)

    application = build_api(FakeService())
    application.middlewares.insert(0, not_yet)
    async with TestServer(application) as server:
        url = str(server.make_url("/"))
        async with Client(url, start_timeout=0) as client:
            with pytest.raises(errors.Unavailable, match="not yet"):
                await client.nodes()
        async with Client(url) as client:
            assert len(await client.nodes()) == 1
    assert asked == 4


async def test_a_client_follows_its_service_to_another_port(root: Path) -> None:
    """A stream fails once, and its next try goes there."""
    async with TestServer(build_api(FakeService())) as first:
        tokens.announce(first.port or 0, "t0", root)
        client = Client()
        assert len(await client.nodes()) == 1
    async with client, TestServer(build_api(FakeService())) as second:
        tokens.announce(second.port or 0, "t0", root)
        with pytest.raises(errors.Unavailable):
            await client.ready()
        assert (await client.ready())[0]


async def test_a_service_that_does_not_run_is_named_by_its_folder(root: Path) -> None:
    """With the port that it had, not with one that no service ever had."""
    async with Client(start_timeout=0) as client:
        with pytest.raises(errors.Unavailable, match=tokens.DEFAULT_URL):
            await client.nodes()
        tokens.announce(free_port(), "t0", root.parent / "lab")
        port = free_port()
        tokens.announce(port, "t0", root)
        with pytest.raises(
            errors.Unavailable, match=f"{root}: it listened on port {port} last, and does not run"
        ):
            await client.nodes()
    async with Client(f"http://127.0.0.1:{port}", start_timeout=0) as client:
        with pytest.raises(errors.Unavailable, match=f"http://127.0.0.1:{port}"):
            await client.nodes()


async def test_the_usual_port_of_another_service_is_not_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Where it asks for a token that this user does not have, the call waits for the service of the data folder, and names both."""
    strange = FakeService()
    async with (
        TestServer(build_api(strange, token="theirs")) as other,
        TestServer(build_api(FakeService())) as ours,
    ):
        monkeypatch.setattr(tokens, "DEFAULT_URL", f"http://127.0.0.1:{other.port}")
        async with Client(start_timeout=0) as client:
            with pytest.raises(errors.Unavailable) as refused:
                await client.nodes()
        assert f"no answer from the service of {root}: it does not run" in str(refused.value)
        assert f"http://127.0.0.1:{other.port} belongs to another data folder" in str(refused.value)
        async with Client() as client:
            call = asyncio.create_task(client.nodes())
            await asyncio.sleep(0.2)
            assert not call.done()
            tokens.announce(ours.port or 0, "t0", root)
            assert len(await call) == 1
        async with Client(f"http://127.0.0.1:{other.port}") as client:
            with pytest.raises(errors.Unauthorized, match=f"{other.port} asks for a token: none was given"):
                await client.nodes()


async def test_work_does_not_go_to_a_service_of_another_account(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Although it asks for no token. Who names its address, or has its token, means it."""
    strange = FakeService()
    async with TestServer(build_api(strange)) as other:
        url = f"http://127.0.0.1:{other.port}"
        monkeypatch.setattr(tokens, "DEFAULT_URL", url)
        monkeypatch.setattr(tokens, "_owners", lambda port: [65534])
        async with Client(start_timeout=0) as client:
            with pytest.raises(errors.Unavailable, match="belongs to the account nobody"):
                await client.submit({"name": "w", "stages": [{"name": "a", "command": ["true"]}]})
        assert strange.submissions == 0
        async with Client(url) as named, Client(token="t0") as let_in:
            assert len(await named.nodes()) == len(await let_in.nodes()) == 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port
