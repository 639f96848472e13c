"""One container from its first start to its last end: starts, restarts, the way to stop it, its state meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from flowsched.cluster.kubernetes.api.errors import Malformed, Refused, Unreachable
from tests.kubernetes.hollow.containers import Command, End, NotRunnable, Run
from tests.kubernetes.hollow.environment import Unresolved
from tests.kubernetes.hollow.logs import last_lines
from tests.kubernetes.hollow.probes import Asked, has_started
from tests.kubernetes.hollow.spec import Probe
from tests.kubernetes.hollow.statuses import ContainerRecord, Running, State, Terminated, Waiting

Policy = Literal["Never", "OnFailure", "Always"]

#: As in Kubernetes: of a termination message, and of a log that takes its place.
_MESSAGE_BYTES: Final = 4096
_LOG_BYTES, _LOG_LINES = 2048, 80
#: A command that cannot be started; what containerd says of it.
_NOT_RUNNABLE: Final = 128
_LONGEST_BACK_OFF_S: Final = 60.0


class NeedsCommand(Exception):
    """The pod leaves the command to the image, and what that would be is not known here."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command, and where it leaves its termination message."""

    command: Command
    termination_log: Path
    address: str  #: of the pod, for probes


class Supervisor:
    """Runs a container.

    Args:
        record: Kept up to date.
        policy: When it is started again.
        prepare: Resolves what it refers to; asked before each start.
        changed: Called after each change of the record.
        ended: Called after each run.
        back_off_s: Before the first restart, then doubled.
    """

    def __init__(
        self,
        record: ContainerRecord,
        policy: Policy,
        prepare: Callable[[ContainerRecord], Awaitable[Prepared]],
        changed: Callable[[], None],
        ended: Callable[[ContainerRecord, End], None],
        back_off_s: float,
    ) -> None:
        self.record = record
        self.started = asyncio.Event()
        self._policy = policy
        self._prepare = prepare
        self._changed = changed
        self._ended = ended
        self._back_off_s = back_off_s
        self._run: Run | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start it; the task ends with its last run."""
        self._task = asyncio.get_running_loop().create_task(self._live())
        return self._task

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace; it is not started again."""
        self._stopping.set()
        if self._task is None:
            return
        if self._run is not None and grace_s > 0:
            self._run.terminate(as_first=self.record.sidecar)
            await asyncio.wait({self._task}, timeout=grace_s)
        self.kill()
        await asyncio.wait({self._task})

    def kill(self) -> None:
        """SIGKILL for all that belongs to it; it is not started again."""
        self._stopping.set()
        if self._run is not None:
            self._run.kill()

    async def _live(self) -> None:
        while not self._stopping.is_set():
            prepared = await self._prepared()
            if prepared is None or self._stopping.is_set():
                return
            state = await self._once(prepared)
            if self._stopping.is_set() or not self._again(state.code):
                self._set(state)
                return
            self.record.last = state
            self.record.restarts += 1
            self._set(Waiting("CrashLoopBackOff", f"back-off restarting {self.record.container.name}"))
            await self._pause()

    async def _prepared(self) -> Prepared | None:
        """What to run, as soon as it can be; None if it is stopped before."""
        while not self._stopping.is_set():
            try:
                return await self._prepare(self.record)
            except NeedsCommand as error:
                self._set(Waiting("ErrImageNeedsCommand", str(error)))
                await self._stopping.wait()
            except (Unresolved, Refused, Unreachable, Malformed) as error:
                self._set(Waiting("CreateContainerConfigError", str(error)))
                await self._pause()
        return None

    async def _once(self, prepared: Prepared) -> Terminated:
        prepared.termination_log.parent.mkdir(parents=True, exist_ok=True)
        prepared.termination_log.write_bytes(b"")
        run = Run(prepared.command)
        try:
            ending = run.start()
        except NotRunnable as error:
            now = datetime.now(UTC)
            return Terminated(_NOT_RUNNABLE, "StartError", str(error), now, now)
        self._run = run
        probe = self.record.container.startup_probe
        starting = None
        if probe is None:
            self._has_started()
        else:
            starting = asyncio.get_running_loop().create_task(self._wait_until_started(probe, prepared))
        self._set(Running(run.started))
        try:
            end = await asyncio.shield(ending)
        finally:
            if starting is not None:
                starting.cancel()
            self._run = None
            self.record.started = False
        self._ended(self.record, end)
        message = self._message(prepared, end.code)
        return Terminated(end.code, "Error" if end.code else "Completed", message, end.started, end.finished)

    async def _wait_until_started(self, probe: Probe, prepared: Prepared) -> None:
        ports = {port.name: port.container_port for port in self.record.container.ports}
        command = prepared.command
        if await has_started(probe, Asked(command.env, command.cwd, prepared.address, ports)):
            self._has_started()
            self._changed()
        elif self._run is not None:
            self._run.kill()

    def _has_started(self) -> None:
        self.record.started = True
        self.started.set()

    def _message(self, prepared: Prepared, code: int) -> str:
        message = prepared.termination_log.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        if (
            not message
            and code
            and self.record.container.termination_message_policy == "FallbackToLogsOnError"
        ):
            return last_lines(prepared.command.log, lines=_LOG_LINES, size=_LOG_BYTES)
        return message

    def _again(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    def _set(self, state: State) -> None:
        if state != self.record.state:
            self.record.state = state
            self._changed()

    async def _pause(self) -> None:
        """Wait before the next try, or until it is to be stopped."""
        wait_s, self._back_off_s = self._back_off_s, min(2 * self._back_off_s, _LONGEST_BACK_OFF_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
