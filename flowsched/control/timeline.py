"""The timeline of a workflow: when each task waited, staged, ran and ended, as columns of numbers.

A page that draws 10,000 tasks reads one answer of some 100 kB on the wire, where the list of tasks has ten answers of 5 MB in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Final

from flowsched.engine.delta import TaskWrite
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.views import TimelineView

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
