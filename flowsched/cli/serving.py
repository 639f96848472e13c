"""`flowsched serve` and `token`: it binds the sockets, makes the token, and starts the supervisor and the service."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flowsched import app, credentials, listening, supervisor, tokens
from flowsched.app import Settings
from flowsched.cli.context import carry_out, echo, options
from flowsched.cli.options import with_settings
from flowsched.errors import ConfigurationError, InUse, InvalidRequest
from flowsched.values import replace

commands = typer.Typer(rich_markup_mode=None)


@commands.command("serve")
@with_settings()
def serve_command(
    ctx: typer.Context,
    settings: Settings,
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the token clients must send.")
    ] = None,
    supervise: Annotated[
        bool | None,
        typer.Option(
            "--supervise/--no-supervise",
            help="Hold the port in a parent process, which starts the service again when it dies. "
            "[on this machine; not on Kubernetes, nor with a socket of systemd]",
        ),
    ] = None,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="Answer without a token: any account of this machine may run tasks as this user.",
        ),
    ] = False,
) -> None:
    """Start the service, on this machine or on Kubernetes.

    It is the API, the scheduler and the runner in one process. On this machine a small parent process holds the port and
    starts the service again when it dies; clients wait meanwhile.

    Stops on SIGINT and SIGTERM; tasks that run go on, and the next start takes them up.

    It makes a token at its first start. Commands, the SDK and plugins of the same user find it by themselves; `flowsched token`
    prints it for other clients.
    """
    settings = replace(settings, token=_token_of(token_file) or options(ctx).token)
    carry_out(options(ctx), lambda: _serve(settings, supervise, no_token))


@commands.command("token")
@with_settings("root")
def token_command(ctx: typer.Context, settings: Settings) -> None:
    """Print the token of a service of this user.

    For clients that do not find it by themselves: `export FLOWSCHED_TOKEN=$(flowsched token)`.
    """
    opts = options(ctx)
    url, known = (
        (opts.server or tokens.default_url(), opts.token) if ctx.params["root"] is None else ("", None)
    )
    carry_out(opts, lambda: print(_token(str(settings.root), url, known)))


def _token_of(path: Path | None) -> str | None:
    """The token that a file holds."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--token-file") from None
    if not token:
        raise typer.BadParameter(f"{path} is empty", param_hint="--token-file")
    return token


def _serve(settings: Settings, supervise: bool | None, no_token: bool) -> None:
    """Run the service in this process, or in a child of it that is started again when it dies.

    Args:
        settings: The service's settings.
        supervise: Whether a parent process keeps the sockets; None = unless another program does (systemd, Kubernetes).
        no_token: Whether the service answers clients without a token.

    Raises:
        ConfigurationError: The service cannot start with these settings.
    """
    sockets = listening.inherited()
    command, hidden = credentials.hide_options([sys.executable, *sys.orig_argv[1:]])
    taken = credentials.remove(stores=settings.kubernetes is None) | hidden
    settings = replace(settings, local=replace(settings.local, stores=credentials.store_options(taken)))
    if settings.token is not None and no_token:
        raise ConfigurationError(
            "--no-token, and a token (--token, --token-file or FLOWSCHED_TOKEN): leave out one of them"
        )
    made = settings.token is None and not no_token and settings.kubernetes is None
    for host in [sock.getsockname()[0] for sock in sockets] or [settings.host]:
        app.check_address(replace(settings, host=host, token="to be made" if made else settings.token))
    inherited = bool(sockets)
    port_stays = (
        inherited and supervisor.ACCEPTED_FD not in os.environ
    )  # systemd holds it, and starts the service again
    sockets = sockets or _bound(settings)
    if not inherited and (settings.kubernetes is None if supervise is None else supervise):
        fd = credentials.keep(taken)
        supervisor.keep(sockets, command, credentials_fd=fd, log_json=settings.log_json)
        os.close(fd)
    credentials.close_process()
    port = sockets[0].getsockname()[1]
    announced: dict[Path, int] = {}
    try:
        asyncio.run(app.serve(settings, sockets, lambda: _laid_out(settings, port, made, announced)))
    except (ConfigurationError, InvalidRequest) as error:
        if not inherited:  # a later life of a supervisor is followed by another one
            _withdraw(announced)
        if isinstance(error, InUse):
            from flowsched.cli.running import in_use

            raise in_use(error, settings.root) from None
        raise
    if not port_stays:
        _withdraw(announced)


def _bound(settings: Settings) -> list[socket.socket]:
    """The sockets that the service listens on.

    Raises:
        ConfigurationError: The port is taken. Where a service has the root, too, another port alone would not help.
    """
    try:
        return listening.bound(settings.host, settings.port)
    except ConfigurationError as error:
        url = None if settings.kubernetes is not None else tokens.url_of(settings.root)
        if url is None:
            raise
        raise ConfigurationError(
            f"{error}; but the service at {url} has {settings.root}: give --server {url}; or take another --root, too"
        ) from None


def _withdraw(announced: Mapping[Path, int]) -> None:
    for path, inode in announced.items():
        tokens.withdraw(path, inode)


def _laid_out(settings: Settings, port: int, made: bool, announced: dict[Path, int]) -> Settings:
    """Make the root and the service's entries in it; returns the settings with the token. A caller may try again.

    Raises:
        OSError: The system cannot make it, perhaps for want of room.
    """
    app.lay_out(settings)
    if made:
        settings = replace(settings, token=tokens.token_of(settings.root))
        announced.update(_announce(port, settings))
    return settings


def _token(root: str, url: str, explicit: str | None) -> str:
    """The token that clients of a server send.

    Args:
        root: A service's root. Its token is the answer if the server announces none.
        url: Address of the server.
        explicit: The token of an option or a variable.

    Raises:
        ConfigurationError: No token is known.
    """
    known = explicit or tokens.found(url) or tokens.saved_token(Path(root))
    if not known and (pid := app.root_holder(Path(root))):
        raise ConfigurationError(
            f"{root} keeps no token, and process {pid} serves it: that service was given its token (FLOWSCHED_TOKEN, --token or "
            "--token-file), or needs none (--no-token); take it from where the service has it"
        )
    if not known:
        raise ConfigurationError(
            f"no token is known: {f'no service of this user listens at {url}, and ' if url else ''}{root} keeps none; "
            "start one with `flowsched serve`, or name its folder: --root DIR"
        )
    return known


def _announce(port: int, settings: Settings) -> dict[Path, int]:
    """Returns the file that announces the service, with its inode; nothing if it cannot be written."""
    try:
        path = tokens.announce(port, settings.token or "", settings.root)
        return {path: path.stat().st_ino}
    except OSError as error:
        echo(
            f"note: clients of this user do not find the token by themselves ({error.filename}: {error.strerror}); "
            f"give them FLOWSCHED_TOKEN=$(cat {settings.root / 'token'})"
        )
        return {}
