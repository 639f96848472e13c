"""Every route of the API, asked at a process that leads and at one that stands by: neither answers that it is not available."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched.api.routes import Process
from flowsched.api.table import ROUTES
from flowsched.app import Settings, running
from flowsched.cluster.kubernetes.settings import KubernetesSettings
from tests.kubernetes.fake import FakeApi
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401
from tests.programs import free_ports

pytestmark = pytest.mark.postgresql

WORKFLOW = {
    "name": "w",
    "stages": [{"name": "s", "command": ["true"], "outputs": [{"name": "o", "path": "o"}]}],
}
BODIES: dict[str, Any] = {
    "submit_workflow": WORKFLOW,
    "put_queue": {"weight": 3},
    "drain_node": {"reason": "a test"},
    "cancel_workflows": {"workflows": ["WORKFLOW"]},
    "create_plan": {"workflow": "version 1.0\nworkflow w {}\n"},
    "create_tes_task": {"executors": [{"image": "alpine", "command": ["true"]}]},
    "put_profile": {"default": "lab", "profiles": {"lab": {"packing": "spread"}}},
    "filter_nodes": {"Pod": {"metadata": {"name": "p", "uid": "u"}}, "NodeNames": ["node-00000"]},
    "prioritize_nodes": {"Pod": {"metadata": {"name": "p", "uid": "u"}}, "NodeNames": ["node-00000"]},
    "report_end": {"state": "SUCCEEDED"},
}
#: What is asked for by name; `{name}` is a queue, a node, or an output.
NAMES = {"queues": "gold", "nodes": "node-00000", "outputs": "o"}


@pytest.fixture
async def replicas(
    fresh_postgres: Callable[[], str],  # noqa: F811
    tmp_path: Path,
) -> AsyncIterator[tuple[str, str]]:
    """URLs of a leader and of a standby, on one cluster and one PostgreSQL."""
    database = fresh_postgres()
    async with FakeApi() as api, AsyncExitStack() as stack:
        for name in ("kube-system", "flowsched"):
            api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        status = {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        api.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-00000"}, "status": status})
        config = tmp_path / "kubeconfig.json"
        one = {
            "name": "x",
            "cluster": {"server": api.url},
            "user": {"token": "t"},
            "context": {"cluster": "x", "user": "x"},
        }
        kinds = {"clusters": [one], "users": [one], "contexts": [one]}
        config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **kinds}))
        urls = []
        for name in ("leader", "standby"):
            (port,) = free_ports(1)
            urls.append(f"http://127.0.0.1:{port}")
            cluster = KubernetesSettings(kubeconfig=config, default_image="none", pod_groups="none")
            settings = Settings(
                port=port, root=tmp_path / name, database=database, kubernetes=cluster, advertise=urls[-1],
                log_level="error",
            )  # fmt: skip
            up = await stack.enter_async_context(running(settings))
            leadership = up.service._leader.leadership
            async with aiohttp.ClientSession() as session:
                while not (leadership.standing_by or up.service.ready() == (True, "ok")):
                    async with session.get(f"{urls[-1]}/livez") as answer:
                        assert answer.status == 200
                    await asyncio.sleep(0.05)
        yield urls[0], urls[1]


async def test_every_route_is_answered_at_a_standby_as_at_the_leader(replicas: tuple[str, str]) -> None:
    """What only the leader knows is asked of it. The table says which routes that are, and no answer is 503."""
    told: dict[str, list[int]] = {}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{replicas[0]}/api/v1/workflows", json=WORKFLOW) as answer:
            workflow = (await answer.json())["id"]
        for route in ROUTES:
            name = NAMES.get(route.path.split("/")[3] if route.path.count("/") > 3 else "", "o")
            ids = {
                "stage": "s",
                "index": 0,
                "name": name,
                "plan": "p1",
                "id": "t1",
                "run": "r1",
                "task": "s.0",
            }
            path = route.path.format(workflow=workflow, **ids)
            body = BODIES.get(route.name or "")
            data = None if body is None else json.dumps(body).replace("WORKFLOW", workflow)
            for url in replicas:
                async with session.request(
                    route.method, url + path, data=data, allow_redirects=False
                ) as answer:
                    told.setdefault(f"{route.method} {route.path}", []).append(answer.status)
    assert {path: statuses for path, statuses in told.items() if max(statuses) >= 500} == {}
    reads = {path: set(statuses) for path, statuses in told.items() if path.startswith("GET ")}
    assert {path: statuses for path, statuses in reads.items() if len(statuses) > 1} == {}
    assert told["POST /api/v1/nodes/{name}/drain"] == [200, 200]
    assert told["POST /api/v1/nodes/{name}/uncordon"] == [200, 200]
    assert told["PUT /api/v1/queues/{name}"] == [200, 200]
    assert {route.name for route in ROUTES if route.process is Process.LEADER} >= {
        "drain_node",
        "uncordon_node",
    }
