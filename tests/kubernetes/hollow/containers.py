"""One run of one container as a process of this machine, in a session of its own.

Where Linux offers it, the process dies with us. What it leaves behind is found by a mark in its environment, as a
process may leave its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.kubernetes.hollow.logs import CriLog
from tests.programs import leashed

#: In the environment of every process of a container: <pod uid>/<container>/<restart>.
MARK: Final = "FLOWSCHED_HOLLOW_CONTAINER"
_PIECE: Final = 65_536
_PROC: Final = Path("/proc")


class NotRunnable(Exception):
    """The command cannot be started at all; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run.

    Args:
        argv: Program and arguments.
        env: The whole environment.
        cwd: Made if it is not there.
        log: The CRI log file.
        mark: Names this run of this container.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    mark: str


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended. A signal's exit code is 128 and its number."""

    code: int
    started: datetime
    finished: datetime
    cpu_ms: int
    max_rss_bytes: int


class Run:
    """A running container. `start` it within a running loop, then await `ended`.

    Args:
        command: What to run.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._pid = 0
        self._over = False
        self.started = datetime.now(UTC)

    def start(self) -> asyncio.Task[End]:
        """Start it; the task ends when its first process has ended and nothing of it is left.

        Raises:
            NotRunnable: There is no such program.
        """
        argv = [_program(self._command), *self._command.argv[1:]]
        env = {**self._command.env, MARK: self._command.mark}
        self._command.cwd.mkdir(parents=True, exist_ok=True)
        streams = {name: os.pipe() for name in ("stdout", "stderr")}
        try:
            self.started = datetime.now(UTC)
            process = subprocess.Popen(
                _tied(argv),
                env=env,
                cwd=self._command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=streams["stdout"][1],
                stderr=streams["stderr"][1],
                start_new_session=True,
            )
        except OSError as error:
            for reading, _ in streams.values():
                os.close(reading)
            raise NotRunnable(str(error)) from error
        finally:
            for _, writing in streams.values():
                os.close(writing)
        self._pid = process.pid
        readers = {name: reading for name, (reading, _) in streams.items()}
        return asyncio.get_running_loop().create_task(self._follow(process, readers))

    def kill(self) -> None:
        """SIGKILL for all that belongs to it."""
        if self._pid and not self._over:
            _kill_all(self._pid, self._command.mark)

    def terminate(self, *, as_first: bool) -> None:
        """SIGTERM for its first process.

        Args:
            as_first: As if it were PID 1 of a container: the kernel drops what such a process has no handler for yet.
        """
        if not self._pid or self._over or (as_first and not _handles(self._pid, signal.SIGTERM)):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, signal.SIGTERM)

    async def _follow(self, process: subprocess.Popen[bytes], readers: Mapping[str, int]) -> End:
        log = CriLog(self._command.log)
        loop = asyncio.get_running_loop()
        try:
            for name, reading in readers.items():
                os.set_blocking(reading, False)
                loop.add_reader(reading, _pump, loop, reading, name, log)
            await _ended(process.pid)
            finished = datetime.now(UTC)
        finally:  # not yet reaped, so the pid and its group are still this container's
            _kill_all(process.pid, self._command.mark)
            self._over = True
            for name, reading in readers.items():
                while _pump(loop, reading, name, log):
                    pass
                loop.remove_reader(reading)
                os.close(reading)
            log.close()
        _, status, usage = os.wait4(process.pid, 0)  # noqa: ASYNC222 - it has ended
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code  # so that Popen does not look for it
        rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        cpu_ms = round(1000 * (usage.ru_utime + usage.ru_stime))
        return End(code if code >= 0 else 128 - code, self.started, finished, cpu_ms, rss)


def _pump(loop: asyncio.AbstractEventLoop, reading: int, name: str, log: CriLog) -> bool:
    """Log what there is to read; False if that is nothing."""
    try:
        piece = os.read(reading, _PIECE)
    except BlockingIOError:
        return False
    if not piece:
        loop.remove_reader(reading)
        return False
    log.feed(name, piece)
    return True


async def _ended(pid: int) -> None:
    """Wait until a child has ended, and leave it to be reaped."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    watched = os.pidfd_open(pid)
    try:
        loop.add_reader(watched, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def own(argv: Sequence[str]) -> list[str]:
    """`flowsched` is this very program; the working folder of a pod must not shadow its modules (-P)."""
    if argv and Path(argv[0]).name == "flowsched":
        return [sys.executable, "-P", "-m", "flowsched", *argv[1:]]
    return list(argv)


def _program(command: Command) -> str:
    """The program's path, looked up in the container's own PATH."""
    name = command.argv[0]
    if "/" in name:
        path = command.cwd / name
        found = str(path) if os.access(path, os.X_OK) and path.is_file() else None
    else:
        found = shutil.which(name, path=command.env.get("PATH", os.defpath))
    if found is None:
        raise NotRunnable(f'exec: "{name}": executable file not found')
    return found


def _tied(argv: Sequence[str]) -> list[str]:
    """The command, made to die with us; util-linux' setpriv does it without the start of an interpreter."""
    tie = _setpriv()
    return [*tie, *argv] if tie else leashed(argv)


@functools.lru_cache
def _setpriv() -> tuple[str, ...]:
    """How setpriv is called; empty if there is none, or only busybox' which cannot do it."""
    found = shutil.which("setpriv")
    if found is None:
        return ()
    call = (found, "--pdeathsig", "KILL", "--")
    return call if subprocess.run([*call, "true"], capture_output=True, check=False).returncode == 0 else ()


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, has blocked it, or waits for signals; True where nobody can tell.

    While a process is in sigwait, what it waits for does not count as blocked in its status.
    """
    try:
        status = (_PROC / str(pid) / "status").read_text()
        waits = (_PROC / str(pid) / "wchan").read_text().startswith("do_sigtimedwait")
    except OSError:
        return True
    lines = (line.split() for line in status.splitlines() if line.startswith(("SigCgt:", "SigBlk:")))
    return waits or any(int(mask, 16) & (1 << (number - 1)) for _, mask in lines)


def _kill_all(group: int, mark: str) -> None:
    """Kill a process group, and every process with this mark in its environment."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    if not _PROC.is_dir():
        return
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir(_PROC):
        if not name.isdigit() or int(name) in (os.getpid(), group):
            continue
        with contextlib.suppress(OSError):
            if wanted in (_PROC / name / "environ").read_bytes().split(b"\0"):
                os.kill(int(name), signal.SIGKILL)
