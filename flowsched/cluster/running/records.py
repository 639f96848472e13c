"""What a runner leaves for the service: small JSON files that are there wholly or not at all, and a poke.

Written without `json`, whose import would cost a runner more than its whole start.
"""

from __future__ import annotations

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
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def wall_ms() -> int:
    """Wall-clock milliseconds."""
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
