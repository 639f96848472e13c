"""The timeline of a workflow: when each task waited, staged, ran and ended, as columns of numbers.

A page that draws 10,000 tasks reads one answer of some 100 kB on the wire, where the list of tasks has ten answers of 5 MB in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from flowsched.control.views import untouched_row
from flowsched.engine.delta import TaskWrite
from flowsched.engine.recovery import untouched_state
from flowsched.engine.state import EngineState
from flowsched.engine.transaction import task_rows
from flowsched.store.rows import StageRow
from flowsched.store.workflows import Workflows, token_of
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.views import TimelineView

#: Tasks whose columns are made before the event loop serves other requests: some 10 ms.
SLICE: Final = 2_000
#: Columns that are left empty if all their entries have this value.
_PLAIN: Final[Mapping[str, int | None]] = {
    "attempt": 0,
    "node": None,
    "ready_ms": None,
    "staging_in_ms": None,
    "bound_ms": None,
    "started_ms": None,
    "staging_out_ms": None,
    "ended_ms": None,
    "bytes_local": 0,
    "bytes_moved": 0,
    "exit_code": None,
}


class Columns:
    """The columns of one answer, filled row by row."""

    def __init__(self, workflow: str, begin_ms: int, now_ms: int) -> None:
        self._begin_ms = begin_ms
        self._nodes: dict[str, int] = {}
        self.view = TimelineView(
            workflow=workflow,
            begin_at=datetime.fromtimestamp(begin_ms / 1000, UTC),
            now_ms=now_ms - begin_ms,
            states=[state.name for state in sorted(TaskState)],
        )

    def add(self, tasks: Iterable[tuple[int, int, int | None, TaskWrite]]) -> None:
        """Append tasks: number of the stage in the answer, index there, when its last step ended (None: it has none), the row."""
        view, begin = self.view, self._begin_ms
        for stage, index, steps_ended_ms, row in tasks:
            node = None if row.node is None else self._nodes.setdefault(row.node, len(self._nodes))
            if row.reason:
                view.reasons[len(view.stage)] = row.reason
            left = None if row.ended_ms is None else steps_ended_ms
            view.stage.append(stage)
            view.index.append(index)
            view.attempt.append(row.attempt)
            view.state.append(row.state)
            view.node.append(node)
            view.ready_ms.append(_after(begin, row.ready_ms))
            view.staging_in_ms.append(_after(begin, row.staging_ms))
            view.bound_ms.append(_after(begin, row.bound_ms))
            view.started_ms.append(_after(begin, row.started_ms))
            view.staging_out_ms.append(_after(begin, left))
            view.ended_ms.append(_after(begin, row.ended_ms))
            view.bytes_local.append(row.bytes_local)
            view.bytes_moved.append(row.bytes_moved)
            view.exit_code.append(row.exit_code)

    def finish(self, sizes: Mapping[int, int] | None = None) -> TimelineView:
        """The answer, without the columns that say nothing.

        Args:
            sizes: The tasks of each stage, the last stage last; None = the columns hold all tasks.
        """
        view = self.view
        view.nodes = list(self._nodes)
        if sizes and view.stage and (view.stage[-1], view.index[-1] + 1) != list(sizes.items())[-1]:
            view.next_page_token = f"{view.stage[-1]}.{view.index[-1] + 1}"
        for name, plain in _PLAIN.items():
            if all(value == plain for value in getattr(view, name)):
                setattr(view, name, [])
        return view


def _after(begin: int, moment: int | None) -> int | None:
    return None if moment is None else moment - begin


async def rows_of(
    reads: Workflows,
    workflow: str,
    stages: Sequence[StageRow],
    live: Callable[[], tuple[EngineState, WorkflowRun] | None],
    at: tuple[int, int],
    limit: int,
) -> AsyncIterator[list[TaskWrite]]:
    """The rows of tasks from stage and index `at` on, also of tasks that were never touched, at most `SLICE` at a time.

    Args:
        reads: For a workflow that does not live in this process.
        workflow: Its id.
        stages: All its stages.
        live: The state and the run, while the workflow lives here and no long step changes it.
        at: Stage and index of the first task.
        limit: How many tasks.
    """
    number, index = at
    while limit > 0:
        spans = _spans(stages, number, index, min(SLICE, limit))
        if not spans:
            return
        found = live()
        if found is None:
            yield await _stored_rows(reads, workflow, spans)
        else:
            yield [row for span in spans for row in _live_rows(*found, span)]
            await asyncio.sleep(0)
        last = spans[-1]
        number, index = last.stage.stage, last.first + last.count
        limit -= sum(span.count for span in spans)


class _Span(NamedTuple):
    """Tasks of one stage that follow each other."""

    stage: StageRow
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no code needs here


def _spans(stages: Sequence[StageRow], number: int, index: int, tasks: int) -> list[_Span]:
    """The next `tasks` tasks from an index of a stage on."""
    found = []
    while tasks > 0 and number < len(stages):
        stage = stages[number]
        count = min(tasks, stage.width * stage.members - index)
        if count > 0:
            found.append(_Span(stage, index, count))
            tasks -= count
        number, index = number + 1, 0
    return found


def _live_rows(state: EngineState, run: WorkflowRun, span: _Span) -> list[TaskWrite]:
    stage = run.stages[span.stage.stage]
    if stage.uniform is None:
        return task_rows(state, run, stage, np.arange(span.first, span.first + span.count))
    return _untouched(span, stage.uniform)


async def _stored_rows(reads: Workflows, workflow: str, spans: Sequence[_Span]) -> list[TaskWrite]:
    """From the database, with one query; a task without a row was never touched."""
    tasks = sum(span.count for span in spans)
    before = token_of((spans[0].stage.stage, spans[0].first - 1))
    page = await reads.tasks(workflow, limit=tasks, token=before)
    written = {(row.stage, row.index): row for row in page.items}
    blank = (row for span in spans for row in _untouched(span, untouched_state(RunState(span.stage.state))))
    return [written.get((row.stage, row.index), row) for row in blank]


def _untouched(span: _Span, state: TaskState) -> list[TaskWrite]:
    workflow, number = span.stage.workflow, span.stage.stage
    return [
        untouched_row(workflow, number, index, state) for index in range(span.first, span.first + span.count)
    ]
