"""`flowsched profile`, `snapshot`, `replay`: policies, plug-ins and snapshots."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from flowsched.cli.context import ask, carry_out, options
from flowsched.cli.options import Output, asks, runs
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.errors import ConfigurationError
from flowsched.tokens import write_whole
from flowsched.workflow.views import PluginView, ProfileView

commands = typer.Typer(rich_markup_mode=None)
profile = typer.Typer(
    help="The scheduler's policy: look at it, check it, replace it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
commands.add_typer(profile, name="profile")
ProfileFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Profiles in YAML or JSON; - reads standard input.")
]
Snapshot = Annotated[Path, typer.Argument(metavar="FILE", help="The snapshot.")]


@profile.command("show")
@asks()
async def show(client: Client, output: Output = Form.TABLE) -> int:
    """Show the profile in force, where it comes from, and what was refused since."""
    view = await client.profile()
    printed.one(view, output, lambda: _profile(view))
    return 1 if view.refused is not None else 0


@profile.command("check")
@runs()
async def check(file: ProfileFile) -> None:
    """Check a profile with the plugins that are installed here; needs no server."""
    from flowsched.control.profiles import find_plugins, read_policies

    policies = read_policies(_read(file), find_plugins())
    queues = ", ".join(f"{queue}: {each.name}" for queue, each in policies.default.queues.items())
    print(f"good: default {policies.default.name}" + (f"; queues {queues}" if queues else ""))


@profile.command("apply")
@asks()
async def apply(client: Client, file: ProfileFile, output: Output = Form.TABLE) -> None:
    """Replace the profile of a running service.

    A bad one changes nothing. A service that was started with --profile keeps it in that file; another one forgets it
    when it stops.
    """
    view = await client.put_profile(_read(file))
    printed.one(view, output, lambda: _profile(view))
    if not view.kept:
        printed.hint("until the service stops; one that is started with --profile FILE keeps it")


@profile.command("plugins")
def plugins(
    ctx: typer.Context,
    local: Annotated[bool, typer.Option("--local", help="Those installed here; no server is asked.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """List plugins: what they do, what they take, and whether they failed."""
    from flowsched.control.policies import plugin_views
    from flowsched.control.profiles import find_plugins

    async def asked(client: Client) -> None:
        printed.many(await client.plugins(), output, _plugins)

    if local:
        carry_out(options(ctx), lambda: printed.many(plugin_views(find_plugins(), {}), output, _plugins))
    else:
        ask(ctx, asked)


@profile.command("fields")
@runs()
async def fields(output: Output = Form.TABLE) -> None:
    """List what a profile may say, with its defaults."""
    from flowsched.scheduling.policy.profile import field_facts

    printed.many([asdict(each) for each in field_facts()], output, _fields)


@commands.command()
@asks()
async def snapshot(client: Client, file: Snapshot) -> None:
    """Record the next scheduling cycle of a service in a file.

    It holds the cluster, what waits, the profile and the plan.
    """
    raw = await client.snapshot()
    write_whole(file, raw, 0o644)
    printed.hint(f"{file}: {len(raw):,} bytes; look at it with `flowsched replay {file}`")


@commands.command()
@runs()
async def replay(
    file: Snapshot,
    other: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Decide under this profile instead, and compare."),
    ] = None,
    output: Output = Form.TABLE,
) -> int:
    """Decide again what a snapshot recorded; needs no server.

    The exit code is 0 if the plan is the same, byte for byte, and 1 if not; then it says what differs. With --profile
    it shows what another policy would do, and the exit code is 0.
    """
    from flowsched.control.profiles import find_plugins, read_policies
    from flowsched.scheduling.explain.recording import differences, plan_bytes, replayed, summary, unpacked

    found = find_plugins()
    record = unpacked(_read(file), found.plugins, found.broken)
    profile = None if other is None else read_policies(_read(other), found).default
    plan = plan_bytes(replayed(record, profile))
    same = plan == record.plan
    before, after = json.loads(record.plan), json.loads(plan)
    lines = differences(before, after, record.inputs["backlog"], record.inputs["snapshot"].names)
    result = {
        "same": same,
        "profile": profile.name if profile is not None else record.profile.name,
        "recorded": summary(before),
        "replayed": summary(after),
        "differences": lines,
    }
    printed.one(result, output, lambda: _replay(result))
    return 0 if same or other is not None else 1


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error


def _profile(view: ProfileView) -> Any:
    head = f"{view.name}, from {view.source}, since {view.since:%Y-%m-%d %H:%M:%S} UTC" + (
        "" if view.kept or view.source == "built in" else " (until the service stops)"
    )
    names = list(view.document["profiles"])
    table = render.plain_table("field", *names)
    for field in view.document["profiles"][view.name]:
        table.add_row(field, *[_value_text(view.document["profiles"][name][field]) for name in names])
    parts: list[Any] = [head, "", table]
    for queue, name in view.document.get("queues", {}).items():
        parts.append(f"queue {queue}: {name}")
    if view.refused is not None:
        refused = view.refused
        parts += ["", f"refused at {refused.at:%H:%M:%S} UTC: {refused.source}; what was in force stays"]
        parts += [
            f"  {fault['path']}: found {fault['found']}, expected {fault['expected']}"
            for fault in refused.faults
        ]
    return Group(*parts)


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value_text(each) for each in value) or "-"
    if isinstance(value, dict):
        more = ", ".join(f"{key}={_value_text(each)}" for key, each in value.items() if key != "name")
        return f"{value.get('name', '')}({more})"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _plugins(views: Any) -> Any:
    table = render.plain_table("plugin", "kind", "package", "parameters", "used by", "failures", "about")
    for view in views:
        each: PluginView = view
        about = f"does not work: {each.problem}" if each.problem else each.about
        if each.last_failure:
            about = f"{about} | last failure: {each.last_failure}"
        parameters = ", ".join(f"{name}={_value_text(value)}" for name, value in each.parameters.items())
        table.add_row(
            each.name, each.kind, each.origin, parameters, ", ".join(each.used_by), str(each.failures), about
        )
    if not views:
        return "no plugins are installed; docs/plugins.md shows how one is written"
    return table


def _fields(facts: Any) -> Any:
    table = render.plain_table("field", "takes", "default", "of a queue", "meaning")
    for each in facts:
        own = "its own" if each["per_queue"] else "as the default's"
        table.add_row(each["name"], each["expected"], each["default"], own, each["about"])
    return table


def _replay(result: dict[str, Any]) -> Any:
    head = (
        "the plan is the same, byte for byte"
        if result["same"]
        else f"the plan differs, {result['profile']} decides"
    )
    return Group(
        head,
        f"  recorded: {result['recorded']}",
        f"  replayed: {result['replayed']}",
        *[f"  {line}" for line in result["differences"]],
    )
