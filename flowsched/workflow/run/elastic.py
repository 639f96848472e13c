"""Elastic gangs: the members that a running gang can spare, and those that may still join it. Pure.

A role with `min` below `replicas` makes its gang elastic. Such a gang begins with the members for whom there is room. The others
stay QUEUED while it goes on: they join it when room comes, or stay out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.workflow.run.lifecycle import mask_of
from flowsched.workflow.run.run import StageRun
from flowsched.workflow.run.states import TaskState

Indices = NDArray[np.int64]
#: A task that the infrastructure loses this often is quarantined (FAULTS.md row 42): it may be what kills its nodes.
MAX_LOST: Final = 10
_S = TaskState
#: A member in one of these is a part of its gang.
PLACED: Final = mask_of(_S.BINDING, _S.RUNNING, _S.SUCCEEDED)
_WAITING: Final = mask_of(_S.QUEUED, _S.STAGING)


def is_elastic(stage: StageRun) -> bool:
    """Whether its gangs may begin, and go on, with fewer members than they may have."""
    return stage.spec.gang and any(role.minimum < role.replicas for role in stage.spec.roles)


def has_minimum(stage: StageRun, members: Indices) -> bool:
    """Whether these members of one gang, as far as they are placed, are the minimum of every role."""
    placed = PLACED[stage.task_state[members]]
    roles = stage.role_of[members % stage.members]
    return all(
        int((placed & (roles == number)).sum()) >= role.minimum
        for number, role in enumerate(stage.spec.roles)
    )


def goes_on_without(stage: StageRun, task: int) -> bool:
    """Whether a gang can do without a member that is placed. It cannot without the first, at whose address the others meet."""
    if not is_elastic(stage) or task % stage.members == 0:
        return False
    members = stage.indices_of(task // stage.members)
    return has_minimum(stage, members[members != task])


def spare(stage: StageRun) -> Indices:
    """The tasks that wait although their gang goes on: it has its minimum without them."""
    if not is_elastic(stage) or stage.uniform is not None:
        return np.zeros(0, dtype=np.int64)
    states = stage.task_state.reshape(stage.spec.width, stage.members)
    placed, waiting = PLACED[states], _WAITING[states]
    for number, role in enumerate(stage.spec.roles):
        of_role = stage.role_of == number
        waiting &= placed[:, of_role].sum(axis=1, keepdims=True) >= role.minimum
    return np.flatnonzero(waiting)


def joining(stage: StageRun) -> Indices:
    """Those of the spare tasks that join their gang when room comes."""
    tasks = spare(stage)
    return tasks[[stays_out(stage, task) is None for task in tasks.tolist()]] if len(tasks) else tasks


def stays_out(stage: StageRun, task: int) -> str | None:
    """Why a spare task does not join its gang; None if it does."""
    role = stage.spec.roles[int(stage.role_of[task % stage.members])]
    members = stage.indices_of(task // stage.members)
    if not role.grow:
        return f"role {role.name!r} says `grow: false`"
    if stage.lost[task] >= MAX_LOST:
        return f"it was lost {MAX_LOST} times, last: {stage.reasons.get(task, '')}"
    if stage.charged[task] >= stage.spec.retry.attempts:
        return f"its attempts are used up, last: {stage.reasons.get(task, '')}"
    if (stage.completing & (stage.task_state[members] == _S.SUCCEEDED)).any():
        return "some of its members have succeeded already"
    return None
