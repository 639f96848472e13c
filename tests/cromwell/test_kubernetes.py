"""The same calls on Kubernetes: a real API server, hollow nodes that give containers their mounts, a shared volume."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from flowsched.api.server import build_api
from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.node.container_paths import SharedVolume
from tests.cromwell.draft2 import Maybe
from tests.cromwell.sfs import Call, Cromwell
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.service_world import Running, serving

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0,
        reason="hollow nodes make mounts as root only, and container tasks need theirs",
    ),
]

CONF = Path(__file__).parents[2] / "deploy" / "cromwell" / "flowsched.conf"
#: A path that no machine has: tasks see it by mounts alone.
LAB = "/flowsched-lab"
HELD = "touch started; for i in $(seq 600); do [ -e go ] && exit 0; sleep 0.1; done; exit 9"


@dataclass
class Site:
    """A cluster with flowsched and a Cromwell."""

    running: Running
    cromwell: Cromwell


@pytest.fixture
async def site(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[Site]:
    shared = (SharedVolume("lab", LAB),)
    async with KubeWorld(api, namespace, tmp_path, shared=shared) as world:
        lab = world.hollow.root / "claims" / world.namespace / "lab"
        lab.mkdir(parents=True)
        async with serving(world.connection, world.settings(), tmp_path / "service") as running:
            server = TestServer(build_api(running.service))
            await server.start_server()
            url = str(server.make_url("")).rstrip("/")
            yield Site(running, Cromwell(CONF, lab, url, told=f"{LAB}/cromwell-executions"))
            await server.close()


async def test_a_call_as_a_pod(site: Site) -> None:
    """Its folder is a part of the shared volume, at the container's path; the return code and what was said are there."""
    call = Call(site.cromwell, "echo hello; pwd > where", memory_mb=64)
    job = await asyncio.to_thread(call.submit)
    assert await asyncio.to_thread(call.wait) == 0
    assert (await site.running.ended(job)).state == "SUCCEEDED"
    assert call.file("stdout") == "hello\n"
    assert call.file("where").startswith("/cromwell-executions/hello/")
    assert not await asyncio.to_thread(call.alive)


async def test_a_pod_that_takes_too_long_leaves_79(site: Site) -> None:
    """The return code is left where Cromwell looks for it, in the mounted folder."""
    call = Call(site.cromwell, HELD, memory_mb=64, timeout_minutes=Maybe("0.25"))
    job = await asyncio.to_thread(call.submit)
    assert await asyncio.to_thread(call.wait) == 79
    assert (await site.running.ended(job)).state == "FAILED"


async def test_an_abort_removes_the_pod(site: Site) -> None:
    """143 stays, whoever ends the script."""
    call = Call(site.cromwell, HELD, memory_mb=64)
    job = await asyncio.to_thread(call.submit)
    while not (call.execution / "started").exists():
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(call.alive)
    await asyncio.to_thread(call.abort)
    assert (await site.running.ended(job)).state == "CANCELLED"
    assert call.return_code() == 143
    assert not await asyncio.to_thread(call.alive)
