"""The states of this machine's attempts, by their folders and the journals of their runners; and their ends, where one is due.

Everything here blocks, and runs in several threads. A lock for each attempt keeps an observation, a launch and a release apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowsched.cluster.local import attempts
from flowsched.cluster.local.attempts import Attempts, State
from flowsched.cluster.local.journals import Life
from flowsched.cluster.local.root_space import RootSpace, Site
from flowsched.cluster.local.runner.kin import living
from flowsched.cluster.local.runner.records import is_full
from flowsched.cluster.local.runners import Runner, Runners
from flowsched.executor.protocol import Pod, PodGone
from flowsched.log_lines import get_logger

log = get_logger(__name__)

T = TypeVar("T")
#: While attempts cannot be read, that is logged again after this.
UNSEEN_S: Final = 60.0
#: If the runner has not ended a released attempt so long after the grace, the service kills the attempt's processes; after as long
#: again the process of its own that sees it through, or else the runner.
OVERDUE_S: Final = 3.0


class Live(msgspec.Struct, eq=False):
    """An attempt that is waited for."""

    name: str
    pod: Pod | None = None  #: None: only its end is wanted
    folder: Path | None = None
    busy: bool = False  #: being launched: not to be observed yet
    waits_for_writer: bool = False  #: another attempt writes what it writes
    start_reported: bool = False
    reported_wait: str = ""  #: the reason why it waits, as the engine knows it
    overdue_at: float | None = None  #: monotonic; set by a release
    kills: int = 0  #: how often it was overdue
    ending: bool = False  #: its end is known, and will be reported once its data are
    bereft: bool = False  #: its folder is gone, so its processes were killed: their end tells nothing

    @property
    def inputs(self) -> frozenset[tuple[str, str]]:
        """(uri, node) of what it reads there."""
        pod = self.pod
        if pod is None:
            return frozenset()
        return frozenset((uri, pod.remote.get(uri, pod.node)) for file in pod.inputs for uri in file.uris)


#: An attempt, and its state; None: that is not known now.
Observed = tuple[Live, State | None]


class AttemptStates:
    """The attempts of one root.

    Args:
        site: Its surroundings.
        folders: Of attempts.
        runners: Of the root.
        space: Of the root.
    """

    def __init__(self, site: Site, folders: Attempts, runners: Runners, space: RootSpace) -> None:
        self.site = site
        self.folders = folders
        self.runners = runners
        self.space = space
        self._stripes = [threading.Lock() for _ in range(64)]
        #: Attempts that there was no room to void in a folder. None of them has one, and while this process has the root none
        #: is made; after a restart SQL says whether their end is known.
        self._denied: dict[str, PodGone] = {}
        self._unreadable_logged: float | None = None

    def lock(self, name: str) -> threading.Lock:
        """The lock that keeps an observation of an attempt, its launch and its release apart."""
        return self._stripes[hash(name) % len(self._stripes)]

    # --- how they stand --------------------------------------------------------------------------------------

    def reported(self, live: Live) -> State | None:
        """The state of an attempt in the journal of a living runner; None: none, or its processes have to be looked for."""
        found = self.runners.find(live.name)
        if found is None or live.bereft:
            return None
        life, runner = found
        if life.end is None and (runner.is_dead or life.is_lost):
            return None
        return State(life.started_ms, life.end, life.waits, life.reason)

    def observe(self, lives: Sequence[Live]) -> list[Observed]:
        """Observe the states of attempts, and end those that must not go on."""
        return [(live, self._observe_one(live)) for live in lives]

    def _observe_one(self, live: Live) -> State | None:
        """One that cannot be read now (a full disk, a damaged record) is left to the next scan."""
        if live.busy:
            return None
        try:
            with self.lock(live.name):
                return self._state_of(live)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and is_full(error):
                self.space.note(error)
            self.log_unreadable("attempt not seen", pod=live.name)
            return None

    def _state_of(self, live: Live) -> State | None:
        folder = live.folder = live.folder or self.find(live.name)
        found = self.runners.find(live.name)
        if found is None:
            if self.runners.may_start(live.name):
                self._end_overdue(live, None)
                return None
            found = self.runners.recall(live.name)
        if found is None:
            if folder is None:
                return self.absent(live.name, "NotLaunched")
            return State(final=attempts.gone(folder, "NotStarted"))
        life, runner = found
        if life.end is not None:
            return self.absent(live.name, "FolderGone") if live.bereft else State(life.started_ms, life.end)
        there = folder is not None and self._is_there(folder)
        node = live.pod.node if live.pod is not None else ""
        folder = folder or self.folders.root / "nodes" / node / "attempts" / live.name
        if runner.is_dead or life.is_lost:
            if life.started_ms is not None and not attempts.end_attempt(folder, life):
                return State(life.started_ms)
            return State(life.started_ms, attempts.left_end(folder) or self._lost(folder, life, runner))
        if there:
            self._end_overdue(live, found)
            return State(life.started_ms, waits=life.waits, reason=life.reason)
        live.bereft = True
        return None if self._kill(folder, life) else self.absent(live.name, "FolderGone")

    def _lost(self, folder: Path, life: Life, runner: Runner) -> PodGone:
        """The end of an attempt that ended with its runner."""
        at_ms = runner.died_ms or self.site.clock()
        reason = "NotStarted" if life.started_ms is None else "RunnerLost"
        reason = "Released" if attempts.is_released(folder) else reason
        if reason == "RunnerLost":
            log.warning("attempt lost with its runner", pod=life.name, runner=runner.name)
        return PodGone(life.name, at_ms, reason, life.started_ms is not None)

    def log_unreadable(self, what: str, **more: str) -> None:
        """Log the exception that is handled, now and then."""
        now = time.monotonic()
        if self._unreadable_logged is None or now - self._unreadable_logged > UNSEEN_S:
            self._unreadable_logged = now
            log.exception(what, **more)

    def find(self, name: str) -> Path | None:
        """The folder of an attempt; None: there is none.

        Raises:
            OSError: Its node's folder is away.
        """
        return self._really(lambda: self.folders.find(name))

    def _is_there(self, folder: Path) -> bool:
        """Whether a folder of an attempt is there. Raises as `find`."""
        return self._really(lambda: attempts.is_folder(folder))

    def _really(self, find: Callable[[], T]) -> T:
        """Find an entry, and search again once no folder is away: an entry of such a folder is not missing."""
        found = find()
        if not found:
            self.site.presence.check()
            found = find()
        return found

    # --- those that there are none of ------------------------------------------------------------------------

    def denied(self, name: str) -> State | None:
        """The end of an attempt that there was no room for."""
        gone = self._denied.get(name)
        return None if gone is None else State(final=gone)

    def absent(self, name: str, reason: str) -> State:
        """Make sure that an attempt without a folder will never run."""
        try:
            return self.denied(name) or State(final=self.folders.entomb(name, reason))
        except OSError as error:
            return self.no_room(name, error, reason)

    def no_room(self, name: str, error: OSError, reason: str) -> State:
        """There is no room for the folder of an attempt: it is no more, and this process will not make it.

        Raises:
            OSError: It was something else.
        """
        if not is_full(error):
            raise error
        self.space.note(error)
        gone = self._denied[name] = PodGone(name, self.site.clock(), reason)
        return State(final=gone)

    def settled(self, name: str) -> None:
        """Its end is stored."""
        self._denied.pop(name, None)

    # --- what must end ---------------------------------------------------------------------------------------

    def release(self, lives: Sequence[Live], grace_ms: int) -> list[Observed]:
        """Ask for the ends of attempts, and wake their runners."""
        overdue_at = time.monotonic() + grace_ms / 1000 + OVERDUE_S
        awake: dict[str, Runner] = {}
        observations: list[Observed] = []
        for live in lives:
            live.overdue_at = min(live.overdue_at or overdue_at, overdue_at)
            with self.lock(live.name):
                observations.append((live, self._release(live, grace_ms, awake)))
        for runner in awake.values():
            runner.signal(signal.SIGTERM)
        return observations

    def _release(self, live: Live, grace_ms: int, awake: dict[str, Runner]) -> State | None:
        state = self.reported(live)
        if state is not None and state.final is not None:
            return state
        folder = live.folder
        try:
            folder = live.folder = folder or self.find(live.name)
            if (folder is None or not self._is_there(folder)) and not self.runners.those_with(live.name):
                return self.absent(live.name, "Released")
            if folder is not None:
                attempts.ask_for_end(folder, grace_ms)
                self.site.failpoint("release.marked")
        except OSError as error:  # no room to ask, or the task has put a link in the folder's place
            if not is_full(error) and not isinstance(error, NotADirectoryError):
                log.warning(
                    "attempt is not asked to end: killed after its grace", pod=live.name, error=str(error)
                )
                return None
            if is_full(error):
                self.space.note(error)
            if folder is not None and (found := self.runners.find(live.name)) is not None:
                self._kill(folder, found[0])  # there is no room to ask
            return None
        those = self.runners.those_with(live.name)
        awake.update({runner.name: runner for runner in those})
        return None if those or live.busy else self._state_of(live)

    def _kill(self, folder: Path, life: Life) -> bool:
        """Kill the processes of an attempt whose runner lives. Returns whether there were any."""

        def is_over() -> bool:
            self.runners.read()
            return life.end is not None

        return attempts.kill_attempt(folder, life, is_over)

    def _end_overdue(self, live: Live, found: tuple[Life, Runner] | None) -> None:
        """Kill an attempt that should have ended long ago: its processes, and if that does not help, its shim or runner."""
        if live.overdue_at is None or time.monotonic() < live.overdue_at:
            return
        live.overdue_at = time.monotonic() + OVERDUE_S
        if found is not None and found[0].publishes:
            return  # nothing of it is left to kill, and its runner has other attempts
        if found is None and live.folder is not None and not attempts.is_released(live.folder):
            # It has not begun, and its runner has other attempts: the service asks again, once there is room for that.
            with contextlib.suppress(OSError):
                attempts.ask_for_end(live.folder, 0)
                for runner in self.runners.those_with(live.name):
                    runner.signal(signal.SIGTERM)
            return
        live.kills += 1
        if found is not None and live.folder is not None and live.kills == 1:
            self._kill(live.folder, found[0])
            return
        if found is not None and found[0].own and live.kills == 2:
            if shim := living(found[0].shim):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shim, signal.SIGKILL)
            return
        for runner in self.runners.those_with(live.name):
            log.warning(
                "a runner does not end an attempt: killed, with all its attempts",
                pod=live.name,
                runner=runner.name,
            )
            runner.signal(signal.SIGKILL)
