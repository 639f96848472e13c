"""Nodes without kubelets for an API server, from a clone: `python -m tests.kubernetes.hollow --nodes 3 --exec`.

It needs no installed extra but `kubernetes`, and a kubeconfig of an API server on which this user may make Nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated

import structlog
import typer

from flowsched.cli.context import Options, echo, run
from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.credentials import connect
from tests.kubernetes.hollow.nodes import HollowNodes, Mode
from tests.kubernetes.hollow.templates import NodeTemplate

log = structlog.get_logger(__name__)


def main(
    nodes: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    cpu: Annotated[str, typer.Option(help="Cores of each.")] = "4",
    memory: Annotated[str, typer.Option(help="Memory of each.")] = "8Gi",
    prefix: Annotated[str, typer.Option(help="Of their names.")] = "hollow-",
    execute: Annotated[
        bool, typer.Option("--exec", help="Really run pods' commands, as processes of this machine.")
    ] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="Of the cluster. [as kubectl finds it]")] = None,
    context: Annotated[str | None, typer.Option(help="Of the kubeconfig.")] = None,
    root: Annotated[
        Path | None, typer.Option(help="Volumes and logs, with --exec. [a temporary folder]")
    ] = None,
) -> None:
    """Give an API server nodes without kubelets, for trials.

    Their pods live and end as if they were run.

    They go when it ends. Without --exec pods end when their annotation flowsched.io/hollow-runtime says.
    """
    templates = [NodeTemplate(f"{prefix}{number}", cpu=cpu, memory=memory) for number in range(nodes)]
    mode: Mode = "exec" if execute else "simulate"
    run(Options(), serve(templates, mode, kubeconfig, context, root))


async def serve(
    nodes: Sequence[NodeTemplate],
    mode: Mode,
    kubeconfig: Path | None = None,
    context: str | None = None,
    root: Path | None = None,
) -> None:
    """Have hollow nodes until SIGINT or SIGTERM.

    Args:
        nodes: Which.
        mode: "simulate" or "exec".
        kubeconfig: Of the cluster; None = as kubectl finds it.
        context: Of the kubeconfig.
        root: Where volumes and logs are, in mode exec; None = a temporary folder.

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
        async with Client(connection) as client, HollowNodes(client, nodes, mode, root) as hollow:
            log.info("hollow nodes ready", nodes=len(nodes), mode=mode, root=str(hollow.root))
            echo(f"{len(nodes)} nodes are ready; ctrl-c takes them away")
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


if __name__ == "__main__":
    typer.run(main)
