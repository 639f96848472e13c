"""Commands that ask and print: ls, show, explain, nodes, queue."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from rich.console import Group

from flowsched.cli import output, render
from flowsched.cli.form import Form
from flowsched.client import Client
from flowsched.workflow.views import NodeView, TaskView


async def workflows(client: Client, filters: Mapping[str, str | None], limit: int, form: Form) -> None:
    """`flowsched ls`."""
    page = min(limit, 1000)
    async with aclosing(client.list(**filters, page=page)) as found:
        number = await output.stream(found, form, render.workflow_table, limit)
    if number == 0 and form is Form.TABLE:
        output.hint("no workflows; submit one with `flowsched submit DOCUMENT`")


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
    if form is not Form.TABLE:
        whole: dict[str, Any] = {"workflow": view, "stages": stages} | ({"tasks": listed} if tasks else {})
        output.one(whole, form, lambda: "")
        return
    parts: list[Any] = [render.workflow_head(view, datetime.now(UTC)), "", render.stage_table(stages)]
    if tasks:
        parts += ["", render.task_table(listed)]
    output.show(Group(*parts))
    if view.state == "FAILED":
        output.hint(f"\nnext: `flowsched explain {ident}`, `flowsched retry {ident}`")


async def explain(client: Client, ident: str, stage: str | None, form: Form) -> None:
    """`flowsched explain`."""
    found = await client.explain(ident, stage)
    output.many(found, form, lambda views: render.explain_panel(views, datetime.now(UTC)))


async def nodes(client: Client, form: Form) -> None:
    """`flowsched nodes`."""
    output.many(await client.nodes(), form, render.node_table)


async def node(call: Awaitable[NodeView], form: Form) -> None:
    """`flowsched nodes drain | uncordon`."""
    view = await call
    output.one(view, form, lambda: render.node_table([view]))


async def queues(client: Client, form: Form) -> None:
    """`flowsched queue ls`."""
    output.many(await client.queues(), form, render.queue_table)


async def put_queue(client: Client, name: str, settings: Mapping[str, Any], form: Form) -> None:
    """`flowsched queue set`."""
    view = await client.put_queue(name, **settings)
    output.one(view, form, lambda: render.queue_table([view]))


async def command(client: Client, ident: str, kind: str, reason: str | None, form: Form) -> None:
    """`flowsched cancel | pause | resume | retry`."""
    view = await getattr(client, kind)(ident, reason)
    output.one(view, form, lambda: render.workflow_head(view))
