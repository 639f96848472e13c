"""The token of a service on this machine: the service makes it at its first start, and clients of the same user find it.

    ROOT/token                                      the token, kept for the next start
    $XDG_STATE_HOME/flowsched/servers/PORT.json     token and root of the service on this port, for its user's clients

Only their owner can read these files. A client sends a found token to a loopback address alone, and only while the process that
listens there belongs to this user (or to root, as with a socket of systemd). Otherwise another account could take the port after a
crash. A client that is told no URL goes to the service of the user's data folder. Other programs start clients with this module
thousands of times, so it loads next to nothing: `pathlib` or `typing` alone take half as long as Python takes to start.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Final

#: Where a service listens if nothing else is said.
DEFAULT_URL: Final = "http://127.0.0.1:8470"
#: Bytes of randomness: 32 hexadecimal digits.
_RANDOM_BYTES: Final = 16
#: State of a listening socket in /proc/net/tcp (TCP_LISTEN).
_LISTENING: Final = "0A"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def data_folder() -> Path:
    """Where a user's data lies: `$XDG_DATA_HOME/flowsched`, else `~/.local/share/flowsched`."""
    from pathlib import Path

    return Path(_data_folder())


def _data_folder() -> str:
    base = os.environ.get("XDG_DATA_HOME", "")
    share = base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(share, "flowsched")


def default_url() -> str:
    """The service that is meant where none is named: FLOWSCHED_SERVER, else the one that runs on this user's data folder (or
    FLOWSCHED_ROOT), on whichever port, else `DEFAULT_URL`.
    """
    return os.environ.get("FLOWSCHED_SERVER") or running_url() or DEFAULT_URL


def running_url() -> str | None:
    """The service that runs on this user's data folder (or FLOWSCHED_ROOT); None if none does."""
    return _url_of(default_root())


def stopped() -> tuple[str, int] | None:
    """The data folder of this user (or FLOWSCHED_ROOT), and the port that its service had last; None if none ever ran."""
    root = default_root()
    try:
        with os.scandir(_servers_folder()) as entries:
            files = sorted(((entry.stat().st_mtime, entry.name) for entry in entries), reverse=True)
    except OSError:
        return None
    for _, name in files:
        port, _, kind = name.partition(".")
        if kind == "json" and port.isdecimal() and _announced(int(port), "root") == root:
            return root, int(port)
    return None


def default_root() -> str:
    """The real path of the data folder of this user: FLOWSCHED_ROOT, else the usual one."""
    return os.path.realpath(os.environ.get("FLOWSCHED_ROOT") or _data_folder())


def token_of(root: Path) -> str:
    """The token that a root keeps. Makes one if there is none."""
    saved = saved_token(root)
    if saved:
        return saved
    made = os.urandom(_RANDOM_BYTES).hex()
    write_whole(root / "token", f"{made}\n".encode())
    return made


def saved_token(root: Path) -> str:
    """The token that a root keeps; "" if it keeps none."""
    try:
        return (root / "token").read_text().strip()
    except FileNotFoundError:
        return ""


def announce(port: int, token: str, root: Path | None = None) -> Path:
    """Let clients of this user find the token of the service on a port, and its root; returns the file that says so.

    Raises:
        OSError: This process cannot write the folder.
    """
    import json

    folder = servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{port}.json"
    write_whole(
        path, json.dumps({"token": token, "root": "" if root is None else os.path.realpath(root)}).encode()
    )
    return path


def withdraw(path: Path, inode: int) -> None:
    """Remove what `announce` wrote, unless another service has written anew since: its file has another inode."""
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except OSError:
        pass  # the file is gone, or stays: a client sends its token to no port where this user does not listen


def found(url: str) -> str | None:
    """The token for a server that this user runs on this machine; None without a known token, or for another user's server."""
    return _announced_value(url, "token")


def root_of(url: str) -> Path | None:
    """The root of a server that this user runs on this machine; None if it has not announced one."""
    from pathlib import Path

    root = _announced_value(url, "root")
    return Path(root) if root else None


def url_of(root: Path) -> str | None:
    """The URL of the service of this user that has announced a root, and listens; None if there is none."""
    return _url_of(os.path.realpath(root))


def _url_of(root: str) -> str | None:
    return next((url for url, there in running() if there == root), None)


def run_beside() -> tuple[int, str] | None:
    """Process and folder of a `flowsched run` that has this user's data folder, and serves no other command; None without one."""
    import json

    root = default_root()
    try:
        with open(os.path.join(root, "flowsched.db.lock")) as file:
            owner = json.load(file)
        with open(f"/proc/{owner['pid']}/cmdline") as file:
            words = file.read().split("\0")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    runs = "run" in words and "serve" not in words and any("flowsched" in word for word in words)
    return (owner["pid"], root) if runs and owner.get("host") == os.uname().nodename else None


def running() -> Iterator[tuple[str, str]]:
    """URL and root of each service of this user that listens on this machine, and has announced a root."""
    try:
        names = sorted(os.listdir(_servers_folder()))
    except OSError:
        return
    for name in names:
        port, _, kind = name.partition(".")
        url = f"http://127.0.0.1:{port}"
        root = _announced_value(url, "root") if port.isdecimal() and kind == "json" else None
        if root:
            yield url, root


def _announced_value(url: str, what: str) -> str | None:
    """A value that a server of this user on this machine announces of itself."""
    plain = plain_url(url)
    if plain is not None:
        host, port, _ = plain
    else:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        except ValueError:
            return None
        if parts.username is not None:
            return None
    if not is_loopback(host):
        return None
    value = _announced(port, what)
    return value if value is not None and _listens_for_us(port) else None


def plain_url(url: str) -> tuple[str, int, str] | None:
    """Host, port and path of `http://HOST[:PORT][/PATH]`; None if the URL is anything else, such as https, or has further parts."""
    scheme, slashes, rest = url.partition("://")
    if scheme != "http" or not slashes or not (url.isascii() and url.isprintable()):
        return None
    place, slash, path = rest.partition("/")
    host, colon, port = place.partition(":")
    if not host.replace(".", "").replace("-", "").isalnum() or any(mark in path for mark in "?# "):
        return None
    if colon and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        return None
    return host, int(port or 80), slash + path


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine, without asking a name server."""
    numbers = host.split(".")
    four = len(numbers) == 4 and all(number.isdecimal() for number in numbers)
    return host.lower() in ("localhost", "::1") or (four and numbers[0] == "127")


def servers_folder() -> Path:
    """The folder in which services of this user announce themselves."""
    from pathlib import Path

    return Path(_servers_folder())


def _servers_folder() -> str:
    base = os.environ.get("XDG_STATE_HOME", "")
    state = base if base.startswith("/") else os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "flowsched", "servers")


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file wholly or not at all; only its owner can read it, if `mode` says nothing else.

    Another account that writes to the folder can put no link in its way: the name of the unfinished file is random, and new.
    """
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _announced(port: int, what: str) -> str | None:
    """A value announced of a port, from a file that no other account can write or read."""
    try:
        fd = os.open(
            f"{_servers_folder()}/{port}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except OSError:
        return None
    with open(fd) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        text = file.read(16384)
    return _member(text, what)


def _member(text: str, name: str) -> str | None:
    """A text in a JSON object of texts; None if it is not there, or empty."""
    _, found, rest = text.partition(f'"{name}": "')
    value, end, _ = rest.partition('"')
    if (
        found and end and "\\" not in value
    ):  # as `announce` writes it: `json` would take longer to load than to read
        return value or None
    import json

    try:
        value = json.loads(text).get(name)
    except (ValueError, AttributeError):
        return None
    return value if isinstance(value, str) and value else None


def stranger_at(url: str) -> str | None:
    """The account that listens at a port of this machine, if it is neither this user nor root; None if that is unknown."""
    plain = plain_url(url)
    if plain is None or not is_loopback(plain[0]):
        return None
    others = {*_owners(plain[1])} - {os.geteuid(), 0}
    if not others:
        return None
    return account_name(min(others))


def account_name(account: int) -> str:
    """The name of an account of this machine; its number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(account).pw_name
    except KeyError:
        return str(account)


def _listens_for_us(port: int) -> bool:
    """Whether every socket that listens on a port belongs to this user or to root. False if that is unknown."""
    owners = set(_owners(port))
    return bool(owners) and owners <= {os.geteuid(), 0}


def _owners(port: int) -> Iterator[int]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = open(table)  # noqa: SIM115  # closed below
        except OSError:
            continue
        with lines:
            next(lines, None)
            for line in lines:
                _, local, _, state, _, _, _, uid, *_ = line.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    yield int(uid)
