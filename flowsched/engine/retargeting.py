"""Targets that are given up for better ones, before a byte has moved to them.

All tasks of a stage are often ready at once, and get their targets before one of them has ended: nobody knows then what they
will write, so nobody minds where. With the first output it is known that a later task gathers them, and how much it is. Those
that wait for copies of which none has begun are offered again, and go where their outputs will be gathered if that pays.
"""

from __future__ import annotations

from flowsched.engine.changes import Recorder
from flowsched.engine.staging import withdraw
from flowsched.workflow.run import StageRun, WorkflowRun


def think_again(recorder: Recorder, run: WorkflowRun, stage: StageRun) -> None:
    """Offer the tasks of a stage that wait for their first byte once more."""
    state = recorder.state
    begun = {(dataset, dest) for dataset, dest, _ in state.moving}
    for number, group in list(state.staging.items()):
        if (group.workflow, group.stage) != (run.id, stage.number) or not begun.isdisjoint(group.pending):
            continue
        if not any(state.catalogue.landed(*pair) for pair in group.pending):
            withdraw(recorder, number)
