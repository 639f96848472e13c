"""What the engine learns of tasks that ended well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flowsched.engine.changes import Recorder
from flowsched.engine.state import EngineState
from flowsched.executor.protocol import PodEnded, Usage
from flowsched.workflow.advance import STARTED
from flowsched.workflow.estimates import UNMEASURED, Measured
from flowsched.workflow.run import StageRun, WorkflowRun

_NOTHING: Final = Usage()


def learn(recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, event: PodEnded) -> None:
    """A task has ended well: what it took counts for the next of its kind."""
    state = recorder.state
    size = int(stage.local[task]) + int(stage.moved[task])
    outputs = {output.name: output.size_bytes for output in event.outputs}
    measured = _measured(size, event.usage, _wrote(outputs, bool(stage.spec.outputs)))
    if stage.spec.estimate.runtime_ms is not None:
        measured = measured._replace(said_ms=stage.spec.estimate.runtime_ms)
    runtime = max(1, event.at_ms - int(stage.times[task, STARTED]))
    before = state.estimates.learn(run.spec.name, stage.spec.name, runtime, measured, outputs)
    recorder.statement.undo_with(lambda: state.estimates.recall(before))


def relearn(
    state: EngineState,
    workflow: str,
    stage: str,
    runtime_ms: int,
    input_bytes: int,
    usage: Mapping[str, int],
    outputs: Mapping[str, int],
) -> None:
    """After a restart: one task as its row remembers it."""
    used = replace(_NOTHING, **{name: usage[name] for name in Usage.__slots__ if name in usage})
    measured = _measured(input_bytes, used, _wrote(outputs, True))
    state.estimates.learn(workflow, stage, runtime_ms, measured, outputs)


def _wrote(outputs: Mapping[str, int], some: bool) -> int:
    """Of a gang one member writes an output, and the others are not taken for members that write nothing."""
    return sum(outputs.values()) if outputs or not some else UNMEASURED


def _measured(size: int, used: Usage, wrote: int) -> Measured:
    """What was seen of a task. Not every executor measures everything: none of what every process uses means that nobody looked."""
    moved = used.read_bytes > 0 or used.written_bytes > 0
    return Measured(
        size,
        used.cpu_ms or UNMEASURED,
        used.read_bytes if moved else UNMEASURED,
        used.written_bytes if moved else UNMEASURED,
        used.max_rss_bytes or UNMEASURED,
        wrote,
        disk_bytes=used.disk_bytes,
    )
