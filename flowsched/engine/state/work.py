"""The state of work: the names of its pods, the keys of the backlog, and the groups that were offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup
from flowsched.values import quick
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import EMPTY


class PodRef(NamedTuple):
    """Which attempt of which task a pod is."""

    workflow: str
    stage: int
    task: int
    attempt: int
    remote: Mapping[str, str] = EMPTY  #: uri -> node that it is read from, over the network


def pod_name(workflow: str, stage: str, task: int, attempt: int) -> str:
    """The one name of one attempt: at most one pod ever bears it."""
    return f"fs-{workflow}-{stage}-{task}-{attempt}"


class Demand(NamedTuple):
    """Of one pod.

    `rate`: bytes/s in the budget of its node's disk. `moved`: bytes it reads from it and writes to it. `direct`: bytes/s it asks of
    shared storages, as in `Shape`. `learned`: per mille of what was learned
    that is counted, as measurements say; 0 = a person said these rates.
    """

    rate: int = 0
    moved: int = 0
    direct: tuple[tuple[str, int], ...] = ()
    learned: int = 0


#: Workflow, stage, role, steps of memory, and what was learned of its demand for disks.
ShapeKey: TypeAlias = tuple[str, int, int, int, Demand | None]


class GroupKey(NamedTuple):
    """What a backlog item stands for: a shard of a stage, or (shard -1) all its ready shards of one memory step."""

    workflow: str
    stage: int
    shard: int
    memory_steps: int


@quick
@dataclass(frozen=True, slots=True)
class Candidate:
    """What a pod group of the backlog stands for: the tasks of each of its roles, in replica order."""

    run: WorkflowRun
    stage: StageRun
    group: PodGroup
    tasks: tuple[NDArray[np.int64], ...]
    demands: tuple[
        Demand | None, ...
    ] = ()  #: by role, what it is taken to use of disks and storages beyond what is said


@dataclass(slots=True)
class Offered:
    """The bags of a stage that has not changed since. `own`: each reads or writes for somebody else than the others."""

    candidates: list[Candidate]
    own: bool
