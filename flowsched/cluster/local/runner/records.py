"""Records of a runner: small JSON files that are there wholly or not at all, the text of a record, the time in it, and its way
through a pipe between two processes of one interpreter.
"""

from __future__ import annotations

import errno
import json
import marshal
import os
import time

Record = dict[str, object]


def json_text(value: object) -> str:
    """JSON in ASCII, of the values that records hold."""
    return json.dumps(value, allow_nan=False)


def write_record(folder: str, name: str, record: Record) -> None:
    """Write a file so that it is there wholly or not at all, also after the power fails."""
    path = f"{folder}/{name}"
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o666), "w") as file:
        file.write(json_text(record))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    sync(folder)


def is_full(error: BaseException) -> bool:
    """Whether an error says that there is no room on a file system, or in the user's quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


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


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def now_ms(order: Record) -> int:
    """Milliseconds since the epoch, by one clock for all of an attempt: as the service told it that wrote the order, whatever the
    wall clock or the service's clock are set to meanwhile.
    """
    base_ms: int | None = order.get("clock_base_ms")  # type: ignore[assignment]
    return wall_ms() if base_ms is None else base_ms + elapsed_ms()


#: Of the length that is before each value in a pipe.
LENGTH_BYTES = 4


def send(fd: int, value: object) -> None:
    """Write a value to a pipe: its length, then marshal, which the same interpreter reads at once. Raises OSError."""
    data = marshal.dumps(value)  # type: ignore[arg-type]
    data = len(data).to_bytes(LENGTH_BYTES, "big") + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Record | None:
    """The next value of a pipe; None: there is none any more. Raises OSError."""
    data, size = b"", LENGTH_BYTES
    while len(data) < size:
        block = os.read(fd, 1 << 16)
        if not block:
            return None
        data += block
        if size == LENGTH_BYTES <= len(data):
            size += int.from_bytes(data[:LENGTH_BYTES], "big")
    return marshal.loads(data[LENGTH_BYTES:])  # type: ignore[no-any-return]
