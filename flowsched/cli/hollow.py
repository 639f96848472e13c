"""`flowsched hollow`: nodes without kubelets, for trying a policy or a workflow on an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowsched.cli.context import options, run, say


def hollow(
    ctx: typer.Context,
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
    from flowsched.cluster.kubernetes.hollow import serve
    from flowsched.cluster.kubernetes.hollow.nodes import Mode
    from flowsched.cluster.kubernetes.hollow.templates import NodeTemplate

    templates = [NodeTemplate(f"{prefix}{number}", cpu=cpu, memory=memory) for number in range(nodes)]
    mode: Mode = "exec" if execute else "simulate"
    ready = lambda: say(f"{nodes} nodes are ready; ctrl-c takes them away")  # noqa: E731
    run(
        options(ctx),
        serve.run(templates, mode, kubeconfig=kubeconfig, context=context, root=root, ready=ready),
    )
