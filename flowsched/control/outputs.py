"""The bytes of what a task has published, from wherever they lie now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from flowsched.control import answers
from flowsched.control.facade import OutputData
from flowsched.engine.state import EngineState
from flowsched.errors import Conflict, NotFound
from flowsched.executor.protocol import Executor
from flowsched.store.workflows import Workflows
from flowsched.workflow.spec import StageSpec


async def open_output(
    reads: Workflows,
    executor: Executor,
    memory: Callable[[], EngineState | None],
    task: tuple[str, int, StageSpec, int],
    name: str,
) -> OutputData:
    """Open one output of one task.

    Args:
        reads: What was published.
        executor: Who has it.
        memory: Says where it is supposed to lie, if this process knows and can look now.
        task: Workflow, stage number, stage, index.
        name: Of the output.

    Raises:
        NotFound: There is no such output, or this task has not written it.
        Conflict: It was written, and no node has it any more.
    """
    workflow, number, stage, index = task
    declared = {output.name: output for output in stage.outputs}
    if name not in declared:
        there = ", ".join(sorted(declared)) or "none"
        raise NotFound(f"stage {stage.name!r} has no output {name!r}; its outputs: {there}")
    rows = [row for row in await reads.outputs(workflow, number, index) if row.name == name]
    if not rows:
        raise NotFound(f"{stage.name}[{index}] has not written its output {name!r} (so far)")
    view = answers.output_view(rows[0], memory())
    opened = await executor.open_dataset(view.uri, view.nodes)
    if opened is None:
        raise Conflict(
            f"{stage.name}[{index}] wrote its output {name!r} ({view.size_bytes} bytes), but no node has it any more: "
            "it was removed, or lost with its node; run the workflow again to have it"
        )
    file_name = PurePosixPath(declared[name].path).name or name
    suffix = ".tar" if opened.directory else ""
    return OutputData(file_name + suffix, opened.size_bytes, opened.chunks)
