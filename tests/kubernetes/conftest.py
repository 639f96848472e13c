"""A real etcd and kube-apiserver for the tests of this folder: one of each per pytest worker, started when first asked for.

Without the binaries such tests are skipped with the reason, or fail where FLOWSCHED_REQUIRE_KUBE=1 (CI sets it).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.objects.core import Node
from tests.kubernetes.definitions import apply_crds
from tests.kubernetes.hollow.binaries import missing
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.programs import NotStarted

_NUMBERS = itertools.count()


def require(*binaries: str) -> None:
    """End this test unless a control plane with these other binaries can be had: a skip on a laptop, a failure in CI."""
    why = missing(*binaries)
    if why is None:
        return
    if os.environ.get("FLOWSCHED_REQUIRE_KUBE") == "1":
        pytest.fail(f"FLOWSCHED_REQUIRE_KUBE=1, but: {why}", pytrace=False)
    pytest.skip(f"no Kubernetes: {why}")


def running(plane: ControlPlane) -> ControlPlane:
    """Start it from a fixture that is not async, so that it belongs to no test's event loop."""
    require()
    try:
        with asyncio.Runner() as runner:
            runner.run(plane.start())
    except NotStarted as error:
        pytest.fail(f"the control plane did not start: {error}", pytrace=False)
    return plane


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One etcd and kube-apiserver for the whole run of this worker. Leave it alive: `own_control_plane` may be killed."""
    plane = running(ControlPlane())
    yield plane
    plane.stop()


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """A control plane of this test's own, to be killed, paused and restarted."""
    plane = running(ControlPlane())
    yield plane
    plane.stop()


@pytest.fixture(autouse=True)
def leaves_no_node(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nodes belong to no namespace: one that a test leaves on the shared API server changes what later tests see."""
    yield
    if "control_plane" not in request.fixturenames:
        return
    connection: Connection = request.getfixturevalue("control_plane").connection()

    async def left() -> list[str]:
        async with Client(connection) as client:
            nodes, _ = await client.list("/api/v1/nodes", Node)
            names = [node.metadata.name for node in nodes]
            for name in names:
                await client.call("DELETE", f"/api/v1/nodes/{name}")
            return names

    with asyncio.Runner() as runner:
        names = runner.run(left())
    assert not names, f"nodes that this test left behind: {names}"


@pytest.fixture
def api(control_plane: ControlPlane) -> Connection:
    """The shared API server, as its administrator (exempt from API priority and fairness)."""
    return control_plane.connection()


@pytest.fixture
async def client(api: Connection) -> AsyncIterator[Client]:
    """A client of the shared API server, as its administrator."""
    async with Client(api) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    """A namespace of this test's own. It stays: without a controller manager a namespace never finishes terminating."""
    name = f"t{next(_NUMBERS)}-{secrets.token_hex(3)}"
    document = f'{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{name}"}}}}'
    answer = await client.call("POST", "/api/v1/namespaces", body=document.encode())
    assert answer.status == 201, answer
    return name


@pytest.fixture
async def crds(client: Client) -> None:
    """The PodGroup definitions of scheduler-plugins and Volcano, applied to the shared API server and established."""
    await apply_crds(client)
