"""Queues as people see them: what each has, deserves, asks for and has used of late, and what of its settings cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowsched.control.answers import amounts
from flowsched.engine.state import EngineState
from flowsched.scheduling.deserved import deserved
from flowsched.scheduling.queues import Queue, QueueTree, Shares, guaranteed
from flowsched.workflow.run import StageRun
from flowsched.workflow.spec import Resources
from flowsched.workflow.states import TaskState
from flowsched.workflow.views import QueueUserView, QueueView


@dataclass(slots=True)
class _Own:
    """What a queue's own groups are doing."""

    asked: list[int]  #: (R,) of tasks that are ready and not placed
    waiting: int = 0
    running: int = 0


def queue_views(state: EngineState) -> list[QueueView]:
    """All queues: those configured (and those they are below), those in use, and `default`."""
    snapshot, tree = state.snapshot, state.queues
    axes, own = len(snapshot.axes), _looked_through(state)
    names = dict.fromkeys(queue.name for queue in tree)
    names |= dict.fromkeys(sorted(own.keys() | {"default"} | set(snapshot.paying_queues) - {""}))
    for name in list(names):
        names |= dict.fromkeys(queue.name for queue in tree.path(name))
    shares = Shares(tree, snapshot)
    demand = {name: list(snapshot.queue_usage(name)) for name in snapshot.paying_queues}
    for name, work in own.items():
        row = demand.setdefault(name, [0] * axes)
        for axis, more in enumerate(work.asked):
            row[axis] += more
    due = deserved(tree, demand, snapshot.total)
    users = _users(state)
    found = []
    for name in names:
        queue, work = tree.get(name), own.get(name, _Own([0] * axes))
        found.append(
            QueueView(
                name=name,
                weight=queue.weight,
                parent=queue.parent,
                priority=queue.priority,
                paused=queue.paused,
                reclaimable=queue.reclaimable,
                order=queue.order,
                cap=amounts(snapshot.axes, queue.cap),
                guarantee=amounts(snapshot.axes, queue.guarantee),
                used=amounts(snapshot.axes, tuple(shares.usage(name))),
                deserved=amounts(snapshot.axes, due.get(name)),
                pending=amounts(snapshot.axes, tuple(work.asked)),
                recent=amounts(snapshot.axes, tuple(shares.past(name))),
                dominant_share=_share(shares.usage(name), snapshot.total),
                waiting=work.waiting,
                running=work.running,
                users=users.get(name, []),
                warnings=warnings(tree, queue, snapshot.axes, snapshot.total),
            )
        )
    return found


def warnings(tree: QueueTree, queue: Queue, axes: Sequence[str], total: Sequence[int]) -> list[str]:
    """What a queue's settings promise and cannot keep, with numbers; they are kept as far as they can be."""
    found = []
    for axis, (name, whole) in enumerate(zip(axes, total, strict=False)):
        own = (queue.guarantee or ())[axis : axis + 1]
        if own and own[0] > whole:
            found.append(f"it is guaranteed {own[0]} of {name}, and the cluster has {whole}")
        elif queue.parent is None and own and own[0]:
            roots = {each.name for each in tree if each.parent is None}
            together = sum(guaranteed(tree, root, len(axes))[axis] for root in sorted(roots))
            if together > whole:
                found.append(
                    f"queues are guaranteed {together} of {name} together, and the cluster has {whole}"
                )
    return found


def _share(used: Sequence[int], total: Sequence[int]) -> float:
    """The dominant share, for people."""
    return round(max((u / t for u, t in zip(used, total, strict=False) if t > 0), default=0.0), 4)


def _looked_through(state: EngineState) -> dict[str, _Own]:
    """What the own groups of each queue that has any are doing."""
    axes = len(state.snapshot.axes)
    found: dict[str, _Own] = {}
    for run in state.runs.values():
        work = found.setdefault(run.spec.queue, _Own([0] * axes))
        for stage in run.stages:
            waiting = int(stage.counts[TaskState.QUEUED] + stage.counts[TaskState.STAGING])
            work.waiting += waiting
            work.running += stage.holding()
            if waiting:
                _ask(state, run.id, stage, work.asked)
    for foreign in state.foreign.values():
        work = found.setdefault(
            foreign.group.queue if foreign.group is not None else "default", _Own([0] * axes)
        )
        work.running += len(foreign.placed)
        for pods in foreign.waiting.values():
            work.waiting += len(pods)
            for pod in list(pods.values())[:1]:
                _add(work.asked, _plain(pod.template.resources), len(pods))
    return found


def _ask(state: EngineState, workflow: str, stage: StageRun, asked: list[int]) -> None:
    """Add what a stage's tasks that are ready and not placed ask for."""
    if stage.uniform is not None:
        return  # its tasks have not been touched
    waiting = np.flatnonzero(np.isin(stage.task_state, (TaskState.QUEUED, TaskState.STAGING)))
    counts = np.bincount(stage.role_of[waiting % stage.members], minlength=len(stage.spec.roles))
    for number, count in enumerate(counts.tolist()):
        shape = state.shapes.get((workflow, stage.number, number, 0, None))
        resources = stage.spec.roles[number].resources
        _add(asked, _plain(resources) if shape is None else shape.requests, count)


def _plain(resources: Resources) -> tuple[int, ...]:
    """The axes that every cluster has."""
    return resources.cpu_millicores, resources.memory_bytes, resources.disk_bytes, resources.gpu_millis


def _add(row: list[int], amount: Sequence[int], times: int) -> None:
    for axis, value in enumerate(amount[: len(row)]):
        row[axis] += times * value


def _users(state: EngineState) -> dict[str, list[QueueUserView]]:
    """The users of each queue who hold something, or did of late; who has not said who he is, is "" among others."""
    usage, axes = state.snapshot.usage, state.snapshot.axes
    faded = usage.faded()
    found: dict[str, list[QueueUserView]] = {}
    for payer in sorted({*faded, *usage.payers()}):
        held, past = usage.held_by(payer), faded.get(payer, ())
        view = QueueUserView(
            user=payer.user, used=amounts(axes, tuple(held)), recent=amounts(axes, tuple(past))
        )
        if payer.queue and (view.used or view.recent):
            found.setdefault(payer.queue, []).append(view)
    return {queue: views for queue, views in found.items() if [view.user for view in views] != [""]}
