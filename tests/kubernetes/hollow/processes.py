"""A pod as processes of this machine: init containers in turn, native sidecars around, then the containers.

Not as on a real node: no isolation, no images, no limits on memory or cores; users are not honoured, and mounts only where a
container needs them at their paths (`mounting`: volumes that nodes share, parts of volumes; as root); a
main container's first process is not PID 1, so it ends by SIGTERM even if it has no handler. (A sidecar's does not, as
it would not in a container: one that is told to end before it has set its handler misses that, so it needs a startup probe.)
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Malformed, Refused, Unreachable
from tests.kubernetes.hollow import environment as env
from tests.kubernetes.hollow import mounting, volumes
from tests.kubernetes.hollow.containers import Command, End, own
from tests.kubernetes.hollow.lives import Leave, deadline_s, overdue
from tests.kubernetes.hollow.maps import fetched
from tests.kubernetes.hollow.reports import Report
from tests.kubernetes.hollow.spec import Container, Pod
from tests.kubernetes.hollow.statuses import ContainerRecord, PodRecord, Terminated, Waiting
from tests.kubernetes.hollow.supervisor import NeedsCommand, Policy, Prepared, Supervisor

#: After its containers a sidecar has at least so long, whatever is left of the grace; as in a kubelet.
_LEAST_GRACE_S: Final = 2.0
#: MPI's file of hosts, in which names of gang members are replaced, too.
_HOSTFILE: Final = "FLOWSCHED_HOSTFILE"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the pods of all nodes share.

    Args:
        client: For Secrets, ConfigMaps and tokens.
        root: Everything is below it. Absolute.
        entry_points: Beginning of an image's name -> what it runs where a pod gives no command.
        resolve: Replaces names of gang members by addresses.
        back_off_s: Before the first restart of a container.
        changed: Has a pod's record reported.
    """

    client: Client
    root: Path
    entry_points: Mapping[str, Sequence[str]]
    resolve: Callable[[str], str]
    back_off_s: float
    changed: Callable[[Report], None]


class ProcessPod:
    """The life of one pod.

    Args:
        record: Kept up to date.
        workshop: What all share.
    """

    def __init__(self, record: PodRecord, workshop: Workshop) -> None:
        self.record = record
        self.report = Report(record)
        self.leave = Leave()
        self._shop = workshop
        self._place = volumes.Place(workshop.root, record.pod, record.host_ip, record.pod_ip)
        self._folders: Mapping[str, Path] = {}
        self._supervised = [self._supervisor(one) for one in record.containers]
        self._tasks: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        """Live to the end."""
        work = asyncio.create_task(self._work())
        told = asyncio.create_task(self.leave.within(deadline_s(self.record.pod)))
        try:
            await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            work.cancel()
            await asyncio.wait({work})
            grace_s = self.leave.grace_s if self.leave.given else self._grace_s
            await self._stop_all(grace_s)
            self._end()
            if not self.leave.given:
                overdue(self.record)
        finally:
            told.cancel()
            work.cancel()
            self.kill()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.to_thread(volumes.removed, self._place)

    def kill(self) -> None:
        """End at once."""
        self.leave.give(0.0)
        for one in self._supervised:
            one.kill()

    async def forget(self) -> None:
        """Remove its logs, as a kubelet does."""
        await asyncio.to_thread(shutil.rmtree, self._place.logs, ignore_errors=True)

    @property
    def _grace_s(self) -> float:
        return float(self.record.pod.spec.termination_grace_period_seconds)

    async def _work(self) -> None:
        """All containers in their order, to their ends."""
        await self._mount()
        for one in self._supervised:
            if not one.record.init:
                continue
            task = self._begin(one)
            if one.record.sidecar:
                await _either(task, one.started)
                continue
            await asyncio.wait({task})
            if not _succeeded(one.record):
                await self._stop_sidecars(self._grace_s)
                self._end()
                return
        mains = [self._begin(one) for one in self._supervised if not one.record.init]
        if mains:
            await asyncio.wait(mains)
        await self._stop_sidecars(self._grace_s)
        self._end()

    async def _mount(self) -> None:
        wait_s = self._shop.back_off_s
        while True:
            try:
                maps = await fetched(self._shop.client, self.record.pod, volumes.references(self.record.pod))
                self._folders = await asyncio.to_thread(volumes.mounted, self._place, maps)
                return
            except (env.Unresolved, Refused, Unreachable, Malformed, OSError) as error:
                self._wait_all(str(error))
            await asyncio.sleep(wait_s)

    def _wait_all(self, message: str) -> None:
        """Say why nothing has started yet. (A kubelet says it by an Event only.)"""
        for record in self.record.containers:
            if isinstance(record.state, Waiting):
                record.state = Waiting(record.state.reason, message)
        self._changed()

    def _begin(self, one: Supervisor) -> asyncio.Task[None]:
        task = one.begin()
        self._tasks.append(task)
        return task

    async def _stop_all(self, grace_s: float) -> None:
        """The containers together, then the sidecars from the last to the first, in what is left of the grace."""
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        others = [one for one in self._supervised if not one.record.sidecar]
        await asyncio.gather(*(one.stop(grace_s) for one in others))
        least_s = _LEAST_GRACE_S if grace_s > 0 else 0.0
        await self._stop_sidecars(max(end - loop.time(), least_s))

    async def _stop_sidecars(self, grace_s: float) -> None:
        for one in reversed(self._supervised):
            if one.record.sidecar:
                await one.stop(grace_s)

    def _end(self) -> None:
        """The phase that follows from how the main containers ended."""
        done = bool(self.record.mains) and all(map(_succeeded, self.record.mains))
        self.record.phase = "Succeeded" if done else "Failed"

    def _changed(self) -> None:
        if self.record.phase == "Pending" and all(one.has_run for one in self.record.mains):
            self.record.phase = "Running"
        self._shop.changed(self.report)

    def _supervisor(self, record: ContainerRecord) -> Supervisor:
        policy = "Always" if record.sidecar else self.record.pod.spec.restart_policy
        if record.init and not record.sidecar and policy == "Always":
            policy = "OnFailure"
        return Supervisor(
            record,
            cast("Policy", policy),
            self._prepare,
            self._changed,
            self._used,
            self._shop.back_off_s,
        )

    def _used(self, record: ContainerRecord, end: End) -> None:
        so_far = self.record.usage.get(record.container.name, {})
        self.record.usage[record.container.name] = {
            "cpu_ms": so_far.get("cpu_ms", 0) + end.cpu_ms,
            "max_rss_bytes": max(so_far.get("max_rss_bytes", 0), end.max_rss_bytes),
        }

    def _log(self, record: ContainerRecord) -> Path:
        return self._place.logs / record.container.name / f"{record.restarts}.log"

    async def _prepare(self, record: ContainerRecord) -> Prepared:
        """Resolve a container's environment and command.

        Raises:
            NeedsCommand, Unresolved, Refused, Unreachable, Malformed: It cannot be started now.
        """
        container, pod = record.container, self.record.pod
        folder = self._place.folder / "containers" / container.name
        mounted = _is_mounted(container, pod)
        ground = env.Ground(
            pod=pod,
            host_ip=self.record.host_ip,
            pod_ip=self.record.pod_ip,
            folders=self._folders,
            termination_log=folder / "termination-log",
            services=_services(self._shop.client.connection.url),
            maps=await fetched(self._shop.client, pod, env.references(container)),
            resolve=self._shop.resolve,
            mounted=mounted,
        )
        for mount in container.volume_mounts:
            place = ground.folders[mount.name] / mount.sub_path
            if not place.exists():  # a kubelet makes a subPath that is not there
                place.mkdir(parents=True)
        said = env.environment(container, ground)
        argv = env.command(container, said, _entry_point(self._shop.entry_points, container))
        if not argv:
            raise NeedsCommand(f"a hollow node has no images: {container.image} needs a command")
        if not record.init:
            hostfile = env.relocated(said.get(_HOSTFILE, ""), container, ground)
            await asyncio.to_thread(_resolve_hostfile, hostfile, self._shop.resolve)
        cwd = _cwd(container, ground, folder)
        command = Command(
            argv=await asyncio.to_thread(_in_view, own(argv), container, ground, folder, cwd)
            if mounted
            else own(argv),
            env=_base(pod.hostname, folder) | said,
            cwd=cwd,
            log=self._log(record),
            mark=f"{pod.metadata.uid}/{container.name}/{record.restarts}",
        )
        return Prepared(command, ground.termination_log, self.record.pod_ip)


async def _either(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for a task's end or an event."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _succeeded(record: ContainerRecord) -> bool:
    return isinstance(record.state, Terminated) and record.state.code == 0


def _base(hostname: str, folder: Path) -> dict[str, str]:
    """What an image would set. Nothing of our own environment but PATH goes into a container."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    tools = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": tools, "HOME": str(home), "TMPDIR": str(home), "HOSTNAME": hostname, "LANG": "C.UTF-8"}


def _services(url: str) -> dict[str, str]:
    """Where a pod finds the API server."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"KUBERNETES_SERVICE_HOST": parts.hostname or "", "KUBERNETES_SERVICE_PORT": str(port)}


def _entry_point(known: Mapping[str, Sequence[str]], container: Container) -> Sequence[str]:
    """What the image runs by itself, by the longest beginning of its name that is known."""
    fitting = [prefix for prefix in known if container.image.startswith(prefix)]
    return known[max(fitting, key=len)] if fitting else ()


def _cwd(container: Container, ground: env.Ground, folder: Path) -> Path:
    """The working folder: in a volume, or below a folder that stands for the image's file system."""
    asked = container.working_dir or "/"
    path = env.relocated(asked, container, ground)
    return Path(path) if path != asked else folder / "root" / asked.lstrip("/")


def _is_mounted(container: Container, pod: Pod) -> bool:
    """Whether a container's command looks for its volumes at their paths: then it gets a view of its own."""
    claims = {volume.name for volume in pod.spec.volumes if volume.persistent_volume_claim is not None}
    whole = {
        mount.name: mount.mount_path.rstrip("/") for mount in container.volume_mounts if not mount.sub_path
    }
    asked = any(
        mount.name in claims
        or (mount.sub_path and mount.mount_path != f"{whole.get(mount.name)}/{mount.sub_path}")
        for mount in container.volume_mounts
    )
    return asked and sys.platform == "linux" and os.geteuid() == 0


def _in_view(
    argv: Sequence[str], container: Container, ground: env.Ground, folder: Path, cwd: Path
) -> list[str]:
    """The command, started where its mounts are at their paths."""
    mounts = []
    for mount in container.volume_mounts:
        source = ground.folders[mount.name] / mount.sub_path
        mounts.append([str(source), mount.mount_path.rstrip("/") or "/", mount.read_only])
    asked = container.working_dir
    inside = env.relocated(asked, container, ground) != asked
    told = {"root": str(folder / "view"), "cwd": asked if inside else str(cwd), "mounts": mounts}
    folder.mkdir(parents=True, exist_ok=True)
    order = folder / "view.json"
    order.write_text(json.dumps(told))
    return [sys.executable, "-S", "-E", mounting.__file__, str(order), *argv]


def _resolve_hostfile(path: str | None, resolve: Callable[[str], str]) -> None:
    """Replace names in MPI's file of hosts."""
    if not path or not Path(path).is_file():
        return
    text = Path(path).read_text()
    Path(path).write_text(resolve(text))
