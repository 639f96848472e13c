"""A TES task that lives, from the leader's memory: most polls are of these, and need no SQL."""

from __future__ import annotations

from dataclasses import dataclass

from flowsched.engine.explain import explain
from flowsched.engine.state import EngineState
from flowsched.workflow.formats import tes_answers
from flowsched.workflow.moves import STARTED
from flowsched.workflow.states import TaskState


@dataclass(frozen=True, slots=True)
class Live:
    """How far it has got."""

    state: str  #: as TES has it
    attempt: int  #: the present one, from 0
    node: str  #: "" for none
    started_ms: int | None  #: when the present attempt began


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The present attempt as `tes_answers.Try`: it has not ended."""

    node: str
    attempt: int
    started_ms: int | None
    ended_ms: int | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    report: str = ""


def live(state: EngineState | None, ident: str) -> Live | None:
    """What memory says of a task; None if it is not there, or has ended."""
    run = None if state is None else state.runs.get(ident)
    if state is None or run is None or run.state.terminal:
        return None
    stage = run.stages[0]
    if stage.uniform is not None:
        return Live(tes_answers.live_state(stage.uniform, None, started=False), 0, "", None)
    task, goal = TaskState(int(stage.task_state[0])), TaskState(int(stage.goal[0]))
    began, node = int(stage.times[0, STARTED]), int(stage.node[0])
    shown = tes_answers.live_state(task, goal, started=began >= 0)
    return Live(
        shown,
        int(stage.attempt[0]),
        state.snapshot.names[node] if node >= 0 else "",
        began if began >= 0 else None,
    )


def waits(state: EngineState | None, ident: str, now: int) -> list[str]:
    """Why a task that lives does not run, as `explain` says it; nothing if it runs, or if this process does not lead."""
    run = None if state is None else state.runs.get(ident)
    if state is None or run is None or run.state.terminal:
        return []
    return [f"{each.code}: {each.message}" for each in explain(state, run, now, forecast=False)]
