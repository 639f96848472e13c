"""`flowsched agent`, the node agent of a Kubernetes cluster, and `flowsched pod …`, the steps that run in tasks' pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flowsched.cli.context import options, run

if TYPE_CHECKING:
    from flowsched.cluster.kubernetes.agent.agent import Settings

commands = typer.Typer(rich_markup_mode=None)
pod = typer.Typer(
    help="Steps in a task's pod on Kubernetes; flowsched puts them there.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

commands.add_typer(pod, name="pod", hidden=True)
_CACHE: Final = Path("/var/lib/kubelet/plugins/flowsched.io/cache")
_PODS: Final = Path("/var/lib/kubelet/pods")
_LOGS: Final = Path("/var/log/pods")
_HostRoot = Annotated[
    Path | None,
    typer.Option(
        help="Where the host's proc and sys/fs/cgroup are: disk, network and pods are measured. [they are not]"
    ),
]


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
    from flowsched.cluster.kubernetes.steps import program

    raise typer.Exit(program.main([name]))


_LogLevel = Annotated[
    str,
    typer.Option(callback=lambda given: _log_level(given), help="debug, info, warning, error or critical."),
]
_Networks = Annotated[
    list[str] | None,
    typer.Option(help="A private range that HTTP origins may lie in, such as 10.0.0.0/8. Repeatable. [none]"),
]


@commands.command()
def agent(
    ctx: typer.Context,
    node: Annotated[str, typer.Option(envvar=["FLOWSCHED_NODE", "NODE_NAME"], help="Its node's name.")],
    key_file: Annotated[
        Path | None,
        typer.Option(help="A file with the key that the service and all agents share. [FLOWSCHED_AGENT_KEY]"),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8475,
    cache: Annotated[Path, typer.Option(help="The node's datasets; on one mount with --pods.")] = _CACHE,
    cache_size: Annotated[str, typer.Option(help="What it may hold, such as 100Gi; 0 = no limit.")] = "0",
    state: Annotated[
        Path | None, typer.Option(help="What the agent remembers; on one mount with --cache. [beside it]")
    ] = None,
    pods: Annotated[Path, typer.Option(help="The kubelet's folder of pods.")] = _PODS,
    logs: Annotated[Path, typer.Option(help="The kubelet's folder of logs.")] = _LOGS,
    kept_logs: Annotated[Path | None, typer.Option(help="Logs that outlive pods. [in --state]")] = None,
    keep_days: Annotated[
        float, typer.Option(min=0, help="How long logs and results of pods are kept.")
    ] = 7.0,
    disk_rate: Annotated[str, typer.Option(help="Bytes a second of its disk; 0 = as fast as it goes.")] = "0",
    nic_rate: Annotated[
        str, typer.Option(help="Bytes a second of its network card; 0 = as fast as it goes.")
    ] = "0",
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Transfers at a time.")] = 4,
    scheme: Annotated[
        list[str] | None,
        typer.Option(help="Of origins that may be fetched from. Repeatable. [http, https, s3]"),
    ] = None,
    root: Annotated[
        list[Path] | None,
        typer.Option(help="Below which files of the node may be inputs (file:). Repeatable. [none]"),
    ] = None,
    network: _Networks = None,
    copies: Annotated[
        bool, typer.Option("--copies", help="Copy inputs, never link them: where SELinux is enforcing.")
    ] = False,
    host_root: _HostRoot = None,
    log_level: _LogLevel = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per line of log.")] = False,
) -> None:
    """Run the node agent of a Kubernetes node.

    It owns the node's cache, moves datasets between nodes, and puts inputs into pods and outputs out of them.
    """
    from flowsched.cluster.kubernetes.agent import server
    from flowsched.cluster.kubernetes.agent.agent import Settings
    from flowsched.log_lines import configure_logging
    from flowsched.workflow.resources import parse_bytes, parse_option

    beside = state or cache.parent / "state"
    schemes = frozenset(scheme or ("http", "https", "s3"))

    async def served() -> None:
        settings: Settings = Settings(
            node=node, key=_key(key_file), cache=cache, pods=pods, logs=logs, state=beside,
            kept_logs=kept_logs or beside / "logs", host=host, port=port,
            cache_bytes=parse_option("--cache-size", parse_bytes, cache_size),
            disk_rate=parse_option("--disk-rate", parse_bytes, disk_rate),
            nic_rate=parse_option("--nic-rate", parse_bytes, nic_rate), parallel=parallel,
            roots=tuple(root or ()), networks=tuple(network or ()), kept_days=keep_days, schemes=schemes,
            copies=copies, host_root=host_root,
        )  # fmt: skip
        configure_logging(log_level, as_json=log_json)
        await server.run(settings)

    run(options(ctx), served())


def _log_level(given: str) -> str:
    """A level that there is."""
    from flowsched.log_lines import LEVELS

    if given.lower() not in LEVELS:
        raise typer.BadParameter(f"{', '.join(LEVELS)}, not {given!r}")
    return given


def _key(path: Path | None) -> bytes:
    """The agents' key: of a file, or of the environment."""
    if path is None:
        return os.environ.get("FLOWSCHED_AGENT_KEY", "").strip().encode()
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--key-file") from None
