"""A large dataset that several nodes read: the real service, real processes, a real HTTP origin; pieces of 64 KiB."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched import Client, app
from flowsched.cluster.local.settings import LocalSettings
from tests.cluster.origin import RangeOrigin
from tests.programs import free_ports

NODES = 4
PIECE = 64 << 10
SIZE = 20 * PIECE + 1000


@pytest.fixture
async def origin() -> AsyncIterator[RangeOrigin]:
    async with RangeOrigin(os.urandom(SIZE)) as made:
        yield made


def settings(root: Path, piece_size: str = "64Ki") -> app.Settings:
    return app.Settings(
        root=root,
        port=0,
        piece_size=piece_size,
        log_level="error",
        local=LocalSettings(
            nodes=NODES, cpu="1", memory="1Gi", labels=tuple(f"node-{n}:at=n{n}" for n in range(NODES))
        ),
    )


def document(uri: str, size: int = SIZE) -> dict[str, Any]:
    """A task on each node that says which bytes it has read."""
    stages = [
        {
            "name": f"read-{n}",
            "command": ["sh", "-c", "sha256sum < $FLOWSCHED_INPUT_DATA | cut -c1-64 > sum"],
            "selector": {"at": f"n{n}"},
            "resources": {"cpu": 1, "memory": "16Mi"},
            "inputs": [{"name": "data", "uri": uri, "size": size}],
            "outputs": [{"name": "sum", "path": "sum", "value": True}],
        }
        for n in range(NODES)
    ]
    return {"name": "pieces", "stages": stages}


async def ended(client: Client, run: str) -> tuple[str, set[str | None], list[int]]:
    """Its state, what its tasks have read, and how many bytes were brought for each."""
    done = await client.wait(run, 300)
    tasks = [await client.task(run, f"read-{n}", 0) for n in range(NODES)]
    read = {
        task.outputs[0].value.strip() if task.outputs and task.outputs[0].value else None for task in tasks
    }
    return done.state, read, [task.bytes_moved for task in tasks]


async def test_each_byte_comes_from_outside_once(tmp_path: Path, origin: RangeOrigin) -> None:
    """Four nodes read it, and give each other what they have while they wait for the rest."""
    async with app.running(settings(tmp_path)) as up, Client(up.url) as client:
        run = await client.submit(document(origin.uri))
        state, read, moved = await ended(client, run.id)
        flows = up.executor.flows()
    assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})
    look = [0]  # of one byte, for its version
    assert sorted(number for number in origin.asked if number is not None) == [
        *look,
        *(n * PIECE for n in range(21)),
    ]
    assert (origin.sent, moved) == (len(look) + SIZE, [SIZE] * NODES)
    assert sum(out for _, out in flows.values()) == 3 * SIZE
    assert len([node for node, (_, out) in flows.items() if out]) > 1


async def test_an_origin_without_ranges_is_read_as_before(tmp_path: Path, origin: RangeOrigin) -> None:
    """As a whole, from outside or from a node that has it."""
    origin.ranges = False
    async with app.running(settings(tmp_path)) as up, Client(up.url) as client:
        run = await client.submit(document(origin.uri))
        state, read, _ = await ended(client, run.id)
    assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})


async def test_a_size_that_was_said_wrongly_does_no_harm(tmp_path: Path, origin: RangeOrigin) -> None:
    """A third more, or a third less, than it has."""
    for number, size in enumerate((SIZE * 4 // 3, SIZE * 2 // 3)):
        async with app.running(settings(tmp_path / str(number))) as up, Client(up.url) as client:
            run = await client.submit(document(origin.uri, size))
            state, read, _ = await ended(client, run.id)
        assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})


async def test_an_origin_that_changes_in_the_middle(tmp_path: Path, origin: RangeOrigin) -> None:
    """All nodes have the second version in the end, and nobody a mixture, though the first one's pieces were everywhere."""
    origin.held = 7 * PIECE
    async with app.running(settings(tmp_path)) as up, Client(up.url) as client:
        run = await client.submit(document(origin.uri))
        await origin.stopped.wait()
        origin.data, origin.etag, origin.held = os.urandom(SIZE), '"two"', None
        origin.go.set()
        state, read, _ = await ended(client, run.id)
    assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})


async def test_a_node_that_loses_its_pieces_in_the_middle(tmp_path: Path, origin: RangeOrigin) -> None:
    """Somebody empties its cache: the others get theirs from elsewhere, and it gets all of them again."""
    origin.held = 7 * PIECE
    async with app.running(settings(tmp_path)) as up, Client(up.url) as client:
        run = await client.submit(document(origin.uri))
        await origin.stopped.wait()
        for part in (tmp_path / "nodes" / "node-0" / "cache").glob(".part-*"):
            shutil.rmtree(
                part, ignore_errors=True
            )  # the service notices, and removes what is left at the same time
        origin.held = None
        origin.go.set()
        state, read, _ = await ended(client, run.id)
    assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})


class Service:
    """The service as a process of its own, on a root that outlives it."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.url, self._port = root, f"http://127.0.0.1:{port}", port
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        labels = [text for n in range(NODES) for text in ("--label", f"node-{n}:at=n{n}")]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flowsched", "serve", "--root", str(self.root), "--port", str(self._port),
            "--nodes", str(NODES), "--cpu", "1", "--memory", "1Gi", "--piece-size", "64Ki", "--log-level", "error",
            *labels,
        )  # fmt: skip

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    def spans(self) -> int:
        """How many bytes of halves the nodes' records speak of."""
        from flowsched.cluster.node.cache import Cache

        total = 0
        for node in (self.root / "nodes").iterdir():
            for part in (node / "cache").glob(".part-*"):
                cache = Cache(node / "cache")
                if cache.partials.adopt(part):
                    (only,) = cache.partials.all
                    total += sum(last - first for first, last in only.spans)
        return total


async def test_a_service_that_is_killed_goes_on_where_it_was(tmp_path: Path, origin: RangeOrigin) -> None:
    """Killed with most pieces on some node: what the records say is there is not fetched from outside again."""
    service = Service(tmp_path, free_ports(1)[0])
    origin.held = 7 * PIECE
    await service.start()
    async with Client(service.url) as client:
        async with asyncio.timeout(200):
            while True:
                try:
                    run = await client.submit(document(origin.uri), idempotency_key="once")
                    break
                except Exception:  # noqa: BLE001 - it is not up yet
                    await asyncio.sleep(0.1)
            await origin.stopped.wait()
            async with asyncio.timeout(200):  # all but the one that is held are given, and most are recorded
                while origin.sent < SIZE - PIECE or service.spans() < NODES * SIZE // 2:
                    await asyncio.sleep(0.05)
        await service.kill()
        there = service.spans()
        before, origin.held = origin.sent, None
        origin.go.set()
        try:
            await service.start()
            async with asyncio.timeout(300):
                while True:
                    try:
                        state, read, _ = await ended(client, run.id)
                        break
                    except Exception:  # noqa: BLE001 - it is not up yet
                        await asyncio.sleep(0.1)
        finally:
            await service.kill()
    assert (state, read) == ("SUCCEEDED", {hashlib.sha256(origin.data).hexdigest()})
    assert there > 0
    assert before >= SIZE - PIECE
    assert origin.sent - before < SIZE // 2
