"""Hollow nodes among the real components: kube-scheduler places pods on them, controllers make pods for them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import PATIENCE_S, bound, container, create, ended, shell
from tests.kubernetes.conftest import require
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

pytestmark = pytest.mark.kubernetes


async def test_a_daemon_set_runs_on_every_hollow_node(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Made by kube-controller-manager, placed by kube-scheduler, run by us; the nodes stay ready by their heartbeats."""
    require(SCHEDULER, CONTROLLER_MANAGER)
    await own_control_plane.scheduler()
    await own_control_plane.controller_manager()
    labels = {"app": "agent"}
    daemon_set = {
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [shell("sleep 600")]}},
        },
    }
    nodes = [NodeTemplate("a"), NodeTemplate("b")]
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    async with (
        Client(own_control_plane.connection()) as client,
        HollowNodes(client, nodes, "exec", tmp_path, heartbeat_s=2.0),
    ):
        answer = await client.call("POST", path, body=json.dumps(daemon_set).encode())
        assert answer.status == 201, answer
        end = time.monotonic() + PATIENCE_S
        while True:
            found = await client.get(f"{path}/agent", dict[str, Any])
            assert found is not None
            if found["status"].get("numberReady") == 2:
                break
            assert time.monotonic() < end, found["status"]
            await asyncio.sleep(0.1)


async def test_kube_scheduler_places_no_more_than_fits(own_control_plane: ControlPlane) -> None:
    """Of five pods of one core four run on two nodes of two; when they have ended, the fifth does."""
    require(SCHEDULER)
    await own_control_plane.scheduler()
    said = {"flowsched.io/hollow-runtime": "500ms"}
    async with (
        Client(own_control_plane.connection()) as client,
        HollowNodes(client, [NodeTemplate(name, cpu="2") for name in "ab"]),
    ):
        for number in range(5):
            main = container("main", resources={"requests": {"cpu": "1"}})
            await create(
                client,
                "default",
                f"p{number}",
                main,
                annotations=said,
                schedulerName="default-scheduler",
            )
        for number in range(5):
            assert (await ended(client, "default", f"p{number}"))["status"]["phase"] == "Succeeded"


async def test_hollow_nodes_run_as_a_program(
    control_plane: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    """They are found by a kubeconfig, say when they are ready, and take their Nodes with them at SIGTERM."""
    node = f"{namespace}-0"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.kubernetes.hollow", "--exec", "--nodes", "1", "--prefix", f"{namespace}-",
        "--kubeconfig", str(control_plane.kubeconfig()), "--root", str(tmp_path),
        cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        while b"1 nodes are ready" not in (
            line := await asyncio.wait_for(process.stderr.readline(), PATIENCE_S)
        ):
            assert line, "it ended before it was ready"
        await bound(client, namespace, "p", node, shell("true"))
        assert (await ended(client, namespace, "p"))["status"]["phase"] == "Succeeded"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert (await client.call("GET", f"/api/v1/nodes/{node}")).status == 404
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
