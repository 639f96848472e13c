"""The context of a command: its server, its exit code, and how its errors are printed.

Exit codes: 0 done · 1 a workflow failed, or flowsched did · 2 what was asked is wrong (usage, document, id, token) ·
3 the service cannot be reached · 130 interrupted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from flowsched import errors
    from flowsched.client import Client

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

#: More faults than this are counted, not shown.
FAULTS_SHOWN: Final = 50
#: The next step when a service says that it cannot answer now.
SERVICE_WAITS: Final = (
    "the service runs and waits for that: ask again in a moment; `flowsched doctor` and its log say more"
)
#: The same where a `flowsched run` has the folder.
RUN_BESIDE: Final = (
    "`flowsched logs RUN STAGE` reads its files meanwhile; after its end `flowsched serve` has the same folder, and shows it. "
    "With `flowsched serve` and `flowsched submit` in place of `flowsched run` every command answers"
)
#: The same of a command that opens the database itself.
DATABASE_AWAY: Final = "start the database, or correct what it refuses: --db URL, or FLOWSCHED_DATABASE"


@dataclass(frozen=True, slots=True)
class Options:
    """The options that any command takes, before or after its name."""

    server: str | None = None
    token: str | None = None
    debug: bool = False


def options(ctx: typer.Context) -> Options:
    """The global options."""
    found = ctx.find_object(Options)
    return found if found is not None else Options()


def ask(ctx: typer.Context, work: Callable[[Client], Awaitable[int | None]]) -> None:
    """Run a command against the server, and end with its exit code."""
    from flowsched import tokens
    from flowsched.errors import Unavailable

    opts = options(ctx)
    named = opts.server or os.environ.get("FLOWSCHED_SERVER")
    beside = None if named or tokens.running_url() else tokens.run_beside()

    async def asked() -> int | None:
        async with client_of(opts.server, opts.token, waits=beside is None) as client:
            try:
                return await work(client)
            except Unavailable:
                if beside is None:
                    raise
                raise Unavailable(
                    f"no service runs: a `flowsched run` (process {beside[0]}) has {beside[1]}, and answers no other command"
                ) from None

    run(opts, asked(), SERVICE_WAITS if beside is None else RUN_BESIDE)


def client_of(url: str | None, token: str | None, *, waits: bool = True) -> Client:
    """A client that says once that a request takes long; that nothing listens yet it says only at a terminal.

    `waits`: for a service that may be starting.
    """
    from flowsched.client import Client
    from flowsched.client.session import START_S

    noted = False

    def slow(refused: bool) -> None:
        nonlocal noted
        if not noted and (not refused or sys.stderr.isatty()):
            noted = True
            if refused:
                named = f" at {client.url}" if url or os.environ.get("FLOWSCHED_SERVER") else ""
                echo(
                    f"no service answers{named}: waiting {START_S:g} s for one that may be starting "
                    "(`flowsched serve` starts one)"
                )
            else:
                echo(f"{client.url} has not answered yet: waiting (`flowsched doctor` says for what)")

    client = Client(url, token, slow=slow, start_timeout=START_S if waits else 0.0)
    return client


def about(
    ctx: typer.Context,
    workflow: str,
    work: Callable[[Client, str], Awaitable[int | None]],
    *,
    to_change: bool = False,
    own: bool = False,
) -> None:
    """Run a command on one workflow, which the user gave by id, by the beginning of it, or by name. `own`: as for `naming.find`."""

    async def asked(client: Client) -> int | None:
        from flowsched.cli.naming import find

        return await work(client, await find(client, workflow, to_change=to_change, own=own))

    ask(ctx, asked)


def run(opts: Options, work: Coroutine[Any, Any, int | None], unavailable: str = SERVICE_WAITS) -> None:
    """Run a coroutine to its end, and end with its exit code; errors become sentences. `unavailable`: see `show_error`."""
    carry_out(opts, lambda: asyncio.run(work), unavailable)


def carry_out(opts: Options, work: Callable[[], int | None], unavailable: str = SERVICE_WAITS) -> None:
    """Run a function to its end, and end with its exit code; errors become sentences."""
    from flowsched import errors

    try:
        code = work() or DONE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        from flowsched.cli.printing.output import drop_stdout

        drop_stdout()
        code = FAILED
    except (errors.FlowschedError, OSError) as error:
        if opts.debug:
            raise
        code = show_error(error, unavailable)
    if code:
        raise typer.Exit(code)


def show_error(error: errors.FlowschedError | OSError, unavailable: str = SERVICE_WAITS) -> int:
    """Say on stderr what is wrong, and what to do next; returns the exit code.

    `unavailable`: what to do where what the command needs does not answer.
    """
    from flowsched import errors

    match error:
        case OSError():
            complain(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
            return WRONG
        case errors.InvalidDocument():
            number = len(error.faults)
            complain(f"the document has {number} fault{'s' * (number != 1)}")
            for fault in error.faults[:FAULTS_SHOWN]:
                echo(f"  {fault}")
            if number > FAULTS_SHOWN:
                echo(f"  … and {number - FAULTS_SHOWN} more")
            return WRONG
        case errors.Unauthorized():
            step = (
                "give the server's token: --token TOKEN, or FLOWSCHED_TOKEN in the environment. It is found without for a "
                "server that the same user runs on this machine; there `flowsched token` prints it"
            )
        case errors.NotFound() if "no workflow" in str(error):
            step = "`flowsched ls` lists the workflows of this server"
        case errors.Unavailable() if str(error).startswith("no answer from"):
            step = f"start one with `flowsched serve`, or name another: {_servers()}"
        case errors.Unavailable():
            step = unavailable
        case _:
            step = ""
    complain(str(error))
    if step:
        echo(f"  next: {step}")
    if isinstance(error, errors.Unavailable):
        return UNREACHABLE
    return WRONG if error.status < 500 or isinstance(error, errors.ConfigurationError) else FAILED


def _servers() -> str:
    """The services that this user runs on this machine, as the option to choose one of them."""
    from flowsched import tokens

    return ", ".join(f"--server {url} (root {root})" for url, root in tokens.running()) or "--server URL"


def complain(text: str) -> None:
    """An error, on stderr."""
    echo(f"error: {text}")


def echo(text: str) -> None:
    """A line on stderr, harmless for terminals."""
    from flowsched.cli.printing import terminal_text

    print(terminal_text.block(text), file=sys.stderr)
