"""Hollow nodes among the real components: kube-scheduler places pods on them, controllers make pods for them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import PATIENCE_S, bound, ended, shell
from tests.kubernetes.hollow.controlplane import ControlPlane

pytestmark = pytest.mark.kubernetes


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
