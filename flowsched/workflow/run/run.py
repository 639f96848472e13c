"""A run: how far a workflow has got, as arrays per stage and a few words per workflow. Only `advance` changes them.

One letter per axis: T tasks of a stage (shard * members + member), W shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import StageSpec, WorkflowSpec

#: Columns of `StageRun.totals`.
QUEUED_MS, STAGING_MS, RUNNING_MS, BYTES_LOCAL, BYTES_MOVED, CORE_MS, GPU_MS, MEMORY_GIB_MS, CACHED = range(9)
FITTED, FITTED_ASKED_MIB, FITTED_GIVEN_MIB, MEMORY_SAVED_GIB_MS = range(9, 13)
#: Memory counts in GiB x ms. In bytes x ms, 64 bits would hold 1 TiB for 97 days only, and in MiB x ms a large cluster's year.
TOTALS: Final = (
    "queued_ms",
    "staging_ms",
    "running_ms",
    "bytes_local",
    "bytes_moved",
    "core_ms",
    "gpu_ms",
    "memory_gib_ms",
    "cached",  # tasks that took the result of another workflow's task
    # Attempts whose memory was fitted, the memory that they asked for and were given, and what that saved (less than 0: it cost).
    "fitted",
    "fitted_asked_mib",
    "fitted_given_mib",
    "memory_saved_gib_ms",
)
#: Not written where they are 0.
RARE_TOTALS: Final = TOTALS[CACHED:]
#: In `memory_steps`, beside how often memory has grown (at most as often as a task is tried): the memory that was fitted to the
#: task's kind was too little for it.
UNFITTED: Final = 128
_STATES: Final = len(TaskState)
_NAMES: Final = [state.name for state in sorted(TaskState)]
_ENDED: Final = int(TaskState.SUCCEEDED)  #: this and all that follow are terminal
#: Columns of which most stages have but one value, with that value. They are arrays of one value until the first write.
_RARE: Final[Mapping[str, tuple[type[np.generic], int]]] = {
    "attempt": (np.int32, 0),
    "node": (np.int32, -1),
    "version": (np.int32, 0),
    "charged": (np.int16, 0),
    "lost": (np.int16, 0),
    "memory_steps": (np.uint8, 0),
    "not_before": (np.int64, 0),
    "moved": (np.int64, 0),
    "local": (np.int64, 0),
    "exit_code": (np.int32, -1),
}
_VALUES: Final = {name: np.array([value], dtype=kind) for name, (kind, value) in _RARE.items()}
_NO_MISSING: Final = np.zeros(1, dtype=np.int32)
for _one in (*_VALUES.values(), _NO_MISSING):
    _one.setflags(write=False)


class Output(NamedTuple):
    """A published output of one shard."""

    uri: str
    size_bytes: int
    value: str | None
    attempt: int


class StageRun:
    """One stage's progress. The arrays exist from the moment a task of it is first touched.

    A million tasks may wait, so a value that all tasks of a stage share takes no room for each: such an array can be read
    like any other, and `own` makes it one that can be written.

    Attributes:
        state: RunState of the stage.
        uniform: The state all its tasks are in while there are no arrays.
        task_state: (T,) TaskState.
        attempt: (T,) present (or last) attempt, from 0; -1 is never used.
        node: (T,) node index, -1 for none.
        version: (T,) version of the task's row in SQL, 0 = no row.
        goal: (T,) TaskState it becomes once released.
        charged: (T,) failed attempts that count against `retry.attempts`.
        lost: (T,) attempts lost to infrastructure, which cost the user nothing.
        memory_steps: (T,) how often its memory has grown, and `UNFITTED` if its fitted memory was too little.
        times: (T, 6) ready, staging, staged, bound, started, ended in ms; -1 where that has not happened.
        not_before: (T,) ms before which it is not offered to the scheduler (back-off).
        moved: (T,) input bytes that were copied for it.
        local: (T,) input bytes that were there.
        exit_code: (T,) of the last attempt, -1 for none; where it ended well, the code that it returned to its client.
        missing: (W,) parent shards not done, over `index` and `chunk` edges.
        closed: No further task of it is started (it failed, or a stage that it needs did).
        upset: It was skipped because something before it failed (not by a condition).
        barriers: parent stages not done, over all other edges.
        shard_done: (W,) all completing members have succeeded.
        cache_checked: (W,) the versions of the shard's inputs from outside are known, and the cache has been asked for its result;
            None = it reads nothing from outside, and the cache is not asked.
        counts: (states,) tasks in each state.
        totals: (13,) sums over the ended attempts of its tasks, columns as named above.
        reasons: task -> word, for the few that ended badly.
        returned: exit code -> tasks that succeeded with it though it is not 0.
    """

    __slots__ = (
        "attempt",
        "barriers",
        "cache_checked",
        "charged",
        "closed",
        "completing",
        "counts",
        "done",
        "ended_ms",
        "exit_code",
        "failed",
        "goal",
        "local",
        "lost",
        "memory_steps",
        "missing",
        "moved",
        "node",
        "not_before",
        "number",
        "reason",
        "reasons",
        "returned",
        "role_of",
        "shard_done",
        "spec",
        "started_ms",
        "state",
        "task_state",
        "times",
        "totals",
        "uniform",
        "upset",
        "verdict",
        "version",
    )

    task_state: NDArray[np.uint8]
    attempt: NDArray[np.int32]
    node: NDArray[np.int32]
    version: NDArray[np.int32]
    goal: NDArray[np.uint8]
    charged: NDArray[np.int16]
    lost: NDArray[np.int16]
    memory_steps: NDArray[np.uint8]
    times: NDArray[np.int64]
    not_before: NDArray[np.int64]
    moved: NDArray[np.int64]
    local: NDArray[np.int64]
    exit_code: NDArray[np.int32]
    missing: NDArray[np.int32]
    shard_done: NDArray[np.bool_]

    def __init__(self, number: int, spec: StageSpec, counts: NDArray[np.int64]) -> None:
        self.number = number
        self.spec = spec
        self.state = RunState.PENDING
        self.reason = ""
        self.failed = False
        self.closed = False
        self.upset = False
        self.verdict: bool | None = None
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        self.uniform: TaskState | None = TaskState.PENDING
        self.cache_checked: NDArray[np.bool_] | None = None
        self.barriers = 0
        self.done = 0
        self.counts = counts  #: its row of the workflow's
        self.counts[TaskState.PENDING] = spec.tasks
        self.totals = np.zeros(len(TOTALS), dtype=np.int64)
        self.reasons: dict[int, str] = {}
        self.returned: dict[int, int] = {}
        roles = [role for role in spec.roles for _ in range(role.replicas)]
        numbers = [number for number, role in enumerate(spec.roles) for _ in range(role.replicas)]
        self.role_of = np.array(numbers, dtype=np.int32)
        self.completing = np.array([role.completes for role in roles], dtype=np.bool_)

    @property
    def members(self) -> int:
        """Tasks of one shard."""
        return len(self.role_of)

    def touch(self, missing: NDArray[np.int32]) -> None:
        """Make the arrays, all tasks in the uniform state. `missing`: (W,) open parent shards of each shard."""
        if self.uniform is None:
            return
        tasks, width = self.spec.tasks, self.spec.width
        self.task_state = np.full(tasks, self.uniform, dtype=np.uint8)
        for name, value in _VALUES.items():
            setattr(self, name, np.ndarray((tasks,), value.dtype, value, 0, (0,)))
        self.goal = np.zeros(tasks, dtype=np.uint8)
        self.times = np.full((tasks, 6), -1, dtype=np.int64)
        self.missing = (
            missing.copy() if missing.any() else np.ndarray((width,), np.int32, _NO_MISSING, 0, (0,))
        )
        self.shard_done = np.zeros(width, dtype=np.bool_)
        self.uniform = None

    def own(self, name: str) -> NDArray[Any]:
        """An array by its name, writable and with unchanged values."""
        column: NDArray[Any] = getattr(self, name)
        if not column.flags.writeable:
            column = column.copy()
            setattr(self, name, column)
        return column

    def holds_only(self, name: str, values: Any) -> bool:
        """Whether an array has one value for all tasks, and `values` are that one: then nothing need be written."""
        column: NDArray[Any] = getattr(self, name)
        if column.flags.writeable:
            return False
        same = column[:1] == values
        return bool(np.count_nonzero(same) == np.size(same))

    def indices_of(self, shard: int) -> NDArray[np.int64]:
        """(members,) task numbers of one shard."""
        first = shard * self.members
        return np.arange(first, first + self.members)

    def task_is(self, index: int) -> TaskState:
        """The state of one task."""
        return self.uniform if self.uniform is not None else TaskState(int(self.task_state[index]))

    def counted(self) -> dict[str, int]:
        """Tasks by state name, zeros left out."""
        return _named(self.counts)

    def holding(self) -> int:
        """Tasks that may have a pod."""
        c = self.counts
        return int(
            c[TaskState.ALLOCATED] + c[TaskState.BINDING] + c[TaskState.RUNNING] + c[TaskState.RELEASING]
        )

    def open_tasks(self) -> int:
        """Tasks that are not terminal."""
        c = self.counts
        return int(self.spec.width * len(self.role_of) - c[_ENDED:].sum())


class WorkflowRun:
    """One workflow's progress.

    Attributes:
        counts: (stages, states) how many of each stage's tasks are in which state.
        outputs: (stage, output) -> shard -> the published output.
        ranks: (stages,) upward rank in ms.
        seq: Submission order.
        open_stage: Where to look first for a stage that has not ended; only a hint.
        changed: URI of an input from outside -> how often its version could not be had any more.
        versions: URI of an input from outside -> the dataset that the run reads as it: one version, as long as that can be had.
        looks: How often the run had to look for other versions than the first.
        file_bytes: Path or file URI that its containers read -> bytes, where they are known.
        placed_bytes: Stage -> bytes of the files that its containers read where every node sees them, if that is known.
    """

    __slots__ = (
        "cancel_requested",
        "changed",
        "counts",
        "ended_ms",
        "file_bytes",
        "graph",
        "id",
        "looks",
        "open_stage",
        "outputs",
        "paused",
        "placed_bytes",
        "ranks",
        "reason",
        "seq",
        "spec",
        "stages",
        "started_ms",
        "state",
        "versions",
    )

    def __init__(self, ident: str, spec: WorkflowSpec, graph: StageGraph, seq: int = 0) -> None:
        self.id = ident
        self.spec = spec
        self.graph = graph
        self.seq = seq
        self.open_stage = 0
        self.looks = 0
        self.versions: dict[str, str] = {}
        self.changed: dict[str, int] = {}
        self.file_bytes: dict[str, int] = {}
        self.placed_bytes: dict[int, int] = {}
        self.state = RunState.PENDING
        self.reason = ""
        self.cancel_requested = False
        self.paused = False
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        self.counts = np.zeros((len(spec.stages), _STATES), dtype=np.int64)
        self.stages = [
            StageRun(number, stage, self.counts[number]) for number, stage in enumerate(spec.stages)
        ]
        self.outputs: dict[tuple[int, str], dict[int, Output]] = {}
        self.ranks: NDArray[np.int64] = np.zeros(len(spec.stages), dtype=np.int64)

    def number_of(self, stage: str) -> int:
        """The number of a stage by its name (KeyError if there is none)."""
        return self.graph.numbers[stage]

    def totals(self) -> Mapping[str, int]:
        """Tasks by state over all stages."""
        return _named(self.counts.sum(axis=0))


def _named(counts: NDArray[np.int64]) -> dict[str, int]:
    """Numbers by the name of their state, zeros left out."""
    return {_NAMES[state]: number for state, number in enumerate(counts.tolist()) if number}
