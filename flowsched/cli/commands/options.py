"""Options that commands share, where global options may stand, and the settings they become."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from flowsched import tokens, variables
from flowsched.cli.context import options, say
from flowsched.cli.printing.form import Form

if TYPE_CHECKING:
    from flowsched.app import Settings
    from flowsched.cluster.kubernetes.settings import KubernetesSettings

#: Options that are hoisted to the front, wherever they stand: with a value, and without.
_VALUED: Final = ("--server", "--token")
_FLAGS: Final = ("--debug",)


#: Commands that other tools have to remove runs.
_REMOVALS: Final = ("clean", "delete", "purge", "remove", "rm")


class Group(TyperGroup):
    """Commands that accept the global options after the command too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hoist the global options; what follows `--` stays."""
        return list(super().parse_args(ctx, hoisted(args)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What people type to remove a run is answered with how runs go."""
        if ctx.parent is None and args and args[0] in _REMOVALS:
            ctx.fail(
                f"there is no command {args[0]!r}: a service removes a run and its data when it ended long ago "
                "(`flowsched serve --keep-days`, 30), `flowsched db expire` does so while none runs; `flowsched cancel` stops a run"
            )
        return super().resolve_command(ctx, args)


def hoisted(args: list[str]) -> list[str]:
    """Global options first, the rest in its order."""
    first: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(args):
        arg = args[position]
        if arg == "--":
            return first + rest + args[position:]
        if arg in _VALUED:
            first += args[position : position + 2]
            position += 1
        elif arg in _FLAGS or arg.startswith(tuple(f"{name}=" for name in _VALUED)):
            first.append(arg)
        else:
            rest.append(arg)
        position += 1
    return first + rest


def warn_of_unknown_variables(ctx: typer.Context) -> None:
    """Say on stderr which FLOWSCHED_… of the environment no command reads: a misspelt one would be a default without a word."""
    strange = variables.unclaimed(os.environ)
    if not strange:
        return
    known, names = _read_by_options(ctx.find_root().command)
    strange = [name for name in strange if name not in known]
    if not strange:
        return
    from flowsched.cluster.kubernetes.settings import VARIABLES

    known |= {f"{variables.PREFIX}{name}" for name in VARIABLES}
    for name in strange:
        if name not in known:
            say(f"warning: {variables.warning(name, known, names)}")


def _read_by_options(command: Any) -> tuple[set[str], set[str]]:
    """The variables that options of a command and of those below it read, and the names of these options."""
    read: set[str] = set()
    names: set[str] = set()
    for option in command.params:
        read.update([option.envvar] if isinstance(option.envvar, str) else option.envvar or ())
        names.update(option.opts)
    for each in getattr(command, "commands", {}).values():
        for found, more in zip((read, names), _read_by_options(each), strict=True):
            found |= more
    return read, names


Id = Annotated[
    str,
    typer.Argument(metavar="ID|NAME", help="The workflow: its id, the beginning of its id, or its name."),
]


Output = Annotated[Form, typer.Option("--output", "-o", help="table, json or jsonl.")]
Reason = Annotated[str | None, typer.Option(help="Why; `flowsched events` shows it.")]
Limit = Annotated[int, typer.Option(min=1, help="Most entries.")]
Document = Annotated[
    str, typer.Argument(metavar="DOCUMENT", help="A workflow as JSON or YAML; - reads standard input.")
]
Root = Annotated[
    Path | None,
    typer.Option(
        envvar="FLOWSCHED_ROOT", help="Folder for data, logs and the database. [~/.local/share/flowsched]"
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="FLOWSCHED_DATABASE", help="A path, sqlite:///… or postgresql://…. [in the root]"
    ),
]
Nodes = Annotated[int, typer.Option(min=1, help="Virtual nodes on this machine.")]
Cpu = Annotated[
    str | None, typer.Option(help="Cores of each node, such as 4 or 500m. [the machine's, divided]")
]
Memory = Annotated[
    str | None, typer.Option(help="Memory of each node, such as 8Gi. [the machine's, divided]")
]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs of each node.")]
DiskRate = Annotated[
    str | None,
    typer.Option(help="Simulate disks of so many bytes a second: each node gets copies of its inputs."),
]
NicRate = Annotated[
    str | None,
    typer.Option(
        help="Simulate network cards of so many bytes a second: each node gets copies of its inputs."
    ),
]
CacheSize = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="SIZE",
        help="What each node may keep of datasets: 50G, or a part of the disk; 0 = all that comes.",
    ),
]
PieceSize = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_PIECE_SIZE",
        help="Datasets of twice this size or more move in pieces of it; 0 = always as a whole.",
    ),
]
Racks = Annotated[int, typer.Option(min=1, help="The nodes are spread over so many racks.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NODE:KEY=VALUE", help="Label a node of this machine. Repeatable."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Save the results there, as DIR/STAGE/FILE or DIR/STAGE/SHARD/FILE."),
]
Fetch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STAGE[.OUTPUT]", help="With --out: which outputs. Repeatable. [of stages that nobody reads]"
    ),
]
Images = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_IMAGES",
        help="Tasks that name a container image: use it, or ignore it and take this machine's programs.",
    ),
]
Containers = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_CONTAINERS",
        help="What runs images on this machine: auto, podman, docker, apptainer or none.",
    ),
]
ContainerNetwork = Annotated[
    str,
    typer.Option(help="The network of containers: host, none, or a name that their engine knows."),
]
Cluster = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_CLUSTER",
        metavar="NAME",
        help="Where tasks run: local (this machine), kubernetes, or the executor of another package.",
    ),
]
ClusterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-option", metavar="KEY=VALUE", help="For the executor of another package. Repeatable."
    ),
]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="With kubernetes. [KUBECONFIG, the pod's own account, ~/.kube/config]")
]
Context = Annotated[str | None, typer.Option(help="Of the kubeconfig. [its current one]")]
Namespace = Annotated[
    str | None, typer.Option(help="Where tasks run on Kubernetes. [FLOWSCHED_NAMESPACE, else flowsched]")
]
Advertise = Annotated[
    str | None,
    typer.Option(envvar="FLOWSCHED_ADVERTISE", help="URL at which other replicas reach this process."),
]
Cromwell = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_CROMWELL",
        metavar="URLS",
        help="Cromwell servers that may be asked for the WDL of runs and how they ended, by commas.",
    ),
]
WdlPath = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_WDL_PATH",
        metavar="FOLDERS",
        help="Where imported WDL lies, by colons: URLs, and what is not beside its importer.",
    ),
]
KeepDays = Annotated[
    float, typer.Option(min=0, help="Remove what ended longer ago, with its logs and data; 0 keeps all.")
]
CacheContent = Annotated[
    str,
    typer.Option(
        envvar="FLOWSCHED_CACHE_CONTENT",
        help="How the cache of results knows files of this machine: time (size and time of change) or hash (SHA-256).",
    ),
]
MaxLiveTasks = Annotated[
    int, typer.Option(min=1, help="Tasks of all workflows that have not ended; more is refused (429).")
]
MaxLiveBytes = Annotated[
    str, typer.Option(help="Bytes of the documents of all workflows that have not ended.")
]
AllowPaths = Annotated[
    str | None,
    typer.Option(
        envvar="FLOWSCHED_ALLOW_PATHS",
        metavar="FOLDERS",
        help="Inputs come from these folders alone, and outputs go there, by colons. [everywhere but /etc, /usr …]",
    ),
]
Supervise = Annotated[
    bool | None,
    typer.Option(
        "--supervise/--no-supervise",
        help="Hold the port in a parent process, which starts the service again when it dies. "
        "[on this machine; not on Kubernetes, nor with a socket of systemd]",
    ),
]
NoToken = Annotated[
    bool,
    typer.Option(
        "--no-token",
        help="Answer without a token: any account of this machine may run tasks as this user.",
    ),
]
Policy = Annotated[str, typer.Option(help="How to schedule.")]
ProfilePath = Annotated[
    Path | None,
    typer.Option(
        "--profile", envvar="FLOWSCHED_PROFILE", metavar="FILE",
        help="A file with profiles in YAML, which extend --policy; looked at again whenever it changes.",
    ),
]  # fmt: skip


def settings_for(
    ctx: typer.Context, *, root: Path | None, database: str | None = None, **given: Any
) -> Settings:
    """Settings for `app`; a bare path becomes SQLite's URL."""
    from flowsched.app import Settings

    if database is not None and "://" not in database:
        database = f"sqlite:///{Path(database).absolute()}"
    if "log_level" not in given:
        given["log_level"] = "debug" if options(ctx).debug else "error"
    return Settings(root=root or tokens.data_folder(), database=database, **given)


def kubernetes_settings(
    cluster: str, kubeconfig: Path | None, context: str | None, namespace: str | None
) -> KubernetesSettings | None:
    """The Kubernetes settings from options and FLOWSCHED_* variables; None for another executor."""
    if cluster != "kubernetes":
        return None
    from flowsched.cluster.kubernetes.settings import from_environment
    from flowsched.values import replace

    settings = replace(from_environment(os.environ), kubeconfig=kubeconfig, context=context)
    return replace(settings, namespace=namespace) if namespace else settings


def key_values(pairs: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The parsed values of `--cluster-option`."""
    found = [pair.partition("=") for pair in pairs or ()]
    for key, equals, _ in found:
        if not key or not equals:
            raise typer.BadParameter(f"{key!r} is no KEY=VALUE", param_hint="--cluster-option")
    return tuple((key, value) for key, _, value in found)


def token_from(path: Path | None) -> str | None:
    """The token that a file holds."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--token-file") from None
    if not token:
        raise typer.BadParameter(f"{path} is empty", param_hint="--token-file")
    return token


def folders_of(text: str | None) -> tuple[Path, ...] | None:
    """Folders that are separated by colons; None if nothing was given.

    Raises:
        typer.BadParameter: One is not absolute, or is no folder.
    """
    if text is None:
        return None
    folders = tuple(Path(each).expanduser() for each in text.split(os.pathsep) if each)
    for folder in folders:
        if not folder.is_absolute() or not folder.is_dir():
            raise typer.BadParameter(
                f"{folder} is no folder with an absolute path", param_hint="--allow-paths"
            )
    return folders


def amounts(key: str, pairs: list[str]) -> dict[str, str | None]:
    """`cpu=4` and `memory=8Gi` as a mapping; `cpu=none` is None."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if len(found) < len(pairs) or not all(name and amount for name, amount in found.items()):
        raise typer.BadParameter(
            f"found {' '.join(pairs)!r}, expected cpu=4 or memory=8Gi, each name once, or cpu=none to take it away",
            param_hint=f"--{key}",
        )
    return {name: None if amount == "none" else amount for name, amount in found.items()}
