"""The service under test and its database, as processes that the harness starts, stops and kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.blackbox.arena import Arena, children_of, now
from tests.postgres import Server

TOKEN = "blackbox-token"
#: A service answers `/livez` within so long from its start; a later answer counts as down. A checkout's first start compiles it.
START_S, FIRST_START_S = 60.0, 120.0


class Service:
    """`flowsched serve`. The harness starts it again whenever it is dead.

    Args:
        arena: The place of the run.
        program: The executable.
        port: Its port.
        database: Its `--db`, or None for SQLite in its root.
        deaths: Takes a line for each end or missing answer that no fault explains.
    """

    def __init__(
        self, arena: Arena, program: str, port: int, database: str | None, deaths: list[str]
    ) -> None:
        self.arena, self.port, self.url = arena, port, f"http://127.0.0.1:{port}"
        more = [] if database is None else ["--db", database]
        self._command = [
            program, "serve", "--port", str(port), "--root", str(arena.root), "--nodes", "3", "--cpu", "4",
            "--memory", "4Gi", "--log-level", "info", *more,
        ]  # fmt: skip
        self.log = arena.base / "service.log"
        self.absences: list[tuple[float, float]] = []
        self.starts_s: list[float] = []  #: from a start to the first answer
        self._deaths = deaths
        self._process: subprocess.Popen[bytes] | None = None
        self._absent: float | None = None  #: the moment from which it is dead or stopped on purpose
        self._started = 0.0
        self._held_until = 0.0
        self._expected_dead = True
        self._stopped: list[int] = []
        self._inner: int | None = None  #: the process that serves, if the started one only keeps the port
        self._inner_killed = False

    @property
    def up(self) -> bool:
        """Whether it should answer now."""
        return self._absent is None

    def start(self) -> None:
        """Start it."""
        environment = {
            **os.environ,
            **self.arena.clock,
            "FLOWSCHED_TOKEN": TOKEN,
            "TMPDIR": str(self.arena.temporary),
        }
        self._absent = self._absent or now()
        self._started, self._expected_dead = now(), False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)

    async def keep(self) -> None:
        """Start it again whenever it is dead, and note its absences. Runs until a caller cancels it."""
        while True:
            await asyncio.sleep(0.05)
            if self._process is None or self._stopped:
                continue
            self._look_inside()
            status = self._process.poll()
            if status is not None and now() >= self._held_until:
                if not self._expected_dead and not self._inner_killed:
                    self._deaths.append(f"it ended with {status} at {now():.2f}: {self.tail()}")
                    self._absent = self._absent or now()
                    await asyncio.sleep(1)
                self.start()
            elif status is None and self._absent is not None and not self._expected_dead:
                await self._look()

    def _look_inside(self) -> None:
        """Note a death of the process that serves, if no fault explains it and the started process only keeps the port."""
        inner = next(iter(self.pids()[1:]), None)
        if inner is None or inner == self._inner:
            return
        if self._inner is not None and not self._inner_killed:
            self._deaths.append(f"process {self._inner} died by itself before {now():.2f}: {self.tail()}")
            self._absent, self._started = self._absent or now(), now()
        self._inner, self._inner_killed = inner, False

    async def _look(self) -> None:
        """End an absence when the service answers again, or when its time to start is over."""
        if await asyncio.to_thread(self._answers):
            self.starts_s.append(now() - self._started)
            assert self._absent is not None
            self.absences.append((self._absent, now() + 0.1))
            self._absent = None
        elif (
            now() > self._started + (START_S if self.starts_s else FIRST_START_S) and self._absent is not None
        ):
            waited = now() - self._started
            self._deaths.append(
                f"no answer {waited:.0f} s after its start at {self._started:.2f}: {self.tail()}"
            )
            self.absences.append((self._absent, now()))
            self._absent = None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/livez", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def pids(self) -> list[int]:
        """Its processes: the started one, and those of its children that are no runners."""
        if self._process is None or self._process.poll() is not None:
            return []
        family = [self._process.pid]
        for pid in children_of(self._process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"serve" in words:
                    family.append(pid)
        return family

    def kill(self, held_s: float, *, inner: bool = False) -> str:
        """Kill -9, and start it again after `held_s`. `inner`: kill only a child that serves; its parent restarts it."""
        pids = self.pids()
        self._absent = self._absent or now()
        self._inner_killed = True
        if inner and len(pids) > 1:
            pids = pids[1:]
            self._started = now()
        else:
            self._expected_dead, self._held_until = True, now() + held_s
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"{len(pids)} processes"

    async def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after that time."""
        self._stopped = self.pids()
        self._absent = self._absent or now()
        try:
            _signal(self._stopped, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            _signal(self._stopped, signal.SIGCONT)
            self._stopped = []
            self._started = now()

    def resident_bytes(self) -> int:
        """Memory of its processes."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return total

    async def end(self) -> str:
        """Send SIGTERM; returns what is wrong with its end, or ""."""
        if self._process is None or self._process.poll() is not None:
            return "it was dead at the end"
        self._expected_dead, self._held_until = True, float("inf")
        self._process.terminate()
        for _ in range(600):
            if self._process.poll() is not None:
                return (
                    ""
                    if self._process.returncode in (0, -15, 143)
                    else f"it ended with {self._process.returncode}"
                )
            await asyncio.sleep(0.1)
        self.kill(float("inf"))
        return "it did not end within 60 s of SIGTERM"

    def tail(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-1500:].decode(errors="replace")
        return ""


class Database:
    """PostgreSQL, or the SQLite file, which the harness locks now and then."""

    def __init__(self, kind: str, arena: Arena) -> None:
        self.kind, self._arena = kind, arena
        self._server: Server | None = None
        self.url: str | None = None
        if kind == "postgresql":
            os.environ["TMPDIR"] = str(arena.temporary)
            import tempfile

            tempfile.tempdir = str(arena.temporary)
            self._server = Server(fsync=True)
            self._server.start()
            self.url = self._server.fresh()

    def pids(self) -> list[int]:
        """The postmaster and all its backends."""
        process = self._server._process if self._server is not None else None
        return [process.pid, *children_of(process.pid)] if process is not None else []

    async def kill_for(self, seconds: float) -> None:
        """Kill -9 of the whole server, and start it after that time."""
        assert self._server is not None
        pids = self.pids()
        self._server.kill()
        _signal(pids[1:], signal.SIGKILL)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._server.start)

    async def stop_for(self, seconds: float) -> None:
        """SIGSTOP of all its processes, and SIGCONT."""
        pids = self.pids()
        try:
            _signal(pids, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            _signal(pids, signal.SIGCONT)

    async def lock_for(self, seconds: float) -> None:
        """SQLite: hold the write lock, as a backup does."""
        await asyncio.to_thread(self._lock_for, seconds)

    def _lock_for(self, seconds: float) -> None:
        with contextlib.suppress(sqlite3.Error):
            connection = sqlite3.connect(self._arena.root / "flowsched.db", timeout=20, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)
                connection.execute("ROLLBACK")

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.remove()


def _signal(pids: list[int], number: Any) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
