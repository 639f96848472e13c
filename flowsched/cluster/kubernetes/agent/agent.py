"""The node agent, wired together: its settings, its folders, and the loop that removes what is over."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from flowsched.background import BackgroundTasks
from flowsched.clock import ServiceClock
from flowsched.cluster.kubernetes.agent.events import EventLog
from flowsched.cluster.kubernetes.agent.ledger import Ledger, Volumes
from flowsched.cluster.kubernetes.agent.logs import Logs
from flowsched.cluster.kubernetes.agent.outputs import Publisher
from flowsched.cluster.kubernetes.agent.pods import Pods
from flowsched.cluster.kubernetes.agent.sources import Sources, SsrfGuard
from flowsched.cluster.kubernetes.agent.transfers import Transfers
from flowsched.cluster.kubernetes.agent.trees import Link, no_link
from flowsched.cluster.kubernetes.agent_keys import bearer_of
from flowsched.cluster.local.runner.uploads import Stores
from flowsched.cluster.node.cache import Cache, Entry
from flowsched.cluster.node.folder_lock import lock_folder
from flowsched.cluster.node.identities import Identities
from flowsched.cluster.node.meter import INTERVAL_S, Meter
from flowsched.cluster.node.origins import Origins
from flowsched.cluster.node.rates import Rates
from flowsched.errors import ConfigurationError
from flowsched.log_lines import get_logger
from flowsched.options import Option
from flowsched.workflow.resources import parse_bytes

PORT: Final = 8475
#: A key shorter than this could be guessed.
SHORTEST_KEY: Final = 16
#: How long logs and results are kept.
KEPT_DAYS: Final = 7.0
KEPT_LOG_BYTES: Final = 10 << 30
#: A folder whose place follows from another one.
_DERIVED: Final = Path()
#: A kubelet looks at its containers once a second before it removes their logs, so all are open by then.
FOLLOW_LOGS_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """A node agent's settings: options of `flowsched agent`, and what only tests set.

    Args:
        key: The secret that the service and all agents share; see `agent_keys` for what is derived from it.
        cache: Without one mount with `pods` nothing can be linked; link(2) minds the mount.
        cache_bytes: The limit of the cache. The service decides what a full cache drops.
        networks: See `SsrfGuard`.
        copies: A runtime labels what lies in a pod's volume for that pod alone, and a linked file has one label for all.
        kept_log_bytes: At most so much of them; the oldest go first. 0 = no limit.
        long_poll_s: How long a pod's step is kept waiting before it is told to ask again.
        heartbeat_s: How often a follower of events hears something.
        stall_s: The agent closes the connection of a reader that takes nothing for so long.
        sweep_s: How often the agent looks which pods are gone.
        host_root: See `Meter`.
        measure_s: How often the node's disk and network are measured.
    """

    node: Annotated[str, Option("Its node's name.", variable="FLOWSCHED_NODE NODE_NAME")]
    key: bytes = field(repr=False)
    host: Annotated[str, Option("Where to listen.")] = "127.0.0.1"
    port: Annotated[int, Option("0 takes any free one.", least=0, most=65535)] = PORT
    cache: Annotated[
        Path,
        Option(
            "The node's datasets; on one mount with --pods. [/var/lib/kubelet/plugins/flowsched.io/cache]"
        ),
    ] = Path("/var/lib/kubelet/plugins/flowsched.io/cache")
    cache_bytes: Annotated[
        int, Option("What it may hold, such as 100Gi. [no limit]", "--cache-size", parse=parse_bytes)
    ] = 0
    state: Annotated[Path, Option("What the agent remembers; on one mount with --cache. [beside it]")] = (
        _DERIVED
    )
    pods: Annotated[Path, Option("The kubelet's folder of pods. [/var/lib/kubelet/pods]")] = Path(
        "/var/lib/kubelet/pods"
    )
    logs: Annotated[Path, Option("The kubelet's folder of logs. [/var/log/pods]")] = Path("/var/log/pods")
    kept_logs: Annotated[Path, Option("Logs that outlive pods. [in --state]")] = _DERIVED
    kept_days: Annotated[
        float, Option("How long logs and results of pods are kept.", "--keep-days", least=0)
    ] = KEPT_DAYS
    disk_rate: Annotated[
        int, Option("Bytes a second of its disk. [as fast as it goes]", parse=parse_bytes)
    ] = 0
    nic_rate: Annotated[
        int, Option("Bytes a second of its network card. [as fast as it goes]", parse=parse_bytes)
    ] = 0
    parallel: Annotated[int, Option("Transfers at a time.", least=1, most=64)] = 4
    schemes: Annotated[
        tuple[str, ...],
        Option(
            "Of origins that may be fetched from. Repeatable. [http, https, s3]", "--scheme", repeated=True
        ),
    ] = ("http", "https", "s3")
    roots: Annotated[
        tuple[Path, ...],
        Option(
            "Below which files of the node may be inputs (file:). Repeatable. [none]",
            "--root", repeated=True, parse=Path,
        ),
    ] = ()  # fmt: skip
    networks: Annotated[
        tuple[str, ...],
        Option(
            "A private range that HTTP origins may lie in, such as 10.0.0.0/8. Repeatable. [none]",
            "--network", repeated=True,
        ),
    ] = ()  # fmt: skip
    copies: Annotated[bool, Option("Copy inputs, never link them: where SELinux is enforcing.")] = False
    write_objects: Annotated[
        bool, Option("Write outputs of pods to object stores, with the credentials of the agent.")
    ] = False
    host_root: Annotated[
        Path | None,
        Option(
            "Where the host's proc and sys/fs/cgroup are: disk, network and pods are measured. [they are not]"
        ),
    ] = None
    kept_log_bytes: int = KEPT_LOG_BYTES
    long_poll_s: float = 20.0
    heartbeat_s: float = 10.0
    stall_s: float = 60.0
    sweep_s: float = 30.0
    measure_s: float = INTERVAL_S

    def __post_init__(self) -> None:
        """Refuse what cannot work, and derive the folders that are not given.

        Raises:
            ConfigurationError: The key is too short, or a range is none.
        """
        if self.state == _DERIVED:
            object.__setattr__(self, "state", self.cache.parent / "state")
        if self.kept_logs == _DERIVED:
            object.__setattr__(self, "kept_logs", self.state / "logs")
        if len(self.key) < SHORTEST_KEY or not self.key.isascii() or not self.key.decode().isprintable():
            raise ConfigurationError(
                f"the agents' key must have {SHORTEST_KEY} printable ASCII characters or more: `openssl rand -hex 32`"
            )
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ConfigurationError(f"{network!r} is no range of addresses: {error}") from None

    @property
    def origins(self) -> Origins:
        """The origins that the agent may fetch from: by scheme, folder and address."""
        guarded = (("get_client", SsrfGuard(self.networks)),)
        return Origins(self.roots, frozenset(self.schemes), options=(("http", guarded), ("https", guarded)))


# ---- the agent ----


log = get_logger(__name__)

#: How long to wait for a predecessor to let go of the folders: a rolling update may overlap.
PREDECESSOR_S: Final = 10.0
_DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class Carried:
    """The measured bytes that the node's disk and network card have carried for all programs since the agent started."""

    disk_bytes: int = 0
    came_bytes: int = 0
    went_bytes: int = 0

    def add(self, load: Mapping[str, Any]) -> None:
        """Add one measurement, as `Meter.measure` returns it."""
        came, went = load.get("card", (0, 0))
        self.disk_bytes += load.get("disk_bytes", 0)
        self.came_bytes += came
        self.went_bytes += went


class Agent:
    """A node agent without its door (see `server`).

    Args:
        settings: Of this node.
        link: Makes hard links; default `os.link`, if the settings have it.
        clock: ms since the epoch; default: of a `ServiceClock`, since a wall clock that is set would end what is kept for days,
            and every order, at once.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        link: Link | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        clock = clock or ServiceClock(jumped=_log_jump).now_ms
        self.settings = settings
        self.instance = secrets.token_hex(8)
        self.news = EventLog(self.instance)
        self.cache = Cache(settings.cache, settings.cache_bytes)
        self.rates = Rates(settings.disk_rate, settings.nic_rate)
        self.volumes = Volumes(settings.pods)
        self.ledger = Ledger(settings.state / "pods")
        self.logs = Logs(settings.logs, settings.kept_logs, self.volumes.has, clock)
        self.out_bytes = 0
        self.evicted_datasets = 0
        self.evicted_bytes = 0
        self.measured = Carried()
        self._clock = clock
        self._link = link or (no_link if settings.copies else os.link)
        self._publisher = Publisher(self.cache, settings.state / "outgoing")
        self.identities = Identities(settings.origins)
        self._sources = Sources(settings.origins, bearer_of(settings.key))
        self._meter = Meter(settings.cache, settings.host_root) if settings.host_root is not None else None
        self._loops = BackgroundTasks("the agent")
        self._lock: int | None = None
        self.well = False  #: whether its loops go on

    async def open(self) -> None:
        """Take the folders, and read what is there.

        Raises:
            ConfigurationError: Another agent has them.
        """
        state = self.settings.state
        # Another container has pids of its own: the other agent's pid would say nothing.
        busy = f"another agent works in {state}: stop it, or use another folder"
        self._lock = await lock_folder(state, PREDECESSOR_S, lambda _: busy)
        await asyncio.to_thread(self._read)
        self.transfers = Transfers(
            self.settings.node, self.cache, self._sources, self.rates, self.news, self.settings.parallel
        )
        self.pods = Pods(
            self.volumes, self.logs.pod_of, self.cache, self.transfers, self.ledger, self._publisher, self.news,
            self._clock, self._link, Stores({"options": {}}) if self.settings.write_objects else None,
            self.identities, self._used_by, self.logs.follow,
        )  # fmt: skip
        if self._meter is not None:
            self._loops.keep(partial(self._measure, self._meter), "meter")
        self._loops.keep(self._sweep, "sweeper")
        self._loops.keep(self._follow_logs, "logs")
        self.well = True
        same = await asyncio.to_thread(same_mount, self.settings.cache, self.volumes.pods)
        if not same and not self.settings.copies:
            log.warning(
                "cache and pods are on different mounts: inputs are copied, not linked",
                cache=str(self.settings.cache),
                pods=str(self.volumes.pods),
            )

    async def close(self) -> None:
        """Let go. The next start resumes or removes half-done work."""
        if self._lock is None:
            return
        self._sources.close()
        if self.well:
            self.well = False
            await self._loops.close()
            await self.pods.close()
            await self.transfers.close()
        os.close(self._lock)
        self._lock = None

    async def evict(self, uri: str) -> bool | None:
        """Remove a dataset; None if it was not there, False if it is in use."""
        if await self.pods.in_use(uri):
            return False
        entry: Entry | None = await asyncio.to_thread(self.cache.evict, uri)
        if entry is None:
            return None
        self.evicted_datasets += 1
        self.evicted_bytes += entry.size_bytes
        self.news.replica(uri, entry.size_bytes, present=False)
        return True

    # --- opening ---------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self.cache.scan()
        self.ledger.open()
        self.logs.open()
        for uid, pod in self.ledger.pods():
            self.logs.follow(uid, pod)

    # --- what is measured ------------------------------------------------------------------------------------

    async def _measure(self, meter: Meter) -> None:
        """Report every few seconds the bytes that this node carries."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            now = loop.time()
            copied = (self.rates.came_bytes, self.out_bytes)
            load = await asyncio.to_thread(meter.measure, copied, round((now - last) * 1000))
            last = now
            if load is not None:
                self.measured.add(load)
                self.news.measured(load)
            await asyncio.sleep(self.settings.measure_s)

    def _used_by(self, uid: str) -> dict[str, int]:
        """The usage of a pod so far, where it can be measured. Blocks."""
        return self._meter.used(uid) if self._meter is not None else {}

    # --- what is over ----------------------------------------------------------------------------------------

    async def _follow_logs(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_LOGS_S)
            await asyncio.to_thread(self.logs.refresh)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            before_ms = self._clock() - int(self.settings.kept_days * _DAY_MS)
            await self.pods.sweep(before_ms)
            await asyncio.to_thread(self.logs.expire, before_ms, self.settings.kept_log_bytes)


def _log_jump(jump_ms: int) -> None:
    """The node's wall clock was set: the agent goes on as before."""
    log.warning(
        "the wall clock jumped; this agent follows it by 1 %: restart it to take it over", by_s=jump_ms / 1000
    )


def same_mount(one: Path, other: Path) -> bool:
    """Whether hard links are possible from one folder to another: link(2) minds the mount, not the file system."""
    return _mount(one) == _mount(other)


def _mount(folder: Path) -> str:
    """The mount a folder lies on, by the kernel's number; the device's where there is no /proc."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            return next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        return str(os.fstat(fd).st_dev)
    finally:
        os.close(fd)
