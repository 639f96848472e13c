"""The backlog: QUEUED tasks as pod groups of shapes and counts for one scheduling cycle, each shard with its rank by size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.data.cache_values import Evictable, shut_nodes
from flowsched.engine.data.gather_nodes import Homes, consumer_shard, divided, gather_of, is_call
from flowsched.engine.data.inputs import MissingInput, dataset_ids, private, read_bytes
from flowsched.engine.data.remote_reads import remote_ids, remote_specs
from flowsched.engine.io_demand import declared_demand, demands_of
from flowsched.engine.predictor import expected_runtime, is_new, learned_of, memory_request
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import UNKNOWN_MS
from flowsched.engine.state.data import Gather, Route
from flowsched.engine.state.work import Bag, CachedBags, Candidate, Demand, GroupKey
from flowsched.scheduling.feasibility import most_of
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.state.snapshot import AXES
from flowsched.values import replace
from flowsched.workflow.resources import format_bytes, grow_memory
from flowsched.workflow.run.elastic import PLACED, joining
from flowsched.workflow.run.lifecycle import mask_of
from flowsched.workflow.run.run import UNFITTED, StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import Resources, RoleSpec, gets_whole_cores


def ranks_by_size(sizes: Sequence[int], rank_ms: int, runtime_ms: int | None, mean: int) -> list[int]:
    """The rank of each of several shards of a stage, in ms: its runtime in proportion to the bytes that it alone reads, 1/2 to 2
    times the expected one.

    Args:
        sizes: (S,) of each shard, the bytes that it does not share with the others.
        rank_ms: Of the stage.
        runtime_ms: The expected one; None = unknown.
        mean: The mean of the sizes, or one near it.
    """
    if len(sizes) < 2 or not runtime_ms or not mean:
        return [rank_ms] * len(sizes)
    least, most, rest = runtime_ms // 2, 2 * runtime_ms, rank_ms - runtime_ms
    return [rest + min(max(runtime_ms * size // mean, least), most) for size in sizes]


# ---- collecting ----


Indices = NDArray[np.int64]
#: Of a bag that is not known.
_NOTHING: Final[tuple[Candidate | None, Route | None, int]] = (None, None, 0)
_ON_NODES: Final = mask_of(TaskState.BINDING, TaskState.RUNNING)


class Unrunnable(msgspec.Struct, frozen=True):
    """Tasks that can never run, because an input does not exist and never will."""

    run: WorkflowRun
    stage: StageRun
    tasks: Indices
    message: str


class Backlog(msgspec.Struct):
    """The pod groups of one cycle."""

    candidates: dict[int, Candidate]
    unrunnable: list[Unrunnable]
    lost: list[tuple[WorkflowRun, str]]  #: inputs that were written once and are nowhere any more
    wake_ms: int | None  #: when the next back-off ends


def collect(state: EngineState, now: int, evictable: Evictable | None = None) -> Backlog:
    """Everything that may be placed now, at most `profile.window` groups a stage (the rest waits its turn).

    Args:
        state: Its cached bags (`work.bags`) are brought up to date.
        now: Wall-clock ms.
        evictable: The copies that caches with a limit may drop; None = no cache has a limit.
    """
    backlog = Backlog({}, [], [], None)
    common, homes = _common_basis(state), Homes(state)
    for run, number in _offering(state):
        stage = run.stages[number]
        if _again(state, backlog, run, stage, now, evictable, common, homes):
            continue
        queued = np.flatnonzero(stage.task_state == TaskState.QUEUED)
        if stage.cache_checked is not None:
            queued = queued[stage.cache_checked[queued // stage.members]]
        all_of_it = stage.holds_only("not_before", 0)
        if not all_of_it:
            delayed = stage.not_before[queued] > now
            all_of_it = not delayed.any()
        if not all_of_it:
            wake = int(stage.not_before[queued[delayed]].min())
            backlog.wake_ms = wake if backlog.wake_ms is None else min(backlog.wake_ms, wake)
            queued = queued[~delayed]
        alike = _Alike(state, run, stage, evictable, homes)
        cached = state.work.bags.pop((run.id, number), None)
        if len(queued) == 0:
            continue
        gather = None if stage.spec.gang or not alike.shared else divided(state, run, stage)
        if gather is not None or not (stage.spec.gang or alike.shared):
            basis = _basis(state, run, stage, common)
            made = _own_bags(backlog, alike, cached, basis, queued, now, gather)
            made.basis, made.moved = _basis(state, run, stage, common), not all_of_it
            _find_homes(homes, run, stage, made)
            backlog.candidates.update([(each.group.key, each) for each in made.candidates])
            state.work.bags[run.id, number] = made
            continue
        grouped = _gangs if stage.spec.gang else _bags
        added = [_add(backlog, alike, key, tasks, now) for key, tasks in grouped(state, run, stage, queued)]
        candidates = [each for each in added if each is not None]
        backlog.candidates.update([(each.group.key, each) for each in candidates])
        if all_of_it and not stage.spec.gang:
            shards = [int(each.tasks[0][0]) // stage.members for each in candidates]
            state.work.bags[run.id, number] = CachedBags(
                candidates,
                shards,
                [None] * len(candidates),
                None,
                _basis(state, run, stage, common),
                learned_of(state, run, stage),
            )
    return backlog


def _own_bags(
    backlog: Backlog,
    alike: _Alike,
    cached: CachedBags | None,
    basis: tuple[object, ...],
    queued: Indices,
    now: int,
    gather: Gather | None,
) -> CachedBags:
    """The bags of a stage whose shards differ in inputs, or in gather nodes. Bags of which nothing changed are the same objects.

    Each task that ends teaches something. The shards that wait are estimated anew when an eighth more is known, and ranked anew
    when their mean size has moved by an eighth.

    Args:
        backlog: Gets what can never run, and the inputs that are lost.
        alike: Of the stage.
        cached: Its bags as they were offered last; None = it has none.
        basis: The facts that they depend on, now.
        queued: Its tasks that wait.
        now: Wall-clock ms.
        gather: How the outputs of shards that read the same are gathered; None = each reads datasets of its own.
    """
    state, run, stage = alike.state, alike.run, alike.stage
    bags = list(_bags_of(run, stage, queued[: state.policy.profile.window], gather))
    made = CachedBags([], [], [], None, basis, learned_of(state, run, stage))
    if cached is None or not _is_kept(alike, cached, made):
        cached = CachedBags([], [], [], None, None)
    estimated = cached.learned != made.learned
    if estimated and not is_new(state, run, stage, cached.behind + 1):
        estimated, made.learned, made.behind = False, cached.learned, cached.behind + 1
    made.gather, made.common = cached.gather, cached.common
    known = dict(
        zip(cached.bags, zip(cached.candidates, cached.routes, cached.own_bytes, strict=True), strict=True)
    )
    for bag in bags:
        candidate, route, own = known.get(bag, _NOTHING)
        if (
            candidate is None
            or candidate.group.key in cached.outdated
            or (estimated and _is_other(alike, candidate))
        ):
            tasks, _, memory_steps = bag
            key = GroupKey(run.id, stage.number, tasks[0], memory_steps)
            candidate, route, own = _add(backlog, alike, key, (np.array(tasks),), now), None, -1
        if candidate is not None:
            made.candidates.append(candidate)
            made.shards.append(bag[0][0] // stage.members)
            made.routes.append(route)
            made.bags.append(bag)
            made.own_bytes.append(own)
    _weigh(state, made)
    _rank_by_size(alike, made, cached)
    return made


def _is_kept(alike: _Alike, cached: CachedBags, made: CachedBags) -> bool:
    """Whether bags that were offered before count on. Not where they were one bag, or where time alone changes their facts."""
    timeless = alike.evictable is None and not alike.state.cluster.drains
    known = not alike.fits or cached.learned == made.learned  # fitted memory is part of their shape
    return bool(cached.bags) and timeless and known and cached.basis == made.basis


def _weigh(state: EngineState, made: CachedBags) -> None:
    """Sum the bytes that each new bag (-1) does not share with the others; of all bags if they share less than before."""
    sizes, before = state.cluster.catalogue.sizes, made.common
    new = [at for at, own in enumerate(made.own_bytes) if own < 0]
    for at in new:
        reads = made.candidates[at].group.reads
        made.common = frozenset(reads) if made.common is None else made.common.intersection(reads)
    for at in new if made.common == before else range(len(made.own_bytes)):
        own = [sizes[each] for each in made.candidates[at].group.reads if each not in (made.common or ())]
        made.own_bytes[at] = sum(own)


def _is_other(alike: _Alike, candidate: Candidate) -> bool:
    """Whether other amounts are expected of a bag now."""
    group = candidate.group
    return alike.expected(group.reads) != (group.runtime_ms, group.high_ms, candidate.demands)


def _bags_of(run: WorkflowRun, stage: StageRun, queued: Indices, gather: Gather | None) -> Iterable[Bag]:
    """Each queued task alone; or with others of its memory step whose outputs the same shard reads. A group has one gather node."""
    tasks, ready = queued.tolist(), stage.times[queued, 0].tolist()
    steps = stage.memory_steps[queued].tolist()
    if gather is None:
        return zip(zip(tasks), ready, steps, strict=True)
    consumer = run.stages[gather.consumer]
    bags: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for task, ready_ms, step in zip(tasks, ready, steps, strict=True):
        reader = consumer_shard(gather, stage, consumer, task)
        bags.setdefault((reader, step), []).append((task, ready_ms))
    return [
        (tuple([task for task, _ in of_one]), min([ready_ms for _, ready_ms in of_one]), step)
        for (_, step), of_one in bags.items()
    ]


def _rank_by_size(alike: _Alike, made: CachedBags, before: CachedBags) -> None:
    """Shards that read more than others are expected to take longer, and go first."""
    if not made.candidates:
        return
    mean, runtime_ms = sum(made.own_bytes) // len(made.own_bytes), made.candidates[0].group.runtime_ms
    made.mean_bytes, made.ranked_ms = mean, runtime_ms
    if made.learned == before.learned and 8 * abs(mean - before.mean_bytes) <= before.mean_bytes:
        made.mean_bytes, made.ranked_ms = before.mean_bytes, before.ranked_ms
    ranks = ranks_by_size(made.own_bytes, alike.rank_ms, made.ranked_ms, made.mean_bytes)
    had = [each.group.rank_ms for each in made.candidates]
    for at in [at for at, (one, other) in enumerate(zip(ranks, had, strict=True)) if one != other]:
        candidate = made.candidates[at]
        group = structs.replace(candidate.group, rank_ms=ranks[at])
        made.candidates[at] = structs.replace(candidate, group=group)


def _offering(state: EngineState) -> list[tuple[WorkflowRun, int]]:
    """Stages with QUEUED tasks, of workflows that may start some now, in the order in which the workflows came."""
    paused: dict[str, bool] = {}
    found = []
    for workflow, number in state.work.ready:
        run = state.work.runs[workflow]
        queue = run.spec.queue
        if queue not in paused:
            paused[queue] = state.policy.queues.paused(queue)
        if not (run.paused or run.cancel_requested or paused[queue]):
            found.append((run.seq, number, run))
    found.sort(key=itemgetter(0, 1))
    return [(run, number) for _, number, run in found]


def _common_basis(state: EngineState) -> tuple[object, ...]:
    """The part of `_basis` that all stages share."""
    catalogue, policy = state.cluster.catalogue, state.policy
    return (
        catalogue.dropped,
        catalogue.resized,
        state.cluster.snapshot.generation,
        policy.profile,
        policy.mounted,
    )


def _basis(
    state: EngineState, run: WorkflowRun, stage: StageRun, common: tuple[object, ...]
) -> tuple[object, ...]:
    """The facts that offers depend on, except estimates, gather nodes, full caches and those of single groups (`outdate`)."""
    work = state.work
    inputs = work.inputs.get(
        (run.id, stage.number)
    )  # datasets that all shards read, unless each reads some of its own
    return common, work.corrections.get(run.spec.kind_of(stage.spec)), inputs


def _again(
    state: EngineState,
    backlog: Backlog,
    run: WorkflowRun,
    stage: StageRun,
    moment: int,
    evictable: Evictable | None,
    common: tuple[object, ...],
    homes: Homes,
) -> bool:
    """Offer a stage's cached bags if nothing of it has changed: of a thousand stages that wait, few change at a time."""
    cached = state.work.bags.get((run.id, stage.number))
    if cached is None or not cached.candidates or cached.moved:
        return False
    basis, learned = _basis(state, run, stage, common), learned_of(state, run, stage)
    anew = evictable is not None or bool(state.cluster.drains) or cached.basis != basis
    if anew or cached.outdated or cached.learned != learned:
        if cached.bags and not anew:
            return False
        candidates = _refreshed(state, cached, moment, evictable)
        if candidates is None:
            return False
        cached.candidates, cached.basis, cached.learned = candidates, basis, learned
        cached.outdated = set()
    _find_homes(homes, run, stage, cached)
    backlog.candidates.update([(each.group.key, each) for each in cached.candidates])
    return True


def _refreshed(
    state: EngineState, cached: CachedBags, moment: int, evictable: Evictable | None
) -> list[Candidate] | None:
    """The same bags with the present estimates of their tasks' runtime; None where they must be made anew."""
    axes, candidates = len(state.cluster.snapshot.axes), cached.candidates
    if any(len(role.shape.requests) != axes for role in candidates[0].group.roles):
        return None
    refreshed = []
    shared = state.work.inputs.get((candidates[0].run.id, candidates[0].stage.number))
    for candidate in candidates:
        run, stage, group = candidate.run, candidate.stage, candidate.group
        if not all(map(state.cluster.catalogue.has_replica, group.remote)):
            return None
        steps = state.work.groups[group.key].memory_steps  # type: ignore[union-attr]
        if steps or fits_memory(state, run, stage):
            shape = shape_of(state, run, stage, 0, steps, *candidate.demands or (None,), reads=group.reads)
            if group.roles[0].shape != shape:
                return None  # the largest node is another one, or the fitted memory
        others = not cached.bags and shared is not group.inputs
        if group.reads and (others or state.cluster.catalogue.lost_of(group.reads)):
            return None
        if demands_of(state, run, stage, group.reads) != candidate.demands:
            return None
        staged_on = state.work.staged_on.get(state.work.groups[group.key], ())  # type: ignore[arg-type]
        promised_ms = state.round.reserved_starts.get(group.key)
        runtime_ms, high_ms = expected_runtime(state, run, stage, group.reads)
        full = shut_nodes(evictable, run, stage, group.inputs, group.key, moment - group.ready_ms)
        closing = _closing(state, stage, runtime_ms, high_ms, moment)
        if _together(full, closing) != group.shut:
            return None
        if (runtime_ms, high_ms, staged_on, promised_ms) != (
            group.runtime_ms, group.high_ms, group.staged_on, group.promised_ms,
        ):  # fmt: skip
            group = structs.replace(
                group, runtime_ms=runtime_ms, high_ms=high_ms, staged_on=staged_on, promised_ms=promised_ms
            )
            candidate = structs.replace(candidate, group=group)
        refreshed.append(candidate)
    return refreshed


def _find_homes(homes: Homes, run: WorkflowRun, stage: StageRun, cached: CachedBags) -> None:
    """Give cached bags their gather nodes. Other stages send data there: nothing of this stage has to change for that."""
    locality, routes = homes.state.policy.profile.locality, cached.routes
    if is_call(run):
        home = homes.of_call(run) if locality else None
        for at, candidate in enumerate(cached.candidates):
            if home != candidate.group.home:
                cached.candidates[at] = structs.replace(
                    candidate, group=structs.replace(candidate.group, home=home)
                )
        return
    gather = gather_of(homes.state, run, stage) if locality else None
    if gather is not cached.gather:  # more is known of what it writes
        routes[:], cached.gather = [None] * len(routes), gather
    elif gather is None:
        return  # a stage is known to be gathered before any of its groups has a gather node
    last, at_last = None, None  # mostly all shards of a stage have one route
    for at, candidate in enumerate(cached.candidates):
        home, route = None, routes[at]
        if locality and route is None:
            route = routes[at] = homes.route(run, stage, cached.shards[at])
            if route == last:
                route = routes[at] = last
        if locality and route is not None:
            if route is not last:
                last, at_last = route, homes.at(run, route)
            home = at_last
        if home is not candidate.group.home and home != candidate.group.home:
            group = structs.replace(candidate.group, home=home)
            cached.candidates[at] = structs.replace(candidate, group=group)


class _Alike:
    """The common part of the groups of one stage, worked out once a round. Equal input sizes give equal estimates."""

    def __init__(
        self, state: EngineState, run: WorkflowRun, stage: StageRun, evictable: Evictable | None, homes: Homes
    ) -> None:
        self.state, self.run, self.stage, self.evictable, self.homes = state, run, stage, evictable, homes
        self.shared = not private(stage)
        self.fits = fits_memory(state, run, stage)
        self.remote = remote_specs(state, run, stage)
        call = run.spec.call
        self.workflow = run.id if call is None else call.run
        # Only the engine of a call, or a plan, knows its successors. Their rank counts alone: the minute that a task of
        # unknown runtime is taken for would hide every shorter rank, and all calls of a quick run would be equal.
        self.rank_ms = call.rank_ms if call is not None and call.rank_ms else int(run.ranks[stage.number])
        self.gang = stage.spec.gang and state.policy.profile.gang
        # `_find_homes` gives theirs to the others.
        self.homed = state.policy.profile.locality and self.shared and not stage.spec.gang
        minimum = stage.spec.min_resources
        self.min_resources = None if minimum is None else state.cluster.snapshot.vector(minimum)
        self._estimates: dict[int, tuple[int | None, int | None, tuple[Demand | None, ...]]] = {}
        self._roles: dict[tuple[object, ...], tuple[RoleRequest, ...]] = {}

    def expected(self, inputs: tuple[int, ...]) -> tuple[int | None, int | None, tuple[Demand | None, ...]]:
        """The runtime of a task that reads these, a high quantile of it (ms), and its roles' demands on disks."""
        size = read_bytes(self.state.cluster.catalogue, self.run, self.stage, inputs)
        estimates = self._estimates.get(size)
        if estimates is None:
            runtime_ms, high_ms = expected_runtime(self.state, self.run, self.stage, inputs)
            estimates = runtime_ms, high_ms, demands_of(self.state, self.run, self.stage, inputs)
            self._estimates[size] = estimates
        return estimates

    def roles(
        self,
        tasks: tuple[Indices, ...],
        demands: tuple[Demand | None, ...],
        first: int,
        reads: tuple[int, ...],
    ) -> tuple[RoleRequest, ...]:
        """The role requests of a group of these tasks. `first`: the number of the first role; `reads`: what each task reads."""
        steps = [memory_steps(self.stage, of_role) for of_role in tasks]
        reads = reads if self.fits else ()
        key = (first, *map(len, tasks), *steps, demands, reads)
        found = self._roles.get(key)
        if found is None:
            found = tuple(_roles(self.state, self.run, self.stage, tasks, steps, demands, first, reads))
            self._roles[key] = found
        return found


def _add(
    backlog: Backlog, alike: _Alike, key: GroupKey, tasks: tuple[Indices, ...], now: int
) -> Candidate | None:
    state, run, stage = alike.state, alike.run, alike.stage
    everything = np.concatenate(tasks)
    shard = int(everything[0]) // stage.members
    try:
        inputs = dataset_ids(state, run, stage, shard, shared=alike.shared)
    except MissingInput as missing:
        backlog.unrunnable.append(Unrunnable(run, stage, everything, str(missing)))
        return None
    remote, reads = remote_ids(state, run, stage, alike.remote, shard), inputs
    if remote:
        inputs = tuple(dataset for dataset in inputs if dataset not in {*remote})
    lost = [dataset for dataset in reads if state.cluster.catalogue.lost(dataset)]
    joins = key.role >= 0
    if lost and joins:
        return None  # its gang goes on: for what it may do without, nothing is made again
    if lost:
        backlog.lost.extend((run, state.cluster.catalogue.uris[dataset]) for dataset in lost)
        return None
    number = state.work.key_of(key)
    ready_ms = int(stage.times[everything, 0].min())
    runtime_ms, high_ms, demands = alike.expected(reads)
    if joins and demands:
        demands = (demands[key.role],)
    part_of, barred = _beside(state, run, stage, shard) if alike.gang else ("", ())
    full = shut_nodes(alike.evictable, run, stage, inputs, number, now - ready_ms)
    closing = _closing(state, stage, runtime_ms, high_ms, now)
    group = PodGroup(
        key=number,
        name=group_name(run, stage, key),
        queue=run.spec.queue,
        workflow=alike.workflow,
        priority=run.spec.priority,
        rank_ms=alike.rank_ms,
        ready_ms=ready_ms,
        gang=alike.gang and not joins,
        roles=alike.roles(tasks, demands, max(key.role, 0), reads),
        inputs=inputs,
        runtime_ms=runtime_ms,
        high_ms=high_ms,
        min_resources=alike.min_resources,
        staged_on=state.work.staged_on.get(key, ()),
        promised_ms=state.round.reserved_starts.get(number),
        user=run.spec.user,
        home=alike.homes.of(run, stage, shard) if alike.homed else None,
        shut=_together(full, closing, barred),
        remote=remote,
        preempts=not joins,
        extra=joins,
        part_of=part_of,
        in_quota=True,
    )
    return Candidate(run, stage, group, tasks, demands)


def _beside(state: EngineState, run: WorkflowRun, stage: StageRun, shard: int) -> tuple[str, tuple[int, ...]]:
    """The unit of a gang that goes on, and the nodes that its rules leave to no other member; nothing if none of it is placed."""
    members = stage.indices_of(shard)
    nodes = stage.node[members[_ON_NODES[stage.task_state[members]]]]
    if len(nodes) == 0:
        return "", ()
    barred: set[int] = set()
    if stage.spec.rules.one_per_node:
        barred.update(nodes.tolist())
    if stage.spec.rules.rack == "required":
        racks = state.cluster.snapshot.rack
        barred.update(np.flatnonzero(racks != racks[nodes[0]]).tolist())
    return f"{run.id}/{stage.spec.name}/{shard}", tuple(barred)


def _together(*nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Nodes without repeats, sorted."""
    return tuple(sorted({node for some in nodes for node in some}))


def _closing(
    state: EngineState, stage: StageRun, runtime_ms: int | None, high_ms: int | None, now: int
) -> tuple[int, ...]:
    """Nodes whose maintenance begins before a task of the stage that starts now is sure to have ended.

    A task may run for as long as nine of ten of its kind did, or for the expected time where no more is known, and never beyond
    its time limit.
    """
    if not state.cluster.drains:
        return ()
    known = [each for each in (high_ms or runtime_ms, stage.spec.timeout_ms) if each is not None]
    return state.cluster.closing(now, now + min(known, default=UNKNOWN_MS))


def group_name(run: WorkflowRun, stage: StageRun, key: GroupKey) -> str:
    """The name for users: workflow/stage, with the shard where the group is one shard of several."""
    one = key.shard < 0 or stage.spec.width == 1
    return f"{run.spec.name}/{stage.spec.name}" + ("" if one else f"[{key.shard}]")


def memory_steps(stage: StageRun, tasks: Indices) -> int:
    """How often the memory of one role's pods has grown: they are alike, so all have what one of them needed."""
    if stage.spec.gang and len(tasks):
        members = stage.indices_of(int(tasks[0]) // stage.members)
        tasks = members[stage.role_of == stage.role_of[tasks[0] % stage.members]]
    return int(stage.memory_steps[tasks].max(initial=0))


def resources_of(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    role: int,
    memory_steps: int,
    reads: tuple[int, ...] = (),
) -> Resources:
    """The present request of one pod: its memory is fitted at first, where the stage says so, and grows after each attempt that
    lacked some, up to the most that a node has.
    """
    declared = stage.spec.roles[role].resources
    if memory_steps == 0:
        memory_bytes = _first_memory(state, run, stage, role, reads)
        return (
            declared
            if memory_bytes == declared.memory_bytes
            else replace(declared, memory_bytes=memory_bytes)
        )
    memory_bytes = _grown(stage, declared.memory_bytes, memory_steps)
    return replace(
        declared, memory_bytes=min(memory_bytes, _most_memory(state, run, stage, role) or memory_bytes)
    )


def fits_memory(state: EngineState, run: WorkflowRun, stage: StageRun) -> bool:
    """Whether first attempts of a stage get memory that fits: its document says so, or the profile of its queue."""
    said = stage.spec.fit_memory
    return state.policy.profile.of(run.spec.queue).fit_memory if said is None else said


def _first_memory(
    state: EngineState, run: WorkflowRun, stage: StageRun, role: int, reads: tuple[int, ...]
) -> int:
    """The memory of a first attempt that reads these datasets, in bytes: the fitted one, or what its role asks for."""
    asked = stage.spec.roles[role].resources.memory_bytes
    if not fits_memory(state, run, stage):
        return asked
    return memory_request(state, run, stage, asked, reads)


def memory_limit(stage: StageRun, role: RoleSpec, memory_steps: int, most_bytes: int) -> int | None:
    """The present memory limit of one pod, in bytes: it grows with the request. None where the document states no limit.

    Args:
        stage: Of the pod.
        role: Of the pod.
        memory_steps: How often its memory has grown.
        most_bytes: Its present request. Where that has reached its node's memory, the limit grows no further either.
    """
    if role.limits is None or role.limits.memory_bytes == 0:
        return None
    grown = _grown(stage, role.limits.memory_bytes, memory_steps)
    if most_bytes < role.resources.memory_bytes:  # it is fitted
        return -(-role.limits.memory_bytes * most_bytes // role.resources.memory_bytes)
    if most_bytes < _grown(stage, role.resources.memory_bytes, memory_steps):
        return min(grown, max(most_bytes, role.limits.memory_bytes))
    return grown


def memory_ahead(
    state: EngineState, run: WorkflowRun, stage: StageRun, task: int, allocated_bytes: int
) -> tuple[str, bool]:
    """How the nodes' memory bounds the next attempt of a task that ran out of memory.

    Args:
        state: For the nodes.
        run: Of the task.
        stage: Of the task.
        task: Its number.
        allocated_bytes: The memory that it had.

    Returns:
        A clause for the message of the failure, and whether no attempt can get more than it had. ("", False) where its memory
        grows freely.
    """
    role, steps = int(stage.role_of[task % stage.members]), memory_steps(stage, np.array([task]))
    wanted = _grown(stage, stage.spec.roles[role].resources.memory_bytes, steps + 1)
    gets = resources_of(state, run, stage, role, steps + 1).memory_bytes
    if stage.spec.retry.memory_factor_percent <= 100 or gets == wanted:
        return "", False
    if 0 < gets <= allocated_bytes:
        return f"it had {format_bytes(allocated_bytes)}, and no node has more for it", True
    return (
        f"the next attempt gets {format_bytes(gets)}, the most that a node has for it, not {format_bytes(wanted)}",
        False,
    )


def _most_memory(state: EngineState, run: WorkflowRun, stage: StageRun, role: int) -> int:
    """The most memory that a pod of a role can get, and not less than its document asks for; 0 where no node is known for it."""
    first = shape_of(state, run, stage, role, 0)
    most = most_of(state.cluster.snapshot, first, AXES.index("memory"), state.policy.profile.all_filters())
    return max(most, stage.spec.roles[role].resources.memory_bytes) if most else 0


def _grown(stage: StageRun, memory_bytes: int, memory_steps: int) -> int:
    percent = max(stage.spec.retry.memory_factor_percent, 100)
    for _ in range(memory_steps % UNFITTED):
        memory_bytes = grow_memory(memory_bytes, percent)
    return memory_bytes


def _gangs(
    state: EngineState, run: WorkflowRun, stage: StageRun, queued: Indices
) -> Iterator[tuple[GroupKey, tuple[Indices, ...]]]:
    """One group per shard. All members must be free: a failed attempt is gone before the next is queued. Members that a policy
    restarts by themselves are a group of their own, and so are, by role, members that join a gang that goes on.
    """
    joiners = joining(stage)
    shards = np.unique(queued // stage.members)[: state.policy.profile.window]
    for shard in shards.tolist():
        tasks = queued[queued // stage.members == shard]
        if state.policy.profile.gang and len(tasks) < stage.members:
            late = _latecomers(stage, shard, tasks)
            if len(late) == 0:
                yield from _joiners(run, stage, shard, tasks[np.isin(tasks, joiners)])
                continue
            tasks = late
        roles = stage.role_of[tasks - shard * stage.members]
        steps = int(stage.memory_steps[tasks].max())
        by_role = tuple(tasks[roles == number] for number in range(len(stage.spec.roles)))
        yield GroupKey(run.id, stage.number, shard, steps), by_role


def _joiners(
    run: WorkflowRun, stage: StageRun, shard: int, tasks: Indices
) -> Iterator[tuple[GroupKey, tuple[Indices, ...]]]:
    """The members that join a gang which goes on: of each role any number. None does while others leave it."""
    members = stage.indices_of(shard)
    if (stage.task_state[members] == TaskState.RELEASING).any():
        return
    steps = int(stage.memory_steps[members].max())
    roles = stage.role_of[tasks % stage.members]
    for role in np.unique(roles).tolist():
        yield GroupKey(run.id, stage.number, shard, steps, role), (tasks[roles == role],)


def _latecomers(stage: StageRun, shard: int, queued: Indices) -> Indices:
    """Queued members that join a gang that goes on.

    A member joins if a policy restarts it alone, or if the gang is smaller than its minimum without it. The latter occurs if the
    gang was placed pod by pod, before the policy of the cluster changed.
    """
    members = stage.indices_of(shard)
    states = stage.task_state[members]
    if (states == TaskState.RELEASING).any():
        return queued[:0]
    alone = stage.goal[queued] == TaskState.RUNNING
    placed = PLACED[states]
    if placed.any() and not alone.any():
        for number, role in enumerate(stage.spec.roles):
            lack = role.minimum - int((placed & (stage.role_of == number)).sum())
            of_role = np.flatnonzero(stage.role_of[queued % stage.members] == number)
            alone[of_role[: max(0, lack)]] = True
    joining: Indices = queued[alone]
    for number, role in enumerate(stage.spec.roles):
        there = int((placed & (stage.role_of == number)).sum())
        there += int((stage.role_of[joining % stage.members] == number).sum())
        if there < role.minimum:
            return queued[:0]  # another one comes back later (back-off): they start together
    return joining


def _bags(
    state: EngineState, run: WorkflowRun, stage: StageRun, queued: Indices
) -> Iterator[tuple[GroupKey, tuple[Indices, ...]]]:
    """Shards that read the same are one group of many."""
    if stage.holds_only("memory_steps", 0):
        yield GroupKey(run.id, stage.number, -1, 0), (queued,)
        return
    steps = stage.memory_steps[queued]
    for step in np.unique(steps).tolist():
        yield GroupKey(run.id, stage.number, -1, step), (queued[steps == step],)


def _roles(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    tasks: tuple[Indices, ...],
    steps: Sequence[int],
    demands: tuple[Demand | None, ...],
    first: int,
    reads: tuple[int, ...],
) -> Iterator[RoleRequest]:
    for at, of_role in enumerate(tasks):
        role = stage.spec.roles[first + at]
        demand = demands[at] if demands else None
        shape = shape_of(state, run, stage, first + at, steps[at], demand, reads=reads)
        minimum = role.minimum if stage.spec.gang else 1
        yield RoleRequest(role.name, shape, len(of_role), min(minimum, len(of_role)))


def shape_of(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    role: int,
    memory_steps: int,
    demand: Demand | None = None,
    *,
    reads: tuple[int, ...] = (),
) -> Shape:
    """The canonical shape of one role's pods (cached: it changes with learned estimates, and with memory that grows)."""
    resources = resources_of(state, run, stage, role, memory_steps, reads)
    changed = resources.memory_bytes != stage.spec.roles[role].resources.memory_bytes
    key = (run.id, stage.number, role, resources.memory_bytes if changed else 0, demand)
    shape = state.work.shapes.get(key)
    if shape is not None and len(shape.requests) == len(state.cluster.snapshot.axes):
        return shape
    spec = stage.spec
    rules = spec.rules
    aligned = gets_whole_cores(resources, spec.roles[role].limits)
    io = demand if demand is not None else declared_demand(spec, role)
    shape = Shape(
        requests=state.cluster.snapshot.pod_vector(resources, io.rate, aligned=aligned),
        selector=tuple(sorted(rules.selector.items())),
        tolerations=tuple(sorted((t.key, t.operator, t.value, t.effect) for t in rules.tolerations)),
        io_bytes=io.moved,
        direct=io.direct,
        image=spec.roles[role].image,
        rack=rules.rack,
        one_per_node=rules.one_per_node,
    )
    if key not in state.work.shapes:
        state.work.shapes_of.setdefault(run.id, []).append(key)
    state.work.shapes[key] = shape = state.work.one_of_equal(shape)
    return shape
