"""Commands for queues. Bodies live in the modules they import when they run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flowsched.cli.context import ask
from flowsched.cli.options import Output, amounts
from flowsched.cli.output_form import Form

queue = typer.Typer(help="List and change queues.", no_args_is_help=True, rich_markup_mode=None)


@queue.command("ls")
def list_queues(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List queues: what they may use, use, deserve and wait for, and what their users have used."""
    from flowsched.cli import listing

    ask(ctx, lambda client: listing.queues(client, output))


@queue.command("set")
def set_queue(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The queue; made if there is none.")],
    weight: Annotated[int | None, typer.Option(min=1, help="Its share beside its siblings.")] = None,
    parent: Annotated[str | None, typer.Option(help="The queue above it.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first.")] = None,
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
        list[str] | None, typer.Option(metavar="RESOURCE=AMOUNT", help="At most so much. Repeatable.")
    ] = None,
    guarantee: Annotated[
        list[str] | None, typer.Option(metavar="RESOURCE=AMOUNT", help="Its own. Repeatable.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Create or change a queue; what is not said stays."""
    from flowsched.cli import listing

    given = {"weight": weight, "parent": parent, "priority": priority, "paused": paused}
    given |= {"reclaimable": reclaimable, "order": order}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings |= {key: amounts(key, pairs) for key, pairs in (("cap", cap), ("guarantee", guarantee)) if pairs}
    ask(ctx, lambda client: listing.put_queue(client, name, settings, output))
