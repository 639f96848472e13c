"""`flowsched ls`, `show`, `explain`, `cache`, `pause`, `resume`: what a service knows of workflows, and why they wait."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flowsched.cli import failures, naming, used_images
from flowsched.cli.context import about, ask
from flowsched.cli.following import engine_of, next_try
from flowsched.cli.options import Limit, Output, Reason, asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.errors import InvalidRequest
from flowsched.workflow.views import IdleReportView, IdleView, TaskView

commands = typer.Typer(rich_markup_mode=None)


@commands.command("ls")
@asks()
async def workflows(
    client: Client,
    state: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, FAILED …")] = None,
    name: Annotated[str | None, typer.Option(help="Only workflows of this name.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only workflows of this queue.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE", help="Only workflows so labelled.")
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="ID|NAME", help="The calls of this run.")] = None,
    user: Annotated[str | None, typer.Option(help="Only workflows of this user.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Submitted from then on: 8h, 7d, or a date or time (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Submitted before then, likewise.")] = None,
    limit: Limit = 100,
    output: Output = Form.TABLE,
) -> None:
    """List workflows: live ones, then ended ones.

    Each part is newest first. A run of another engine (Cromwell, Snakemake, miniwdl) is one workflow; its calls
    are what `show` calls stages.
    """
    filters: dict[str, Any] = {
        "state": state and state.upper(), "name": name, "queue": queue, "label": label,
        "run": None if run is None else await _foreign_run(client, run),
        "user": user, "since": since, "until": until,
    }  # fmt: skip
    page = min(limit, 1000)
    async with aclosing(client.list(**filters, page=page)) as found:
        number = await printed.stream(
            found,
            output,
            lambda views: render.workflow_table(views, datetime.now(UTC), brief=sys.stdout.isatty()),
            limit,
        )
    if number == 0 and output is Form.TABLE:
        options = [f"--{name}" for name, value in filters.items() if value]
        printed.hint(
            f"no workflow fits {' and '.join(options)}" + " (whole names and ids)" * (options != ["--state"])
            if options
            else "no workflows; submit one with `flowsched submit DOCUMENT`"
        )


async def _foreign_run(client: Client, ref: str) -> str:
    """The id of a run of another engine, as a user named it."""
    ident = await naming.find(client, ref)
    if not (await client.get(ident)).source:
        raise InvalidRequest(
            f"{ident} is no run of another engine, and has no calls: `flowsched show {ident} --tasks` lists its tasks"
        )
    return ident


@commands.command()
@asks()
async def show(
    client: Client,
    ident: str,
    tasks: Annotated[bool, typer.Option("--tasks", help="List its tasks too.")] = False,
    state: Annotated[str | None, typer.Option(help="Only tasks in this state (with --tasks).")] = None,
    limit: Limit = 100,
    output: Output = Form.TABLE,
) -> None:
    """Show a workflow and its stages.

    How long their tasks were queued, staged and ran, and how many bytes they found or had to move.
    """
    view, stages = await client.get(ident), await client.stages(ident)
    listed: list[TaskView] = []
    if tasks:
        async with aclosing(
            client.tasks(ident, state=state and state.upper(), page=min(limit, 1000))
        ) as found:
            async for task in found:
                if len(listed) == limit:
                    printed.hint(f"… and more tasks: ask for them with --limit (now {limit})")
                    break
                listed.append(task)
    images = await used_images.used_images(client, ident, stages)
    if output is not Form.TABLE:
        whole: dict[str, Any] = {"workflow": view, "stages": stages, "images": images}
        whole |= {"tasks": listed} if tasks else {}
        printed.one(whole, output, lambda: "")
        return
    parts: list[Any] = [render.workflow_head(view, datetime.now(UTC)), "", render.stage_table(stages)]
    if any(stage.width * stage.members > 1 and stage.running_seconds for stage in stages):
        parts.append(Text("times are sums over the tasks of a stage", "dim"))
    if tasks:
        parts += ["", render.task_table(listed)]
    if images:
        parts += ["", *map(used_images.image_line, images)]
    printed.show(Group(*parts))
    if view.run:
        printed.hint(f"\na call of the run {view.run}: `flowsched show {view.run}`")
    if view.state == "FAILED":
        arguments = await failures.show(client, view)
        log = f"`flowsched logs {ident} {arguments}`" if arguments else ""
        if engine := await engine_of(client, ident):
            name = "the engine that sent it" if engine == "tes" else engine
            again = f"run it again with {name}, which decides what is tried again"
        else:
            again = next_try(ident)
        more = [again] if log else [f"`flowsched explain {ident}`", again]
        printed.hint("\nnext: " + "\n      ".join(filter(None, [log, *more])))


@commands.command()
def explain(
    ctx: typer.Context,
    workflow: Annotated[str | None, typer.Argument(metavar="ID|NAME", help="Which workflow.")] = None,
    stage: Annotated[str | None, typer.Argument(help="Only this stage.")] = None,
    index: Annotated[
        str | None,
        typer.Argument(metavar="INDEX|ITEM|ROLE", help="Only this task: also why on its node."),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Why cores are idle instead.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Say why tasks wait, or run where they do, or cores are idle.

    With the numbers, with what would change it, and with the time at which it will. With the INDEX of a task:
    what it cost on its node, and on those that came next. `--cluster`: why cores, memory and GPUs are idle
    now; the metric `flowsched_idle_resources` has the hours.
    """

    async def idle(client: Client) -> None:
        report = await client.idle()
        printed.one(report, output, lambda: idle_panel(report))

    if cluster == (workflow is not None):
        raise typer.BadParameter("give the ID of a workflow, or --cluster")
    if workflow is None:
        ask(ctx, idle)
    else:
        about(ctx, workflow, lambda client, ident: _explain(client, ident, stage, index, output))


async def _explain(client: Client, ident: str, stage: str | None, task: str | None, form: Form) -> None:
    index = None if stage is None or task is None else await naming.index_of(client, ident, stage, task)
    found = await client.explain(ident, stage, index)
    printed.many(found, form, lambda views: render.explain_panel(views, datetime.now(UTC)))
    if form is Form.TABLE and stage is None and any(each.state == "FAILED" for each in found):
        arguments = await failures.show(client, await client.get(ident))
        if arguments:
            printed.hint(f"\nnext: `flowsched logs {ident} {arguments}`")


@commands.command()
@asks(own=True)
async def cache(client: Client, ident: str, output: Output = Form.TABLE) -> None:
    """Say which runs results came from, and why tasks ran."""
    found = await client.cache(ident)
    if not found and output is Form.TABLE:
        source = (await client.get(ident)).source
        printed.hint(
            f"{ident} is a run of {source}, which keeps a cache of its own: flowsched looks nothing up for it"
            if source
            else "nothing was looked up: no stage says `cache: true`, and it resumes no run (`flowsched run --resume`)"
        )
        return
    printed.many(found, output, render.cache_table)
    if output is Form.TABLE and any(each.why.startswith("version (") for each in found):
        printed.hint(
            "\nnext: where a file was only touched, `flowsched serve --cache-content hash` knows it by its content"
        )


@commands.command()
@asks(to_change=True)
async def pause(client: Client, ident: str, reason: Reason = None, output: Output = Form.TABLE) -> None:
    """Start nothing new of a workflow; what runs goes on."""
    view = await client.pause(ident, reason)
    printed.one(view, output, lambda: render.workflow_head(view))


@commands.command()
@asks(to_change=True)
async def resume(client: Client, ident: str, reason: Reason = None, output: Output = Form.TABLE) -> None:
    """Take back a pause."""
    view = await client.resume(ident, reason)
    printed.one(view, output, lambda: render.workflow_head(view))


# ---- explain --cluster: why cores, memory and GPUs are idle ----


#: The columns, in the order in which they are told; one without any idle room is left out.
CAUSES: Final = {
    "no_demand": "no demand",
    "fragmentation": "fragmented",
    "reserved": "reserved",
    "quota": "quota",
    "data": "data",
    "io": "disk",
    "mismatch": "mismatch",
    "starting": "starting",
}
_UNITS: Final = {"cpu": "cores", "memory": "GiB", "gpu": "GPUs"}


def idle_panel(report: IdleReportView) -> RenderableType:
    """A table with a line for each resource, and a sentence for each that is idle."""
    if not report.resources:
        return Text("Nothing is known yet: no node has been seen.")
    causes = [cause for cause in CAUSES if any(view.causes.get(cause) for view in report.resources.values())]
    table = render.plain_table("=resource", ">capacity", ">used", ">idle", *(f">{CAUSES[c]}" for c in causes))
    for name, view in report.resources.items():
        table.add_row(Text(f"{name}, {_UNITS[name]}"), *_cells(view, causes))
    return Group(table, Text(), *(render.text(sentence) for sentence in report.sentences))


def _cells(view: IdleView, causes: list[str]) -> list[Text]:
    amounts: Mapping[str, float] = view.causes
    shown = [view.capacity, view.used, view.idle, *(amounts.get(cause, 0.0) for cause in causes)]
    # One decimal place, three where there is little.
    return [Text("" if not each else f"{each:.1f}" if each >= 1 else f"{each:.3f}") for each in shown]
