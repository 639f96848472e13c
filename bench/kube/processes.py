"""Processes of a bench: the service as users start it, what a process has used, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.programs import free_ports

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PATIENCE_S = 300.0


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that processes have used, with all their threads."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total * _TICK_S


def memory_mb(pid: int) -> tuple[float, float]:
    """(resident now, at most so far) in MB."""
    told = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(told["VmRSS"].split()[0]) / 1024, int(told["VmHWM"].split()[0]) / 1024


def keep_to(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Let processes, with all threads that they have and will have, run on these cores only."""
    wanted = set(cores)
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), wanted)


@contextlib.contextmanager
def never_idle(core: int) -> Iterator[None]:
    """Keep a core busy with a process that gives way to every other.

    Two cores of a virtual machine are often two threads of one: then a busy one makes the other up to twice as slow. Who uses
    less CPU than others would have a faster API server beside it.
    """

    def give_way() -> None:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    with subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=give_way) as child:
        try:
            yield
        finally:
            child.kill()


def kubeconfig_of(url: str, path: Path) -> Path:
    """A kubeconfig for an API server without TLS or credentials."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stub", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "nobody"}}],
        "current-context": "stub",
    }
    path.write_text(json.dumps(document))
    return path


class Process:
    """A child process with a log, on one core if asked for, that ends with its `async with`."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        *,
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command, self.log, self.core = command, log, core
        self.environment = {**os.environ, **(environment or {})}
        self.child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def start(self) -> None:
        core = self.core
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                preexec_fn=None if core is None else (lambda: os.sched_setaffinity(0, {core})),
            )

    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def send(self, number: int) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, patience_s: float = 20.0) -> None:
        """End it: politely first, unless told otherwise."""
        if self.child is None:
            return
        self.send(signal.SIGCONT)
        self.send(number)
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()
        try:
            self.child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.child.stdout is not None:
            self.child.stdout.close()
        self.child = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Service(Process):
    """`flowsched serve --cluster kubernetes`, as users start it."""

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        *,
        namespace: str = "bench",
        core: int | None = None,
        profile: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        port = free_ports(1)[0]
        how = ["-m", "cProfile", "-o", str(profile)] if profile is not None else []
        command = [
            sys.executable, *how, "-m", "flowsched", "serve", "--cluster", "kubernetes", "--kubeconfig", str(kubeconfig),
            "--namespace", namespace, "--root", str(folder / "root"), "--port", str(port), "--log-level", "warning",
        ]  # fmt: skip
        told = {"FLOWSCHED_DEFAULT_IMAGE": "registry.example/tools/task:1", **(environment or {})}
        super().__init__(command, folder / "service.log", core=core, environment=told)
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder

    async def ready(self) -> float:
        """Wait until it leads and has recovered; the moment."""
        end = time.monotonic() + PATIENCE_S
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < end:
                if not self.alive():
                    raise SystemExit(f"the service ended: {self.tail()}")
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(
                        f"{self.url}/readyz", timeout=aiohttp.ClientTimeout(total=30)
                    ) as answer:
                        if answer.status == 200:
                            return time.monotonic()
                await asyncio.sleep(0.05)
        raise SystemExit(f"the service did not get ready: {self.tail()}")

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Call its API."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method, f"{self.url}{path}", data=raw, headers={"Content-Type": "application/json"}
            ) as answer,
        ):
            told = await answer.read()
            if answer.status >= 300:
                raise SystemExit(f"{method} {path}: {answer.status} {told[:500]!r}")
            return json.loads(told) if told else None
