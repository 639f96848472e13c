"""`flowsched cromwell` among all commands: for `flowsched --help`, and with global options in front.

`__main__` goes round this, and everything that typer needs, where `cromwell` is the first word.
"""

from __future__ import annotations

import typer

from flowsched.cli.context import options


def offer(app: typer.Typer) -> None:
    """Add the command; what stands behind it is read by `cli.cromwell` itself."""
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command("cromwell", context_settings=passed_on, add_help_option=False)(cromwell)


def cromwell(ctx: typer.Context) -> None:
    """For Cromwell's config backend: submit, alive, kill."""
    from flowsched.cli import cromwell as commands

    given = options(ctx)
    raise typer.Exit(commands.main(ctx.args, given.server, given.token))
