"""A lock on a folder, so that one process at a time works in it. The lock goes with the process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from flowsched.errors import ConfigurationError


async def lock_folder(folder: Path, wait_s: float, busy: Callable[[str], str]) -> int:
    """Lock a folder, which is made if it is missing; returns the descriptor that holds the lock.

    Args:
        folder: Its file `in-use` is locked, and names this process.
        wait_s: How long to wait for another process: a predecessor may still be closing.
        busy: The message if another process keeps it, by that process's pid.

    Raises:
        ConfigurationError: Another process keeps it.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    lock = os.open(folder / "in-use", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    end = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if asyncio.get_running_loop().time() > end:
                holder = os.pread(lock, 32, 0).decode().strip()
                os.close(lock)
                raise ConfigurationError(busy(holder)) from None
            await asyncio.sleep(0.05)
        else:
            with contextlib.suppress(OSError):  # on a full disk the old text stays; the lock is what counts
                os.pwrite(lock, f"{os.getpid():<32}".encode(), 0)
            return lock


def holder_of(folder: Path) -> str:
    """The pid of the process that has locked a folder; "" if none has, or if this user may not know."""
    try:
        lock = os.open(folder / "in-use", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, 32, 0).decode().strip()
    else:
        return ""
    finally:
        os.close(lock)
