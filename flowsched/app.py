"""Settings, and the one place where everything is wired together."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import hashlib
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from flowsched import listening, supervisor
from flowsched.background import BackgroundTasks
from flowsched.clock import ServiceClock, elapsed_s
from flowsched.cluster.kubernetes.settings import KubernetesSettings
from flowsched.cluster.local.runner.uploads import EXTRAS
from flowsched.cluster.local.settings import LocalSettings
from flowsched.cluster.node.space import Space
from flowsched.errors import ConfigurationError, FlowschedError, LeadershipLost, NotFound, no_such
from flowsched.log_lines import LEVELS, configure_logging, get_logger
from flowsched.options import Option
from flowsched.private import make_root
from flowsched.values import replace

if TYPE_CHECKING:
    from flowsched.api.connections import Connections
    from flowsched.control.admission import LiveLimits
    from flowsched.control.leading.leader import TermSettings
    from flowsched.control.profiles import ProfileBook
    from flowsched.control.service import Service
    from flowsched.workflow.spec import StageSpec

DEFAULT_PORT: Final = 8470
IMAGES: Final = ("use", "ignore")
#: When the garbage collector looks, see `spare_the_collector`. Its second generation has 100,000 new objects at most: 500,000
#: held the event loop for 180 ms.
COLLECT: Final = (25_000, 4, 250)
#: The same until a service has recovered: its new objects stay, and visiting them again and again took a tenth of a restart with
#: 100,000 pods (`bench/kube/restart.py`), which makes 2 million objects. The bound is for a start that waits long for a database.
COLLECT_STARTING: Final = (5_000_000, 4, 250)
#: Of glibc's malloc.h; blocks from this size on are mapped by themselves (its own first value is 128 KiB).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MMAPPED_BYTES: Final = 1 << 20
#: Freed memory goes back this long after the last of some large workflows has left: the parts that answers and steps still held are
#: free by then. After 2 s it was not yet (bench/poison.py --kinds stages).
TRIM_S: Final = 10.0
#: How long a service that finds no room for its root waits before it tries again.
_ROOM_PAUSE_S: Final = 1.0
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def key_value(text: str) -> tuple[str, str]:
    """Read `KEY=VALUE`.

    Raises:
        ValueError: It is of another form.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{key!r} is no KEY=VALUE")
    return key, value


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of all workflows that have not ended, together. The service refuses requests beyond them."""

    max_live_tasks: Annotated[
        int, Option("Tasks of all workflows that have not ended; more is refused (429).", least=1)
    ] = 10_000_000
    max_live_bytes: Annotated[str, Option("Bytes of the documents of all workflows that have not ended.")] = (
        "128Mi"
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where the service finds the WDL of other engines' runs."""

    cromwell: Annotated[
        str,
        Option(
            "Cromwell servers that may be asked for the WDL of runs and how they ended, by commas.",
            variable="FLOWSCHED_CROMWELL", metavar="URLS",
        ),
    ] = ""  # fmt: skip
    wdl_path: Annotated[
        str,
        Option(
            "Where imported WDL lies, by colons: URLs, and what is not beside its importer.",
            variable="FLOWSCHED_WDL_PATH", metavar="FOLDERS",
        ),
    ] = ""  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """How a service runs. `flowsched serve` has an option for each field that declares one.

    Args:
        token: Bearer token of the API; None = none is asked for (loopback only).
        local: This machine, where tasks run unless `cluster` names another executor.
        kubernetes: The Kubernetes cluster that tasks run on; None = tasks run on `cluster`.
    """

    host: Annotated[str, Option("Where to listen; anything but loopback needs a token.")] = "127.0.0.1"
    port: Annotated[int, Option("0 takes any free one.", least=0, most=65535)] = DEFAULT_PORT
    database: Annotated[
        str | None,
        Option("A path, sqlite:///… or postgresql://…. [in the root]", "--db", variable="FLOWSCHED_DATABASE"),
    ] = None
    root: Annotated[
        Path,
        Option(
            "Folder for data, logs and the database. [~/.local/share/flowsched]", variable="FLOWSCHED_ROOT"
        ),
    ] = Path(".flowsched")
    local: LocalSettings = field(default_factory=LocalSettings)
    piece_size: Annotated[
        str,
        Option(
            "Datasets of twice this size or more move in pieces of it; 0 = always as a whole.",
            variable="FLOWSCHED_PIECE_SIZE",
        ),
    ] = "128M"
    policy: Annotated[str, Option("How to schedule.")] = "flowsched"
    profile: Annotated[
        Path | None,
        Option(
            "A file with profiles in YAML, which extend --policy; looked at again whenever it changes.",
            variable="FLOWSCHED_PROFILE", metavar="FILE",
        ),
    ] = None  # fmt: skip
    token: str | None = None
    keep_days: Annotated[
        float, Option("Remove what ended longer ago, with its logs and data; 0 keeps all.", least=0)
    ] = 30.0
    cache_content: Annotated[
        str,
        Option(
            "How the cache of results knows files of this machine: time (size and time of change) or hash (SHA-256).",
            variable="FLOWSCHED_CACHE_CONTENT",
        ),
    ] = "time"
    limits: LimitSettings = field(default_factory=LimitSettings)
    take_over: Annotated[bool, Option("The database's former root is gone: end its tasks.")] = False
    log_level: Annotated[str, Option("debug, info, warning, error or critical.")] = "info"
    log_json: Annotated[bool, Option("One JSON object per line of log.")] = False
    cluster: Annotated[
        str,
        Option(
            "Where tasks run: local (this machine), kubernetes, or the executor of another package.",
            variable="FLOWSCHED_CLUSTER", metavar="NAME",
        ),
    ] = "local"  # fmt: skip
    cluster_options: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "For the executor of another package. Repeatable.", "--cluster-option", metavar="KEY=VALUE",
            repeated=True, parse=key_value,
        ),
    ] = ()  # fmt: skip
    kubernetes: KubernetesSettings | None = None
    advertise: Annotated[
        str | None,
        Option("URL at which other replicas reach this process.", variable="FLOWSCHED_ADVERTISE"),
    ] = None
    engines: EngineSettings = field(default_factory=EngineSettings)

    @property
    def executor(self) -> str:
        """Name of the executor."""
        return self.cluster if self.kubernetes is None else "kubernetes"

    @property
    def replicated(self) -> bool:
        """Whether other processes may serve the same database: then each answers, and one of them leads."""
        return self.kubernetes is not None and self.url.startswith("postgres")

    @property
    def url(self) -> str:
        """The database's URL. A bare path is SQLite's."""
        if self.database is not None and "://" in self.database:
            return self.database
        return f"sqlite:///{Path(self.database or self.root / 'flowsched.db').absolute()}"


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs in this process."""

    url: str
    service: Any  #: control.service.Service
    executor: Any


def new_id() -> str:
    """A workflow id: sorts by time, is a DNS label, and is not guessed (60 random bits)."""
    number = (int(time.time() * 1000) << 60) | secrets.randbits(60)
    return "w" + "".join([_ALPHABET[number >> shift & 31] for shift in range(100, -1, -5)])


def now_ms() -> int:
    """Wall-clock ms."""
    return time.time_ns() // 1_000_000


def check(settings: Settings) -> None:
    """Refuse settings that would be unsafe or cannot work.

    Raises:
        ConfigurationError: With what to change.
    """
    from flowsched.cluster.local.containers import CHOICES
    from flowsched.cluster.registry import BUILT_IN
    from flowsched.scheduling.policy.framework import PROFILES

    check_address(settings)
    if settings.cluster_options and settings.executor in BUILT_IN:
        raise ConfigurationError(
            f"--cluster-option is for executors of other packages; {settings.executor} has options of its own: "
            "flowsched serve --help"
        )
    if settings.log_level.lower() not in LEVELS:
        raise ConfigurationError(
            f"--log-level is {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {settings.log_level!r}"
        )
    if settings.local.images not in IMAGES:
        raise ConfigurationError(f"--images is {' or '.join(IMAGES)}, not {settings.local.images!r}")
    if settings.cache_content not in ("time", "hash"):
        raise ConfigurationError(f"--cache-content is time or hash, not {settings.cache_content!r}")
    if settings.local.containers not in CHOICES:
        raise ConfigurationError(
            f"--containers is {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, not {settings.local.containers!r}"
        )
    if settings.policy not in PROFILES:
        raise ConfigurationError(f"there is no policy {settings.policy!r}; there are {', '.join(PROFILES)}")


#: A token of fewer characters is warned of; those that flowsched makes have 32.
SHORT_TOKEN: Final = 16


def check_address(settings: Settings) -> None:
    """Refuse to listen where other machines can ask, without a token.

    Raises:
        ConfigurationError: With what to change.
    """
    if not _loopback(settings.host) and not settings.token:
        raise ConfigurationError(
            f"listening on {settings.host} needs a token: set FLOWSCHED_TOKEN or --token-file (or leave out --no-token), "
            "or listen on 127.0.0.1"
        )


def cautions(settings: Settings, host: str) -> list[str]:
    """Warnings of accepted settings that may be unsafe: a short token, and an address of `host` that other machines reach.

    On Kubernetes a Service and an Ingress are in front of the address.
    """
    found = []
    if settings.token is not None and len(settings.token) < SHORT_TOKEN:
        found.append(
            f"the token has {len(settings.token)} characters, fewer than {SHORT_TOKEN}, and can be guessed: "
            "make one with `openssl rand -hex 32`"
        )
    if settings.kubernetes is None and not _loopback(host):
        found.append(
            f"{host} is reached from other machines, and the token crosses the network unencrypted unless a proxy with TLS is in "
            "front: docs/owner.md#tls-and-other-machines"
        )
    return found


def left_behind(settings: Settings) -> str:
    """The warning of a root whose SQLite file has workflows, while another database was chosen; "" where none is due.

    Raises:
        ConfigurationError: A workflow in it has not ended: its tasks may run, and a service that does not know them ends them.
    """
    import sqlite3

    file = settings.root.absolute() / "flowsched.db"
    if settings.database is None or settings.kubernetes is not None or not file.exists():
        return ""
    from flowsched.store.database import sqlite_file

    if sqlite_file(settings.url) == file:
        return ""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            query = "SELECT count(*), coalesce(sum(ended_ms IS NULL), 0) FROM workflows"
            number, live = connection.execute(query).fetchone()
            with suppress(sqlite3.Error):  # an older schema
                if connection.execute("SELECT 1 FROM identity WHERE name = 'moved_to'").fetchone():
                    return ""  # the other database has them now
    except sqlite3.Error:
        return ""  # it is no database of flowsched's
    chosen = settings.url.split("@")[-1]
    if live:
        raise ConfigurationError(
            f"{live} of the {number} workflows in {file} have not ended, and {chosen} does not know them: their tasks would be "
            f"ended. Take them along: `flowsched db move {file} TO`; or start the service without --db (or FLOWSCHED_DATABASE) and "
            "let them end or cancel them"
        )
    return (
        f"{file} has {number} workflows that {chosen} does not have: its history and queues stay there, and are not read "
        f"(`flowsched db move {file} TO` takes them along to an empty database)"
        if number
        else ""
    )


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


@asynccontextmanager
async def assembled(settings: Settings) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    """Database, writer, executor, leader and service, wired; nothing leads yet.

    Yields:
        (service, leader, writer, executor)
    """
    from flowsched.control.documents import Documents
    from flowsched.control.history import ALONE_POLL_S, POLL_S, History
    from flowsched.control.leading.failpoints import from_environment
    from flowsched.control.leading.leader import Leader
    from flowsched.control.planning.plans import servers
    from flowsched.control.planning.wdl_path import folders
    from flowsched.control.service import Service
    from flowsched.control.tracing import tracing
    from flowsched.store.database import Database
    from flowsched.store.workflows import Workflows
    from flowsched.store.writer import GroupWriter

    check(settings)
    service_clock = ServiceClock(jumped=_log_jump)
    clock = service_clock.now_ms
    profiles = _profiles(settings, clock)
    failpoint = from_environment(os.environ)
    make_root(settings.root)
    disk = _database_disk(settings)
    leading: list[Leader] = []
    executor = await _executor(
        settings, failpoint, clock, disk, lambda: all(one.leadership.holds() for one in leading)
    )
    async with Database.attach(settings.url) as database:  # the leader settles it once it answers
        reads = Workflows(database)
        history = History(reads, ALONE_POLL_S if settings.url.startswith("sqlite") else POLL_S)
        documents = Documents(reads)
        async with tracing(reads) as traces, GroupWriter(database, failpoint=failpoint) as writer:
            leader = Leader(
                database,
                writer,
                executor,
                documents,
                profile=profiles.profile,
                settings=_term_settings(settings, clock),
                take_over=settings.take_over,
                holder=holder_of(settings),
                secret=_shared_secret(settings),
                clock=clock,
                monotonic=elapsed_s,
                failpoint=failpoint,
                traces=traces,
                set_clock=service_clock.set_to,
            )
            leading.append(leader)
            writer.refusal = _full_disk(settings, database, executor, disk)
            service = Service(
                database,
                writer,
                executor,
                history,
                documents,
                leader,
                clock=clock,
                new_id=new_id,
                failpoint=failpoint,
                replicated=settings.replicated,
                cromwell=servers(settings.engines.cromwell),
                wdl_path=folders(settings.engines.wdl_path),
                profiles=profiles,
                limits=_live_limits(settings.limits),
                refusal=_refusal(settings) if settings.executor == "local" else None,
                root=settings.root.absolute() if settings.executor == "local" else None,
            )
            yield service, leader, writer, executor


def _term_settings(settings: Settings, clock: Callable[[], int]) -> TermSettings:
    """The settings of each term of a leader."""
    from flowsched.control.leading.leader import TermSettings
    from flowsched.scheduling.transfers import parse_piece_size

    return TermSettings(
        keep_days=settings.keep_days,
        retention_clock=lambda: min(clock(), now_ms()),  # the earlier one: it removes less
        root=settings.root.absolute() if settings.executor == "local" else None,
        piece_bytes=parse_piece_size(settings.piece_size),
        shrink=FreedMemory().give_back_soon,
        cache_by_content=settings.cache_content == "hash",
    )


def _profiles(settings: Settings, clock: Callable[[], int]) -> ProfileBook:
    """The scheduler's policy, and the file that it is read from."""
    from flowsched.control.profiles import ProfileBook
    from flowsched.scheduling.policy.framework import PROFILES

    return ProfileBook(PROFILES[settings.policy], path=settings.profile, clock=clock)


def _database_disk(settings: Settings) -> Space | None:
    """The room of a database file that the local cluster keeps an eye on; None if the database is another one."""
    from flowsched.store.database import sqlite_file

    file = sqlite_file(settings.url) if settings.executor == "local" else None
    return None if file is None else Space(file.parent)


def _live_limits(limits: LimitSettings) -> LiveLimits:
    from flowsched.control.admission import LiveLimits
    from flowsched.workflow.resources import parse_bytes, parse_option

    most_bytes = parse_option("--max-live-bytes", parse_bytes, limits.max_live_bytes)
    return LiveLimits(limits.max_live_tasks, most_bytes)


def _refusal(settings: Settings) -> Callable[[str, bool], str]:
    """Why a task may not read or write a path, or a URL of a scheme (`s3://`); "" if it may."""
    bounds = settings.local.bounds(str(settings.root.absolute()))

    def refusal(path: str, whole: bool) -> str:
        scheme, is_url, _ = path.partition("://")
        if not is_url:
            return bounds.refusal(path, whole=whole)
        return (
            ""
            if find_spec("s3fs")
            else f"the service has no client for {scheme}:// URLs; install it: {EXTRAS[scheme]}"
        )

    return refusal


def holder_of(settings: Settings) -> str:
    """The name under which a service leads. It outlives a kill, so that the next start need not wait for the lease.

    Only one process at a time has it: it has locked the root of the local cluster, or the file of SQLite, before.
    """
    locked = settings.executor == "local" or settings.url.startswith("sqlite")
    if not locked:  # several processes may ask for the lease
        at = f" at {settings.advertise}" if settings.advertise else ""
        return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{at}"
    root = settings.root.absolute()
    mark = hashlib.sha256(_secret(root) + os.fsencode(root)).hexdigest()[:12]
    return f"{socket.gethostname()}-{mark}"


def _log_jump(jump_ms: int) -> None:
    """The wall clock was set: nothing here jumps with it, but its times differ from those of the machine's other logs."""
    get_logger(__name__).warning(
        "the wall clock jumped; times here go on as before and follow it by 1 %: restart the service to take it over",
        by_s=jump_ms / 1000,
    )


def _full_disk(settings: Settings, database: Any, executor: Any, disk: Space | None) -> Callable[[], str]:
    """Why new work is refused for want of room on the disk; "" = it is not."""
    if disk is None:
        return lambda: ""
    shared = database.shares_disk(settings.root)
    return lambda: executor.trouble if shared else disk.trouble


async def _executor(
    settings: Settings,
    failpoint: Any,
    clock: Callable[[], int],
    disk: Space | None,
    may_act: Callable[[], bool],
) -> Any:
    """Where tasks run. `disk`: of the database, if it is a file."""
    from flowsched.cluster.registry import open_executor
    from flowsched.executor.protocol import ServiceContext

    chosen: Any = dict(settings.cluster_options)
    if settings.kubernetes is not None:
        chosen = settings.kubernetes
    elif settings.executor == "local":
        chosen = replace(settings.local, beside=() if disk is None else (disk,))
    root = str(settings.root.absolute())
    service = ServiceContext(root, clock, may_act, failpoint, failpoint.now)
    return await open_executor(settings.executor, chosen, service)


def _shared_secret(settings: Settings) -> bytes:
    """The secret of which gang tokens are derived: the same in all replicas, where there are several."""
    if settings.kubernetes is not None and settings.kubernetes.agent_key:
        return hashlib.sha256(b"gangs " + settings.kubernetes.agent_key.encode()).digest()
    return _secret(settings.root)


def _secret(root: Path) -> bytes:
    """The service's own secret (gang tokens are derived from it): made once, readable by its user alone."""
    path = root / "secret"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) == 32:
            return secret
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC, 0o600)
    made = secrets.token_bytes(32)
    with os.fdopen(descriptor, "wb") as file:
        file.write(made)
    return made


@asynccontextmanager
async def running(
    settings: Settings, sockets: Sequence[socket.socket] = (), accepted: Callable[[], object] = lambda: None
) -> AsyncIterator[Running]:
    """A whole service in this process: API on a socket, loops running, recovered and ready.

    The sockets answer before that, from the database; a replica of several is handed out without waiting.

    Args:
        settings: How it runs.
        sockets: It listens on these; none = it binds `host` and `port` itself. Closed at its end.
        accepted: Called once the port is open and nothing of the configuration can be refused any more; recovery follows.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    async with _led(settings, partial(_listening, settings, sockets), accepted) as service:
        yield service


@asynccontextmanager
async def alone(settings: Settings) -> AsyncIterator[Running]:
    """The same without a port: only this process asks it.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    async with _led(settings, lambda _: nullcontext(""), lambda: None) as service:
        yield service


@asynccontextmanager
async def _led(
    settings: Settings,
    opened: Callable[[Service], AbstractAsyncContextManager[str]],
    accepted: Callable[[], object],
) -> AsyncIterator[Running]:
    """A service that leads. `opened`: opens its port, and gives its URL."""
    async with assembled(settings) as (service, leader, _, executor):
        leading = asyncio.create_task(leader.run(), name="leader")
        fall = partial(_fall, caller=asyncio.current_task())
        loops = BackgroundTasks("the service")
        loops.keep(service.plans.run, "plans")
        loops.keep(service.late_ranks.run, "ranks")
        loops.keep(service.engine_ends.run, "ends of runs")
        loops.keep(service.policies.run, "profile")
        try:
            # The port first: a service that waits or recovers answers reads, takes cancels, and reports its progress in /readyz.
            async with opened(service) as url:
                if not settings.replicated:
                    await _until(lambda: leader.leadership.accepted, leading)
                    accepted()
                if url:
                    get_logger(__name__).info("listening", url=url)
                if not settings.replicated:
                    await _until(lambda: service.ready()[0], leading)
                leading.add_done_callback(fall)
                yield Running(url, service, executor)
        finally:
            await loops.close()
            leading.remove_done_callback(fall)
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)


@asynccontextmanager
async def _listening(
    settings: Settings, sockets: Sequence[socket.socket], service: Service
) -> AsyncIterator[str]:
    """The API of a service on its port."""
    from flowsched.api.connections import Connections
    from flowsched.api.server import build_api, runner_of

    connections = Connections()
    runner = runner_of(build_api(service, token=settings.token, connections=connections))
    await runner.setup()
    servers: Sequence[asyncio.Server] = ()
    try:
        servers = await _listen(connections, runner.server, settings, sockets)
        yield _url_of(settings, servers)
    finally:
        for server in servers:
            server.close()
        await runner.cleanup()


async def _listen(
    connections: Connections, protocols: Any, settings: Settings, sockets: Sequence[socket.socket]
) -> Sequence[asyncio.Server]:
    """Open the port.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    if not sockets:
        sockets = await asyncio.to_thread(listening.bound, settings.host, settings.port)
    return await connections.listen(protocols, sockets, listening.BACKLOG)


def _url_of(settings: Settings, servers: Sequence[asyncio.Server]) -> str:
    """The URL of the service."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{servers[0].sockets[0].getsockname()[1]}"


def _fall(done: asyncio.Task[None], caller: asyncio.Task[Any] | None) -> None:
    """The leader's loops ended by themselves: so does the service (a supervisor starts it again)."""
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    if isinstance(error, BaseExceptionGroup) and error.subgroup(LeadershipLost) is not None:
        get_logger(__name__).warning("the service stops: another process leads now")
    else:
        get_logger(__name__).error("the service stops", error=repr(error), exc_info=error)
    if caller is not None:
        caller.cancel()


async def _until(reached: Callable[[], bool], leading: asyncio.Task[None]) -> None:
    while not reached():
        if leading.done():
            leading.result()
        await asyncio.sleep(0.005)


def lay_out(settings: Settings) -> None:
    """Make the root, and the service's own secret in it. May be tried again.

    Raises:
        OSError: It cannot be made; perhaps there is no room.
        ConfigurationError: It is a file.
    """
    if settings.root.exists() and not settings.root.is_dir():
        raise ConfigurationError(
            f"{settings.root} is a file, and the root is a folder: choose another one, --root DIR"
        )
    make_root(settings.root)
    _secret(settings.root)


async def _prepared(
    settings: Settings, sockets: Sequence[socket.socket], prepare: Callable[[], Settings]
) -> Settings:
    """Prepare the service's files on its disk; while that disk is full, answer that it waits for room.

    Raises:
        OSError: It cannot be prepared, for another reason.
    """
    from flowsched.api.waiting import waiting
    from flowsched.cluster.local.runner.records import is_full

    space, warned = Space(settings.root.absolute()), False
    async with AsyncExitStack() as answering:
        while True:
            try:
                return await asyncio.to_thread(prepare)
            except OSError as error:
                if not is_full(error):
                    raise
                space.note(error)
            if not warned:
                warned = True
                get_logger(__name__).warning("the root cannot be made yet", why=space.trouble)
                await answering.enter_async_context(
                    waiting(sockets, f"the root cannot be made yet: {space.trouble}")
                )
            await asyncio.sleep(_ROOM_PAUSE_S)


async def serve(
    settings: Settings,
    sockets: Sequence[socket.socket] = (),
    prepare: Callable[[], Settings] | None = None,
) -> None:
    """Run until SIGINT or SIGTERM, also while it waits to lead. Running tasks go on; the next start adopts them.

    Args:
        settings: How it runs.
        sockets: See `running`.
        prepare: Lays out the root, and returns how the service runs then. Tried again while there is no room for that.
    """
    serving = asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped and serving is not None:  # a second signal must not break off the end
            stopped = True
            get_logger(__name__).info("stopping", tasks="they go on; the next start takes them up")
            serving.cancel()

    from flowsched.api.connections import QuietLoop, raise_file_limit

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    configure_logging(settings.log_level, as_json=settings.log_json)
    raise_file_limit()
    loop.set_exception_handler(QuietLoop())
    spare_the_collector(COLLECT_STARTING)
    give_memory_back()
    try:
        unread = await asyncio.to_thread(left_behind, settings)
        if unread:
            get_logger(__name__).warning(unread)
        if prepare is not None:
            settings = await _prepared(settings, sockets, prepare)
        for caution in cautions(settings, sockets[0].getsockname()[0] if sockets else settings.host):
            get_logger(__name__).warning(caution)
        async with running(settings, sockets, supervisor.accepted) as service:
            spare_the_collector()
            supervisor.accepted()  # a replica of several is, before it leads
            listening.notify("READY=1")
            get_logger(__name__).info("ready", url=service.url, database=settings.url.split("@")[-1])
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not stopped:
            raise FlowschedError("the service stopped by itself; its log says why") from None
        get_logger(__name__).info("stopped")


def spare_the_collector(thresholds: tuple[int, int, int] = COLLECT) -> None:
    """Let the garbage collector run less often: a service keeps the objects that it makes, and hardly any are in cycles.

    With Python's defaults it runs after every 700 new objects, and took a third of the CPU of placing pods (`bench/kube`). It
    never visits the objects that exist now again.
    """
    gc.freeze()  # not collected before: that would hold the event loop for up to half a second
    gc.set_threshold(*thresholds)


def give_memory_back() -> None:
    """Let large arrays go back to the system as soon as they are freed.

    glibc raises its threshold for that with each large block that is freed, up to 32 MiB, and then keeps what a workflow of a
    million tasks needed for a moment. Other C libraries have no `mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MMAPPED_BYTES)
        mallopt(_M_ARENA_MAX, 2)  # memory that one thread freed is used by others


class FreedMemory:
    """The memory that a large workflow leaves in the C library's heap, between blocks that live on."""

    def __init__(self) -> None:
        self._trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        self._due: asyncio.TimerHandle | None = None

    def give_back_soon(self) -> None:
        """Give it to the system, once all that the workflow's last step needed is freed too."""
        if self._due is not None:
            self._due.cancel()
        if self._trim is not None:
            self._due = asyncio.get_running_loop().call_later(TRIM_S, self._give_back, self._trim)

    def _give_back(self, trim: Callable[[int], int]) -> None:
        self._due = None
        asyncio.get_running_loop().run_in_executor(None, trim, 0)


async def database_upgrade(url: str) -> tuple[str | None, str]:
    """Bring a database's schema to this version; returns the revision before ("" = it was empty, None = the same) and now."""
    from flowsched.store.database import Database

    async with await Database.open(url) as database:
        return database.upgraded_from, str(await database.current())


async def database_facts(url: str) -> dict[str, Any]:
    """The facts that `doctor` reports of a database (read from beside: a running service is not disturbed)."""
    from flowsched.store.database import Database

    async with await Database.open(
        url, create=False, migrate=False, exclusive=False, any_schema=True
    ) as database:
        return await database.doctor()


def root_holder(root: Path) -> str:
    """The pid of the process that runs a local cluster in a root; "" if none does, or if this user may not know."""
    from flowsched.cluster.node.folder_lock import holder_of

    return holder_of(root)


def schema_remedy(revision: str) -> tuple[str, str, bool]:
    """Of the schema of another version: its difference, its remedy, and whether the next start of the service applies it."""
    from flowsched.store.database import REVISION, START_ANEW, is_unreleased, known_revisions

    if is_unreleased(revision):
        return "is of a build before the release of 0.1.0", START_ANEW, False
    if revision in known_revisions():
        step = "back it up; the next start of the service upgrades it (or `flowsched db upgrade` while it is stopped)"
        return f"is older than this version needs ({REVISION})", step, True
    step = "start the newer version, or restore the backup made before its upgrade"
    return f"is newer than this version knows ({REVISION})", step, False


async def database_expire(url: str, before_ms: int) -> int:
    """Remove workflows that ended before a time; returns how many.

    Raises:
        InUse: A service leads.
    """
    from flowsched.control.tes import forget_ends, keep_ends
    from flowsched.store.database import Database
    from flowsched.store.moving import not_led
    from flowsched.store.recovery import remove_finished

    total = 0
    async with await Database.open(url, migrate=False) as database:
        await not_led(database)
        await keep_ends(database, before_ms)
        while True:
            removed = await remove_finished(database, before_ms)
            total += removed.workflows
            if removed.workflows == 0 and removed.rows == 0:
                await forget_ends(database, before_ms, now_ms())
                return total


async def database_move(source: str, target: str) -> tuple[int, str, str]:
    """Move all rows of a database into a new one; returns how many workflows, and both places, for people.

    Raises:
        InUse: A service leads on one of them.
        ConfigurationError: They cannot be moved; the message gives the reason.
    """
    from flowsched.store.database import Database
    from flowsched.store.moving import move

    async with await Database.open(source, create=False) as old, await Database.open(target) as new:
        return await move(old, new), old.place, new.place


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """A task of a service on this machine, with one of its attempts, as its root and its database keep it."""

    workflow: str
    stage: str
    index: int
    item: str | None
    state: str
    reason: str
    attempt: int
    folder: (
        Path | None
    )  #: with `stdout` and `stderr`, as far as anything was written; None = the task has not run


async def recorded_attempt(
    settings: Settings, workflow: str, stage: str | None, task: str | None, attempt: int | None
) -> RecordedAttempt:
    """The last (or a given) attempt of a task, without a service: read from the database, which stays as it is.

    Args:
        settings: Root and database of the service.
        workflow: Its id, its name (the newest of that name), or the beginning of its id.
        stage: Of the task; None = that of the first task that failed.
        task: Its index, or the item of its shard; None = the first.
        attempt: Its number; None = the last.

    Raises:
        NotFound: There is no such thing.
        ConfigurationError: The database cannot be read.
    """
    from flowsched.engine.recovery import untouched_state
    from flowsched.store.database import Database
    from flowsched.store.workflows import Which, Workflows
    from flowsched.workflow.document.decode import decode_workflow
    from flowsched.workflow.run.states import RunState, TaskState

    async with await Database.open(settings.url, create=False, migrate=False, exclusive=False) as database:
        reads = Workflows(database)
        found = await reads.page(Which(ref=workflow), 100)
        chosen = (
            [row for row in found if row.id == workflow]
            or [row for row in found if row.name == workflow]
            or found
        )
        if not chosen:
            raise NotFound(f"there is no workflow {workflow!r} in {settings.root}")
        spec = decode_workflow(await reads.spec(chosen[0].id))
        stages = {each.name: number for number, each in enumerate(spec.stages)}
        if stage is None:
            failed = (await reads.tasks(chosen[0].id, state=TaskState.FAILED, limit=1)).items
            if not failed:
                raise NotFound(
                    f"no task of {chosen[0].id} failed: of which stage? It has {', '.join(stages)}"
                )
            stage, index = spec.stages[failed[0].stage].name, failed[0].index
        elif stage not in stages:
            raise NotFound(f"workflow {chosen[0].id}: {no_such('stage', stage, stages)}")
        else:
            index = _index_of(spec.stages[stages[stage]], task or "0")
        number = stages[stage]
        tries = {row.attempt: row for row in await reads.attempts(chosen[0].id, number, index)}
        row, of = await reads.task(chosen[0].id, number, index), (await reads.stages(chosen[0].id))[number]
    if index >= spec.stages[number].tasks:
        raise NotFound(
            f"stage {stage} of {chosen[0].id} has {spec.stages[number].tasks} tasks, from 0 on: no {index}"
        )
    items = spec.stages[number].items
    recorded = RecordedAttempt(
        chosen[0].id,
        stage,
        index,
        items[index // spec.stages[number].members] if items else None,
        (untouched_state(RunState(of.state)) if row is None else TaskState(row.state)).name,
        of.reason if row is None else row.reason,
        0,
        None,
    )
    if not tries:
        return recorded
    number = max(tries) if attempt is None else attempt
    if number not in tries:
        raise NotFound(f"{stage}[{index}] has no attempt {number}; it has {', '.join(map(str, tries))}")
    folder = attempt_folder(settings.root, tries[number].node, tries[number].name)
    return replace(recorded, attempt=number, folder=folder)


def _index_of(stage: StageSpec, task: str) -> int:
    """The index of a task that a user named by its index, the item of its shard, or its role. Numbers are indices."""
    from flowsched.workflow.spec import PLAIN_ROLE

    if task.isdecimal() and task.isascii():
        return int(task)
    items = stage.items or ()
    if task in items:
        return items.index(task) * stage.members
    roles = [role.name for role in stage.roles for _ in range(role.replicas) if role.name != PLAIN_ROLE]
    if task in roles:
        return roles.index(task)
    raise NotFound(
        f"{stage.name}: {no_such('role' if roles else 'item', task, dict.fromkeys(roles) or items)}"
    )


def attempt_folder(root: Path, node: str, pod: str) -> Path:
    """The folder with the output of an attempt on this machine."""
    return root / "nodes" / node / "attempts" / pod
