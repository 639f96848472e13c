"""Pieces of datasets between agents and from origins: real agents, real sockets, real kills."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowsched.cluster.kubernetes.agents import Agents
from flowsched.cluster.node.cache import Cache
from flowsched.executor.protocol import (
    ClusterEvent,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from tests.cluster.origin import RangeOrigin
from tests.kubernetes.agent_world import KEY, PATIENCE_S, AgentProcess, Node, Served, several

KB = 1000


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def origin() -> AsyncIterator[RangeOrigin]:
    async with RangeOrigin(os.urandom(300 * KB)) as made:
        yield made


def piece(origin: RangeOrigin, number: int, peer: Served | None = None, version: str = "") -> dict[str, Any]:
    source = None if peer is None else {"node": peer.node.name, "url": peer.url}
    return {
        "uri": origin.uri, "size_bytes": 100 * KB, "offset": number * 100 * KB, "whole": False,
        "version": version, "source": source,
    }  # fmt: skip


async def bring(served: Served, wanted: dict[str, Any]) -> dict[str, Any]:
    (told,) = await served.bring(wanted)
    return told


async def test_pieces_come_from_outside_and_from_who_has_them(
    stack: AsyncExitStack, origin: RangeOrigin, tmp_path: Path
) -> None:
    """The second agent takes two pieces from the first, which has not all of it either, and one from outside."""
    first, second = await several(stack, tmp_path, 2)
    for number in (0, 2):
        told = await bring(first, piece(origin, number))
        assert (told["offset"], told["whole"], told["moved_bytes"], told["size_bytes"], told["version"]) == (
            number * 100_000, False, 100_000, 300_000, '"one"',
        )  # fmt: skip
    for number in (0, 2):
        told = await bring(second, piece(origin, number, first, '"one"'))
        assert (told["error"], told["source"]) == (None, "node-0")
    told = await bring(second, piece(origin, 1))
    assert told["whole"]
    copy = second.agent.cache.home(origin.uri) / "data.bin"
    assert copy.read_bytes() == origin.data
    assert copy.stat().st_mode & 0o777 == 0o444
    assert origin.asked == [0, 200_000, 100_000]
    assert (await first.replicas(), await second.replicas()) == ({}, {origin.uri: 300_000})
    assert second.node.half_made() == []
    metrics = (await first.call("GET", "/metrics", key=None)).body.decode()
    assert "flowsched_agent_cache_partial_datasets 1\n" in metrics
    assert "flowsched_agent_cache_partial_bytes 300000\n" in metrics
    assert "flowsched_agent_pieces_done_total 2\n" in metrics


async def test_a_range_of_a_dataset(stack: AsyncExitStack, tmp_path: Path) -> None:
    """206 with what it is a part of; 412 for another version, 416 for what is no range or a folder, 404 for what is not here."""
    (only,) = await several(stack, tmp_path, 1)
    only.put("flowsched:wf/a/0/1/x", b"0123456789", "x.txt")
    asked = {"params": {"uri": "flowsched:wf/a/0/1/x"}}
    reply = await only.call("GET", "/v1/datasets", headers={"Range": "bytes=2-4"}, **asked)
    assert (reply.status, reply.body) == (206, b"234")
    assert (reply.headers["Content-Range"], reply.headers["X-Flowsched-Name"]) == ("bytes 2-4/10", "x.txt")
    assert (reply.headers["ETag"], reply.headers["X-Flowsched-Whole"]) == ('""', "1")
    reply = await only.call("GET", "/v1/datasets", headers={"Range": "bytes=8-99"}, **asked)
    assert (reply.status, reply.body) == (206, b"89")
    wrong = {"Range": "bytes=2-4", "If-Match": '"other"'}
    assert (await only.call("GET", "/v1/datasets", headers=wrong, **asked)).status == 412
    for text in ("bytes=10-12", "bytes=5-", "bytes=-5", "bytes=9-3", "lines=1-2"):
        assert (await only.call("GET", "/v1/datasets", headers={"Range": text}, **asked)).status == 416, text
    gone = {"params": {"uri": "flowsched:wf/a/0/1/y"}}
    assert (await only.call("GET", "/v1/datasets", headers={"Range": "bytes=0-1"}, **gone)).status == 404
    nobody = await only.call("GET", "/v1/datasets", key=None, headers={"Range": "bytes=0-1"}, **asked)
    assert nobody.status == 401


async def test_a_file_below_an_allowed_folder_comes_in_pieces(stack: AsyncExitStack, tmp_path: Path) -> None:
    """And a folder there does not; what lies elsewhere does not come at all."""
    (only,) = await several(stack, tmp_path, 1)
    shared = tmp_path / "shared"
    (shared / "index").mkdir(parents=True)
    (shared / "run").write_bytes(b"#!" + bytes(199_998))
    (shared / "run").chmod(0o755)
    wanted = {"size_bytes": 100 * KB, "offset": 100 * KB, "whole": False}
    uri = (shared / "run").as_uri()
    await bring(only, {"uri": uri, **wanted})
    told = await bring(only, {"uri": uri, **wanted, "offset": 0})
    copy = only.agent.cache.home(uri) / "run"
    assert (told["whole"], copy.stat().st_mode & 0o777) == (True, 0o555)
    assert copy.read_bytes() == (shared / "run").read_bytes()
    told = await bring(only, {"uri": (shared / "index").as_uri(), **wanted})
    assert (told["error"]["undivided"], told["error"]["permanent"]) == (True, False)
    told = await bring(only, {"uri": "file:///etc/passwd", **wanted})
    assert (told["error"]["undivided"], told["error"]["permanent"]) == (False, True)


async def test_a_peer_that_breaks_off_and_one_that_is_gone(
    stack: AsyncExitStack, origin: RangeOrigin, tmp_path: Path
) -> None:
    """Neither is said to have lost it; nothing of the piece counts, and it comes from elsewhere."""
    (only,) = await several(stack, tmp_path, 1)
    origin.held = 0
    going = asyncio.create_task(bring(only, piece(origin, 0)))
    await origin.stopped.wait()
    assert origin._server.runner is not None
    for connection in list(origin._server.runner.server.connections):  # type: ignore[union-attr]
        connection.transport.abort()
    told = await going
    assert told["error"]["message"].startswith(f"cannot fetch {origin.uri}: ")
    flags = {name: told["error"][name] for name in ("lost", "permanent", "changed", "undivided")}
    assert not any(flags.values())
    nobody = {"node": "node-9", "url": "http://127.0.0.1:9"}
    told = await bring(only, {**piece(origin, 0), "source": nobody})
    assert told["error"]["message"].startswith("node-9 (http://127.0.0.1:9) cannot be reached")
    origin.held = None
    assert (await bring(only, piece(origin, 0)))["moved_bytes"] == 100_000


class Service:
    """The service's side of the agents, and what it hears."""

    def __init__(self) -> None:
        self.heard: list[ClusterEvent] = []
        self._news = asyncio.Event()
        self.agents = Agents(KEY.decode(), self._hear, lambda: 0, lambda _: True)

    def _hear(self, event: ClusterEvent) -> None:
        self.heard.append(event)
        self._news.set()

    async def ends(self, count: int) -> list[TransferDone | TransferFailed]:
        """Wait until so many transfers have ended."""
        async with asyncio.timeout(PATIENCE_S):
            while (
                len(found := [e for e in self.heard if isinstance(e, TransferDone | TransferFailed)]) < count
            ):
                self._news.clear()
                await self._news.wait()
        return found


async def test_the_service_hears_of_each_piece(
    stack: AsyncExitStack, origin: RangeOrigin, tmp_path: Path
) -> None:
    """Three pieces of one dataset at a time, a repetition, and one that fails: each order gets its own answer."""
    first, second = await several(stack, tmp_path, 2)
    service = Service()
    service.agents.start()
    stack.push_async_callback(service.agents.close)
    for served in (first, second):
        service.agents.observe(served.node.name, served.url)
    orders = [Transfer(origin.uri, 100 * KB, "node-0", None, n * 100 * KB, whole=False) for n in range(3)]
    await service.agents.transfer(orders)
    ends = await service.ends(3)
    assert sorted(end.offset for end in ends) == [0, 100_000, 200_000]
    assert any(end.whole for end in ends if isinstance(end, TransferDone))
    seen = [event for event in service.heard if isinstance(event, ReplicaSeen)]
    assert {(event.node, event.present) for event in seen} == {("node-0", True)}
    onward = [structs.replace(order, dest="node-1", source="node-0", version='"one"') for order in orders]
    await service.agents.transfer([structs.replace(onward[0], version='"other"')])
    failed = (await service.ends(4))[3]  # a node gathers pieces of one version at a time
    await service.agents.transfer([onward[1]])
    done = (await service.ends(5))[4]
    assert isinstance(failed, TransferFailed)
    assert (failed.offset, failed.changed, failed.version, failed.source) == (0, True, '"one"', "node-0")
    assert done == TransferDone(origin.uri, "node-1", 0, 100_000, "node-0", 300_000, 100_000, False, '"one"')
    assert dict(service.agents.flows()) == {"node-0": (300_000, 100_000), "node-1": (100_000, 0)}


async def test_the_service_hears_that_a_disk_is_full(
    stack: AsyncExitStack, origin: RangeOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece and a whole dataset alike: the engine then waits for room, and counts no try."""
    (only,) = await several(stack, tmp_path, 1)
    service = Service()
    service.agents.start()
    stack.push_async_callback(service.agents.close)
    service.agents.observe(only.node.name, only.url)
    found = os.statvfs(tmp_path)
    full = os.statvfs_result((*found[:4], 0, *found[5:]))
    monkeypatch.setattr("flowsched.cluster.node.space.os.statvfs", lambda _: full)
    piece_of = Transfer(origin.uri, 100 * KB, "node-0", None, 0, whole=False)
    await service.agents.transfer(
        [piece_of, structs.replace(piece_of, uri=f"{origin.uri}?whole", whole=True)]
    )
    ends = await service.ends(2)
    assert [isinstance(end, TransferFailed) and (end.full, end.permanent) for end in ends] == [
        (True, False), (True, False),
    ]  # fmt: skip
    assert only.node.half_made() == []


async def test_pieces_under_way_are_ordered_again_from_an_agent_that_starts_again(
    stack: AsyncExitStack, origin: RangeOrigin, tmp_path: Path
) -> None:
    """It was killed with two pieces under way; the service knows that they have not been answered."""
    node = Node(tmp_path / "node-0")
    service = Service()
    service.agents.start()
    stack.push_async_callback(service.agents.close)
    origin.held = 100_000
    with AgentProcess(node, "--network", "127.0.0.0/8") as agent:
        service.agents.observe("node-0", agent.url())
        orders = [Transfer(origin.uri, 100 * KB, "node-0", None, n * 100 * KB, whole=False) for n in range(3)]
        await service.agents.transfer(orders)
        await service.ends(2)
        await origin.stopped.wait()
        agent.kill()
    origin.held = None
    origin.go.set()
    again = await stack.enter_async_context(Served(node))
    service.agents.observe("node-0", again.url)
    last = (await service.ends(3))[2]
    assert isinstance(last, TransferDone)
    assert (last.offset, last.whole, last.moved_bytes) == (100_000, True, 100_000)
    cache = Cache(node.folder / "cache")
    assert (cache.home(origin.uri) / "data.bin").read_bytes() == origin.data
    assert origin.asked.count(0) == origin.asked.count(200_000) == 1
