"""The command `flowsched` in processes forked from one that has everything imported: a start takes 0.15 s of CPU, not 1.1 s.

The process has its own pid, descriptors, environment and folder, and runs `flowsched.__main__.main`. From the process that it was
forked from it has the seed of hashes, TZ, umask, affinity, and what /proc shows of its command line and first environment. What
the start itself does, and what it imports, is tested with `python -m flowsched`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
#: The longest order: its words and its environment.
ORDER = 1 << 18


class Forked:
    """A process of `flowsched`; it is asked and waited for as a `subprocess.Popen` of text.

    Args:
        words: After `flowsched`.
        module: Another program than `flowsched`: of the tests, or an engine with our plug-in.
        constants: What constants of modules are in it, by `module.NAME`, such as a shorter lease.
        open_files: How many files it, and all that it starts, may have open; 0 = as many as here.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        module: str = "flowsched",
        constants: Mapping[str, float] | None = None,
        open_files: int = 0,
    ) -> None:
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        self._files: list[int] = []
        null = self._mine(os.open(os.devnull, os.O_RDWR))
        self.stdout, out = self._end(stdout, null)
        self.stderr, err = self._end(stderr, null, out)
        order = {
            "words": list(words),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "module": module,
            "constants": dict(constants or {}),
            "open_files": open_files,
        }
        self._status = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * ORDER)
        self._status.connect(str(server()))
        socket.send_fds(self._status, [json.dumps(order).encode()], [null, out, err])
        for each in self._files:
            os.close(each)
        self.pid = int(self._said())

    def _mine(self, fd: int) -> int:
        self._files.append(fd)
        return fd

    def _end(self, given: int | IO[Any], null: int, out: int = -1) -> tuple[IO[str] | None, int]:
        """Our end of a pipe, and the descriptor that the process writes to."""
        if given == subprocess.PIPE:
            read, write = os.pipe()
            return open(read, encoding="utf-8", errors="replace"), self._mine(write)
        special = {subprocess.DEVNULL: null, subprocess.STDOUT: out}
        return None, special.get(given, given) if isinstance(given, int) else given.fileno()

    def _said(self) -> str:
        said = self._status.recv(64).decode()
        assert said, "the process that forks has ended"
        return said

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal; None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        with self._waiting:
            if self.returncode is None:
                ended = select.poll()  # unlike `select`, it takes descriptors above 1,023
                ended.register(self._status, select.POLLIN)
                if not ended.poll(None if timeout is None else max(0.0, 1_000 * timeout)):
                    raise subprocess.TimeoutExpired("flowsched", timeout or 0.0)
                self.returncode = int(self._said())
                self._status.close()
            return self.returncode

    def communicate(self, timeout: float = 600.0) -> tuple[str, str]:
        """All that it wrote into its pipes until its end."""
        end, said = time.monotonic() + timeout, ["", ""]

        def read(number: int, file: IO[str]) -> None:
            with file:
                said[number] = file.read()

        threads = [
            threading.Thread(target=read, args=(number, file), daemon=True)
            for number, file in enumerate((self.stdout, self.stderr))
            if file is not None
        ]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired("flowsched", timeout)
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def ran(words: Sequence[str], **given: Any) -> subprocess.CompletedProcess[str]:
    """What a command of `flowsched` wrote, and its exit code."""
    process = Forked(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given)
    try:
        out, said = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(["flowsched", *words], process.returncode, out, said)


# ---- the process that forks ----


@cache
def server() -> Path:
    """Where the process that forks takes orders; it ends with this one."""
    path = Path(tempfile.mkdtemp(prefix="flowsched-forks-"), "orders")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", str(listener.fileno())],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(path.parent)

    atexit.register(end)
    return path


def command(script: Path) -> None:
    """Write a program that is `flowsched`, for a shell: it forwards signals, and ends as the process does."""
    client = Path(__file__).with_name("forked_command.py")
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {client} {server()} "$@"\n')
    script.chmod(0o755)


def _serve(listener: socket.socket) -> Callable[[], None] | None:
    """Fork until the tests end; in a process that was forked, what it is to do."""
    while select.select([listener, 0], [], [])[0] == [listener]:
        status, _ = listener.accept()
        body, fds, _, _ = socket.recv_fds(status, ORDER, 3)
        if body and os.fork() == 0:
            listener.close()
            order = json.loads(body)
            return lambda: _watch(order, status, fds)
        for fd in (*fds, status.detach()):
            os.close(fd)
    return None


def _watch(order: dict[str, Any], status: socket.socket, files: list[int]) -> None:
    """Fork the process, be its parent, and say how it ended."""
    pid = os.fork()
    if pid == 0:
        status.close()
        _become(order, files)
    for fd in (0, 1, 2, *files):
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):
        status.send(b"%d" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status.send(b"%d" % code)
    os._exit(0)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Be the command."""
    for target, source in enumerate(files):
        os.dup2(source, target)
    for source in files:
        os.close(source)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[:0] = [folder for folder in order["env"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    os.chdir(order["cwd"])
    if order["open_files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"],) * 2)
    for name, value in order["constants"].items():
        module, _, constant = name.rpartition(".")
        assert hasattr(sys.modules[module], constant), name
        setattr(sys.modules[module], constant, value)
    sys.argv = [order["module"], *order["words"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    from tests.crash.nursery import import_all

    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries those that watch
    if (child := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        child()
