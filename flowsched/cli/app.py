"""The command line: which module has each command, global options, and where they may stand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from flowsched import variables
from flowsched.cli.context import Options, echo, options
from flowsched.version import VERSION

#: Command -> its module in this package, which has its options and what it does; and the first line of its help. A module is
#: loaded when its command is called: all of them take 1 s of CPU. A command without a line is not listed.
COMMANDS: Final = {
    "run": ("running", "Run a workflow and show how it goes; needs no server."),
    "serve": ("serving", "Start the service, on this machine or on Kubernetes."),
    "submit": ("running", "Hand workflows to a server; prints their ids."),
    "ls": ("listing", "List workflows: live ones, then ended ones."),
    "show": ("listing", "Show a workflow and its stages."),
    "top": ("top", "Show nodes, running stages and queues, live until Ctrl-C."),
    "watch": ("following", "Show how a workflow goes until it has ended."),
    "events": ("following", "Print what happened in a workflow."),
    "cache": ("listing", "Say which runs results came from, and why tasks ran."),
    "explain": ("listing", "Say why tasks wait, or run where they do, or cores are idle."),
    "logs": ("logs", "Print what a task wrote."),
    "get": ("fetching", "Save what a task made."),
    "cancel": ("cancelling", "Stop workflows, or one task; nothing of them starts any more."),
    "retry": ("running", "Try again what failed."),
    "pause": ("listing", "Start nothing new of a workflow; what runs goes on."),
    "resume": ("listing", "Take back a pause."),
    "demo": ("demo", "See it work: workflows, gangs and crashes on this machine."),
    "doctor": ("doctor", "Check this machine, the database and the service."),
    "token": ("serving", "Print the token of a service of this user."),
    "version": ("app", "Print the version."),
    "plan": ("plan", "Say what a WDL will run, as far as it is known."),
    "usage": ("report", "Account for core-, GPU- and GiB-hours, by queue, user or label."),
    "seff": ("report", "Say what tasks used of what they asked for."),
    "trace": ("report", "Write each attempt as a line of a trace.tsv."),
    "report": ("report", "Write a report of a workflow as one HTML file."),
    "simulate": ("simulate", "Simulate workflows on a cluster, under any policies."),
    "snapshot": ("policy", "Record the next scheduling cycle of a service in a file."),
    "replay": ("policy", "Decide again what a snapshot recorded; needs no server."),
    "agent": ("agent", "Run the node agent of a Kubernetes node."),
    "cromwell": ("app", "For Cromwell's config backend: submit, alive, kill."),
    "queue": ("queues", "List and change queues."),
    "profile": ("policy", "The scheduler's policy: look at it, check it, replace it."),
    "nodes": ("queues", "List nodes; drain one for maintenance."),
    "db": ("upkeep", "Look after the database."),
    "secret": ("upkeep", "Secrets that tasks on this machine may ask for by name."),
    "pod": ("agent", ""),
}
#: Options that are hoisted to the front, wherever they stand: with a value, and without.
_VALUED: Final = ("--server", "--token")
_FLAGS: Final = ("--debug",)


_EPILOG: Final = (
    "Exit codes: 0 done; 1 a workflow failed; 2 what was asked is wrong (usage, document, id, token); "
    "3 the service cannot be reached; 130 interrupted. "
    "--server, --token and --debug may stand anywhere. "
    "Times are in the zone of this terminal (TZ); with -o json in UTC."
)


class _Commands(Mapping[str, Any]):
    """Every command by its name."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"flowsched.cli.{COMMANDS[name][0]}")
        return get_group(module.commands).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Group(TyperGroup):
    """Commands that accept the global options after the command too."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": _Commands()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, and load none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items() if about])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hoist the global options; what follows `--` stays."""
        return list(super().parse_args(ctx, hoisted(args)))


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


app = typer.Typer(
    name="flowsched",
    cls=Group,
    help="Workflows with dependency-aware, data-aware gang scheduling.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands = typer.Typer(rich_markup_mode=None)


@app.callback()
def main(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            envvar="FLOWSCHED_SERVER",
            metavar="URL",
            help="[the service on this user's data folder, else http://127.0.0.1:8470]",
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="FLOWSCHED_TOKEN", help="The server's token.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and more logs.")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda on: version(on)),
    ] = False,
) -> None:
    """Workflows with dependency-aware, data-aware gang scheduling."""
    ctx.obj = Options(server, token, debug)
    warn_of_unknown_variables(ctx)


def warn_of_unknown_variables(ctx: typer.Context) -> None:
    """Say on stderr which FLOWSCHED_… of the environment no command reads: a misspelt one would be a default without a word."""
    known, names = _read_by_options(ctx.command.params)
    if not set(variables.unclaimed(os.environ)) - known:
        return
    from flowsched.cli.options import settings_variables

    known |= settings_variables()
    strange = [name for name in variables.unclaimed(os.environ) if name not in known]
    commands = [ctx.command] if strange else []
    while commands:  # each loads its module
        command = commands.pop()
        read, found = _read_by_options(command.params)
        known, names = known | read, names | found
        commands += getattr(command, "commands", {}).values()
    for name in strange:
        if name not in known:
            echo(f"warning: {variables.warning(name, known, names)}")


def _read_by_options(options: Sequence[Any]) -> tuple[set[str], set[str]]:
    """The variables that options read, and the names of the options."""
    read = [[each.envvar] if isinstance(each.envvar, str) else each.envvar or () for each in options]
    return {name for each in read for name in each}, {name for each in options for name in each.opts}


def version(asked: bool) -> None:
    """Print the version, if that is asked for."""
    if asked:
        print(f"flowsched {VERSION} (Python {sys.version.split()[0]})")
        raise typer.Exit


@commands.command("version")
def version_command() -> None:
    """Print the version."""
    version(True)


# This is for `flowsched --help`, and for global options in front. Where `cromwell` is the first word, `__main__` calls
# `cli.cromwell` without it, and without typer.
@commands.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def cromwell(ctx: typer.Context) -> None:
    """For Cromwell's config backend: submit, alive, kill."""
    from flowsched.cli import cromwell as backend

    opts = options(ctx)
    raise typer.Exit(backend.main(ctx.args, opts.server, opts.token))
