"""The rows of a workflow's tasks, by stage and index: from memory while the workflow lives in this process, else from SQL.

Tasks that were never touched have no row; a row is made up for each. A list costs as much as what it lists, however many stages
the workflow has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

import numpy as np

from flowsched.control.views import untouched_row, waited
from flowsched.engine.delta import TaskWrite
from flowsched.engine.recovery import untouched_state
from flowsched.engine.state import EngineState
from flowsched.engine.transaction import task_rows
from flowsched.store.rows import StageRow
from flowsched.store.workflows import Workflows, token_of
from flowsched.workflow.run.run import TOTALS, StageRun, WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState

#: Rows that are made before the event loop serves other requests: some 10 ms.
SLICE: Final = 2_000
#: Stage and index of a task.
Position: TypeAlias = tuple[int, int]


class TaskRows:
    """Reads the rows of one workflow's tasks.

    Args:
        reads: For a workflow that does not live in this process.
        workflow: Its id.
        live: The state and the run, while the workflow lives here and no long step changes it.
    """

    def __init__(
        self, reads: Workflows, workflow: str, live: Callable[[], tuple[EngineState, WorkflowRun] | None]
    ) -> None:
        self._reads = reads
        self._workflow = workflow
        self._live = live

    async def slices(
        self, at: Position, limit: int, *, stage: int | None = None, wanted: TaskState | None = None
    ) -> AsyncIterator[list[TaskWrite]]:
        """The rows from a position on, at most `SLICE` at a time.

        Args:
            at: Of the first task.
            limit: How many rows.
            stage: Of this stage alone; None = of all.
            wanted: Only of tasks in this state; None = in any.
        """
        position: Position | None = at if stage is None else max(at, (stage, 0))
        while position is not None and limit > 0:
            most, live = min(SLICE, limit), self._live()
            if live is None:
                rows, position = await self._stored(position, most, stage, wanted)
            else:
                rows = _from_memory(*live, position, most, stage, wanted)
                position = _after(rows) if len(rows) == most else None
            yield rows
            limit -= len(rows)
            await asyncio.sleep(0)

    async def _stored(
        self, at: Position, most: int, stage: int | None, wanted: TaskState | None
    ) -> tuple[list[TaskWrite], Position | None]:
        """Rows from the database by two queries, and where the next ones begin; None after the last.

        Of stages that may hold untouched tasks in the wanted state all rows are read, since the others are untouched.
        """
        blank_in = [each for each in RunState if wanted in (None, untouched_state(each))]
        blank = await self._reads.stages(
            self._workflow, first=at[0], last=stage, limit=most,
            holding=None if wanted is None else (blank_in, wanted),
        )  # fmt: skip
        page = await self._reads.tasks(
            self._workflow, stage=stage, state=wanted, stage_states=blank_in, limit=most,
            token=token_of((at[0], at[1] - 1)),
        )  # fmt: skip
        known = (blank[-1].stage + 1, 0) if len(blank) == most else None
        read = _after(page.items) if page.next_token else None
        end = min((each for each in (known, read) if each is not None), default=None)
        rows = list(islice(self._merged(at, end, blank, page.items, wanted), most))
        return rows, _after(rows) if len(rows) == most else end

    def _merged(
        self,
        at: Position,
        end: Position | None,
        blank: Sequence[StageRow],
        written: Sequence[TaskWrite],
        wanted: TaskState | None,
    ) -> Iterator[TaskWrite]:
        """The tasks in the wanted state between two positions: those written, and the untouched ones of `blank` stages."""
        of_stage: dict[int, dict[int, TaskWrite]] = {}
        for row in written:
            of_stage.setdefault(row.stage, {})[row.index] = row
        stages = {each.stage: each for each in blank}
        for number in sorted({*of_stage, *stages}):
            if end is not None and (number, 0) >= end:
                return
            rows = of_stage.get(number, {})
            stage = stages.get(number)
            found = rows.values() if stage is None else _filled(stage, rows, at, end)
            yield from (row for row in found if wanted is None or row.state == wanted)


def _filled(
    stage: StageRow, rows: Mapping[int, TaskWrite], at: Position, end: Position | None
) -> Iterator[TaskWrite]:
    """All tasks of a stage between two positions."""
    tasks = stage.width * stage.members
    state = untouched_state(RunState(stage.state))
    when = waited(tasks, stage.totals, stage.started_ms, stage.ended_ms)
    first = at[1] if at[0] == stage.stage else 0
    last = end[1] if end is not None and end[0] == stage.stage else tasks
    for index in range(first, last):
        yield rows.get(index) or untouched_row(stage.workflow, stage.stage, index, state, when)


def _from_memory(
    state: EngineState, run: WorkflowRun, at: Position, most: int, stage: int | None, wanted: TaskState | None
) -> list[TaskWrite]:
    """The next rows of a run that lives here. Only stages that hold such tasks are looked at."""
    first, index = at
    counts = run.counts[first : None if stage is None else stage + 1]
    matching = counts.any(axis=1) if wanted is None else counts[:, wanted]
    found: list[TaskWrite] = []
    for number in (np.flatnonzero(matching) + first).tolist():
        start = index if number == first else 0
        found += _of_stage(state, run, run.stages[number], start, most - len(found), wanted)
        if len(found) == most:
            break
    return found


def _of_stage(
    state: EngineState, run: WorkflowRun, stage: StageRun, start: int, most: int, wanted: TaskState | None
) -> list[TaskWrite]:
    last = min(stage.spec.tasks, start + most)
    if stage.uniform is not None:
        totals = dict(zip(TOTALS, stage.totals.tolist(), strict=True))
        when = waited(stage.spec.tasks, totals, stage.started_ms, stage.ended_ms)
        return [
            untouched_row(run.id, stage.number, index, stage.uniform, when) for index in range(start, last)
        ]
    if wanted is None:
        return task_rows(state, run, stage, np.arange(start, last))
    tasks = np.flatnonzero(stage.task_state[start:] == wanted)[:most] + start
    return task_rows(state, run, stage, tasks)


def _after(rows: Sequence[TaskWrite]) -> Position:
    return rows[-1].stage, rows[-1].index + 1
