"""Settings, and the one place where everything is wired together."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from flowsched.errors import ConfigurationError, FlowschedError

if TYPE_CHECKING:
    from flowsched.cluster.kubernetes.settings import KubernetesSettings

DEFAULT_PORT: Final = 8470
IMAGES: Final = ("ignore", "refuse")
#: Crockford's alphabet in lower case: no i, l, o, u, so that ids can be read aloud.
#: When the garbage collector looks, see `spare_the_collector`.
COLLECT: Final = (25_000, 20, 50)
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


#: Nobody watches how much of a disk a task of this machine takes: what it says it needs is no reason to let it wait for ever.
_ANY_DISK: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service runs. Quantities as in workflow documents.

    Args:
        host: Where to listen; anything but loopback needs `token`.
        port: 0 = any free one.
        database: A path, `sqlite:///…` or `postgresql://…`; None = `flowsched.db` in `root`.
        root: Folder of the local cluster: nodes, caches, attempts, logs.
        nodes: Virtual nodes on this machine.
        cpu, memory: Of each node; None = this machine's, divided by the nodes.
        gpus: Of each node.
        disk_rate, nic_rate: Bytes/s (quantities) of each node's disk and network card.
        cache: What each node may keep of datasets: bytes (a quantity), or a part of the disk, divided by the nodes; 0 = all.
        piece_size: Datasets of twice this size or more move in pieces of it (a quantity); 0 = always as a whole.
        racks: Nodes are spread over so many racks.
        labels: Of nodes: `node-1:disktype=ssd`.
        policy: Name of a built-in profile.
        profile: A file with profiles, in YAML; they extend `policy`. Looked at again whenever it changes.
        images: What the local cluster does with a stage that names an image: `ignore` it, or `refuse` its tasks.
        token: Bearer token of the API; None = none is asked for (loopback only).
        keep_days: Workflows that ended longer ago are removed with their logs and data; 0 = never.
        take_over: Use a database that was used with another cluster (root): that one is gone for good.
        log_level, log_json: Of the log on stderr.
        kubernetes: The cluster that tasks run on; None = this machine.
        advertise: Where other replicas reach this one.
        cromwell: Cromwell servers that may be asked for the sources of runs, separated by commas.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    database: str | None = None
    root: Path = Path(".flowsched")
    nodes: int = 1
    cpu: str | None = None
    memory: str | None = None
    gpus: int = 0
    disk_rate: str = "500M"
    nic_rate: str = "125M"
    cache: str = "80%"
    piece_size: str = "128M"
    racks: int = 1
    labels: tuple[str, ...] = ()
    policy: str = "flowsched"
    profile: Path | None = None
    images: str = "ignore"
    token: str | None = None
    keep_days: float = 30.0
    take_over: bool = False
    log_level: str = "info"
    log_json: bool = False
    kubernetes: KubernetesSettings | None = None
    advertise: str | None = None
    cromwell: str = ""

    @property
    def replicated(self) -> bool:
        """Whether other processes may serve the same database: then each answers, and one of them leads."""
        return self.kubernetes is not None and self.url.startswith("postgres")

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.database or f"sqlite:///{self.root.absolute() / 'flowsched.db'}"


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs in this process."""

    url: str
    facade: Any  #: control.facade.Facade
    service: Any
    executor: Any


def new_id() -> str:
    """A workflow id: sorts by time, is a DNS label, and is not guessed (60 random bits)."""
    number = (int(time.time() * 1000) << 60) | secrets.randbits(60)
    digits = []
    for _ in range(21):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "w" + "".join(reversed(digits))


def now_ms() -> int:
    """Wall-clock ms."""
    return time.time_ns() // 1_000_000


def check(settings: Settings) -> None:
    """Refuse what would be unsafe or cannot work.

    Raises:
        ConfigurationError: With what to change.
    """
    from flowsched.scheduling.framework import PROFILES

    loopback = settings.host in ("localhost", "::1") or settings.host.startswith("127.")
    if not loopback and not settings.token:
        raise ConfigurationError(
            f"listening on {settings.host} needs a token: set FLOWSCHED_TOKEN or --token-file, or listen on 127.0.0.1"
        )
    if settings.images not in IMAGES:
        raise ConfigurationError(f"--images is {' or '.join(IMAGES)}, not {settings.images!r}")
    if settings.policy not in PROFILES:
        raise ConfigurationError(f"there is no policy {settings.policy!r}; there are {', '.join(PROFILES)}")


def configure_logging(settings: Settings) -> None:
    """Structlog to stderr: people's lines, or JSON."""
    renderer: Any
    if settings.log_json:
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    import logging

    level = getattr(logging, settings.log_level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


def local_cluster(settings: Settings, failpoint: Callable[[str], object]) -> Any:
    """The embedded default: virtual nodes on this machine."""
    from flowsched.cluster.local import LocalCluster
    from flowsched.cluster.machine import cache_limit, labelled, virtual_nodes
    from flowsched.cluster.runners import RunnerProcesses
    from flowsched.workflow.resources import parse_bytes, parse_cpu

    nodes = virtual_nodes(
        settings.nodes,
        cpu_millicores=parse_cpu(settings.cpu) if settings.cpu else None,
        memory_bytes=parse_bytes(settings.memory) if settings.memory else None,
        disk_bytes=_ANY_DISK,
        gpus=settings.gpus,
        disk_rate=parse_bytes(settings.disk_rate),
        nic_rate=parse_bytes(settings.nic_rate),
        racks=settings.racks,
        cache_bytes=cache_limit(settings.root, settings.cache, settings.nodes),
    )
    nodes = labelled(nodes, settings.labels)
    processes = RunnerProcesses(images="refuse" if settings.images == "refuse" else "ignore")
    return LocalCluster(settings.root.absolute(), nodes, processes=processes, failpoint=failpoint)


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    """Database, writer, executor, leader and service, wired; nothing leads yet.

    Yields:
        (service, leader, writer, executor)
    """
    from flowsched.control.cromwell import servers
    from flowsched.control.failpoints import from_environment
    from flowsched.control.history import ALONE_POLL_S, POLL_S, History
    from flowsched.control.intake import Documents
    from flowsched.control.leader import Leader
    from flowsched.control.profiles import ProfileBook
    from flowsched.control.runs import RunService
    from flowsched.scheduling.framework import PROFILES
    from flowsched.scheduling.transfers import parse_piece_size
    from flowsched.store.database import Database
    from flowsched.store.workflows import Workflows
    from flowsched.store.writer import GroupWriter

    check(settings)
    profiles = ProfileBook(PROFILES[settings.policy], path=settings.profile, clock=now_ms)
    failpoint = from_environment(os.environ)
    settings.root.mkdir(parents=True, exist_ok=True)
    executor = await _executor(settings, failpoint)
    async with await Database.open(settings.url) as database:
        reads = Workflows(database)
        alone = settings.url.startswith("sqlite")
        history = History(reads, ALONE_POLL_S if alone else POLL_S)
        documents = Documents(reads)
        async with GroupWriter(database, failpoint=failpoint) as writer:
            leader = Leader(
                database,
                writer,
                executor,
                history,
                documents,
                profile=profiles.profile,
                keep_days=settings.keep_days,
                piece_bytes=parse_piece_size(settings.piece_size),
                take_over=settings.take_over,
                holder=holder_of(settings),
                secret=_shared_secret(settings),
                clock=now_ms,
                monotonic=time.monotonic,
                failpoint=failpoint,
            )
            if settings.kubernetes is not None:
                executor.may_act = leader.holds
            service = RunService(
                database,
                writer,
                executor,
                history,
                documents,
                leader,
                clock=now_ms,
                new_id=new_id,
                failpoint=failpoint,
                replicated=settings.replicated,
                cromwell=servers(settings.cromwell),
                profiles=profiles,
            )
            yield service, leader, writer, executor


def holder_of(settings: Settings) -> str:
    """The name under which a service leads. It outlives a kill, so that the next start need not wait for the lease.

    Only one process at a time has it: whoever leads has locked the root before.
    """
    if settings.kubernetes is not None:  # no lock of a root says that there is only one
        at = f" at {settings.advertise}" if settings.advertise else ""
        return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{at}"
    root = settings.root.absolute()
    mark = hashlib.sha256(_secret(root) + os.fsencode(root)).hexdigest()[:12]
    return f"{socket.gethostname()}-{mark}"


async def _executor(settings: Settings, failpoint: Any) -> Any:
    """Where tasks run."""
    if settings.kubernetes is None:
        return local_cluster(settings, failpoint.now)
    from flowsched.cluster.kubernetes.settings import open_cluster

    return await open_cluster(settings.kubernetes, clock=now_ms, failpoint=failpoint)


def _shared_secret(settings: Settings) -> bytes:
    """What gang tokens are derived from: the same in all replicas, where there are several."""
    if settings.kubernetes is not None and settings.kubernetes.agent_key:
        return hashlib.sha256(b"gangs " + settings.kubernetes.agent_key.encode()).digest()
    return _secret(settings.root)


def _secret(root: Path) -> bytes:
    """The service's own secret (gang tokens are derived from it): made once, readable by its user alone."""
    path = root / "secret"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_bytes()
        if len(kept) == 32:
            return kept
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC, 0o600)
    made = secrets.token_bytes(32)
    with os.fdopen(descriptor, "wb") as file:
        file.write(made)
    return made


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Running]:
    """A whole service in this process: API on a socket, loops running, recovered and ready.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    from aiohttp import web

    from flowsched.api.server import build_api

    async with assembled(settings) as (service, leader, _, executor):
        app = build_api(service, token=settings.token)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        leading = asyncio.create_task(leader.run(), name="leader")
        planning = asyncio.create_task(service.plans.run(), name="plans")
        watching = asyncio.create_task(service.policies.run(), name="profile")
        try:
            if not settings.replicated:
                await _until_ready(service, leading)
            site = web.TCPSite(runner, settings.host, settings.port)
            try:
                await site.start()
            except OSError as error:
                raise ConfigurationError(
                    f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
                ) from error
            port = runner.addresses[0][1]
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            caller = asyncio.current_task()
            leading.add_done_callback(lambda done: _fall(done, caller))
            yield Running(f"http://{host}:{port}", service, service, executor)
        finally:
            await runner.cleanup()
            leading.cancel()
            planning.cancel()
            watching.cancel()
            await asyncio.gather(leading, planning, watching, return_exceptions=True)


def _fall(done: asyncio.Task[None], caller: asyncio.Task[Any] | None) -> None:
    """The leader's loops ended by themselves: so does the service (a supervisor starts it again)."""
    if not done.cancelled() and done.exception() is not None:
        structlog.get_logger(__name__).error(
            "the service stops", error=repr(done.exception()), exc_info=done.exception()
        )
        if caller is not None:
            caller.cancel()


async def _until_ready(service: Any, leading: asyncio.Task[None]) -> None:
    while not service.ready()[0]:
        if leading.done():
            leading.result()
        await asyncio.sleep(0.005)


async def serve(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM, also while it waits to lead. Running tasks go on; the next start adopts them."""
    serving = asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped and serving is not None:  # a second signal must not break off the end
            stopped = True
            serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    configure_logging(settings)
    gc.set_threshold(*COLLECT)
    try:
        async with running(settings) as service:
            spare_the_collector()
            structlog.get_logger(__name__).info(
                "ready", url=service.url, database=settings.url.split("@")[-1]
            )
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not stopped:
            raise FlowschedError("the service stopped by itself; its log says why") from None


def spare_the_collector() -> None:
    """Let the garbage collector look less often: a service keeps what it makes, and hardly any of it is in cycles.

    Python's defaults look after every 700 new objects, and took a third of the CPU of placing pods (`bench/kube`). What is
    there at the start is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


async def database_upgrade(url: str) -> str:
    """Bring a database's schema to this version; returns the revision."""
    from flowsched.store.database import Database

    async with await Database.open(url) as database:
        return str(await database.current())


async def database_facts(url: str) -> dict[str, Any]:
    """What `doctor` tells of a database (looks from beside: a running service is not disturbed)."""
    from flowsched.store.database import Database

    async with await Database.open(url, create=False, migrate=False, exclusive=False) as database:
        return await database.doctor()


async def database_expire(url: str, before_ms: int) -> int:
    """Remove workflows that ended before a time; returns how many."""
    from flowsched.control.tes_keeping import forget_ends, keep_ends
    from flowsched.store.database import Database
    from flowsched.store.recovery import remove_finished

    total = 0
    async with await Database.open(url) as database:
        await keep_ends(database, before_ms)
        while True:
            removed = await remove_finished(database, before_ms)
            total += removed.workflows
            if removed.workflows == 0 and removed.rows == 0:
                await forget_ends(database, before_ms, now_ms())
                return total
