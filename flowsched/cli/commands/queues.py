"""Commands for queues and nodes. Bodies live in the modules they import when they run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flowsched.cli.commands.options import Output, amounts
from flowsched.cli.context import ask
from flowsched.cli.printing.form import Form

queue = typer.Typer(help="List and change queues.", no_args_is_help=True, rich_markup_mode=None)
nodes = typer.Typer(help="List nodes; drain one for maintenance.", rich_markup_mode=None)
Node = Annotated[str, typer.Argument(help="The node.")]


@queue.command("ls")
def list_queues(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List queues.

    What they may use, use, deserve and wait for, and what their users have used.
    """
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.queues(client, output))


@queue.command("show")
def show_queue(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue.")],
    output: Output = Form.TABLE,
) -> None:
    """Show one queue and its users."""
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.queue(client, name, output))


@queue.command("set")
def set_queue(
    ctx: typer.Context,
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
        str | None, typer.Option(metavar="best-effort|fifo", help="fifo: nobody passes the head.")
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
    from flowsched.cli import listing

    given = {"weight": weight, "parent": parent, "priority": priority, "paused": paused}
    given |= {"reclaimable": reclaimable, "order": order}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings |= {key: amounts(key, pairs) for key, pairs in (("cap", cap), ("guarantee", guarantee)) if pairs}
    ask(ctx, lambda client: listing.put_queue(client, name, settings, output))


@queue.command("rm")
def remove_queue(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue.")],
    output: Output = Form.TABLE,
) -> None:
    """Remove a queue.

    Refused while workflows in it live, or queues are below it.
    """
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.remove_queue(client, name, output))


@nodes.callback(invoke_without_command=True)
def list_nodes(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List nodes, what is taken and what is cached; or drain one for maintenance."""
    from flowsched.cli import listing

    if ctx.invoked_subcommand is None:
        ask(ctx, lambda client: listing.nodes(client, output))


@nodes.command("ls")
def list_all_nodes(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List nodes, what is taken and what is cached."""
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.nodes(client, output))


@nodes.command("drain")
def drain_node(
    ctx: typer.Context,
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
        str | None, typer.Option(help="What has not ended so long after the start runs elsewhere: 90s, 5m.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="As --grace 0s: what runs is moved at once.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Start nothing new on a node.

    What runs goes on to its end, unless --now or --grace says otherwise; what is moved is charged no try, gangs as a whole.
    `flowsched nodes uncordon` takes it back, also before a maintenance that --from announces.
    """
    from datetime import datetime

    from flowsched.cli import listing
    from flowsched.cli.moments import moment_of
    from flowsched.errors import InvalidRequest
    from flowsched.workflow.resources import parse_duration

    if now and grace is not None:
        raise typer.BadParameter("give --now or --grace, not both", param_hint="--now")
    option = "--grace"
    try:
        parse_duration(grace or "0s")
        option = "--from"
        begin = None if start is None else moment_of(start, datetime.now().astimezone())
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    wait = "0s" if now else grace
    ask(
        ctx,
        lambda client: listing.node(client.drain(name, grace=wait, start=begin, reason=reason), output),
    )


@nodes.command("uncordon")
def uncordon_node(ctx: typer.Context, name: Node, output: Output = Form.TABLE) -> None:
    """Use a node again."""
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.node(client.uncordon(name), output))
