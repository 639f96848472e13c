"""`flowsched queue` and `flowsched nodes`: list and change queues; list nodes, and drain one."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated, Any, Final

import typer

from flowsched.cli.options import Output, asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.errors import InvalidDocument, InvalidRequest, NotFound, no_such
from flowsched.workflow.resources import parse_duration

commands = typer.Typer(rich_markup_mode=None)
queue = typer.Typer(help="List and change queues.", no_args_is_help=True, rich_markup_mode=None)
nodes = typer.Typer(help="List nodes; drain one for maintenance.", rich_markup_mode=None)
commands.add_typer(queue, name="queue")
commands.add_typer(nodes, name="nodes")
Node = Annotated[str, typer.Argument(help="The node.")]


@queue.command("ls")
@asks()
async def list_queues(client: Client, output: Output = Form.TABLE) -> None:
    """List queues.

    The amounts that they may use, use, deserve and wait for, and the use of their users.
    """
    printed.many(await client.queues(), output, render.queue_panel)


@queue.command("show")
@asks()
async def show_queue(
    client: Client,
    name: Annotated[str, typer.Argument(help="The queue.")],
    output: Output = Form.TABLE,
) -> None:
    """Show one queue and its users."""
    views = await client.queues()
    found = next((view for view in views if view.name == name), None)
    if found is None:
        raise NotFound(no_such("queue", name, (view.name for view in views)))
    printed.one(found, output, lambda: render.queue_panel([found]))


@queue.command("set")
@asks()
async def set_queue(
    client: Client,
    name: Annotated[str, typer.Argument(help="The queue; made if there is none.")],
    weight: Annotated[int | None, typer.Option(min=1, help="Its share beside its siblings.")] = None,
    parent: Annotated[str | None, typer.Option(help="The queue above it.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Higher goes first, and takes room from lower.")
    ] = None,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="Start nothing new of it.")] = None,
    reclaimable: Annotated[
        bool | None,
        typer.Option(
            "--reclaimable/--keep", help="Others may take back what it has beyond what it deserves."
        ),
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="best-effort|fifo", help="fifo: no group passes the head.")
    ] = None,
    cap: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE=AMOUNT", help="At most so much; none = no limit. Repeatable."),
    ] = None,
    guarantee: Annotated[
        list[str] | None, typer.Option(metavar="RESOURCE=AMOUNT", help="Its own; none = nothing. Repeatable.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Create or change a queue; what is not said stays.

    --cap and --guarantee change the resources that they name, and keep the others.
    """
    changes = {"weight": weight, "parent": parent, "priority": priority, "paused": paused}
    changes |= {"reclaimable": reclaimable, "order": order}
    settings: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    settings |= {
        key: _amounts(key, pairs) for key, pairs in (("cap", cap), ("guarantee", guarantee)) if pairs
    }
    try:
        view = await client.put_queue(name, **settings)
    except InvalidDocument as error:
        faults = "; ".join(str(fault).removeprefix("$.") for fault in error.faults)
        raise InvalidRequest(f"queue {name!r} is not changed: {faults}") from None
    printed.one(view, output, lambda: render.queue_panel([view]))


@queue.command("rm")
@asks()
async def remove_queue(
    client: Client,
    name: Annotated[str, typer.Argument(help="The queue.")],
    output: Output = Form.TABLE,
) -> None:
    """Remove a queue.

    Refused while workflows in it live, or queues are below it.
    """
    view = await client.delete_queue(name)
    printed.one(view, output, lambda: render.text(f"removed queue {name}"))


@nodes.command("ls")
@asks()
async def list_nodes(client: Client, output: Output = Form.TABLE) -> None:
    """List nodes, what is taken and what is cached."""
    printed.many(await client.nodes(), output, render.node_panel)


@nodes.callback(invoke_without_command=True)
def nodes_alone(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List nodes, what is taken and what is cached; or drain one for maintenance."""
    if ctx.invoked_subcommand is None:
        list_nodes(ctx, output=output)


@nodes.command("drain")
@asks()
async def drain_node(
    client: Client,
    name: Node,
    reason: Annotated[str, typer.Option(help="Why; `nodes`, `explain` and the page show it.")] = "",
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHEN",
            help="A maintenance to come: 18:00, Friday 18:00, 2026-12-04 18:00. Before it, only tasks start that will have ended.",
        ),
    ] = None,
    grace: Annotated[
        str | None, typer.Option(help="Pods still running so long after the start move: 90s, 5m.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Start nothing new on a node.

    Running tasks go on to their ends, unless --grace says otherwise (0s: they move at once). A task that moves is charged no
    try. Gangs move as a whole.
    `flowsched nodes uncordon` takes it back, also before a maintenance that --from announces.
    """
    option = "--grace"
    try:
        parse_duration(grace or "0s")
        option = "--from"
        begin = None if start is None else moment_of(start, datetime.now().astimezone())
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    view = await client.drain(name, grace=grace, start=begin, reason=reason)
    printed.one(view, output, lambda: render.node_panel([view]))


@nodes.command("uncordon")
@asks()
async def uncordon_node(client: Client, name: Node, output: Output = Form.TABLE) -> None:
    """Use a node again."""
    view = await client.uncordon(name)
    printed.one(view, output, lambda: render.node_panel([view]))


def _amounts(key: str, pairs: list[str]) -> dict[str, str | None]:
    """`cpu=4` and `memory=8Gi` as a mapping; `cpu=none` is None."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if len(found) < len(pairs) or not all(name and amount for name, amount in found.items()):
        raise typer.BadParameter(
            f"found {' '.join(pairs)!r}, expected cpu=4 or memory=8Gi, each name once, or cpu=none to take it away",
            param_hint=f"--{key}",
        )
    return {name: None if amount == "none" else amount for name, amount in found.items()}


#: Days of the week, as `nodes drain --from` takes them.
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def moment_of(text: str, now: datetime) -> datetime:
    """The next moment that the text names, in the zone of this machine where the text names none.

    Args:
        text: A time of a day, a weekday (or its first three letters) with or without a time, or a date with or without a time.
        now: The moment, in the zone of this machine.

    Raises:
        InvalidRequest: The text is none of these, or the moment has passed.
    """
    first, _, rest = text.strip().partition(" ")
    weekday = [at for at, day in enumerate(_DAYS) if len(first) >= 3 and day.startswith(first.lower())]
    repeat = timedelta(days=7 if weekday else 1 if first[2:3] == ":" and not rest else 0)
    try:
        if repeat:
            ahead = timedelta(days=(weekday[0] - now.weekday()) % 7 if weekday else 0)
            clock = (rest.strip() or "00:00") if weekday else first
            found = datetime.combine(now.date() + ahead, time.fromisoformat(clock))
        else:
            found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no moment; write 18:00, Friday 18:00, or 2026-12-04 18:00"
        ) from None
    if found.astimezone() <= now:
        found += repeat
    if found.astimezone() <= now:
        raise InvalidRequest(f"{text!r} has passed; it is {now:%Y-%m-%d %H:%M}")
    return found.astimezone()  # after the sum: the offset is that of the day
