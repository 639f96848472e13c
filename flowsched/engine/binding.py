"""Binding: what was placed takes its room, and its pods are intended. A thousand bags of one task each are one look's work.

Claims and moves of tasks are noted first and made together (`take`, `move`): nothing that a look does in between reads them, but
for those that are made at once (gangs, devices, caches with a limit).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.backlog import Candidate
from flowsched.engine.changes import Recorder
from flowsched.engine.evicting import hold_room
from flowsched.engine.pods import Likenesses, encode_pod, likeness, make_pod, seats
from flowsched.engine.recovery import elastic_of
from flowsched.engine.remote import begin_reading, sources
from flowsched.engine.state import PodRef
from flowsched.executor.protocol import GangSeat
from flowsched.scheduling.devices import GPU, Parts, choose, parts_of
from flowsched.scheduling.snapshot import Claim, ClaimKind
from flowsched.workflow.states import TaskState

#: Members in these states were not placed with their gang.
_SEATLESS: Final = (TaskState.PENDING, TaskState.QUEUED, TaskState.SKIPPED, TaskState.CANCELLED)
_RUNNING: Final = ClaimKind.RUNNING
_NO_SEATS: Final[Mapping[int, GangSeat]] = {}
Indices = NDArray[np.int64]


class Binds:
    """What is bound in one look."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._likenesses: Likenesses = {}
        #: By stage: its tasks, their nodes, and the bytes they read.
        self._stages: dict[int, tuple[Candidate, list[int], list[int], list[int]]] = {}
        self._claims: list[Claim] = []
        self._pods: dict[str, PodRef] = {}

    def bind(
        self, candidate: Candidate, tasks: Indices, nodes: Indices, devices: Mapping[int, Parts] | None
    ) -> None:
        """Pods of one group take their room. `devices`: the GPUs of each task; None = they ask for none."""
        recorder = self._recorder
        state, now = recorder.state, recorder.now
        run, stage, group = candidate.run, candidate.stage, candidate.group
        gang, look = stage.spec.gang, state.look is not None
        self._note(candidate, tasks, nodes)
        places = _NO_SEATS
        if gang:
            first = _gang_base(recorder, candidate, tasks)
            places = seats(state, candidate, _seated(candidate, tasks), first)
        until = None if group.runtime_ms is None else now + group.runtime_ms
        late = None if group.high_ms is None else now + group.high_ms
        alike = [likeness(candidate, number, self._likenesses) for number in range(len(group.roles))]
        unit, part_of = f"{run.id}/{stage.spec.name}/", 1
        if gang:  # taken away as a whole (`recovery.standing`)
            part_of = stage.members
        task_numbers, node_numbers = tasks.tolist(), nodes.tolist()
        for task, node in zip(task_numbers, node_numbers, strict=True):
            number = 0 if len(alike) == 1 else int(stage.role_of[task % stage.members])
            shape = group.roles[number].shape
            gpus: Parts = () if devices is None else devices[task]
            devices_of = tuple([device for device, _ in gpus]) if gpus else ()
            pod = make_pod(
                state,
                candidate,
                alike[number],
                task,
                node,
                places.get(task),
                devices_of,
                sources(state, group, node),
            )
            claim = Claim(
                owner=pod.name,
                node=node,
                amount=shape.requests,
                kind=_RUNNING,
                queue=group.queue,
                user=group.user,
                since_ms=now,
                until_ms=until,
                io_bytes=shape.io_bytes,
                direct=shape.direct,
                learned=None if not candidate.demands else _learned(candidate, number),
                group=group.name,
                late_ms=late,
                unit=f"{unit}{task // part_of}",
                priority=run.spec.priority,
                qos=alike[number].qos,
                devices=gpus,
                elastic=elastic_of(stage, task) if gang else None,
            )
            self._claims.append(claim)
            self._pods[pod.name] = ref = PodRef(run.id, stage.number, task, pod.attempt, pod.remote)
            if pod.remote:
                begin_reading(state, stage, ref, recorder.statement)
            if look:
                hold_room(recorder, candidate, task, node, bound=True)
            recorder.intend(run, stage, pod, encode_pod(pod))
        if gang or look or devices is not None:
            self.take()
        names = state.snapshot.names
        where = [names[node_numbers[0]]] if len(node_numbers) == 1 else [names[n] for n in {*node_numbers}]
        told = {"group": group.name, "tasks": len(task_numbers), "nodes": sorted(where)}
        recorder.advance(run).changes.events.append(("gang.placed" if group.gang else "tasks.placed", told))

    def devices_of(
        self, candidate: Candidate, tasks: Indices, nodes: Indices, planned: Indices | None
    ) -> dict[int, Parts] | None:
        """The GPUs of each task that can have them; None where none asks for any.

        `planned`: (K, D) those the plan names; None = all are whole ones, any will do.
        """
        if not any(role.shape.requests[GPU] > 0 for role in candidate.group.roles):
            return None
        self.take()
        found: dict[int, Parts] = {}
        free: dict[int, list[int]] = {}
        for at, (task, node) in enumerate(zip(tasks.tolist(), nodes.tolist(), strict=True)):
            left = free.setdefault(node, self._recorder.state.snapshot.devices.free_on(node))
            role = candidate.group.roles[int(candidate.stage.role_of[task % candidate.stage.members])]
            chosen: Parts | None
            if planned is None:
                chosen = choose(left, role.shape.requests[GPU])
            else:
                chosen = parts_of(planned[at].tolist())
            if chosen is None or any(at >= len(left) or left[at] < part for at, part in chosen):
                continue
            found[task] = chosen
            for device, part in chosen:
                left[device] -= part
        return found

    def note(self, claim: Claim) -> None:
        """A claim that is made with the others, in its turn."""
        self._claims.append(claim)

    def take(self) -> None:
        """Make the claims that have been noted, before somebody looks at them."""
        state, statement = self._recorder.state, self._recorder.statement
        if self._claims:
            state.snapshot.claim_all(self._claims, statement)
            self._claims = []
        if self._pods:
            statement.put_all(state.pods, self._pods)
            statement.include_all(state.under_way, self._pods)
            self._pods = {}

    def move(self) -> None:
        """Make the claims, and move the tasks that have been noted."""
        self.take()
        for candidate, *noted in self._stages.values():
            self._move(candidate, *(np.array(parts) for parts in noted))
        self._stages.clear()

    def _note(self, candidate: Candidate, tasks: Indices, nodes: Indices) -> None:
        """Note tasks and their nodes. A gang moves now, since its seats are told by states."""
        sizes = self._recorder.state.catalogue.sizes
        total = sum([sizes[dataset] for dataset in candidate.group.reads])
        stage = candidate.stage
        if stage.spec.gang:
            self._move(candidate, tasks, nodes, np.full(len(tasks), total))
            return
        noted = self._stages.get(id(stage))
        if noted is None:
            noted = self._stages[id(stage)] = candidate, [], [], []
        _, all_tasks, all_nodes, totals = noted
        all_tasks += tasks.tolist()
        all_nodes += nodes.tolist()
        totals += [total] * len(tasks)

    def _move(self, candidate: Candidate, tasks: Indices, nodes: Indices, totals: Indices) -> None:
        stage = candidate.stage
        self._recorder.advance(candidate.run).bind(stage, tasks, nodes)
        local = np.maximum(0, totals - stage.moved[tasks])
        if not stage.holds_only("local", local):
            self._recorder.statement.set(stage.own("local"), tasks, local)


def _learned(candidate: Candidate, number: int) -> tuple[str, str, int] | None:
    """Of which stage what a role's pods are counted for was learned, and the per mille of it; None = it was not."""
    demand = candidate.demands[number]
    if demand is None or not demand.learned:
        return None
    return candidate.run.spec.name, candidate.stage.spec.name, demand.learned


def _seated(candidate: Candidate, tasks: Indices) -> Indices:
    """Who has a seat: whom the gang was placed with. Pod by pod the others come later, and all are counted."""
    stage = candidate.stage
    members = stage.indices_of(int(tasks[0]) // stage.members)
    if not candidate.group.gang:
        return members
    return members[~np.isin(stage.task_state[members], _SEATLESS)]


def _gang_base(recorder: Recorder, candidate: Candidate, tasks: Indices) -> int:
    """The number of the gang's first address: kept while it goes on, so that members placed later share it."""
    state, stage = recorder.state, candidate.stage
    key = (candidate.run.id, stage.number, int(tasks[0]) // stage.members)
    base = state.gang_bases.get(key)
    whole = candidate.group.gang and len(_seated(candidate, tasks)) == len(tasks)
    if base is None or whole:
        base = state.next_address
        recorder.statement.put(state.gang_bases, key, base)
        recorder.statement.assign(state, "next_address", base + stage.members)
    return base
