"""The predictor: the time, bytes and memory that a task is expected to take. All that decide ask it, and nothing else.

An answer is the document's word where it has one, else learned: from the shards of this run that have ended, and from earlier
tasks of its kind (`workflow.estimates`). Else it is a prior: a task of unknown runtime is taken to run for a minute, and once it
runs, as long again as it has run (`reservations.expected_ends`). A task of unknown outputs is taken to write little, but something:
so tasks whose outputs are gathered run near each other from the first one on, while nothing waits for that.

`io_demand` turns the answers into rates of disks and storages.
"""

from __future__ import annotations

from typing import Final

from flowsched.engine.data.inputs import read_bytes
from flowsched.engine.state import EngineState
from flowsched.workflow.estimates import LONGEST_MS, MOST_SAMPLES, UNKNOWN_MS, WRITTEN, is_far, typical_ms
from flowsched.workflow.run.run import StageRun, WorkflowRun

#: The bytes that a shard of unknown outputs is taken to write. A link of 1 Gbit/s brings them in less than the shortest time for
#: which a task waits (`Profile.shortest_wait_ms`). WOW's five workflows without estimates, ÷ WOW: 0.68 with 0, 0.65 with 50 MB,
#: 0.69 with 200 MB, 0.79 with 1 GB.
UNKNOWN_BYTES: Final = 50_000_000
#: Outputs of wider stages are not guessed: by gather nodes their shards are offered one by one.
_GUESSED: Final = 512


def expected_runtime(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]
) -> tuple[int | None, int | None]:
    """The runtime of a task that reads these datasets, and a high quantile of it, in ms; None where nothing is known.

    The user's estimate, unless tasks have shown that it is far from the truth; else the learned one, without the time that others
    took on the same disk. The high one is never below either, nor below the user's: other groups may have to wait that long.
    """
    declared_ms, estimates = stage.spec.estimate.runtime_ms, state.work.estimates
    kind = run.spec.kind_of(stage.spec)
    if not estimates.samples(*kind):
        worth_ms = None if declared_ms is None else estimates.as_declared_ms(*kind, declared_ms)
        if declared_ms is not None and worth_ms is not None:
            return worth_ms, declared_ms
        return declared_ms, None
    size = read_bytes(state.cluster.catalogue, run, stage, inputs)
    if declared_ms is not None and not is_refuted(state, run, stage, size):
        high = estimates.high_declared_ms(*kind, declared_ms)
        return declared_ms, high if high is not None and high > declared_ms else None
    high = estimates.high_ms(*kind, size)
    if declared_ms is not None:  # what is promised still depends on it
        high = max(declared_ms, high or 0)
    return _capped(_unshared_ms(state, run, stage, size)), _capped(high)


def word_of(state: EngineState, workflow: str) -> int | None:
    """The worth of its author's words of runtimes, per mille; None where they are not known to be far from the truth."""
    return state.work.estimates.word(workflow)


def is_proven(state: EngineState, run: WorkflowRun, stage: StageRun, ends: int = 1) -> bool:
    """Whether so many tasks of a stage's kind have ended, and shown what such tasks take."""
    return state.work.estimates.samples(*run.spec.kind_of(stage.spec)) >= ends


def ends_known(state: EngineState, kind: tuple[str, str]) -> int:
    """How many ends of tasks of a kind are remembered."""
    return state.work.estimates.samples(*kind)


def is_new(before: int, more: int) -> bool:
    """Whether `more` ends of tasks of a kind teach an eighth of what `before` had taught; or all that is remembered is new."""
    return 8 * more >= min(before, 8 * MOST_SAMPLES)


def is_refuted(state: EngineState, run: WorkflowRun, stage: StageRun, input_bytes: int) -> bool:
    """Whether tasks of a stage's kind have shown that its declared runtime is far from the truth.

    The time that others took on the same disk does not count: it would hide that tasks take a part of the time that they declare.
    """
    declared_ms, kind = stage.spec.estimate.runtime_ms, run.spec.kind_of(stage.spec)
    observed_ms = None if declared_ms is None else state.work.estimates.as_declared_ms(*kind, declared_ms)
    if declared_ms is None or observed_ms is None:
        return False
    wall_ms = state.work.estimates.runtime_ms(*kind, input_bytes) or 0
    shared_ms = wall_ms - (_unshared_ms(state, run, stage, input_bytes) or wall_ms)
    return is_far(declared_ms, max(1, observed_ms - shared_ms))


def _capped(runtime_ms: int | None) -> int | None:
    return None if runtime_ms is None else min(runtime_ms, LONGEST_MS)


def _unshared_ms(state: EngineState, run: WorkflowRun, stage: StageRun, input_bytes: int) -> int | None:
    """The learned runtime of a task, without the time of others on its disk where that is known."""
    kind, disk = run.spec.kind_of(stage.spec), fastest_disk(state)
    if not disk or len(stage.spec.roles) > 1:
        return state.work.estimates.runtime_ms(*kind, input_bytes)
    cores = -(-stage.spec.roles[0].resources.cpu_millicores // 1000)
    return state.work.estimates.unshared_ms(*kind, input_bytes, cores, disk)


def fastest_disk(state: EngineState) -> int:
    """Bytes/s of the fastest disk of any node; 0 where no node reports one. On a slower disk a pod asks for all of it at most."""
    cache = state.cluster.snapshot.cache
    if "fastest disk" not in cache:
        cache["fastest disk"] = int(state.cluster.snapshot.disk_rate.max(initial=0))
    found: int = cache["fastest disk"]
    return found


def typical_runtime(state: EngineState, run: WorkflowRun, stage: StageRun) -> int:
    """The runtime of a shard of a stage whose inputs may not exist yet, in ms."""
    known_ms = stage.spec.estimate.runtime_ms
    return known_ms or typical_ms(state.work.estimates, *run.spec.kind_of(stage.spec)) or UNKNOWN_MS


def written_bytes(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...] | None = None
) -> int:
    """Bytes that a shard of a stage writes for others.

    Args:
        state: For what was learned.
        run, stage: Of the shard.
        inputs: The datasets that it reads; None = those of a typical one, of which something is said even where nothing is known.
    """
    if not stage.spec.outputs:
        return 0
    kind, estimates = run.spec.kind_of(stage.spec), state.work.estimates
    if inputs is None:
        shards = [run.outputs.get((stage.number, out.name), {}) for out in stage.spec.outputs]
        written = sum(each.size_bytes for of_output in shards for each in of_output.values())
        if written:
            return written // max(1, len(shards[0]))
        size = estimates.typical_size(*kind) or 0
    else:
        size = read_bytes(state.cluster.catalogue, run, stage, inputs)
    learned = estimates.output_bytes(*kind, size)
    if learned is not None:
        return learned
    declared = stage.spec.estimate.output_bytes
    if declared is None:
        return UNKNOWN_BYTES if inputs is None and stage.spec.width <= _GUESSED else 0
    return declared


def knows_written(state: EngineState, run: WorkflowRun, stage: StageRun) -> bool:
    """Whether `written_bytes` is more than a guess."""
    names = (run.outputs.get((stage.number, out.name)) for out in stage.spec.outputs)
    known = stage.spec.estimate.output_bytes is not None or any(names)
    return known or state.work.estimates.output_bytes(*run.spec.kind_of(stage.spec)) is not None


def call_bytes(state: EngineState, kind: tuple[str, str]) -> int:
    """Bytes that an engine's call of a kind writes; 0 where nothing is known of it."""
    estimates = state.work.estimates
    return estimates.output_bytes(*kind) or estimates.bytes_of(*kind, WRITTEN)


def memory_request(
    state: EngineState, run: WorkflowRun, stage: StageRun, asked_bytes: int, reads: tuple[int, ...]
) -> int:
    """The fitted memory of a first attempt that reads these datasets, in bytes; at most the asked one."""
    call = run.spec.call
    waiting = run.graph.tasks_after(stage.number) if call is None else call.rank_ms // UNKNOWN_MS
    size = read_bytes(state.cluster.catalogue, run, stage, reads) if reads else 0
    return state.work.estimates.memory_request(*run.spec.kind_of(stage.spec), asked_bytes, waiting, size)
