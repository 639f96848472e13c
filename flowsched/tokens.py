"""The token of a service on this machine: the service makes it at its first start, and clients of the same user find it.

    ROOT/token                                      the token, kept for the next start
    $XDG_STATE_HOME/flowsched/servers/PORT.json     the token of the service on this port, for its user's clients

Only their owner can read these files. A client sends a found token to a loopback address alone, and only while the process that
listens there belongs to this user (or to root, as with a socket of systemd). Otherwise another account could take the port after a
crash. Standard library alone: other programs start clients with this module thousands of times.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

#: Bytes of randomness: 32 hexadecimal digits.
_RANDOM_BYTES: Final = 16
#: State of a listening socket in /proc/net/tcp (TCP_LISTEN).
_LISTENING: Final = "0A"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def token_of(root: Path) -> str:
    """The token that a root keeps. Makes one if there is none."""
    kept = kept_token(root)
    if kept:
        return kept
    made = secrets.token_hex(_RANDOM_BYTES)
    write_private(root / "token", made + "\n")
    return made


def kept_token(root: Path) -> str:
    """The token that a root keeps; "" if it keeps none."""
    with contextlib.suppress(FileNotFoundError):
        return (root / "token").read_text().strip()
    return ""


def announce(port: int, token: str) -> Path:
    """Let clients of this user find the token of the service on a port; returns the file with the token.

    Raises:
        OSError: This process cannot write the folder.
    """
    folder = servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{port}.json"
    write_private(path, json.dumps({"token": token}))
    return path


def found(url: str) -> str | None:
    """The token for a server that this user runs on this machine; None without a known token, or for another user's server."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if not is_loopback(parts.hostname or "") or parts.username is not None:
        return None
    token = _announced(port)
    return token if token is not None and _listens_for_us(port) else None


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine, without asking a name server."""
    numbers = host.split(".")
    four = len(numbers) == 4 and all(number.isdecimal() for number in numbers)
    return host.lower() in ("localhost", "::1") or (four and numbers[0] == "127")


def servers_folder() -> Path:
    """The folder in which services of this user announce themselves."""
    base = os.environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path(os.path.expanduser("~"), ".local", "state")
    return state / "flowsched" / "servers"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, wholly or not at all."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _announced(port: int) -> str | None:
    """The announced token of a port, from a file that no other account can write or read."""
    try:
        fd = os.open(
            servers_folder() / f"{port}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except OSError:
        return None
    with open(fd) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        try:
            token = json.loads(file.read(4096)).get("token")
        except (ValueError, AttributeError):
            return None
    return token if isinstance(token, str) and token else None


def _listens_for_us(port: int) -> bool:
    """Whether every socket that listens on a port belongs to this user or to root. False if that is unknown."""
    owners = set(_owners(port))
    return bool(owners) and owners <= {os.geteuid(), 0}


def _owners(port: int) -> Iterator[int]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            next(lines, None)
            for line in lines:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    yield int(uid)
