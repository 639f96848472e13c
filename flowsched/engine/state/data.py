"""The state of data: bytes that move between nodes, bytes that shall, and the gather nodes of outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.transfers import TransferOrder, TransferWant, Wants
from flowsched.workflow.learned_plan import Kind
from flowsched.workflow.run.run import StageRun
from flowsched.workflow.spec import Match


class StagingGroup(msgspec.Struct):
    """Tasks on their way through STAGING: their targets, and the (dataset, node) pairs still to come."""

    key: int
    workflow: str
    stage: int
    tasks: NDArray[np.int64]
    attempts: NDArray[np.int32]
    nodes: NDArray[np.int64]
    pending: set[tuple[int, int]]
    priority: int
    rank_ms: int
    payer: dict[tuple[int, int], int] = msgspec.field(
        default_factory=dict
    )  #: (dataset, node) -> task its bytes count for


class Backoff(msgspec.Struct):
    """A transfer that failed and is tried again."""

    not_before: int
    tries: int
    waits: int = 0  #: how often it found no room, which is not counted as a try
    why: str = ""  #: the cause of the last failure, if people can mend it


class Coming(NamedTuple):
    """The bytes of a dataset that are still to come to a node, and the number of copies (of pieces) that bring them."""

    size_bytes: int
    copies: int = 0


class Gather(msgspec.Struct, frozen=True):
    """How the outputs of a stage are gathered: by stage `consumer`, and how its shards meet those of the producer."""

    consumer: int
    match: Match
    output_bytes: int  #: expected of one producing shard, of all that the consumer reads of it
    through: bool = False  #: the consumer gathers nothing, but its outputs of this will be gathered


class Gathered(msgspec.Struct):
    """The datasets with few readers that one shard of a stage is expected to read.

    Attributes:
        parents: Stage -> how many of its shards.
        changed: Of `parents`, those whose outputs may be expected to be of another size by now.
        each: Stage -> bytes that one of its shards is expected to write, without the changes.
        total_bytes: The same, of all shards that are read.
        learned: How much had been learned of any kind of tasks then (`Estimates.learned`).
    """

    parents: dict[int, int]
    changed: set[int]
    each: dict[int, int] = msgspec.field(default_factory=dict)
    total_bytes: int = 0
    learned: int = 0


class Route(NamedTuple):
    """Which task gathers an output in the end. It stays the same once it is known.

    Attributes:
        consumer, reader: Its stage, and its shard.
        sent: Bytes of the output that go there.
        far: How many stages on its own output is followed.
    """

    consumer: int
    reader: int
    sent: int
    far: int


class Awaited(NamedTuple):
    """A call of an engine's run that will probably come, by its kind; until then at most."""

    kind: Kind
    until_ms: int


class Early(msgspec.Struct, frozen=True):
    """The inputs from outside that move while the parents of their readers run.

    Args:
        stages: Those of a workflow that wait for others and read from outside.
        readers: URI of an input that shards have in common -> how many of all stages read it.
        asked: Stage -> shards whose inputs are to be looked at for this.
    """

    stages: tuple[int, ...]
    readers: Mapping[str, int]
    asked: dict[int, set[int]] = msgspec.field(default_factory=dict)


class FileReaders(msgspec.Struct):
    """How many tasks have read a file of a storage that nodes share, or wait to; and the living (workflow, stage) that read it
    where it lies, in the order in which they came. `failed`: its copies failed for good, and no more are made.
    """

    tasks: int = 0
    in_place: dict[tuple[str, int], None] = msgspec.field(default_factory=dict)
    failed: bool = False


class DataState(msgspec.Struct):
    """Copies that are under way, that are wanted, and the gather nodes for which some of them are made.

    Attributes:
        staging: Groups in STAGING, by their number.
        wanted: The datasets that they wait for, by their number.
        wanted_from: Storage with a budget -> how often a dataset that lies there is `wanted`.
        next_staging: The next number of such a group.
        unswept: (workflow, stage) of which tasks have changed since the last `staging.sweep`.
        swept: The replicas dropped and the ready nodes at that sweep, which it compares too; None = it sweeps all.
        moving: Transfers under way, by (dataset, node, piece).
        copying: Of those from a storage with a budget: (storage/read, bytes/s) they count for.
        coming_in: (dataset, node) -> the part that is still to come, once some of it is under way.
        chosen: (workflow, stage) -> task -> (the node its inputs are copied to, why it was chosen).
        backoff: (dataset, node) -> when a transfer that failed is tried again.
        file_readers: Path or file URI -> the tasks that read this file, the file that was read last at the end.
        read_from: (dataset, node) -> how many pods elsewhere read it there.
        pushes: (dataset, node) -> the copy to its gather node, and the task that it is for: (want, workflow, stage),
            or (want, run of an engine, the call that it awaits).
        push_backlog: Node -> bytes of `pushes` to it.
        early: Workflow -> its stages whose inputs from outside may move early.
        arriving: (workflow, stage) -> the copies wanted early, until a task of it or of a parent changes.
        early_over: The ready nodes for which these were found.
        foreseen: (dataset, node) that tasks which wait for room will probably read there.
        gathers: (workflow, stage) -> whether sizes of its outputs were known, and how they are gathered.
        gathered: (workflow, stage) -> the stages that it gathers, and the bytes that are known of them.
        coming: (workflow, stage) -> shard -> (its gather node, bytes on their way there); until a producer changes.
        coming_from: (workflow, producer) -> (stage, shard) -> the producer's part of these bytes; until it changes.
        homes: (workflow, stage, shard) -> its gather node, where it shall find its inputs.
        call_homes: (run of an engine, kind of the call that gathers) -> its gather node.
        home_work: (workflow, stage) -> milli-core ms of all that gather what it gathers, and go to the same node.
    """

    staging: dict[int, StagingGroup] = msgspec.field(default_factory=dict)
    wanted: Wants = msgspec.field(default_factory=Wants)
    wanted_from: dict[str, int] = msgspec.field(default_factory=dict)
    next_staging: int = 1
    unswept: set[tuple[str, int]] = msgspec.field(default_factory=set)
    swept: tuple[int, bytes] | None = None
    moving: dict[tuple[int, int, int], TransferOrder] = msgspec.field(default_factory=dict)
    copying: dict[tuple[int, int, int], tuple[str, int]] = msgspec.field(default_factory=dict)
    coming_in: dict[tuple[int, int], Coming] = msgspec.field(default_factory=dict)
    chosen: dict[tuple[str, int], dict[int, tuple[int, str]]] = msgspec.field(default_factory=dict)
    backoff: dict[tuple[int, int], Backoff] = msgspec.field(default_factory=dict)
    file_readers: dict[str, FileReaders] = msgspec.field(default_factory=dict)
    read_from: dict[tuple[int, int], int] = msgspec.field(default_factory=dict)
    pushes: dict[tuple[int, int], tuple[TransferWant, str, int | Awaited]] = msgspec.field(
        default_factory=dict
    )
    push_backlog: dict[int, int] = msgspec.field(default_factory=dict)
    early: dict[str, Early] = msgspec.field(default_factory=dict)
    arriving: dict[tuple[str, int], tuple[TransferWant, ...]] = msgspec.field(default_factory=dict)
    early_over: bytes = b""
    foreseen: Wants = msgspec.field(default_factory=Wants)
    gathers: dict[tuple[str, int], tuple[bool, Gather | None]] = msgspec.field(default_factory=dict)
    gathered: dict[tuple[str, int], Gathered] = msgspec.field(default_factory=dict)
    coming: dict[tuple[str, int], dict[int, tuple[int, int]]] = msgspec.field(default_factory=dict)
    coming_from: dict[tuple[str, int], dict[tuple[int, int], tuple[int, int]]] = msgspec.field(
        default_factory=dict
    )
    homes: dict[tuple[str, int, int], int] = msgspec.field(default_factory=dict)
    call_homes: dict[tuple[str, Kind], int] = msgspec.field(default_factory=dict)
    home_work: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)

    def forget(self, workflow: str, stages: Iterable[StageRun]) -> None:
        """Drop the state of a workflow that has ended, and of its stages."""
        self.early.pop(workflow, None)
        for home in [home for home in self.homes if home[0] == workflow]:
            del self.homes[home]
        for stage in stages:
            pair = (workflow, stage.number)
            for placed in () if stage.spec.container is None else stage.spec.container.inputs:
                if placed.source in self.file_readers:
                    self.file_readers[placed.source].in_place.pop(pair, None)
            self.arriving.pop(pair, None)
            self.gathers.pop(pair, None)
            self.gathered.pop(pair, None)
            self.home_work.pop(pair, None)
            self.coming.pop(pair, None)
            self.coming_from.pop(pair, None)
            self.chosen.pop(pair, None)
