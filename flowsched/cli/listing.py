"""Bodies of the commands that ask and print: ls, show, explain, nodes, queue."""

from __future__ import annotations

import json
import os.path
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from flowsched.cli import failures, naming, used_images
from flowsched.cli.context import DONE, INTERRUPTED, say
from flowsched.cli.following import engine_of, is_local, next_try, watch
from flowsched.cli.printing import output, render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.errors import InvalidDocument, InvalidRequest, NotFound, no_such
from flowsched.workflow.document.uris import file_path
from flowsched.workflow.views import IdleReportView, IdleView, NodeView, TaskView


async def workflows(client: Client, filters: Mapping[str, Any], limit: int, form: Form) -> None:
    """`flowsched ls`."""
    run = filters.get("run")
    if run is not None:
        filters = {**filters, "run": await _foreign_run(client, run)}
    page = min(limit, 1000)
    async with aclosing(client.list(**filters, page=page)) as found:
        number = await output.stream(
            found, form, lambda views: render.workflow_table(views, datetime.now(UTC)), limit
        )
    if number == 0 and form is Form.TABLE:
        given = [f"--{name}" for name, value in filters.items() if value]
        output.hint(
            f"no workflow fits {' and '.join(given)}" + " (whole names and ids)" * (given != ["--state"])
            if given
            else "no workflows; submit one with `flowsched submit DOCUMENT`"
        )


async def _foreign_run(client: Client, given: str) -> str:
    """The id of a run of another engine, as a user named it."""
    ident = await naming.find(client, given)
    if not (await client.get(ident)).source:
        raise InvalidRequest(
            f"{ident} is no run of another engine, and has no calls: `flowsched show {ident} --tasks` lists its tasks"
        )
    return ident


async def workflow(
    client: Client, ident: str, tasks: bool, state: str | None, limit: int, form: Form
) -> None:
    """`flowsched show`."""
    view, stages = await client.get(ident), await client.stages(ident)
    listed: list[TaskView] = []
    if tasks:
        async with aclosing(client.tasks(ident, state=state, page=min(limit, 1000))) as found:
            async for task in found:
                if len(listed) == limit:
                    output.hint(f"… and more tasks: ask for them with --limit (now {limit})")
                    break
                listed.append(task)
    images = await used_images.used_images(client, ident, stages)
    if form is not Form.TABLE:
        whole: dict[str, Any] = {"workflow": view, "stages": stages, "images": images}
        whole |= {"tasks": listed} if tasks else {}
        output.one(whole, form, lambda: "")
        return
    table = render.stage_table(stages)
    parts: list[Any] = [render.workflow_head(view, datetime.now(UTC)), "", table]
    shown = table.heads(output.console().width)
    sums = [name for name in ("QUEUED", "STAGING", "RAN") if name in shown]
    if sums and any(stage.width * stage.members > 1 for stage in stages):
        told = f"{', '.join(sums[:-1])} and {sums[-1]} are sums" if len(sums) > 1 else f"{sums[0]} is a sum"
        parts.append(Text(f"{told} over the tasks of a stage", "dim"))
    if tasks:
        parts += ["", render.task_table(listed)]
    if images:
        parts += ["", *map(used_images.image_line, images)]
    output.show(Group(*parts))
    if view.run:
        output.hint(f"\na call of the run {view.run}: `flowsched show {view.run}`")
    if view.state == "FAILED":
        arguments = await failures.show(client, view)
        log = f"`flowsched logs {ident} {arguments}`" if arguments else ""
        if engine := await engine_of(client, ident):
            name = "the engine that sent it" if engine == "tes" else engine
            again = f"run it again with {name}, which decides what is tried again"
        else:
            again = await next_try(client, ident, stages)
        more = [again] if log else [f"`flowsched explain {ident}`", again]
        output.hint("\nnext: " + "\n      ".join(filter(None, [log, *more])))


async def explain(client: Client, ident: str, stage: str | None, task: str | None, form: Form) -> None:
    """`flowsched explain`."""
    index = None if stage is None or task is None else await naming.index_of(client, ident, stage, task)
    found = await client.explain(ident, stage, index)
    output.many(found, form, lambda views: render.explain_panel(views, datetime.now(UTC)))
    if form is Form.TABLE and stage is None and any(each.state == "FAILED" for each in found):
        arguments = await failures.show(client, await client.get(ident))
        if arguments:
            output.hint(f"\nnext: `flowsched logs {ident} {arguments}`")


async def cache(client: Client, ident: str, form: Form) -> None:
    """`flowsched cache`."""
    found = await client.cache(ident)
    if not found and form is Form.TABLE:
        source = (await client.get(ident)).source
        output.hint(
            f"{ident} is a run of {source}, which keeps a cache of its own: flowsched looks nothing up for it"
            if source
            else "nothing was looked up: no stage says `cache: true`, and it resumes no run (`flowsched run --resume`)"
        )
        return
    output.many(found, form, render.cache_table)
    if form is Form.TABLE and any(each.why.startswith("version (") for each in found):
        output.hint(
            "\nnext: where a file was only touched, `flowsched serve --cache-content hash` knows it by its content"
        )


async def nodes(client: Client, form: Form) -> None:
    """`flowsched nodes`."""
    output.many(await client.nodes(), form, render.node_panel)


async def node(call: Awaitable[NodeView], form: Form) -> None:
    """`flowsched nodes drain | uncordon`."""
    view = await call
    output.one(view, form, lambda: render.node_panel([view]))


async def queues(client: Client, form: Form) -> None:
    """`flowsched queue ls`."""
    output.many(await client.queues(), form, render.queue_table)


async def queue(client: Client, name: str, form: Form) -> None:
    """`flowsched queue show`."""
    views = await client.queues()
    found = next((view for view in views if view.name == name), None)
    if found is None:
        raise NotFound(no_such("queue", name, (view.name for view in views)))
    output.one(found, form, lambda: render.queue_table([found]))


async def put_queue(client: Client, name: str, settings: Mapping[str, Any], form: Form) -> None:
    """`flowsched queue set`."""
    try:
        view = await client.put_queue(name, **settings)
    except InvalidDocument as error:
        told = "; ".join(str(fault).removeprefix("$.") for fault in error.faults)
        raise InvalidRequest(f"queue {name!r} is not changed: {told}") from None
    output.one(view, form, lambda: render.queue_table([view]))


async def remove_queue(client: Client, name: str, form: Form) -> None:
    """`flowsched queue rm`."""
    view = await client.delete_queue(name)
    output.one(view, form, lambda: render.text(f"removed queue {name}"))


async def command(
    client: Client, ident: str, kind: str, reason: str | None, form: Form, *, wait: bool = False
) -> int:
    """`flowsched cancel | pause | resume | retry`. `wait`: show how it goes until it has ended, and end as it does."""
    view = await getattr(client, kind)(ident, reason)
    if not wait:
        output.one(view, form, lambda: render.workflow_head(view))
    if kind == "retry":
        await _say_what_is_kept(client, ident, form)
    if not wait:
        return DONE
    code = await watch(client, ident)
    if code != INTERRUPTED:
        ended = await client.get(ident)
        output.one(ended, form, lambda: render.workflow_head(ended))
    return code


async def _say_what_is_kept(client: Client, ident: str, form: Form) -> None:
    """After `retry`: which results it keeps although their inputs have changed, or how such inputs are read again."""
    kept = [found async for found in _kept_before_a_change(client, ident)] if is_local(client.url) else []
    for task, path in kept[:1]:
        more = f" (so do {len(kept) - 1} more)" if len(kept) > 1 else ""
        say(
            f"warning: {naming.task_name(task)} keeps its result{more}, although {path} has changed since it read it. To read it "
            f"again, once this run has ended: `flowsched retry {ident} --changed FILE`"
        )
    if not kept and form is Form.TABLE:
        output.hint(
            "it keeps what succeeded, with the document as it was submitted; after an edit of the document or of an input: "
            f"`flowsched retry {ident} --changed FILE`"
        )


async def _kept_before_a_change(client: Client, ident: str) -> AsyncIterator[tuple[TaskView, Path]]:
    """The tasks that have succeeded and read a file of this machine that has changed since, each with the first such file."""
    for stage in json.loads(await client.document(ident)).get("stages", []):
        uris = [given["uri"] for given in stage.get("inputs", []) if "uri" in given]
        if not uris:
            continue
        async for task in client.tasks(ident, stage=stage["name"], state="SUCCEEDED"):
            read_at = task.started_at or task.ready_at
            for uri in uris:
                exact = uri.replace("{index}", str(task.shard)).replace("{item}", task.item or "{item}")
                path = file_path(exact, os.path.lexists)
                changed_at = _changed_at(Path(path)) if path is not None else 0.0
                if path is not None and read_at is not None and changed_at > read_at.timestamp():
                    yield task, Path(path)
                    break


def _changed_at(path: Path) -> float:
    """When a file was last written, in seconds since 1970; 0 where there is none to be seen."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# ---- explain --cluster: why cores, memory and GPUs were idle ----


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
_UNITS: Final = {"cpu": "core-hours", "memory": "GiB-hours", "gpu": "GPU-hours"}


async def explain_cluster(client: Client, since: str, form: Form) -> None:
    """`flowsched explain --cluster`."""
    report = await client.idle(since)
    output.one(report, form, lambda: idle_panel(report))


def idle_panel(report: IdleReportView) -> RenderableType:
    """A table of hours for each resource that was idle, and a sentence."""
    if not report.resources:
        return Text("Nothing is known yet: no node has been seen for any time.")
    parts: list[RenderableType] = []
    for name, whole in report.resources.items():
        causes = [cause for cause in CAUSES if whole.causes.get(cause)]
        parts.append(render.text(f"{name}, {_UNITS.get(name, name)}", "bold"))
        table = render.plain_table(
            "=hour",
            ">capacity",
            ">used",
            ">idle",
            *(f">{CAUSES[c]}" for c in causes),
        )
        for hour in report.hours:
            if name in hour.resources:
                begin = hour.start_at.astimezone().strftime("%m-%d %H:00")
                table.add_row(Text(begin), *_cells(hour.resources[name], causes))
        table.add_row(Text("all", "bold"), *_cells(whole, causes))
        parts += [table, Text()]
    parts += [render.text(sentence) for sentence in report.sentences]
    return Group(*parts)


def _cells(view: IdleView, causes: list[str]) -> list[Text]:
    amounts: Mapping[str, float] = view.causes
    shown = [view.capacity, view.used, view.idle, *(amounts.get(cause, 0.0) for cause in causes)]
    return [Text(_hours(amount)) for amount in shown]


def _hours(amount: float) -> str:
    """One decimal place, three where there is little."""
    return "" if not amount else f"{amount:.1f}" if amount >= 1 else f"{amount:.3f}"
