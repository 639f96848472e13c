"""Records of a runner for the service: small JSON files that are there wholly or not at all, and a poke.

Written without `json`: its import would cost a runner more than the runner's whole start.
"""

from __future__ import annotations

import errno
import os
import time

Record = dict[str, object]


def json_text(value: object) -> str:
    """JSON in ASCII, of the values that records hold."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case int():
            return str(value)
        case str():
            return '"' + "".join(map(_escaped, value)) + '"'
        case dict():
            return "{" + ", ".join(f"{json_text(str(k))}: {json_text(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(json_text, value)) + "]"
    raise TypeError(f"not a value of a record: {value!r}")


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return "\\" + character
    if 0x20 <= code < 0x7F:
        return character
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"
    return f"\\u{code:04x}"


def write_record(folder: str, name: str, record: Record) -> None:
    """Write a file so that it is there wholly or not at all, also after the power fails."""
    path = f"{folder}/{name}"
    temporary = f"{path}.tmp"
    with open(temporary, "w") as file:
        file.write(json_text(record))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    sync(folder)


RESERVE = "reserve"
RESERVE_BYTES = 16 << 10


def reserve(folder: str) -> None:
    """Take the room that the end of an attempt will need: without it an attempt that is over could not say so on a full disk."""
    fd = os.open(f"{folder}/{RESERVE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        else:
            os.write(fd, bytes(RESERVE_BYTES))
    finally:
        os.close(fd)


def write_end(folder: str, name: str, record: Record) -> None:
    """As `write_record`, into the room that was reserved for it. The caller has the lock, or made the folder."""
    held = f"{folder}/{RESERVE}"
    try:
        fd = os.open(held, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        write_record(folder, name, record)
        return
    try:
        text = json_text(record).encode()
        rest = text
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(held, f"{folder}/{name}")
    sync(folder)


def is_full(error: OSError) -> bool:
    """Whether there is no room on a file system, or in the user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def fullness(path: str) -> str:
    """That the file system of a path is full, in words; "" if it is not."""
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
    if free >= 64 << 10 and not (found.f_files and found.f_favail < 4):
        return ""
    return f"the file system of {path} is full: {free} bytes and {found.f_favail} inodes are free"


def sync(path: str) -> None:
    """Make a file's bytes, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def elapsed_ms() -> int:
    """Milliseconds since the boot, suspended or not: the same in all processes of this machine."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return time.monotonic_ns() // 1_000_000


_CLOCK: dict[str, int] = {}  #: `base_ms` of the service's clock over `elapsed_ms`, in a runner


def follow_clock(base_ms: int) -> None:
    """In a runner: tell the time of the service that wrote its order, whatever the wall clock is set to meanwhile."""
    _CLOCK["base_ms"] = base_ms


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    if "base_ms" in _CLOCK:
        return _CLOCK["base_ms"] + elapsed_ms()
    return time.time_ns() // 1_000_000


def poke(root: str, name: str) -> None:
    """Tell the service to look at this attempt now. It looks anyway, so nothing depends on it."""
    try:
        import _socket  # without the selectors and enums of `socket`

        os.chdir(root)  # a socket's path may have 107 bytes: say it relatively
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        sender.settimeout(0.2)  # the service's queue may be full for a moment
        sender.sendto(os.fsencode(name), "poke.sock")
        sender.close()
    except (OSError, ImportError):
        pass
