"""Two replicas of the service on one PostgreSQL and one cluster, as processes: one leads, both answer, the other takes over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from flowsched.client import Client as Flowsched
from tests.kubernetes.exec_world import KEY, KubeWorld
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.postgres import postgres_server, postgres_url, start_or_skip  # noqa: F401
from tests.programs import free_ports

pytestmark = [pytest.mark.kubernetes, pytest.mark.postgresql]

HELLO = {
    "name": "hello",
    "stages": [{"name": "s", "scatter": {"count": 3}, "command": ["sh", "-c", "echo hi"]}],
}


class Replica:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def says(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def status(self, path: str) -> int:
        """0 while it does not answer."""
        try:
            return (await self.says(path))[0]
        except aiohttp.ClientError:
            return 0

    async def until(self, path: str, status: int, words: str = "") -> None:
        async with asyncio.timeout(200):
            while True:
                try:
                    found = await self.says(path)
                except aiohttp.ClientError:
                    found = (0, "")
                if found[0] == status and words in found[1]:
                    return
                await asyncio.sleep(0.2)


@asynccontextmanager
async def replica(world: KubeWorld, kubeconfig: Path, database: str, folder: Path) -> AsyncIterator[Replica]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    folder.mkdir(parents=True)
    environment = {
        **os.environ, "FLOWSCHED_AGENT_KEY": KEY, "FLOWSCHED_DEFAULT_IMAGE": "none", "FLOWSCHED_GANG_ADDRESSES": "seat",
        "FLOWSCHED_INSTANCE": world.namespace, "FLOWSCHED_ADVERTISE": url,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "flowsched", "serve", "--cluster", "kubernetes", "--kubeconfig", str(kubeconfig),
        "--namespace", world.namespace, "--db", database, "--root", str(folder), "--port", str(port),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        yield Replica(process, url)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_database_outage_takes_neither_replica_down(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Both wait: they are alive, not ready, and read what they remember. When the database is back, one of them leads on."""
    server = await asyncio.to_thread(start_or_skip, fsync=True)
    try:
        async with (
            KubeWorld(control_plane.connection(), namespace, tmp_path) as world,
            replica(world, control_plane.kubeconfig(), database := server.fresh(), tmp_path / "a") as first,
        ):
            await first.until("/readyz", 200, "ok")
            async with replica(world, control_plane.kubeconfig(), database, tmp_path / "b") as second:
                await second.until("/readyz", 200)
                async with Flowsched(first.url) as client:
                    run = await client.submit(HELLO)
                    assert (await run.wait(timeout=300)).state == "SUCCEEDED"
                await asyncio.to_thread(server.kill)
                for each in (first, second):
                    await each.until("/readyz", 503, "database")
                await asyncio.sleep(20)  # longer than a lease lasts
                for each in (first, second):
                    assert each.process.returncode is None
                    assert (await each.says("/livez"))[0] == 200
                assert '"node-0"' in (await first.says("/api/v1/nodes"))[1]
                await asyncio.to_thread(server.start)
                await second.until("/readyz", 200)
                # The second may have taken the lease: then the first ends, and a kubelet would start it again.
                while first.process.returncode is None and (await first.status("/readyz")) != 200:
                    await asyncio.sleep(0.2)
                async with Flowsched(second.url) as client:
                    later = await client.submit(HELLO)
                    assert (await later.wait(timeout=300)).state == "SUCCEEDED"
    finally:
        await asyncio.to_thread(server.remove)
