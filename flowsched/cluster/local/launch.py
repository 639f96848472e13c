"""The launch of attempts on this machine, step by step.

    1. an attempt waits until no other one writes the files that it writes (`writers`)
    2. it waits until its images are here (`images`)
    3. its folder is made: from then on its name is taken
    4. its order is composed, and given to the runner with those of others

An attempt that has a folder was launched before: its state is read instead.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as Pool
from pathlib import Path
from typing import Any, Final

from flowsched.background import BackgroundTasks
from flowsched.cluster.local import attempts
from flowsched.cluster.local.attempt_states import AttemptStates, Live, Observed
from flowsched.cluster.local.attempts import State
from flowsched.cluster.local.images import Images
from flowsched.cluster.local.orders import compose, cpu_limit, staged_files
from flowsched.cluster.local.runner.records import elapsed_ms, is_full
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.virtual_nodes import machine_cores
from flowsched.cluster.local.watch import Watch
from flowsched.cluster.local.writers import Writers, writes_outside, written_paths
from flowsched.cluster.node.environment import ceil_cores, gang_files, loopback
from flowsched.executor.protocol import Pod, Roster
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: Why an attempt waits: another one writes its file.
WRITER: Final = "OutputBusy"


class Launch:
    """The launches of one root.

    Args:
        states: How attempts stand.
        watch: Over the attempts.
        images: Of the cluster.
        staging: The transfers between the nodes' caches.
        pool: For work on folders.
    """

    def __init__(
        self,
        states: AttemptStates,
        watch: Watch,
        images: Images,
        staging: Staging,
        pool: Pool,
    ) -> None:
        self._states = states
        self._site, self._runners = states.site, states.runners
        self._watch = watch
        self._images = images
        self._staging = staging
        self._caches = staging.caches
        self._pool = pool
        self._writers = Writers()
        self._background = BackgroundTasks("an attempt")
        #: Where nodes promise more cores than there are, the kernel divides them: tasks that are bound would leave some idle.
        promised = sum(node.cpu_millicores for node in states.site.nodes.values())
        self._binds = promised <= 1000 * machine_cores()

    async def close(self) -> None:
        """Launch no more. Attempts that wait for an image are cancelled: the next service learns that they never ran."""
        await self._background.close()

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Launch attempts; later those that wait for others or for their images."""
        new = [Live(pod.name, pod, busy=True) for pod in pods if pod.name not in self._watch.lives]
        self._watch.lives.update({live.name: live for live in new})
        await self._go_on(await self.enter(new))

    async def enter(self, lives: Sequence[Live]) -> list[Live]:
        """Note which files outside of them attempts write. Returns those that are still waited for."""
        asked = [live.pod for live in lives if live.pod is not None and writes_outside(live.pod)]
        paths: dict[str, frozenset[str]] = {}
        if asked:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._pool, lambda: list(map(written_paths, asked)))
            paths = {pod.name: each for pod, each in zip(asked, found, strict=True)}
        there = [live for live in lives if self._watch.lives.get(live.name) is live]
        for live in there:
            assert live.pod is not None
            self._writers.enter(live.pod, paths.get(live.name, frozenset()))
        return there

    async def _go_on(self, lives: Sequence[Live]) -> None:
        """Launch what nothing holds: neither another attempt that writes its files, nor its images."""
        ready = []
        for live in lives:
            assert live.pod is not None
            why = self._writers.why(live.name)
            live.waits_for_writer = bool(why)
            self._watch.report_wait(live, WRITER, why)
            if why:
                continue
            if self._images.is_ready(live.pod):
                ready.append(live)
            else:
                self._background.begin(self._with_images(live), name=f"image of {live.name}")
        try:
            await self._watch.act(ready, self._order)
        finally:
            for live in ready:
                live.busy = False  # the next scan reports one that could not be launched as gone
            self._watch.wake()

    async def _with_images(self, live: Live) -> None:
        """Launch an attempt when its images are here, or when it is known that they never will be."""
        assert live.pod is not None
        await self._images.have(live.pod, lambda reason, why: self._watch.report_wait(live, reason, why))
        if self._watch.lives.get(live.name) is live:  # it was not released meanwhile
            await self._go_on([live])

    def ended(self, name: str) -> None:
        """An attempt is no more: the attempts that waited for it go on."""
        behind = [self._watch.lives.get(other) for other in self._writers.leave(name)]
        waiting = [live for live in behind if live is not None and live.waits_for_writer]
        for live in waiting:
            live.waits_for_writer = False  # at once: the end of another one must not launch it a second time
        if waiting:
            names = ", ".join(live.name for live in waiting)
            self._background.begin(self._go_on(waiting), name=f"launch of {names}")

    # --- in threads ------------------------------------------------------------------------------------------

    def _order(self, lives: Sequence[Live]) -> list[Observed]:
        """Make the folders of some attempts, and give their orders in one piece. Returns how all of them stand then."""
        if away := self._site.presence.away():
            log.warning("attempts not ordered", pods=[live.name for live in lives], error=away)
            return []
        known: dict[str, State] = {}
        orders: dict[str, dict[str, Any]] = {}
        try:
            for live in lives:
                with self._states.lock(live.name):
                    order = self._prepare(live)
                if isinstance(order, State):
                    known[live.name] = order
                elif order is not None:
                    orders[live.name] = order
            self._give(orders)
        finally:
            for live in lives:
                self._runners.dismiss(live.name)
                live.busy = False
        observations: list[Observed] = []
        for live in lives:
            if live.name in orders:  # it may have begun while its news was not heard
                observations.append((live, self._states.reported(live)))
            elif live.name in known:
                observations.append((live, known[live.name]))
            else:
                observations += self._states.observe([live])
        return observations

    def _give(self, orders: Mapping[str, dict[str, Any]]) -> None:
        if not orders:
            return
        try:
            self._runners.order(list(orders.values()))
        except OSError as error:
            log.warning("runner not started", pods=list(orders), error=str(error))
        for _ in orders:
            self._site.failpoint("launch.spawned")

    def _prepare(self, live: Live) -> dict[str, Any] | State | None:
        """The order of an attempt with a new folder, or its end if it gets no order. None: the watch looks at it."""
        pod, folder = live.pod, None
        assert pod is not None
        if denied := self._states.denied(pod.name):
            return denied
        try:
            if pod.node not in self._caches and self._states.find(pod.name) is None:
                return self._states.absent(pod.name, "NoSuchNode")
            self._runners.expect(pod.name)  # first: a release that finds the folder waits for the runner
            folder = self._states.folders.make(pod.name, pod.node)
            if folder is None:
                return None
            self._site.failpoint("launch.made")
            live.folder = folder
            order = self._composed(pod, folder, live)
        except OSError as error:
            if not is_full(error):
                log.warning("attempt not ordered", pod=pod.name, error=str(error))
                return None
            if folder is not None:
                attempts.remove_tree(folder)
            return self._states.no_room(pod.name, error, "DiskFull")
        self._site.failpoint("launch.ordered")
        return order

    def _composed(self, pod: Pod, folder: Path, live: Live) -> dict[str, Any]:
        nodes = sorted({pod.node, *pod.remote.values()}) if pod.inputs else []
        read = [self._caches[node].folder for node in nodes if node in self._caches]
        read += [Path(path) for path in self._staging.places(live.inputs)]
        staged = {name: path for name, (_, path) in staged_files(pod, self._caches).items()}
        bounds = self._staging.origins.bounds
        images = self._images.order(pod, folder, read, staged)
        changed = self._staging.changed(live.inputs)
        charged = [
            self._staging.charge(uri, pod.node, pod.remote.get(uri))
            for file in pod.inputs
            for uri in dict.fromkeys(file.uris)
        ]
        return {
            **compose(folder, pod, self._caches, images, self._staging.origins.upload, changed),
            "root": str(self._site.root),
            "bounds": bounds.record() if bounds else {},
            "clock_base_ms": self._site.clock() - elapsed_ms(),  # what the service's clock is ahead
            "cpu_millicores": cpu_limit(pod) if self._binds else 0,
            "gang_files": _write_gang_files(folder, pod),
            "bytes_local": sum(local for local, _ in charged),
            "bytes_moved": sum(moved for _, moved in charged),
        }


def _write_gang_files(folder: Path, pod: Pod) -> list[str]:
    """Write the files that tell a gang's member of the others into the folder of its attempt. Returns their names."""
    if pod.gang is None:
        return []
    texts = _gang_files(pod.gang.roster, ceil_cores(pod.cpu_millicores), pod.gang.master_port)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return list(texts)


@functools.lru_cache(maxsize=8)
def _gang_files(roster: Roster, slots: int, port: int) -> dict[str, str]:
    """The same for all members with as many cores. A gang of a thousand would make its lists a thousand times."""
    return gang_files(roster, slots, port, loopback)
