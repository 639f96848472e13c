"""Faults for the service, its runners, its database and its machine: a schedule by a seed, and the functions that carry it out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.blackbox import poison
from bench.blackbox.arena import Arena, now
from bench.blackbox.client import TES, WORKFLOWS, Web
from bench.blackbox.service import Database, Service

_FAMILIES = [
    # weight, fault, shortest and longest duration, database
    (5, "kill service", 0.0, 5.0, ""),
    (2, "kill inner service", 0.0, 5.0, ""),
    (3, "stop service", 1.0, 25.0, ""),
    (4, "kill runner", 0.0, 0.0, ""),
    (3, "stop runner", 1.0, 20.0, ""),
    (3, "full disk", 5.0, 40.0, ""),
    (2, "no inodes", 5.0, 30.0, ""),
    (3, "clock", 5.0, 40.0, ""),
    (4, "poison", 0.0, 10.0, ""),
    (1, "half-sent requests", 5.0, 20.0, ""),
    (3, "kill database", 0.0, 15.0, "postgresql"),
    (2, "stop database", 1.0, 15.0, "postgresql"),
    (3, "lock database", 1.0, 20.0, "sqlite"),
]  # fmt: skip
JUMPS = [3600, 3600, -3600, 86400, -86400, 20 * 365 * 86400]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its start, name, duration, and kind (a jump in seconds, a poison's name)."""

    at_s: float
    what: str
    for_s: float
    how: Any = ""


def schedule(seed: int, seconds: float, database: str, pace_s: float = 7.0) -> list[Fault]:
    """All faults of a run, one every `pace_s` on average. Several may be under way at a time."""
    pick = random.Random(seed)
    families = [each for each in _FAMILIES if each[4] in ("", database)]
    found: list[Fault] = []
    at = pick.expovariate(1 / pace_s)
    while at < seconds:
        weight_of = [weight for weight, *_ in families]
        _, what, least, most, _ = pick.choices(families, weight_of)[0]
        how: Any = ""
        if what == "clock":
            how = pick.choice(JUMPS)
        elif what == "poison":
            how = pick.choice(list(poison.POISON))
        elif what in ("full disk", "no inodes"):
            how = pick.choice([0, 0, 1, 20]) * (4096 if what == "full disk" else 1)
        elif what.startswith("kill") and what.endswith("service"):
            how = pick.choice(
                ["once it is up", "once it is up", "once it is up", ""]
            )  # else the fault may kill a start, too
        elif what.endswith("runner"):
            how = pick.randrange(1 << 16)
        found.append(Fault(round(at, 2), what, round(pick.uniform(least, most), 2), how))
        at += pick.expovariate(1 / pace_s)
    return found


class Faults:
    """Carries a schedule out.

    Args:
        arena, service, database, web: The targets of the faults.
        tell: Prints a line.
    """

    def __init__(
        self, arena: Arena, service: Service, database: Database, web: Web, tell: Callable[[str], None]
    ) -> None:
        self._arena, self._service, self._database, self._web, self._tell = (
            arena,
            service,
            database,
            web,
            tell,
        )
        self.full: list[tuple[float, float]] = []  #: when the file system was full, of bytes or inodes
        self.failures: list[str] = []  #: of the harness itself
        self.poisoned: list[str] = []  #: ids of poison that was accepted
        self._full_now = 0
        self._busy: set[str] = set()
        self._number = 0
        self._hands: dict[str, Callable[[Fault], Awaitable[str]]] = {
            "kill service": self._kill_service,
            "kill inner service": self._kill_service,
            "stop service": self._stop_service,
            "kill runner": self._kill_runner,
            "stop runner": self._stop_runner,
            "full disk": self._full,
            "no inodes": self._full,
            "clock": self._clock,
            "poison": self._poison,
            "half-sent requests": self._half_sent,
            "kill database": self._kill_database,
            "stop database": self._stop_database,
            "lock database": self._lock_database,
        }

    async def run(self, faults: list[Fault], begun_s: float) -> None:
        """Cause each fault at its time; return when the last one is over."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, begun_s + fault.at_s - now()))
                group.create_task(self._do(fault))
        self._arena.free_bytes()
        self._arena.free_inodes()
        self._arena.jump(0)

    async def _do(self, fault: Fault) -> None:
        """Cause one fault. Skips it while another fault has its target in that state."""
        family = {"kill inner service": "kill service"}.get(fault.what, fault.what)
        alone = {
            "full disk",
            "no inodes",
            "clock",
            "stop service",
            "kill database",
            "stop database",
            "lock database",
        }
        group = (
            "database"
            if family.endswith("database")
            else "full"
            if family in ("full disk", "no inodes")
            else family
        )
        if family in alone and group in self._busy:
            return
        if family == "clock" and not self._arena.clock:
            return
        self._busy.add(group)
        try:
            begun = now()
            try:
                said = await self._hands[fault.what](fault)
            except Exception as error:  # noqa: BLE001 - the run goes on, and is void
                said = f"the harness failed: {error!r}"
                self.failures.append(f"{fault}: {error!r}")
            self._tell(
                f"{begun:10.2f}  {fault.what} {fault.how} for {fault.for_s:g} s: {said or 'done'} until {now():.2f}"
            )
        finally:
            self._busy.discard(group)

    async def _kill_service(self, fault: Fault) -> str:
        if fault.how and not await self._is_up():
            return "was down"
        return self._service.kill(fault.for_s, inner="inner" in fault.what)

    async def _is_up(self) -> bool:
        """Wait a while until the service is back. On a busy machine the faults would otherwise kill its starts alone."""
        end = now() + 30
        while not self._service.up and now() < end:
            await asyncio.sleep(0.1)
        return self._service.up

    async def _stop_service(self, fault: Fault) -> str:
        if not await self._is_up():
            return "was down"
        await self._service.stop_for(fault.for_s)
        return ""

    def _runner(self, fault: Fault) -> int | None:
        pids = sorted(self._arena.runners())
        return pids[fault.how % len(pids)] if pids else None

    async def _kill_runner(self, fault: Fault) -> str:
        pid = await asyncio.to_thread(self._runner, fault)
        if pid is None:
            return "no runner"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"pid {pid}"

    async def _stop_runner(self, fault: Fault) -> str:
        pid = await asyncio.to_thread(self._runner, fault)
        if pid is None:
            return "no runner"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.for_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return f"pid {pid}"

    async def _full(self, fault: Fault) -> str:
        begun = now()
        bytes_too = fault.what == "full disk"
        end = begun + fault.for_s
        try:
            while now() < end:  # also take what other processes free meanwhile
                if bytes_too:
                    await asyncio.to_thread(self._arena.fill_bytes, fault.how)
                else:
                    await asyncio.to_thread(self._arena.fill_inodes, fault.how)
                await asyncio.sleep(0.5)
        finally:
            if bytes_too:
                self._arena.free_bytes()
            else:
                self._arena.free_inodes()
            self.full.append((begun, now() + 2))
        return ""

    async def _clock(self, fault: Fault) -> str:
        self._arena.jump(fault.how)
        await asyncio.sleep(fault.for_s)
        self._arena.jump(0)
        return ""

    async def _poison(self, fault: Fault) -> str:
        return await self.poison(fault.how, fault.for_s)

    async def poison(self, name: str, cancel_after_s: float | None) -> str:
        """Send one kind. If the service accepts it, cancel it after some seconds, or leave it (None). Returns the answer."""
        self._number += 1
        path, headers = poison.path_and_headers(name, f"poison-{self._number}-{now()}")
        content = await asyncio.to_thread(poison.body, name)
        status, answer = await self._web.call("POST", path, data=content, headers=headers)
        if status not in (200, 202) or path not in (WORKFLOWS, TES):
            return f"{status} {answer[:160].decode(errors='replace')}"
        import json

        ident = json.loads(answer)["id"]
        self.poisoned.append(ident)
        if cancel_after_s is not None:
            await asyncio.sleep(cancel_after_s)
            begun = now()
            status, _ = await self._web.insist("POST", f"{WORKFLOWS}/{ident}/cancel", json={})
            return f"accepted as {ident}, cancel answered {status} after {now() - begun:.1f} s"
        return f"accepted as {ident}"

    async def _half_sent(self, fault: Fault) -> str:
        await poison.half_sent(self._service.port, 400, fault.for_s, self._number)
        return ""

    async def _kill_database(self, fault: Fault) -> str:
        await self._database.kill_for(fault.for_s)
        return ""

    async def _stop_database(self, fault: Fault) -> str:
        await self._database.stop_for(fault.for_s)
        return ""

    async def _lock_database(self, fault: Fault) -> str:
        await self._database.lock_for(fault.for_s)
        return ""
