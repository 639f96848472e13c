"""The backlog: QUEUED tasks as pod groups of shapes and counts for one scheduling cycle, each shard with its rank by size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.data.cache_values import Evictable, shut_nodes
from flowsched.engine.data.gather_nodes import Homes, divided, gathers_of, is_call, next_unknown
from flowsched.engine.data.inputs import MissingInput, dataset_ids, private, read_bytes
from flowsched.engine.data.remote_reads import remote_ids, remote_specs
from flowsched.engine.io_demand import declared_demand, demands_of
from flowsched.engine.predictor import ends_known, expected_runtime, is_new, memory_request, word_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import UNKNOWN_MS
from flowsched.engine.state.work import CachedBags, Candidate, Demand, Division, GroupKey, OwnBags
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


def rank_by_size(size: int, rank_ms: int, runtime_ms: int | None, mean: int) -> int:
    """The rank of one of several shards of a stage, in ms: its runtime in proportion to the bytes that it alone reads, 1/2 to 2
    times the expected one.

    Args:
        size: The bytes that the shard does not share with the others.
        rank_ms: Of the stage.
        runtime_ms: The expected one; None = unknown.
        mean: The mean of the sizes, or one near it.
    """
    if not runtime_ms or not mean:
        return rank_ms
    return rank_ms - runtime_ms + min(max(runtime_ms * size // mean, runtime_ms // 2), 2 * runtime_ms)


# ---- collecting ----


Indices = NDArray[np.int64]
#: The scheduler estimates a waiting task with fitted memory anew after so many ends of its kind.
_FITTED: Final = 4
_ON_NODES: Final = mask_of(TaskState.BINDING, TaskState.RUNNING)


class Unrunnable(msgspec.Struct, frozen=True):
    """Tasks that can never run, because an input does not exist and never will."""

    run: WorkflowRun
    stage: StageRun
    tasks: Indices
    message: str


class Backlog(msgspec.Struct):
    """The pod groups of one cycle."""

    candidates: Mapping[int, Candidate]
    groups: Mapping[int, PodGroup]  #: the requests of `candidates`
    unrunnable: list[Unrunnable]
    lost: list[tuple[WorkflowRun, str]]  #: inputs that were written once and are nowhere any more
    wake_ms: int | None  #: when the next back-off ends


def collect(state: EngineState, now: int, evictable: Evictable | None = None) -> Backlog:
    """Everything that may be placed now, at most `profile.window` groups a stage (the rest waits its turn).

    Args:
        state: Its offers (`work.offers`) are brought up to date.
        now: Wall-clock ms.
        evictable: The copies that caches with a limit may drop; None = no cache has a limit.
    """
    offers = state.work.offers
    backlog = Backlog(offers.candidates, offers.groups, [], [], None)
    timeless = evictable is None and not state.cluster.drains
    homes, basis = Homes(state), _basis(state)
    for run, number in _changed_stages(state, basis if timeless else None):
        stage, pair = run.stages[number], (run.id, number)
        offers.offer(pair, _offer(backlog, homes, run, stage, now, evictable, basis, timeless=timeless))
        cached = offers.bags.get(pair)
        steady = cached is not None and bool(cached.candidates) and not cached.moved and not is_call(run)
        if not steady:
            offers.changed.add(pair)
        unknown = next_unknown(state, run, stage) if state.policy.profile.locality else None
        if unknown is not None:
            offers.wait(pair, (run.id, unknown.number), run.spec.kind_of(unknown.spec))
    homes.note_coming(offers.routes)
    state.cluster.snapshot.coming = homes.coming
    return backlog


def _offer(
    backlog: Backlog,
    homes: Homes,
    run: WorkflowRun,
    stage: StageRun,
    now: int,
    evictable: Evictable | None,
    basis: tuple[object, ...],
    *,
    timeless: bool,
) -> dict[int, Candidate]:
    """All that may be placed now of a stage, by number: its bags as they were, brought up to date, or made anew."""
    state, pair = homes.state, (run.id, stage.number)
    offers = state.work.offers
    cached = offers.bags.get(pair)
    if cached is not None and _refresh(state, run, stage, cached, now, evictable, basis, timeless):
        _find_homes(homes, run, stage, cached)
        return cached.candidates
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
    alike = _Alike(state, run, stage, evictable)
    offers.drop(pair)
    if len(queued) == 0:
        return {}
    if stage.spec.gang:
        gangs = [_add(backlog, alike, key, tasks, now) for key, tasks in _gangs(state, run, stage, queued)]
        return {each.group.key: each for each in gangs if each is not None}
    kind = run.spec.kind_of(stage.spec)
    gather = divided(state, run, stage) if alike.shared else None
    if gather is not None or not alike.shared:
        division = None
        if gather is not None:
            readers = run.stages[gather.consumer].spec.width
            division = Division(gather.consumer, gather.match, readers, stage.spec.width)
        if cached is None or not (timeless and _is_kept(alike, cached, basis, division)):
            cached = CachedBags(kind, basis, own=OwnBags(division))
        _make_anew(backlog, alike, cached, queued[: state.policy.profile.window], now)
        cached.moved |= not all_of_it
    else:
        added = [_add(backlog, alike, key, tasks, now) for key, tasks in _bags(run, stage, queued)]
        candidates = {each.group.key: each for each in added if each is not None}
        cached = CachedBags(kind, basis, candidates, dict.fromkeys(candidates), stale=False)
    _find_homes(homes, run, stage, cached)
    if all_of_it or cached.own is not None:
        offers.keep(pair, cached)
    return cached.candidates


def _changed_stages(state: EngineState, basis: tuple[object, ...] | None) -> list[tuple[WorkflowRun, int]]:
    """The stages that are looked at in this round, in the order in which their workflows came. Stages that may start no task any
    more are offered no longer.

    `basis`: the facts on which all depends; None = they depend on the moment.
    """
    offers, ready = state.work.offers, state.work.ready
    _note_learned(state)
    if basis is None or offers.basis != basis:
        pairs = ready | offers.of_stage.keys()
    else:
        pairs = offers.changed
    offers.basis, offers.changed = basis, set()
    runs, paused, found = state.work.runs, state.policy.queues.paused, []
    for pair in pairs:
        run = runs.get(pair[0])
        held_back = run is not None and (run.paused or run.cancel_requested)
        if run is not None and held_back:
            offers.held_back.add(run.id)
        if run is None or held_back or pair not in ready or paused(run.spec.queue):
            offers.forget(pair)
        else:
            found.append((run.seq, pair[1], run))
    return [(run, number) for _, number, run in sorted(found, key=itemgetter(0, 1))]


def _note_learned(state: EngineState) -> None:
    """Mark the stages whose waiting tasks this round estimates anew. Each end of a task teaches something about its kind. The round
    follows when an eighth more is known, and sooner where memory is fitted: a task that gets too little runs twice. Kinds of which
    no task has ended follow the worth of their author's words.
    """
    offers, estimates = state.work.offers, state.work.estimates
    kinds, offers.learned = estimates.learned_since(offers.learned), estimates.learned
    if kinds is None:
        offers.basis = None
        for cached in offers.bags.values():
            cached.stale = True
        words = {workflow: word_of(state, workflow) for workflow, _ in offers.by_kind}
        offers.words = {workflow: word for workflow, word in words.items() if word is not None}
    for (workflow, *names), times in Counter(kinds or ()).items():
        if names:
            kind = workflow, names[0]
            offers.tell(kind)
            times = times if len(names) == 1 else 0
            before, more = offers.lessons.get(kind) or (ends_known(state, kind) - times, 0)
            more += times
            waiting, runs = offers.by_kind.get(kind, ()), state.work.runs
            if is_new(before, more) or (
                more >= _FITTED
                and any(fits_memory(state, runs[of], runs[of].stages[at]) for of, at in waiting)
            ):
                offers.outdate_estimates(kind)
                before, more = before + more, 0
            if kind in offers.by_kind:
                offers.lessons[kind] = before, more
            continue
        word = word_of(state, workflow)
        if word != offers.words.pop(workflow, None):
            for kind in offers.by_kind:
                if kind[0] == workflow and not ends_known(state, kind):
                    offers.outdate_estimates(kind)
        if word is not None:
            offers.words[workflow] = word


def _make_anew(backlog: Backlog, alike: _Alike, cached: CachedBags, queued: Indices, now: int) -> None:
    """Make the changed bags of a stage anew, whose shards differ in inputs or in gather nodes. A move of their mean size by an
    eighth gives all of them new ranks.

    Args:
        backlog: Gets what can never run, and the inputs that are lost.
        alike: Of the stage.
        cached: Its bags as they were offered last.
        queued: Its tasks that wait.
        now: Wall-clock ms.
    """
    state, run, stage, own = alike.state, alike.run, alike.stage, cached.own
    assert own is not None
    estimated = cached.stale or not cached.candidates
    if estimated:
        cached.stale = False
    outdated = list(cached.candidates) if estimated else cached.outdated & cached.candidates.keys()
    dropped: list[int] = []
    for number in outdated:
        before = cached.candidates[number]
        runtime_ms, high_ms, demands = alike.expected(before.group.reads)
        if demands != before.demands:  # its shape changes
            dropped += before.tasks[0].tolist()
            cached.forget(own.place(int(before.tasks[0][0]), state.work.groups[number].memory_steps))  # type: ignore[union-attr]
        else:
            cached.put(number, _as_known(state, before, runtime_ms, high_ms))
    cached.outdated, cached.moved = set(), False
    if dropped:
        own.drop(dropped)
    new = []
    for place, tasks in _changed(cached, own, stage, queued):
        key = GroupKey(run.id, stage.number, int(tasks[0]), place[1])
        candidate = _add(backlog, alike, key, (tasks,), now)
        if candidate is None:
            own.drop(tasks.tolist())
            cached.moved = True  # it is looked at again
            continue
        number = own.numbers[place] = candidate.group.key
        cached.put(number, candidate)
        cached.routes[number] = None
        new.append(number)
    if cached.candidates:
        _weigh(state, cached.candidates, own, new)
        _rank_by_size(alike, cached, own, new, estimated=estimated)


def _changed(
    cached: CachedBags, own: OwnBags, stage: StageRun, queued: Indices
) -> Iterable[tuple[tuple[int, int], Indices]]:
    """The bags that are not as they were, by their place among the stage's, with their tasks. The bags there before are forgotten.

    A bag is one task; or all of its memory step whose outputs the same shard reads: a group has one gather node.
    """
    before, now = own.waiting, np.array((queued, stage.times[queued, 0], stage.memory_steps[queued]))
    own.waiting = now
    gone, new = np.ones(before.shape[1], dtype=np.bool_), np.ones(now.shape[1], dtype=np.bool_)
    if len(gone):
        at = np.minimum(np.searchsorted(before[0], queued), len(gone) - 1)
        new = (before[:, at] != now).any(axis=0)
        gone[at[~new]] = False
    if not gone.any() and not new.any():
        return ()
    rows = [*before[:, gone].T.tolist(), *now[:, new].T.tolist()]
    changed = {own.place(task, step) for task, _, step in rows}
    for each in changed:
        cached.forget(each)
    found: dict[tuple[int, int], list[int]] = {}
    for task, _, step in (now if own.division is not None else now[:, new]).T.tolist():
        place = own.place(task, step)
        if place in changed:
            found.setdefault(place, []).append(task)
    return [(place, np.array(tasks)) for place, tasks in found.items()]


def _is_kept(alike: _Alike, cached: CachedBags, basis: tuple[object, ...], division: Division | None) -> bool:
    """Whether bags that were offered before count on: those that were not one bag, by the same facts."""
    # Fitted memory is part of their shape.
    own = cached.own
    alike_divided = own is not None and own.division == division and bool(cached.candidates)
    return alike_divided and not (alike.fits and cached.stale) and cached.basis == basis


def _weigh(state: EngineState, candidates: Mapping[int, Candidate], own: OwnBags, new: list[int]) -> None:
    """Sum the bytes that each new bag does not share with the others; of all bags if they share less than before."""
    sizes, before = state.cluster.catalogue.sizes, own.common
    for number in new:
        reads = candidates[number].group.reads
        own.common = frozenset(reads) if own.common is None else own.common.intersection(reads)
    for number in new if own.common == before else candidates:
        reads = candidates[number].group.reads
        own.sizes[number] = sum([sizes[each] for each in reads if each not in (own.common or ())])


def _rank_by_size(
    alike: _Alike, cached: CachedBags, own: OwnBags, new: list[int], *, estimated: bool
) -> None:
    """Shards that read more than others are expected to take longer, and go first."""
    candidates = cached.candidates
    mean, first = sum(own.sizes.values()) // len(own.sizes), candidates[own.first()]
    if estimated or 8 * abs(mean - own.mean_bytes) > own.mean_bytes:
        own.mean_bytes, own.ranked_ms = mean, first.group.runtime_ms
    runtime_ms = own.ranked_ms if len(candidates) > 1 else None
    by = alike.rank_ms, runtime_ms, own.mean_bytes
    for number in new if by == own.ranked_by else candidates:
        rank_ms = rank_by_size(own.sizes[number], *by)
        if rank_ms != candidates[number].group.rank_ms:
            group = structs.replace(candidates[number].group, rank_ms=rank_ms)
            cached.put(number, structs.replace(candidates[number], group=group))
    own.ranked_by = by


def _basis(state: EngineState) -> tuple[object, ...]:
    """The facts that all offers depend on. Each stage depends on estimates and gather nodes too, and on what is noted with its
    bags.
    """
    catalogue, policy = state.cluster.catalogue, state.policy
    return (
        catalogue.dropped,
        catalogue.resized,
        state.cluster.snapshot.generation,
        policy.profile,
        policy.mounted,
        bool(state.cluster.drains),
        policy.queues.changes,
    )


def _refresh(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    cached: CachedBags,
    moment: int,
    evictable: Evictable | None,
    basis: tuple[object, ...],
    timeless: bool,
) -> bool:
    """Bring a stage's cached bags up to date, if its tasks are as before. False if bags must be made anew."""
    anew = not timeless or cached.basis != basis
    if cached.moved or not cached.candidates or (cached.own is not None and not anew):
        return False
    if cached.own is None and divided(state, run, stage) is not None:
        return False  # it is known by now which of its outputs go to one node
    candidates = _refreshed(state, cached, moment, evictable)
    if candidates is None:
        return False
    cached.candidates, cached.basis, cached.stale = candidates, basis, False
    cached.outdated = set()
    return True


def _refreshed(
    state: EngineState, cached: CachedBags, moment: int, evictable: Evictable | None
) -> dict[int, Candidate] | None:
    """The same bags with the present estimates of their tasks' runtime; None where they must be made anew."""
    axes, first = len(state.cluster.snapshot.axes), next(iter(cached.candidates.values()))
    if any(len(role.shape.requests) != axes for role in first.group.roles):
        return None
    refreshed = {}
    shared = state.work.inputs.get((first.run.id, first.stage.number))
    for number, candidate in cached.candidates.items():
        run, stage, group = candidate.run, candidate.stage, candidate.group
        if not all(map(state.cluster.catalogue.has_replica, group.remote)):
            return None
        steps = state.work.groups[group.key].memory_steps  # type: ignore[union-attr]
        if steps or fits_memory(state, run, stage):
            shape = shape_of(state, run, stage, 0, steps, *candidate.demands or (None,), reads=group.reads)
            if group.roles[0].shape != shape:
                return None  # the largest node is another one, or the fitted memory
        others = cached.own is None and shared is not group.inputs
        if group.reads and (others or state.cluster.catalogue.lost_of(group.reads)):
            return None
        if demands_of(state, run, stage, group.reads) != candidate.demands:
            return None
        expected = expected_runtime(state, run, stage, group.reads)
        full = shut_nodes(evictable, run, stage, group.inputs, group.key, moment - group.ready_ms)
        closing = _closing(state, stage, *expected, moment)
        if _together(full, closing) != group.shut:
            return None
        refreshed[number] = _as_known(state, candidate, *expected)
    return refreshed


def _as_known(
    state: EngineState, candidate: Candidate, runtime_ms: int | None, high_ms: int | None
) -> Candidate:
    """A bag with this expected runtime, and the facts that are noted of it alone (`outdate`). The same object, if it had them."""
    group = candidate.group
    staged_on = state.work.staged_on.get(state.work.groups[group.key], ())  # type: ignore[arg-type]
    promised_ms = state.round.reserved_starts.get(group.key)
    if (runtime_ms, high_ms, staged_on, promised_ms) == (
        group.runtime_ms, group.high_ms, group.staged_on, group.promised_ms,
    ):  # fmt: skip
        return candidate
    group = structs.replace(
        group, runtime_ms=runtime_ms, high_ms=high_ms, staged_on=staged_on, promised_ms=promised_ms
    )
    return structs.replace(candidate, group=group)


def _find_homes(homes: Homes, run: WorkflowRun, stage: StageRun, cached: CachedBags) -> None:
    """Give cached bags their gather nodes. Other stages send data there: nothing of this stage has to change for that."""
    candidates, routes, had = cached.candidates, cached.routes, cached.homes
    state, locality = homes.state, homes.state.policy.profile.locality
    new = list(routes)
    if is_call(run):
        cached.homes = {None: homes.of_call(run) if locality else None}
    else:
        gathers = gathers_of(state, run, stage) if locality else ()
        if gathers != cached.gathers:  # more is known of what it writes
            had, cached.gathers = {}, gathers
        elif not gathers:
            cached.homes = {}  # a stage is known to be gathered before any of its groups has a gather node
            return
        else:
            new = [number for number, route in routes.items() if route is None]
        known = {route: route for route in had}  # mostly all shards of a stage have one route
        for number in new:
            shard = int(candidates[number].tasks[0][0]) // stage.members
            route = homes.route(run, stage, shard) if gathers else None
            routes[number] = known.setdefault(route, route)
        used = dict.fromkeys(routes.values())
        cached.homes = {route: None if route is None else homes.at(run, route) for route in used}
    moved = {route for route, home in cached.homes.items() if route not in had or had[route] != home}
    if len(moved) == len(cached.homes):
        new = list(routes)
    elif moved:
        new += [number for number, route in routes.items() if route in moved]
    last, home = None, cached.homes.get(None)
    for number in new:
        candidate, route = candidates[number], routes[number]
        if route is not last:
            last, home = route, cached.homes[route]
        if home != candidate.group.home:
            group = structs.replace(candidate.group, home=home)
            cached.put(number, structs.replace(candidate, group=group))


class _Alike:
    """The common part of the groups of one stage, worked out once a round. Equal input sizes give equal estimates."""

    def __init__(
        self, state: EngineState, run: WorkflowRun, stage: StageRun, evictable: Evictable | None
    ) -> None:
        self.state, self.run, self.stage, self.evictable = state, run, stage, evictable
        self.shared = not private(stage)
        self.fits = fits_memory(state, run, stage)
        self.remote = remote_specs(state, run, stage)
        call = run.spec.call
        self.workflow = run.id if call is None else call.run
        # Only the engine of a call, or a plan, knows its successors. Their rank counts alone: the minute that a task of
        # unknown runtime is taken for would hide every shorter rank, and all calls of a quick run would be equal.
        self.rank_ms = call.rank_ms if call is not None and call.rank_ms else int(run.ranks[stage.number])
        self.gang = stage.spec.gang and state.policy.profile.gang
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
    run: WorkflowRun, stage: StageRun, queued: Indices
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
