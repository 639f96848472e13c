"""`flowsched agent`, the node agent of a Kubernetes cluster, and `flowsched pod …`, the steps that run in tasks' pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from flowsched.cli.context import options, run
from flowsched.cli.options import with_settings
from flowsched.cluster.kubernetes.agent import server
from flowsched.cluster.kubernetes.agent.agent import Settings
from flowsched.cluster.kubernetes.steps import program
from flowsched.log_lines import LEVELS, configure_logging

commands = typer.Typer(rich_markup_mode=None)
pod = typer.Typer(
    help="Steps in a task's pod on Kubernetes; flowsched puts them there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

commands.add_typer(pod, name="pod", hidden=True)


@pod.command("stage-in")
def stage_in() -> None:
    """Lay out a task's inputs, before it starts."""
    _step("stage-in")


@pod.command("stage-out")
def stage_out() -> None:
    """Wait for a task's end (SIGTERM), then publish its outputs."""
    _step("stage-out")


@pod.command("ready")
def ready() -> None:
    """Wait until stage-out of the same pod waits for the task's end."""
    _step("ready")


def _step(name: str) -> None:
    raise typer.Exit(program.main([name]))


@commands.command()
@with_settings(kind=Settings)
def agent(
    ctx: typer.Context,
    settings: dict[str, Any],
    key_file: Annotated[
        Path | None,
        typer.Option(help="A file with the key that the service and all agents share. [FLOWSCHED_AGENT_KEY]"),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            callback=lambda level: _log_level(level), help="debug, info, warning, error or critical."
        ),
    ] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per line of log.")] = False,
) -> None:
    """Run the node agent of a Kubernetes node.

    It owns the node's cache, moves datasets between nodes, and puts inputs into pods and outputs out of them.
    """

    async def served() -> None:
        made = Settings(key=_key(key_file), **settings)
        configure_logging(log_level, as_json=log_json)
        await server.run(made)

    run(options(ctx), served())


def _log_level(level: str) -> str:
    """A level that there is."""
    if level.lower() not in LEVELS:
        raise typer.BadParameter(f"{', '.join(LEVELS)}, not {level!r}")
    return level


def _key(path: Path | None) -> bytes:
    """The agents' key: of a file, or of the environment."""
    if path is None:
        return os.environ.get("FLOWSCHED_AGENT_KEY", "").strip().encode()
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--key-file") from None
