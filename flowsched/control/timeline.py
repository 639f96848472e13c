"""The timeline of a workflow: when each task waited, staged, ran and ended, as columns of numbers.

A page that draws 10,000 tasks reads one answer of some 100 kB on the wire, where the list of tasks has ten answers of 5 MB in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from flowsched.control.views import untouched_row, waited
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
#: Columns of times, with the field of a task's row.
_TIMES: Final = {
    "ready_ms": "ready_ms",
    "staging_in_ms": "staging_ms",
    "staged_ms": "staged_ms",
    "bound_ms": "bound_ms",
    "started_ms": "started_ms",
    "ended_ms": "ended_ms",
}
#: Columns that are left empty if all their entries are null, or 0.
_NULL: Final = ("node", *_TIMES, "staging_out_ms", "exit_code")
_ZERO: Final = ("attempt", "bytes_local", "bytes_moved")


class Columns:
    """The columns of one answer, filled some tasks at a time: each column at once, since there may be 10,000."""

    def __init__(self, workflow: str, begin_ms: int, now_ms: int) -> None:
        self._begin_ms = begin_ms
        self._nodes: dict[str, int] = {}
        self.view = TimelineView(
            workflow=workflow,
            begin_at=datetime.fromtimestamp(begin_ms / 1000, UTC),
            now_ms=now_ms - begin_ms,
            states=[state.name for state in sorted(TaskState)],
        )

    def add(
        self,
        rows: Sequence[TaskWrite],
        places: Sequence[tuple[int, int]],
        steps_ended: Sequence[int | None] | None,
        items: Sequence[str | None] = (),
    ) -> None:
        """Append tasks.

        Args:
            rows: The tasks.
            places: The number of the stage in the answer, and the index there, of each.
            steps_ended: When the last step of its last attempt ended, of each; None = it has no steps, or none of them has.
            items: The item of the shard of each; None = its stage has none.
        """
        if not rows:
            return
        view, begin = self.view, self._begin_ms
        columns = dict(zip(TaskWrite._fields, zip(*rows, strict=True), strict=True))
        numbers = {
            name: self._nodes.setdefault(name, len(self._nodes))
            for name in dict.fromkeys(columns["node"])
            if name
        }
        view.reasons |= {len(view.stage) + at: why for at, why in enumerate(columns["reason"]) if why}
        view.items |= {len(view.stage) + at: item for at, item in enumerate(items) if item is not None}
        stages, indices = zip(*places, strict=True)
        view.stage.extend(stages)
        view.index.extend(indices)
        view.state.extend(columns["state"])
        view.node.extend(map(numbers.get, columns["node"]))
        for name, field in _TIMES.items():
            getattr(view, name).extend([None if at is None else at - begin for at in columns[field]])
        view.staging_out_ms.extend(
            [
                None if left is None or end is None else left - begin
                for left, end in zip(steps_ended or repeat(None), columns["ended_ms"], strict=False)
            ]
        )
        for name in (*_ZERO, "exit_code"):
            getattr(view, name).extend(columns[name])

    def finish(self, sizes: Mapping[int, int] | None = None) -> TimelineView:
        """The answer, without the columns that say nothing.

        Args:
            sizes: The tasks of each stage, the last stage last; None = the columns hold all tasks.
        """
        view = self.view
        view.nodes = list(self._nodes)
        if sizes and view.stage and (view.stage[-1], view.index[-1] + 1) != list(sizes.items())[-1]:
            view.next_page_token = f"{view.stage[-1]}.{view.index[-1] + 1}"
        for name in _NULL:
            if all(value is None for value in getattr(view, name)):
                setattr(view, name, [])
        for name in _ZERO:
            if not any(getattr(view, name)):
                setattr(view, name, [])
        return view


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
    stage = span.stage
    when = waited(stage.width * stage.members, stage.totals, stage.started_ms, stage.ended_ms)
    return [
        untouched_row(stage.workflow, stage.stage, index, state, when)
        for index in range(span.first, span.first + span.count)
    ]
