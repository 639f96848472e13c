"""The service's end of the process that runners are forked from (`running.spawner`).

Not `subprocess` per runner: an interpreter's start costs 25 ms of CPU, and this process's interpreter is held meanwhile,
so that launching a hundred pods stalled the event loop for 200 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

COMMAND: Final = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("runner.py")))
_ANSWER_S: Final = 10.0


class Spawner:
    """Starts runners. Blocks; may be called from several threads.

    Args:
        command: What to run, see `runner.py`.
        log: Where its standard error goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = tuple(command)
        self._log = log
        self._lock = threading.Lock()
        self._pid = 0
        self._to = self._from = -1

    def spawn(self, folder: Path) -> tuple[int, int]:
        """Start the runner of a folder: its pid and start time.

        Raises:
            OSError: Nothing answered. A runner may have been started all the same: look at the folder.
        """
        with self._lock:
            if not self._pid:
                self._open()
            try:
                os.write(self._to, os.fsencode(folder) + b"\n")
                pid, start = map(int, self._answer().split())
            except (OSError, ValueError) as error:
                self._close()
                raise OSError(f"the spawner of runners failed: {error}") from error
            return pid, start

    def close(self) -> None:
        """End it. The runners go on."""
        with self._lock:
            self._close()

    def _answer(self) -> bytes:
        line = b""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(_ANSWER_S * 1000):
                raise OSError(f"no answer in {_ANSWER_S:g} s")
            block = os.read(self._from, 64)
            if not block:
                raise OSError("it has ended")
            line += block
        return line

    def _open(self) -> None:
        in_read, self._to = os.pipe()
        self._from, out_write = os.pipe()
        errors = (str(self._log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        streams = (
            (os.POSIX_SPAWN_DUP2, in_read, 0),
            (os.POSIX_SPAWN_DUP2, out_write, 1),
            (os.POSIX_SPAWN_OPEN, 2, *errors),
        )
        environment = {"LANG": "C.UTF-8"}
        try:
            self._pid = os.posix_spawn(
                self._command[0], self._command, environment, file_actions=streams, setsid=True
            )
        finally:
            os.close(in_read)
            os.close(out_write)

    def _close(self) -> None:
        for fd in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._pid:
            with contextlib.suppress(OSError):
                if not _reaped(self._pid):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
        self._pid, self._to, self._from = 0, -1, -1


def _reaped(pid: int, wait_s: float = 1.0) -> bool:
    """Reap a child that is about to end; False if it does not."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False
