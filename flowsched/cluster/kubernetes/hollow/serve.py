"""Hollow nodes as a program: `python -m flowsched hollow` ends up here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import structlog

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.credentials import connect
from flowsched.cluster.kubernetes.hollow.nodes import HollowNodes, Mode
from flowsched.cluster.kubernetes.hollow.templates import NodeTemplate

log = structlog.get_logger(__name__)


async def run(
    nodes: Sequence[NodeTemplate],
    mode: Mode = "simulate",
    *,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    root: Path | None = None,
    heartbeat_s: float | None = 10.0,
    certificate: tuple[Path, Path] | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Have hollow nodes until SIGINT or SIGTERM.

    Args:
        nodes: Which.
        mode: "simulate" or "exec".
        kubeconfig: Of the cluster; None = as kubectl finds it.
        context: Of the kubeconfig.
        root: Where volumes and logs are, in mode exec.
        heartbeat_s: How often Leases are renewed; None = never.
        certificate: Files with certificate and key for `kubectl logs`.
        ready: Called when all nodes are registered.

    Raises:
        ConfigurationError: There is no cluster to be found.
        Refused, Unreachable: The API server does not take the nodes.
    """
    connection = await connect(kubeconfig, context)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with (
            Client(connection) as client,
            HollowNodes(
                client, nodes, mode, root, heartbeat_s=heartbeat_s, certificate=certificate
            ) as hollow,
        ):
            log.info("hollow nodes ready", nodes=len(nodes), mode=mode, root=str(hollow.root))
            ready()
            await _first(stop.wait(), hollow.ended())
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _first(*works: Coroutine[None, None, object]) -> None:
    """Wait until one of them ends; its error is ours."""
    tasks = [asyncio.ensure_future(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for task in done:
        task.result()
