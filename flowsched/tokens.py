"""The token of a service on this machine: the service makes it at its first start, and clients of the same user find it.

    ROOT/token                                      the token, kept for the next start
    $XDG_STATE_HOME/flowsched/servers/PORT.json     token and root of the service on this port, for its user's clients

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


def announce(port: int, token: str, root: Path | None = None) -> Path:
    """Let clients of this user find the token of the service on a port, and its root; returns the file that says so.

    Raises:
        OSError: This process cannot write the folder.
    """
    folder = servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{port}.json"
    write_private(path, json.dumps({"token": token, "root": "" if root is None else str(root.absolute())}))
    return path


def found(url: str) -> str | None:
    """The token for a server that this user runs on this machine; None without a known token, or for another user's server."""
    return _said(url, "token")


def root_of(url: str) -> Path | None:
    """The root of a server that this user runs on this machine; None if it has not announced one."""
    root = _said(url, "root")
    return Path(root) if root else None


def url_of(root: Path) -> str | None:
    """The URL of the service of this user that has announced a root, and listens; None if there is none."""
    with contextlib.suppress(OSError):
        for path in sorted(servers_folder().glob("*.json")):
            if not path.stem.isdecimal():
                continue
            url = f"http://127.0.0.1:{path.stem}"
            if root_of(url) == root.absolute():
                return url
    return None


def _said(url: str, what: str) -> str | None:
    """What a server of this user on this machine announces of itself."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    if not is_loopback(parts.hostname or "") or parts.username is not None:
        return None
    said = _announced(port, what)
    return said if said is not None and _listens_for_us(port) else None


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


def _announced(port: int, what: str) -> str | None:
    """What is announced of a port, from a file that no other account can write or read."""
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
            said = json.loads(file.read(16384)).get(what)
        except (ValueError, AttributeError):
            return None
    return said if isinstance(said, str) and said else None


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
