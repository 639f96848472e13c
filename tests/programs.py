"""Programs that run beside us and end with us: a control plane's binaries, a hollow pod's containers.

Where Linux offers it, the kernel kills a program when the *thread* that started it ends, even by SIGKILL: start programs
from a thread that stays. Elsewhere `kill` and the interpreter's end are all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

#: Ports are looked for below what the kernel gives to outgoing connections (32768 on Linux).
_PORTS: Final = (18_000, 32_000)
_POLL_S: Final = 0.02
_LEASH: Final = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid()==int(sys.argv[1]) or os._exit(1)\n"  # it died before we asked
    "os.execvp(sys.argv[2],sys.argv[2:])\n"
)


class NotStarted(Exception):
    """A program ended, or did not get ready; the message has the end of its log."""


def leashed(command: Sequence[str]) -> list[str]:
    """The command, made to end when the thread that starts it does. Costs an interpreter's start (about 20 ms)."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *command]


def free_ports(count: int) -> list[int]:
    """Different TCP ports of 127.0.0.1 that nobody listens on just now; somebody may, a moment later."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(*_PORTS), 2000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
            if len(found) == count:
                return found
    raise NotStarted(f"no {count} free ports of 127.0.0.1 in {_PORTS[0]}..{_PORTS[1]}")


class Program:
    """One program with its own session and log file. Start it again and it has the same command and log.

    Args:
        command: Its absolute path and arguments.
        log: Where its output goes.
        env: Its whole environment; None is ours.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = tuple(command)
        self.name = Path(command[0]).name
        self.log = log
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid while it runs (or is stopped by SIGSTOP)."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start it; nothing happens if it runs."""
        if self.pid is not None:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                leashed(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Send a signal, if it runs: SIGSTOP and SIGCONT for a pause."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(number)

    def wait(self, within_s: float = 60.0) -> None:
        """Wait for its end, which something else brings about."""
        if self._process is not None:
            self._process.wait(within_s)

    def kill(self) -> None:
        """SIGKILL, and wait for it: afterwards its ports are free."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    async def stop(self, within_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL if it takes longer than this."""
        self.signal(signal.SIGTERM)
        end = time.monotonic() + within_s
        while self.pid is not None and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        self.kill()

    def check(self) -> None:
        """See that it runs.

        Raises:
            NotStarted: It has ended; the message has the end of its log.
        """
        if self.pid is None:
            code = self._process.returncode if self._process is not None else None
            raise NotStarted(f"{self.name} has ended with {code}: {self.tail()}")

    def tail(self, size: int = 1500) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-size:].strip()
        return ""
