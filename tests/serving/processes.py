"""`flowsched serve` in processes of its own, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.forks import Forked
from tests.programs import free_ports

#: How long a start may take on a busy machine.
START_S = 120.0
#: The account that owns nothing.
NOBODY = 65534


class Served:
    """The process that the user started, and the service in it or below it."""

    def __init__(
        self,
        root: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        token: bool = False,
        open_files: int = 0,
        constants: Mapping[str, float] | None = None,
        python: Sequence[str] = (),
    ) -> None:
        self.root, self.port = root, port or free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = root.with_name(f"{root.name}.log")
        words = ["serve", "--root", str(root), "--port", str(self.port), "--cpu", "2", "--memory", "2Gi"]
        words += options
        words += [] if token else ["--no-token"]
        environment = {**os.environ, **(env or {})}
        self.process: Forked | subprocess.Popen[bytes]
        with self.log.open("ab") as log:
            if python:
                self.process = subprocess.Popen(
                    [sys.executable, *python, *words], stdout=log, stderr=log, env=environment
                )
            else:
                self.process = Forked(
                    words, stdout=log, stderr=log, env=environment, constants=constants, open_files=open_files
                )

    @property
    def service(self) -> int:
        """The pid of the service: it has locked the root."""
        return int((self.root / "in-use").read_text() or 0)

    def ready(self, other_than: int = 0) -> int:
        """Wait until a service is ready, and is not the one of this pid; returns its pid."""
        end = time.monotonic() + START_S
        while True:
            with (
                contextlib.suppress(OSError, ValueError),
                urlopen(f"{self.url}/readyz", timeout=START_S) as answer,
            ):
                if answer.status == 200 and self.service not in (0, other_than):
                    return self.service
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < end, self.told()
            time.sleep(0.05)

    def get(self, path: str, body: Any = None, token: str | None = None) -> Any:
        """A JSON answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        raw = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data=raw, headers=headers), timeout=START_S) as answer:
            return json.load(answer)

    def told(self) -> str:
        """The log of all its lives."""
        return self.log.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.service, signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)


@contextmanager
def served(root: Path, *options: str, **more: Any) -> Iterator[Served]:
    """A service that is started, not yet ready."""
    made = Served(root, *options, **more)
    try:
        yield made
    finally:
        made.end()


def gone(pid: int, within_s: float = 30.0) -> bool:
    """Whether a process ends in time. One that its parent has not yet waited for has ended."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def as_nobody(act: Callable[[], str]) -> str:
    """What a function returns in a process of the account `nobody`, or the error that it raises there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                said = act()
            except Exception as error:  # noqa: BLE001 - the test compares it
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode()[:60000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said
