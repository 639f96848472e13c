"""`flowsched serve`: the sockets it listens on, the token it asks for, the process that keeps them, and the service."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace

from flowsched import app, credentials, listening, supervisor, tokens
from flowsched.cli.context import say
from flowsched.errors import ConfigurationError


def serve(settings: app.Settings, supervise: bool | None, no_token: bool) -> None:
    """Run the service in this process, or in a child of it that is started again when it dies.

    Args:
        settings: How it runs.
        supervise: Whether a parent process keeps the sockets; None = where no other program does (systemd, Kubernetes).
        no_token: Answer without a token.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    sockets = listening.inherited()
    command, hidden = credentials.hide_options(_again())
    taken = credentials.take(stores=settings.kubernetes is None) | hidden
    settings = replace(settings, stores=credentials.store_options(taken))
    if settings.token is not None and no_token:
        raise ConfigurationError(
            "--no-token, and a token (--token, --token-file or FLOWSCHED_TOKEN): leave out one of them"
        )
    made = settings.token is None and not no_token and settings.kubernetes is None
    for host in [sock.getsockname()[0] for sock in sockets] or [settings.host]:
        app.check_address(replace(settings, host=host, token="to be made" if made else settings.token))
    held = bool(sockets)
    sockets = sockets or listening.bound(settings.host, settings.port)
    if not held and (settings.kubernetes is None if supervise is None else supervise):
        fd = credentials.keep(taken)
        supervisor.keep(sockets, command, credentials_fd=fd, log_json=settings.log_json)
        os.close(fd)
    credentials.close_process()
    port = sockets[0].getsockname()[1]
    asyncio.run(app.serve(settings, sockets, lambda: _laid_out(settings, port, made)))


def _laid_out(settings: app.Settings, port: int, made: bool) -> app.Settings:
    """Make the root with what the service keeps there before all else; returns how it runs then. May be tried again.

    Raises:
        OSError: It cannot be made; perhaps there is no room.
    """
    app.lay_out(settings)
    if made:
        settings = replace(settings, token=tokens.token_of(settings.root))
        _announce(port, settings)
    return settings


def token(root: str, url: str, given: str | None) -> str:
    """The token that clients of a server send.

    Args:
        root: Of a service, whose token is wanted if the server's is not known.
        url: Of the server.
        given: By an option or a variable.

    Raises:
        ConfigurationError: None is known.
    """
    from pathlib import Path

    known = given or tokens.found(url) or tokens.kept_token(Path(root))
    if not known:
        raise ConfigurationError(
            f"no token is known: no service of this user listens at {url}, and {root} keeps none; "
            "start one with `flowsched serve`, or name its folder: --root DIR"
        )
    return known


def _announce(port: int, settings: app.Settings) -> None:
    try:
        tokens.announce(port, settings.token or "")
    except OSError as error:
        say(
            f"note: clients of this user do not find the token by themselves ({error.filename}: {error.strerror}); "
            f"give them FLOWSCHED_TOKEN=$(cat {settings.root / 'token'})"
        )


def _again() -> list[str]:
    """The command of the later lives: as this process was started."""
    return [sys.executable, *sys.orig_argv[1:]]
