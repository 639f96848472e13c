"""The state of work: workflows and their pods, the backlog, and learned profiles of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.engine.state.data import Gather, Route
from flowsched.engine.state.foreign import ForeignKey
from flowsched.executor.protocol import Roster
from flowsched.scheduling.pod_group import Home, PodGroup, Shape
from flowsched.statement import Statement
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.graph import reader_of
from flowsched.workflow.learned_plan import LearnedPlan
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import EMPTY, Match

#: Beyond this many different shapes all are forgotten (a bound on memory): equal ones may be several objects then.
_MOST_SHAPES: Final = 4096


class PodRef(NamedTuple):
    """Which attempt of which task a pod is.

    `adopted`: an earlier leader has bound it, by a clock of its own.
    """

    workflow: str
    stage: int
    task: int
    attempt: int
    remote: Mapping[str, str] = EMPTY  #: uri -> node that it is read from, over the network
    adopted: bool = False


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


#: Workflow, stage, role, bytes of memory if not those of the document (else 0), and what was learned of its demand for disks.
ShapeKey: TypeAlias = tuple[str, int, int, int, Demand | None]


class GroupKey(NamedTuple):
    """The key of a backlog item: a shard of a stage, or (shard -1) all its ready shards of one memory step, or (with a role)
    the members of one role that join the shard's gang while it goes on.
    """

    workflow: str
    stage: int
    shard: int
    memory_steps: int
    role: int = -1


#: Gang members get addresses of their own from 127.64.0.0 up: 2^22 of them, so that a number is not used again soon.
ADDRESSES: Final = 1 << 22


class GangSeats(NamedTuple):
    """The ranks of a gang's members, from its begin to its end. A member that comes back has its rank again.

    `first`: the number of the address of member 0; `members`: all that have been part of the gang, in the order of their ranks.
    """

    first: int
    members: tuple[int, ...]

    def numbers(self) -> list[int]:
        """The numbers of its members' addresses, in the order of their ranks."""
        return [(self.first + member) % ADDRESSES for member in self.members]

    @staticmethod
    def of(roster: Roster, first: int) -> GangSeats:
        """The seats of a gang that has this roster, and member 0 the address of this number."""
        return GangSeats(first, tuple((member.number - first) % ADDRESSES for member in roster.members()))


class Candidate(msgspec.Struct, frozen=True):
    """A pod group of the backlog with the tasks of each of its roles (all of the stage's, or one), in replica order."""

    run: WorkflowRun
    stage: StageRun
    group: PodGroup
    tasks: tuple[NDArray[np.int64], ...]
    #: By role, its expected use of disks and storages where that is not the declared one.
    demands: tuple[Demand | None, ...] = ()

    def at(self, role: int) -> int:
        """Where a role of the stage is among those of the group."""
        return 0 if len(self.tasks) == 1 else role


class Division(NamedTuple):
    """How the shards of a stage are divided among those of the stage that reads their outputs: one group has one gather node."""

    consumer: int
    match: Match
    readers: int
    width: int


class OwnBags(msgspec.Struct):
    """The bags of a stage whose bags differ in inputs or gather nodes.

    Attributes:
        division: By which shards that read the same are divided; None = each shard is a bag.
        waiting: (3, T) the tasks that are offered, in order; when each became ready; how often its memory has grown.
        numbers: (shard that reads its output, memory steps) -> the bag; (task, memory steps) where each shard is a bag.
        sizes: Of each bag, the bytes that it does not share with the others.
        common: The datasets that they share; None = none of them was offered yet.
        mean_bytes, ranked_ms: The mean of `sizes`, and the expected runtime, by which they were ranked.
        ranked_by: All by which they were ranked, besides their sizes.
    """

    division: Division | None
    waiting: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty((3, 0), dtype=np.int64))
    numbers: dict[tuple[int, int], int] = msgspec.field(default_factory=dict)
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    common: frozenset[int] | None = None
    mean_bytes: int = 0
    ranked_ms: int | None = None
    ranked_by: tuple[int, int | None, int] | None = None

    def place(self, task: int, step: int) -> tuple[int, int]:
        """The key of `numbers` for a task and its memory steps."""
        if self.division is None:
            return task, step
        _, match, readers, width = self.division
        return reader_of(match, task, readers, width) or 0, step

    def first(self) -> int:
        """The bag of the first task."""
        task, _, step = self.waiting[:, 0].tolist()
        return self.numbers[self.place(task, step)]

    def drop(self, tasks: list[int]) -> None:
        """Note that some tasks are not offered."""
        self.waiting = self.waiting[:, ~np.isin(self.waiting[0], tasks)]


class CachedBags(msgspec.Struct):
    """The bags of a stage as they were offered last.

    Attributes:
        kind: Of the stage's tasks.
        basis: The facts from which all but their gather nodes and estimates was worked out (`backlog.collect`); None = one has
            changed.
        candidates: The bags, by number.
        routes: Of each bag, which task gathers its outputs; None = none does, as far as is known yet.
        homes: Route -> the gather node that the bags have by it.
        gathers: How they are gathered, by which the routes were found, and how what is made of them is gathered.
        stale: Their amounts are to be estimated anew.
        moved: Tasks of the stage have changed since. Bags of others are as they were.
        outdated: Bags of which facts have changed that concern them alone.
        replaced: Bags that have changed since they were offered last.
        own: Of a stage whose bags differ in inputs or gather nodes; None = they differ in memory alone.
    """

    kind: tuple[str, str]
    basis: tuple[object, ...] | None
    candidates: dict[int, Candidate] = msgspec.field(default_factory=dict)
    routes: dict[int, Route | None] = msgspec.field(default_factory=dict)
    homes: dict[Route | None, Home | None] = msgspec.field(default_factory=dict)
    gathers: tuple[Gather, ...] = ()
    stale: bool = True
    moved: bool = False
    outdated: set[int] = msgspec.field(default_factory=set)
    replaced: set[int] = msgspec.field(default_factory=set)
    own: OwnBags | None = None

    def put(self, number: int, candidate: Candidate) -> None:
        """Replace a bag, or add it."""
        self.candidates[number] = candidate
        self.replaced.add(number)

    def forget(self, place: tuple[int, int]) -> None:
        """Forget the bag of one of `own.numbers`, if it is there."""
        number = None if self.own is None else self.own.numbers.pop(place, None)
        if self.own is not None and number is not None:
            del self.candidates[number], self.routes[number], self.own.sizes[number]
            self.replaced.add(number)


class Offered(NamedTuple):
    """The groups of a stage that are offered, by number, and the gather nodes of the bags among them."""

    candidates: dict[int, Candidate]
    homes: dict[Route | None, Home | None]


#: A stage of which nothing is offered.
_NONE: Final = Offered({}, {})


class Offers(msgspec.Struct):
    """The groups that were offered in the last round, and the stages that the next one looks at: it costs what has changed.

    Attributes:
        bags: (workflow, stage) -> the bags of a stage.
        of_stage: (workflow, stage) -> the groups of a stage that are offered.
        candidates: All groups that are offered, by number.
        groups: The requests of `candidates`.
        routes: Workflow and route -> of how many stages bags have their gather node by it.
        changed: The stages of which something may have changed.
        basis: The facts on which all depends, as they were; None = all stages are looked at.
        by_kind: Kind of tasks -> the stages with bags.
        waiting: A stage, or a kind of tasks, with unknown outputs -> the stages whose gather nodes depend on these outputs.
        learned: How much had been learned of any kind of tasks (`Estimates.learned`).
        lessons: Kind of tasks -> from how many ends its waiting tasks were estimated, and how many have ended since.
        words: Workflow -> the worth of its users' words of runtimes, where these are far from the truth.
        held_back: Workflows that may start no task: they are paused, or being cancelled.
    """

    bags: dict[tuple[str, int], CachedBags] = msgspec.field(default_factory=dict)
    of_stage: dict[tuple[str, int], Offered] = msgspec.field(default_factory=dict)
    candidates: dict[int, Candidate] = msgspec.field(default_factory=dict)
    groups: dict[int, PodGroup] = msgspec.field(default_factory=dict)
    routes: dict[tuple[str, Route], int] = msgspec.field(default_factory=dict)
    changed: set[tuple[str, int]] = msgspec.field(default_factory=set)
    basis: tuple[object, ...] | None = None
    by_kind: dict[tuple[str, str], set[tuple[str, int]]] = msgspec.field(default_factory=dict)
    waiting: dict[tuple[str, int | str], set[tuple[str, int]]] = msgspec.field(default_factory=dict)
    learned: int = 0
    lessons: dict[tuple[str, str], tuple[int, int]] = msgspec.field(default_factory=dict)
    words: dict[str, object] = msgspec.field(default_factory=dict)
    held_back: set[str] = msgspec.field(default_factory=set)

    def clear(self) -> None:
        """Have all made anew."""
        self.bags.clear()
        self.of_stage.clear()
        self.candidates.clear()
        self.groups.clear()
        self.routes.clear()
        self.changed.clear()
        self.by_kind.clear()
        self.waiting.clear()
        self.lessons.clear()
        self.held_back.clear()
        self.basis = None

    def forget(self, pair: tuple[str, int]) -> None:
        """Offer nothing of a stage any more."""
        self.offer(pair, {})
        self.changed.discard(pair)
        self.drop(pair)

    def offer(self, pair: tuple[str, int], candidates: dict[int, Candidate]) -> None:
        """Offer these groups of a stage, in place of those before. The cost is that of the groups that have changed."""
        before, cached = self.of_stage.pop(pair, _NONE), self.bags.get(pair)
        replaced: Iterable[int] = before.candidates.keys() | candidates.keys()
        homes = _NONE.homes
        if cached is not None and cached.candidates is candidates:
            homes = cached.homes
            if candidates is before.candidates:
                replaced = cached.replaced
        for number in replaced:
            candidate = candidates.get(number)
            if candidate is not None:
                self.candidates[number], self.groups[number] = candidate, candidate.group
            elif number in self.groups:
                del self.candidates[number], self.groups[number]
        for some, sign in ((homes, 1), (before.homes, -1)) if homes is not before.homes else ():
            for route in some:
                if route is not None:
                    key = pair[0], route
                    self.routes[key] = count = self.routes.get(key, 0) + sign
                    if not count:
                        del self.routes[key]
        if cached is not None:
            cached.replaced = set()
        if candidates:
            self.of_stage[pair] = Offered(candidates, homes)

    def keep(self, pair: tuple[str, int], cached: CachedBags) -> None:
        """Keep the bags of a stage for the next round."""
        self.bags[pair] = cached
        self.by_kind.setdefault(cached.kind, set()).add(pair)

    def drop(self, pair: tuple[str, int]) -> None:
        """Have the bags of a stage made anew."""
        cached = self.bags.pop(pair, None)
        if cached is not None:
            of_kind = self.by_kind.get(cached.kind, set())
            of_kind.discard(pair)
            if not of_kind:
                self.by_kind.pop(cached.kind, None)

    def outdate_estimates(self, kind: tuple[str, str]) -> None:
        """Have the waiting tasks of a kind estimated anew."""
        for pair in self.by_kind.get(kind, ()):
            self.bags[pair].stale = True
            self.changed.add(pair)

    def wait(self, pair: tuple[str, int], *unknown: tuple[str, int | str]) -> None:
        """Look at a stage again when something is known of the outputs of another stage, or of a kind of tasks."""
        for each in unknown:
            self.waiting.setdefault(each, set()).add(pair)

    def tell(self, known: tuple[str, int | str]) -> None:
        """Something may be known of the outputs of a stage, or of a kind of tasks."""
        self.changed |= self.waiting.pop(known, set())

    def forget_waiting(self, workflow: str, kind: tuple[str, str]) -> None:
        """Stages of a workflow that has ended do not wait for what is learned of a kind."""
        if kind not in self.by_kind:
            self.lessons.pop(kind, None)
        left = {pair for pair in self.waiting.pop(kind, set()) if pair[0] != workflow}
        if left:
            self.waiting[kind] = left

    def outdate(self, pair: tuple[str, int]) -> None:
        """Note that the facts have changed from which the bags of a stage were worked out."""
        self.changed.add(pair)
        if pair in self.bags:
            self.bags[pair].basis = None


class EngineRuns(msgspec.Struct):
    """Runs whose DAG another engine keeps.

    Attributes:
        learned_plan: The learned edges between kinds of calls.
        ended: Run -> why its calls are cancelled: its head has ended, or was lost and has not started again. The oldest go
            first; a restart forgets all.
    """

    learned_plan: LearnedPlan = msgspec.field(default_factory=LearnedPlan)
    ended: dict[str, str] = msgspec.field(default_factory=dict)


class WorkState(msgspec.Struct):
    """Workflows that live, their pods, and the items of the backlog.

    Attributes:
        runs: Workflows that are not terminal, by id, in the order of submission.
        ready: (workflow, stage) with at least one QUEUED task.
        impatient: Of `ready`, the stages that may give up waiting (gangs, policies).
        pods: Every pod that holds room, by name.
        waiting_pods: Pod -> why it does not start: (reason, message).
        keys: The numbers of backlog items.
        groups: The backlog items by number.
        groups_of: The keys of a workflow's items, by workflow.
        next_key: The next number of an item.
        next_address: The next number of a gang member's address.
        gang_seats: (workflow, stage, shard) -> the ranks and addresses of its gang.
        shapes: The canonical shapes of pods.
        shapes_of: The keys of `shapes`, by workflow.
        equal_shapes: Shape -> the one object that stands for it, in all stages that ask for the same.
        inputs: (workflow, stage) -> dataset ids, where all shards read the same.
        offers: The groups that were offered in the last round.
        staged_on: Backlog item -> nodes to which its inputs were copied.
        estimates: The learned runtimes and amounts.
        engines: Runs whose DAG another engine keeps: their kinds, and which have ended.
        corrections: (workflow, stage) -> per mille of its learned I/O that is counted, by measurements.
    """

    runs: dict[str, WorkflowRun] = msgspec.field(default_factory=dict)
    ready: set[tuple[str, int]] = msgspec.field(default_factory=set)
    impatient: set[tuple[str, int]] = msgspec.field(default_factory=set)
    pods: dict[str, PodRef] = msgspec.field(default_factory=dict)
    waiting_pods: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    keys: dict[GroupKey | ForeignKey, int] = msgspec.field(default_factory=dict)
    groups: dict[int, GroupKey | ForeignKey] = msgspec.field(default_factory=dict)
    groups_of: dict[str, list[GroupKey]] = msgspec.field(default_factory=dict)
    next_key: int = 1
    next_address: int = 0
    gang_seats: dict[tuple[str, int, int], GangSeats] = msgspec.field(default_factory=dict)
    shapes: dict[ShapeKey, Shape] = msgspec.field(default_factory=dict)
    shapes_of: dict[str, list[ShapeKey]] = msgspec.field(default_factory=dict)
    equal_shapes: dict[Shape, Shape] = msgspec.field(default_factory=dict)
    inputs: dict[tuple[str, int], tuple[int, ...] | None] = msgspec.field(default_factory=dict)
    offers: Offers = msgspec.field(default_factory=Offers)
    staged_on: dict[GroupKey, tuple[int, ...]] = msgspec.field(default_factory=dict)
    estimates: Estimates = msgspec.field(default_factory=Estimates)
    engines: EngineRuns = msgspec.field(default_factory=EngineRuns)
    corrections: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)

    def key_of(self, group: GroupKey | ForeignKey) -> int:
        """The number a backlog item has kept since it first waited (numbers rise with age and break ties)."""
        number = self.keys.get(group)
        if number is None:
            number = self.next_key
            self.next_key += 1
            self.keys[group] = number
            self.groups[number] = group
            if isinstance(group, GroupKey):
                self.groups_of.setdefault(group.workflow, []).append(group)
        return number

    def one_of_equal(self, shape: Shape) -> Shape:
        """The object that stands for all equal shapes. A cycle compares kinds of pods by it, without hashing requests."""
        if len(self.equal_shapes) >= _MOST_SHAPES:
            self.equal_shapes.clear()
        return self.equal_shapes.setdefault(shape, shape)

    def outdate(self, groups: Iterable[int]) -> None:
        """Note that facts of some backlog items have changed: their requests are worked out again."""
        for number in groups:
            group = self.groups.get(number)
            if isinstance(group, GroupKey):
                pair = group.workflow, group.stage
                self.offers.changed.add(pair)
                if pair in self.offers.bags:
                    self.offers.bags[pair].outdated.add(number)

    def outdate_kind(self, kind: tuple[str, str]) -> None:
        """Note that facts of all tasks of a kind have changed, besides their samples."""
        for pair in self.offers.by_kind.get(kind, ()):
            self.offers.outdate(pair)

    def drop_inputs(self, statement: Statement, stages: Iterable[tuple[str, int]] | None = None) -> None:
        """Have the inputs of some stages, or of all, looked up again: they may read other datasets by now."""
        statement.undo_with(self.inputs.clear)
        for pair in list(self.inputs) if stages is None else stages:
            if self.inputs.pop(pair, None) is not None:
                self.offers.outdate(pair)

    def forget(self, workflow: str) -> list[int]:
        """Drop the state of a workflow that has ended. Returns the numbers of its backlog items."""
        numbers = []
        for group in self.groups_of.pop(workflow, ()):
            number = self.keys.pop(group)
            numbers.append(number)
            self.staged_on.pop(group, None)
            del self.groups[number]
        for shape in self.shapes_of.pop(workflow, ()):
            self.shapes.pop(shape, None)
        run = self.runs.pop(workflow, None)
        self.offers.held_back.discard(workflow)
        for stage in run.stages if run is not None else ():
            pair = (workflow, stage.number)
            self.ready.discard(pair)
            self.impatient.discard(pair)
            self.inputs.pop(pair, None)
            self.offers.forget(pair)
            self.offers.waiting.pop(pair, None)
            if run is not None:
                self.offers.forget_waiting(workflow, run.spec.kind_of(stage.spec))
            if stage.spec.gang:
                for shard in range(stage.spec.width):
                    self.gang_seats.pop((*pair, shard), None)
        return numbers

    def forget_foreign(self, key: str) -> list[int]:
        """Drop the backlog items of a foreign group. Returns their numbers."""
        items = [item for item in self.keys if isinstance(item, ForeignKey) and item.group == key]
        numbers = [self.keys.pop(item) for item in items]
        for number in numbers:
            del self.groups[number]
        return numbers
