"""The attempts that are waited for: the service observes their states again and again, and reports changes to the engine.

News of a living runner is applied on the event loop at once: the runner wakes the service through a socket. A few threads do
the work with folders and kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from pathlib import Path
from typing import Final

from flowsched.cluster.local.attempt_states import AttemptStates, Live, Observed
from flowsched.cluster.local.attempts import State
from flowsched.cluster.node.meter import INTERVAL_S, DiskMeter
from flowsched.executor.protocol import DELIVERING, PodEnded, PodGone, PodHeld, PodStarted
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: How often all live attempts are observed, should a poke have been lost. The promise of `Executor.events` is here.
SCAN_S: Final = 0.5
#: Attempts that one thread takes at a time: the others see to what comes meanwhile.
_BATCH: Final = 16


class Watch:
    """The watch over the attempts of one root.

    Args:
        states: How attempts stand.
        pool: For work on folders.
        eyes: For looks, which do not wait behind a long launch.
        ended: Called with an attempt that is no more, and its end: reports it, and removes the attempt from `lives`.
    """

    def __init__(
        self,
        states: AttemptStates,
        pool: Pool,
        eyes: Pool,
        ended: Callable[[Live, PodEnded | PodGone], None],
    ) -> None:
        self._states = states
        self._site, self._runners, self._space = states.site, states.runners, states.space
        self._pool = pool
        self._eyes = eyes
        self._ended = ended
        self.lives: dict[str, Live] = {}
        self._poked = False
        self._wake = asyncio.Event()

    def listen(self) -> None:
        """Let runners wake it."""
        self._wake_ups = WakeUps(self._site.root, self._on_poke)

    def close(self) -> None:
        """Listen no more."""
        self._wake_ups.close()

    def wake(self) -> None:
        """Observe soon: there is an attempt more."""
        self._wake.set()

    def _on_poke(self) -> None:
        self._poked = True
        self._wake.set()

    async def watch(self) -> None:
        """Observe poked attempts at once, and all live ones every `SCAN_S`; sleep while nothing lives."""
        loop = asyncio.get_running_loop()
        scanned_at = loop.time()
        while True:
            pause = max(0.0, scanned_at + SCAN_S - loop.time()) if self.lives else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: in 3.11 it may swallow a cancel
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._poked:
                    self._poked = False
                    await self._hear(self._runners.read())
                if loop.time() >= scanned_at + SCAN_S:
                    scanned_at = loop.time()
                    away = await loop.run_in_executor(self._eyes, self._space.find_away)
                    self._space.report_changes()
                    if away:
                        continue
                    await self._hear(await loop.run_in_executor(self._eyes, self._runners.refresh))
                    await self.act(list(self.lives.values()), self._states.observe, self._eyes)
            except OSError:  # a journal that cannot be read now is read by the next scan
                self._states.log_unreadable("journals not read")

    async def _hear(self, names: Sequence[str]) -> None:
        """Apply the news of attempts."""
        todo = []
        for name in dict.fromkeys(names):
            live = self.lives.get(name)
            if live is None or live.busy:
                continue
            state = self._states.reported(live)
            if state is None:
                todo.append(live)
            else:
                self._site.failpoint("look.seen")
                self._apply(live, state)
        await self.act(todo, self._states.observe, self._eyes)

    async def act(
        self, lives: Sequence[Live], act: Callable[[Sequence[Live]], list[Observed]], pool: Pool | None = None
    ) -> None:
        """Do something to attempts in threads, a few at a time, and report the observed changes."""
        loop = asyncio.get_running_loop()
        parts = [lives[at : at + _BATCH] for at in range(0, len(lives), _BATCH)]
        runs = [loop.run_in_executor(pool or self._pool, act, part) for part in parts]
        for observations in await asyncio.gather(*runs):
            for live, state in observations:
                if state is not None:
                    self._apply(live, state)

    def _apply(self, live: Live, state: State) -> None:
        if self.lives.get(live.name) is not live:
            return  # its end was reported meanwhile
        if state.started_ms is not None and not live.start_reported:
            live.start_reported = True
            self._site.report(PodStarted(live.name, state.started_ms))
        if live.ending:
            return  # its end will be reported, once
        if state.final is not None:
            live.ending = True
            self._space.report_changes()  # first: the engine offers attempts that found no room again at once
            self._ended(live, state.final)
        elif state.started_ms is not None:
            self.report_wait(live, state.reason, state.waits)

    def report_wait(self, live: Live, reason: str, why: str) -> None:
        """Report what an attempt waits for, once; "" = for nothing any more."""
        if why == live.reported_wait:
            return
        live.reported_wait = why
        if why and reason != DELIVERING:
            log.info("attempt waits", pod=live.name, reason=reason, why=why)
        self._site.report(PodHeld(live.name, reason if why else "", why))

    async def measure(self) -> None:
        """Measure and report the load of the disk every few seconds."""
        meter = DiskMeter(self._site.root, tuple(self._site.nodes))
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            running = [
                (live.name, live.pod.node if live.pod is not None else "", known[0].pid)
                for live in self.lives.values()
                if (known := self._runners.find(live.name)) and known[0].pid and not known[1].is_dead
            ]
            now = loop.time()
            found = await loop.run_in_executor(self._eyes, meter.measure, running, now - last)
            last = now
            if found is not None:
                self._site.report(found)


# ---- what wakes it ----


class WakeUps:
    """The service's end of the socket `poke.sock` in a cluster's root.

    Args:
        root: Folder of the cluster.
        on_poke: Called on the event loop when a journal has grown.
    """

    def __init__(self, root: Path, on_poke: Callable[[], None]) -> None:
        self._on_poke = on_poke
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            with contextlib.suppress(FileNotFoundError):
                (root / "poke.sock").unlink()
            _bind(self._socket, root)
        # A folder has the name, or the path is longer than 107 bytes and there is no /proc.
        except OSError as error:
            log.warning(
                "no pokes: changes of attempts are seen by scanning only. Remove what has the socket's name, and restart",
                path=str(root / "poke.sock"),
                error=str(error),
            )
        else:
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(4096):
                self._on_poke()


def _bind(listener: socket.socket, root: Path) -> None:
    """Bind below `root`. The path of `root` may be longer than a socket's address may be."""
    try:
        listener.bind(str(root / "poke.sock"))
    except OSError:
        fd = os.open(root, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{fd}/poke.sock")
        finally:
            os.close(fd)
