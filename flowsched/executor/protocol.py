"""The requests to an executor and its reports. docs/executors.md shows how one is written.

The engine decides; an executor acts and reports what it sees. Everything is idempotent by name: a pod's name is
`fs-<workflow>-<stage>-<index>-<attempt>`, and there is at most one pod of a name, ever. Each request has been committed
to SQL before. Nothing here raises for an expected refusal: refusals come back as events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from flowsched.executor.foreign import Bind, Evict, ForeignEvent, Hold, Verdict
from flowsched.executor.nodes import LoadMeasured, NodeInfo
from flowsched.executor.quotas import QuotaChanged
from flowsched.workflow.spec import Container, Resources, Rules

#: A log is read in such pieces where its size is not known.
_LOG_PIECE: Final = 1 << 20


class InputFile(msgspec.Struct, frozen=True):
    """An input as the pod sees it. One uri without manifest, or several in a manifest file, in shard order."""

    name: str
    uris: tuple[str, ...]
    manifest: bool = False


class OutputFile(msgspec.Struct, frozen=True):
    """An output the pod must leave at `path` (relative to its working folder); published as dataset `uri`."""

    name: str
    path: str
    uri: str
    optional: bool = False
    value: bool = False


class Member(NamedTuple):
    """One member of a gang, as the others find it."""

    role: str
    role_index: int
    number: int  #: of its loopback address, where members have such (`cluster.node.environment.loopback`)


class Roster(msgspec.Struct, frozen=True):
    """The members of one gang by rank, as runs of equal role and consecutive numbers: one run a role, where none joined later."""

    runs: tuple[tuple[str, int, int], ...]  #: (role, number of the first, how many)

    @staticmethod
    def of(members: Iterable[tuple[str, int]]) -> Roster:
        """The roster of members that are given by rank, each as its role and its number."""
        runs: list[tuple[str, int, int]] = []
        for role, number in members:
            last, first, count = runs[-1] if runs else ("", 0, 0)
            if (role, number) == (last, first + count):
                runs[-1] = (role, first, count + 1)
            else:
                runs.append((role, number, 1))
        return Roster(tuple(runs))

    @property
    def size(self) -> int:
        """The number of members."""
        return sum(count for _, _, count in self.runs)

    @property
    def first(self) -> Member:
        """The member of rank 0, at which the others meet."""
        role, number, _ = self.runs[0]
        return Member(role, 0, number)

    def members(self) -> Iterator[Member]:
        """All of them, by rank."""
        known: dict[str, int] = {}
        for role, first, count in self.runs:
            before = known.get(role, 0)
            known[role] = before + count
            for place in range(count):
                yield Member(role, before + place, first + place)


class GangSeat(msgspec.Struct, frozen=True):
    """The place of one member in its gang.

    `master_port` is where rank 0 listens (MASTER_PORT).
    """

    role: str
    role_index: int
    rank: int
    number: int  #: of its loopback address
    roster: Roster  #: one value for all members that start together
    token: str
    master_port: int = 29500
    generation: int = 0  #: of the gang: it rises when the whole gang starts anew

    @property
    def member(self) -> Member:
        """The member itself, as the others find it."""
        return Member(self.role, self.role_index, self.number)


class Pod(msgspec.Struct, frozen=True):
    """One pod to launch: one attempt of one task, bound to a node."""

    name: str
    workflow: str
    stage: str
    index: int  #: the task's number in its stage
    shard: int
    attempt: int
    epoch: int  #: of the leader that decided it
    node: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    image: str | None
    cpu_millicores: int
    memory_bytes: int
    gpu_millis: int
    item: str | None = None
    inputs: tuple[InputFile, ...] = ()
    outputs: tuple[OutputFile, ...] = ()
    timeout_ms: int | None = None
    gang: GangSeat | None = None
    gpu_ids: tuple[int, ...] = ()
    runtime_hint_ms: int | None = None  #: for fake processes and simulations
    secrets: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  #: variable -> reference, never the value
    memory_limit_bytes: int | None = None  #: it is killed beyond this; None = beyond its request
    disk_bytes: int = 0
    extended: Mapping[str, int] = msgspec.field(default_factory=dict)
    limits: Resources | None = None  #: CPU and extended resources; 0 = not limited
    rules: Rules | None = None
    queue: str = ""
    priority: int = 0
    container: Container | None = None  #: its steps run in place of `command`
    is_last: bool = True  #: no retry of the engine follows a failure: the outputs of a failed container task are delivered
    is_fitted: bool = False  #: it has less memory than its task asks for; out of that, it is tried again
    #: uri -> node that it is read from, over the network: inputs that are not copied to its own node
    remote: Mapping[str, str] = msgspec.field(default_factory=dict)
    promoted: tuple[int, ...] = ()  #: steps of priority by waiting: of the queues on its path, then its own
    #: The pods of a pipeline take over room from each other; "" = it belongs to none. See `engine.pipelining`.
    pipeline: str = ""
    #: It was sent ahead: it starts once so many pods of its pipeline have ended on its node, whatever way; 0 = at once.
    after: int = 0


class StepEnd(msgspec.Struct, frozen=True):
    """How one step of a container task went. Times are wall-clock ms; `stdout` and `stderr` are the ends of its output."""

    exit_code: int
    started_ms: int
    ended_ms: int
    stdout: str = ""
    stderr: str = ""


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a node, as it was before its bytes were written to an object store. `mtime_ns`: its last change."""

    path: str
    inode: int
    mtime_ns: int


class DeliveredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was taken out of a container: where it was there, and where it is now.

    Args:
        path, uri, size_bytes: Of the file.
        version: Of an object, as its store has named it: the ETag, and the version id if there is one; "" of files.
        place: The file of its node that may still have the same bytes. Only executors use it: no report of an end has it.
    """

    path: str
    uri: str
    size_bytes: int
    version: str = ""
    place: SourceFile | None = None


class UsedImage(msgspec.Struct, frozen=True):
    """An image that a task names, and the digest of the image it ran in: "" = it ran with the programs of its machine."""

    name: str
    digest: str = ""


class ContainerReport(msgspec.Struct, frozen=True):
    """The report of an attempt of a container task: the steps that ended, in order, and the files that were delivered.

    `returned` is the number that the task has written into its file `return_code`; None where it has written none.
    An attempt of a task with a command has no steps and no files here, only the `images`, if it names one.
    """

    steps: tuple[StepEnd, ...] = ()
    outputs: tuple[DeliveredFile, ...] = ()
    returned: int | None = None
    images: tuple[UsedImage, ...] = ()


class Transfer(msgspec.Struct, frozen=True):
    """Bytes that shall move: a dataset to node `dest`, from node `source` or, if that is None, from its origin. `uri` is its name
    (`executor.datasets`).

    Where `whole` is false it is only a piece: `size_bytes` from `offset` on. A node that has a piece may be the source of it.
    """

    uri: str
    size_bytes: int
    dest: str
    source: str | None = None
    offset: int = 0
    whole: bool = True
    ahead: int = 0  #: 0 = it is waited for there; above, it will be (`TransferWant`)
    version: str = (
        ""  #: of the dataset that a piece must be of; "" = not known yet. Pieces of two versions never mix.
    )


class Drop(msgspec.Struct, frozen=True):
    """A copy that a node's cache shall do without: the catalogue has forgotten it already."""

    uri: str
    node: str
    size_bytes: int


class Published(msgspec.Struct, frozen=True):
    """An output as it really was: on the pod's node, under `uri`."""

    name: str
    uri: str
    size_bytes: int
    value: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """The measured use of an attempt (rusage; bytes by /proc/PID/io where the system shows them)."""

    cpu_ms: int = 0
    max_rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    bytes_local: int = 0  #: input bytes found on the node
    bytes_moved: int = 0  #: input bytes that were copied to the node for it, or that it read from another one
    disk_bytes: int = -1  #: of the bytes read and written, those of disks; -1 = not measured
    occupied_bytes: int = 0  #: that its files occupied when a container task ended; 0 = not measured
    shared_ms: int = 0  #: that its disk took for the bytes of pods which started with it; the engine counts it, no executor


# Reports of an executor. `at_ms` is wall-clock ms where it happened; nodes have clocks of their own, which may be wrong.
# A duration is therefore never a difference of such moments: `ran_ms` is how long the task ran, measured by one clock. None = it
# was not measured, and the time between the reports of its start and of its end counts.


class PodStarted(msgspec.Struct, frozen=True):
    """The pod's process runs."""

    name: str
    at_ms: int


#: The reason of a pod whose results are on their way to their targets.
DELIVERING: Final = "Delivering"


#: The reason of an attempt without a pod that a new leader adopts.
NOT_LAUNCHED: Final = "NotLaunched"


class PodHeld(msgspec.Struct, frozen=True):
    """The pod does not start (yet), and why: a quota, an image that cannot be pulled; or it does not end: its results find no room.

    "" = nothing holds it any more. `DELIVERING`: its program has ended, and so many of its files are at their targets.
    """

    name: str
    reason: str
    message: str = ""


class PodEnded(msgspec.Struct, frozen=True):
    """The pod's process has ended and its outputs are published (exit 0) or dropped.

    `reason`: "" for an ordinary exit; else `Timeout`, `OOMKilled`, `OutputMissing`, `StartFailed`, `Released` …
    """

    name: str
    at_ms: int
    exit_code: int
    reason: str = ""
    message: str = ""
    outputs: tuple[Published, ...] = ()
    usage: Usage = Usage()
    container: ContainerReport | None = None
    changed_inputs: tuple[
        str, ...
    ] = ()  #: datasets that were written to while it ran: no copy of these is the input any more
    ran_ms: int | None = None


class PodGone(msgspec.Struct, frozen=True):
    """There is no such pod that runs, and there never will be (or it was lost with its node or runner): an infrastructure end.

    `started` is whether its process may have run. No user attempt is charged.
    """

    name: str
    at_ms: int
    reason: str
    started: bool = False
    lost_inputs: tuple[str, ...] = ()  #: uris that were not where the catalogue had them
    ran_ms: int | None = None


class TransferDone(msgspec.Struct, frozen=True):
    """The bytes are on the node; `moved_bytes` really travelled (0 when they were there already)."""

    uri: str
    dest: str
    at_ms: int
    moved_bytes: int
    source: str | None = None
    size_bytes: int = 0  #: the dataset's real size
    offset: int = 0  #: of the piece, as it was ordered
    whole: bool = True  #: all of the dataset is there now; else only the piece that was ordered
    version: str = ""  #: which the piece is of


class TransferFailed(msgspec.Struct, frozen=True):
    """They are not. `lost` = the source no longer has them (else: try again later)."""

    uri: str
    dest: str
    at_ms: int
    message: str
    source: str | None = None
    lost: bool = False
    permanent: bool = False  #: the origin answers that there is no such thing: trying again is no use
    offset: int = 0  #: of the piece, as it was ordered
    changed: bool = False  #: the source has another version (`version`) than the name, or the pieces that came before, are of
    undivided: bool = False  #: it cannot come in pieces: order it as a whole
    version: str = ""
    full: bool = False  #: the destination's file system has no room: that is no fault of the copy, and passes


class ReplicaSeen(msgspec.Struct, frozen=True):
    """A node's cache holds (or no longer holds) a dataset."""

    uri: str
    node: str
    size_bytes: int
    present: bool = True


class PiecesSeen(msgspec.Struct, frozen=True):
    """A node has parts of a dataset, from before: `spans` are the first byte of each and the one after its last."""

    uri: str
    node: str
    size_bytes: int  #: of all of it
    version: str
    spans: tuple[tuple[int, int], ...]


class NodeChanged(msgspec.Struct, frozen=True):
    """A node appeared, changed or is gone (`node.ready` false)."""

    node: NodeInfo


ClusterEvent = (
    PodStarted
    | PodHeld
    | PodEnded
    | PodGone
    | TransferDone
    | TransferFailed
    | ReplicaSeen
    | PiecesSeen
    | NodeChanged
    | LoadMeasured
    | QuotaChanged
    | ForeignEvent
)


FileCopies = Literal["never", "moved", "always"]


class Fingerprint(msgspec.Struct, frozen=True):
    """The identity of the content of a dataset from outside.

    Args:
        version: Equal versions of the same uri have equal content.
        modified_ms: When it was last changed, wall clock; None = its store reports none.
        content: A digest of the content, where it was read: datasets of equal digests have equal content, whatever their uris.
        in_place: Nodes read it where it lies: a copy there takes no room.
        size_bytes: Of its file, or of all its files; None = its store reports none.
    """

    version: str
    modified_ms: int | None = None
    content: str = ""
    in_place: bool = False
    size_bytes: int | None = None


class Opened(msgspec.Struct, frozen=True):
    """A dataset that is being read. A reader that does not read `chunks` to its end closes it (`aclose`)."""

    size_bytes: int  #: of all chunks together
    directory: bool  #: a folder, which comes as an uncompressed tar stream
    chunks: AsyncGenerator[bytes, None]


class Pairing(msgspec.Struct, frozen=True):
    """The database that is used with a cluster from now on.

    Args:
        database: Its id, which its copies and backups share.
        place: Where it is, for people.
        is_known: It was used with this cluster before.
        replaces: Identity of the cluster that it was used with, and that is gone for good; "" = none.
        forced: The user states that the former cluster, or the former database of this one, is gone for good (`--take-over`).
    """

    database: str
    place: str
    is_known: bool = True
    replaces: str = ""
    forced: bool = False


#: Which of some workflows the database has removed.
Expired = Callable[[Collection[str]], Awaitable[Collection[str]]]


class Binder(Protocol):
    """The further methods of an executor on whose cluster others make pods too, and leave it to flowsched to place them."""

    async def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that there are now: a process that stands by hears of no change. Changes from now on follow as events."""
        ...

    async def view(self) -> Sequence[ClusterEvent]:
        """All that others' pods and groups are now, as events; older events of them that `events` had ready are dropped.

        Returns only once everything has been listed (a view with holes would over-commit).
        """
        ...

    async def fence(self, uids: Sequence[str]) -> None:
        """See to it that bindings which an earlier leader may still have under way for these pods cannot take place any more:
        those that did not show in the next `view`.
        """
        ...

    async def bind(self, orders: Sequence[Bind]) -> None:
        """Bind foreign pods. For each follows RoomTaken, PodLeft or BindRefused."""
        ...

    async def evict_pods(self, orders: Sequence[Evict]) -> None:
        """Take foreign pods away. PodLeft follows when they are gone."""
        ...

    async def hold(self, holds: Sequence[Hold]) -> None:
        """Keep this room from other schedulers, and no other room any more. Returns at once."""
        ...

    async def publish(self, verdicts: Sequence[Verdict]) -> None:
        """Say why groups wait, where their owners look. Returns at once; writes are coalesced."""
        ...


class LeaderLease(Protocol):
    """The lease of one process in the cluster itself. It alone finds a second leader that has another database."""

    async def hold(self, holder: str, database: str, duration_s: float, *, unled: bool) -> str:
        """Take it or renew it. "" = this process holds it now; else the name of the process that does.

        Args:
            holder: This process.
            database: Id of its database, for people.
            duration_s: For so long no other process takes it from now on.
            unled: No process leads the database: a lease that no process holds is then free at once.

        Raises:
            Unavailable: It cannot be read or written, or this process does not see the cluster.
        """
        ...

    async def give_back(self) -> None:
        """Let another process take it at once, if this one holds it."""
        ...


async def _pass(_: str) -> None:
    """Pass a failpoint that is not armed."""


class ServiceContext(msgspec.Struct, frozen=True):
    """The arguments of the service to the factory of each executor, beside the executor's own settings.

    Args:
        root: The service's folder, absolute. An executor makes folders of its own in it.
        clock: Wall-clock ms: times in events are by this clock.
        may_act: Whether this process leads, by its own clock. An executor asks before it starts anything, if another service may
            lead on its cluster.
        failpoint: Awaited with a name where a crash would be interesting; only tests arm the names.
        failpoint_now: The same for code that cannot wait.
    """

    root: str
    clock: Callable[[], int]
    may_act: Callable[[], bool] = lambda: True
    failpoint: Callable[[str], Awaitable[None]] = _pass
    failpoint_now: Callable[[str], object] = lambda _: None


class Executor(ABC):
    """A place where pods run.

    Eleven members are abstract: each executor has them. The others have a default, for executors that need none.
    """

    # ---- members of each executor ----

    @property
    @abstractmethod
    def identity(self) -> str:
        """Which cluster it is, in words that a person can act on.

        A database goes with one cluster: only that cluster knows the ends of the attempts that are open in the database.
        """

    @abstractmethod
    async def start(self) -> Sequence[NodeInfo]:
        """Open it, and report its nodes. A ReplicaSeen follows for each dataset that a node already holds.

        Raises:
            ConfigurationError: It cannot be opened with its settings.
            OSError: It cannot be opened now; the service tries again.
        """

    @abstractmethod
    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over pods that were intended or running by SQL (after a restart). Exactly one of these follows for each,
        as events: it ran on (PodStarted, later PodEnded), it had ended (PodEnded), or it is no more (PodGone).
        """

    @abstractmethod
    async def launch(self, pods: Sequence[Pod]) -> None:
        """Start pods. Idempotent by name; outcomes come as events."""

    @abstractmethod
    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods: SIGTERM to the whole process group, SIGKILL after the grace. A PodEnded or PodGone follows for each,
        also for one that is not known. A pod that is launched after its release never starts. One that ends with 0 within
        the grace has an ordinary end, with its outputs.
        """

    @abstractmethod
    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying. A TransferDone or TransferFailed follows for each."""

    @abstractmethod
    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node's cache (ReplicaSeen follows); False while a live attempt reads it."""

    @abstractmethod
    def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """The reports, in batches, in order per pod; ends after `stop`. The service has one reader at a time."""

    @abstractmethod
    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        """Bytes of `stdout` or `stderr` from `offset`, and whether more may come. `node`: where it was bound."""

    @property
    def knows_log_sizes(self) -> bool:
        """Whether `log_size` reads no log: then TES shows the end of a running one."""
        return False

    async def log_size(self, name: str, stream: str, node: str = "") -> int:
        """Bytes that a log has now. An executor that does not know finds out by reading it."""
        size = 0
        while data := (await self.logs(name, stream, size, _LOG_PIECE, node))[0]:
            size += len(data)
        return size

    @abstractmethod
    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read a dataset from a node that has it: `nodes` are asked first, then the others. None if none has it."""

    @abstractmethod
    async def stop(self) -> None:
        """Close it. Running pods go on: a restarted service adopts them."""

    # ---- members that an executor may have ----

    async def pair(self, pairing: Pairing) -> str:
        """Note which database goes with the cluster, and end pods that still run on the cluster that this one replaces.

        Called after `start` and before `adopt`, by the process that leads.

        Returns:
            The changes since the last pairing, in words; "" = none.

        Raises:
            ConfigurationError: The two do not go together; the message says what to do.
        """
        return ""

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """The identity of the present content of datasets from outside, or why it is unknown, in words.

        Args:
            uris: Of inputs.
            by_content: Read the files of this machine, too, and digest them.
        """
        return dict.fromkeys(uris, "this cluster cannot look at datasets outside")

    async def placed_sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        """The bytes of files and folders that containers read where every node sees them, of those whose size is known. The engine
        asks for the others again.

        Args:
            paths: Absolute paths, or file URIs.
        """
        return {}

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """Look for copies of datasets on all nodes, and report where there is none, or none that is whole (`present` is False).

        Asked before the result of an earlier task is taken: a person may have removed its files, also while no service ran.
        """
        return ()

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """The digests that images have now, of those that are known without a pull."""
        return {}

    async def leave(self, containers: Sequence[Container]) -> None:  # noqa: B027 - the files may be seen by tasks alone
        """Write the files that these containers leave when their workflow is cancelled, unless they are there already.

        Their tasks may have never begun, or still run in their grace.
        """

    @property
    def binder(self) -> Binder | None:
        """How pods that other controllers made are placed too; None where there are none."""
        return None

    @property
    def leader_lease(self) -> LeaderLease | None:
        """The leader's lease beside the row of its database; None where the cluster belongs to one process anyway."""
        return None

    @property
    def trouble(self) -> str:
        """Why nothing can be started there now, in words; "" = it can."""
        return ""

    @property
    def remote_reads(self) -> bool:
        """Whether pods can read datasets on another node without a copy (`Pod.remote`)."""
        return False

    @property
    def pipelines(self) -> bool:
        """Whether pods can be sent to a node before there is room for them (`Pod.after`)."""
        return False

    @property
    def file_copies(self) -> FileCopies:
        """Whether a container can have a copy of a file of all nodes in its place (`Placed.input` with `source`): `always`, if its
        steps run in images; only if its path in the container is another one (`moved`); or `never`.
        """
        return "never"

    async def orphans(self) -> Sequence[str]:
        """Names of attempts that live although no service asked this executor for them."""
        return ()

    async def settle(self, names: Sequence[str]) -> None:  # noqa: B027 - keeping everything is right, too
        """The ends of these attempts are durable: nothing but logs and records need be kept of them."""

    async def forget(self, names: Sequence[str]) -> None:  # noqa: B027 - keeping everything is right, too
        """Remove the working folders of ended attempts; logs and exit records stay."""

    async def expire(self, expired: Expired) -> int:
        """Remove logs and records of ended attempts of workflows that have expired; returns how many.

        Args:
            expired: Which of some workflows the database has removed. Workflows of another database, which it never had, stay.
        """
        return 0

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied since the start."""
        return {}

    def counters(self) -> Mapping[str, int]:
        """Counts of its own connections since the start, by a name in snake_case, for metrics."""
        return {}
