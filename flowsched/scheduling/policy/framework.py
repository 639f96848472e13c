"""The plug-in framework: what a filter, a cost and an order are, and the profile that names the ones a cycle uses.

A *filter* says where pods of a shape may run at all. A *cost* says, in ms, what a pod costs on each node. Costs add up: the
first pod of a group on a node pays `first_costs` (staging), every pod pays `costs`, and a pod pays `step_costs` once more for
every pod of the group that is already there (contention). A *queue order* says which groups of a queue come first, a *victim
order* which claims lose room first. All are functions of arrays that change nothing. Entry points offer third parties' plug-ins
and a profile names them (`extension`, `profile`); the profile's switches choose the built-ins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.plugins.affinity import (
    away_from_others,
    evenly_spread,
    excluded_by_others,
    near_affinity,
)
from flowsched.scheduling.policy.plugins.contention import slowdown_now, slowdown_step
from flowsched.scheduling.policy.plugins.locality import StageIn, gather_home
from flowsched.scheduling.policy.plugins.node_filters import (
    free_ports,
    node_affinity,
    node_name,
    node_selector,
    node_taints,
    numa_zones,
    volume_nodes,
)
from flowsched.scheduling.policy.plugins.starting import start_queue, start_step
from flowsched.scheduling.policy.plugins.wishes import wishes
from flowsched.scheduling.state.claims import Claim
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.workflow.document.uris import file_path

#: Tasks read and write in bursts, so of an average rate (bytes over a time) the half is counted; a rate that was said, as it is.
BURSTS: Final = 2


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage that nodes share.

    Args:
        name: As documents name it (`io: {storage: NAME}`).
        read_rate: Bytes/s that all readers get together; 0 = no bound.
        write_rate: Bytes/s that all writers get together; 0 = no bound.
        prefixes: The paths and URLs that lie on it begin so (`/data`, `s3://lab`); none = all paths that lie on no other storage.
        source: The source that nodes mount (`nas:/lab`), as their kernels name it: agents' rates of that mount are this one's.
    """

    name: str = "storage"
    read_rate: int = 0
    write_rate: int = 0
    prefixes: tuple[str, ...] = ()
    source: str = ""

    @property
    def rates(self) -> Mapping[str, int]:
        """By what demands call it: name/read, name/write."""
        return {f"{self.name}/read": self.read_rate, f"{self.name}/write": self.write_rate}


@lru_cache(maxsize=1 << 16)
def storage_at(storages: tuple[Storage, ...], uri: str) -> Storage | None:
    """The storage that a path or URL lies on: the longest prefix decides. None = no storage of the profile has it."""
    path = file_path(uri, bool)
    best: tuple[int, Storage | None] = (-1, None)
    for storage in storages:
        fits = [
            len(prefix)
            for prefix in storage.prefixes
            if f"{path or uri}/".startswith(f"{prefix.rstrip('/')}/")
        ]
        length = max(fits, default=0 if path is not None and not storage.prefixes else -1)
        if length > best[0]:
            best = length, storage
    return best[1]


# ---- plug-ins and the profile ----


class Filter(Protocol):
    """Where pods of a shape may run."""

    def __call__(self, snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
        """Judge every node.

        Returns:
            (N,) True where the pod may run, and what is wrong with the others, as in "2 nodes {reason}".
        """
        ...


class Cost(Protocol):
    """The cost of a pod on each node."""

    def __call__(
        self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
    ) -> NDArray[np.int64] | None:
        """(N,) ms >= 0; None = nothing anywhere."""
        ...


class QueueOrder(Protocol):
    """Which groups of one queue are looked at first, among those of equal (aged) priority."""

    def __call__(self, groups: Sequence[PodGroup], now: int) -> NDArray[np.int64]:
        """(G,) or (G, K): the lowest row goes first, column by column; ties as the profile's `order` says."""
        ...


class VictimOrder(Protocol):
    """Which of the candidates for eviction loses its room first."""

    def __call__(self, snapshot: Snapshot, victims: Sequence[Sequence[Claim]], now: int) -> NDArray[np.int64]:
        """Judge candidates, each the claims that would go together (a whole gang, or one pod).

        Returns:
            (V,) or (V, K): the lowest row goes first, column by column; ties by lost work, as built in.
        """
        ...


#: The runtime that profiles assume of a task without an estimate, unless they say otherwise.
UNKNOWN_RUNTIME_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Profile:
    """A policy. Every switch changes one idea, so that ideas can be measured one by one.

    Args:
        name: For people and logs.
        gang: Groups are placed all or nothing; False = pod by pod, interleaved over groups, as stock
            clusters do.
        interleave: Without gangs: pods of several groups come by turns, as several controllers create them at
            once; False = all pods of a group before those of the next.
        locality: Missing bytes cost time, and are staged before a pod is bound; False = every pod may bind
            at once.
        contention: The `io` axis, the slowdown by IO-heavy neighbours and the queue of pods that a node is starting count.
        packing: Between nodes of equal cost, the fullest or the emptiest.
        backfill: "easy" = the first group that does not fit gets a reservation that no other may delay; "none" = every
            group that fits starts.
        order: Inside a queue, after priority and age: "shortest" (workflows with the shortest remaining path first, critical path
            inside one; gangs and pods of more than half a node do not give way), "rank" (critical path first) or "fifo".
        window: How many groups a cycle looks at, at most.
        default_runtime_ms: The runtime that is assumed of a task without an estimate.
        age_class_ms: Waiting this much longer goes before any rank.
        promote_ms: Waiting this long counts as much as one step of priority, for a group in its queue, and for a queue
            (or a user of one) that asks and gets nothing: it bounds every wait.
        half_life_ms: Past use of a queue, or of a user of one, counts half after this time; 0 = only present use counts.
        origin_rate: Bytes/s from outside.
        move_price_percent: Percent of a copy's time, over its link or onto its disk, that are charged for other tasks that could
            use them.
        shortest_wait_ms: A copy that takes less is never worth waiting instead.
        remote_reads: Tasks read datasets with few readers where they lie, over the network, if links are faster than disks and the
            cluster can do it, rather than copy them to their node first.
        eviction: The copies that a full cache drops first: "dag" = those that DAGs will need least, "lru" = those used longest ago.
        io_fill_percent: The part of each disk that the learned I/O of tasks may fill, and of each shared storage the I/O of all its
            users; 0 = only I/O that documents state counts for disks.
        storages: Storages that nodes share, with the bandwidth of each for all its readers and all its writers together.
        preempt: Groups of higher priority may take the room of lower ones.
        reclaim: Queues that have less than they may take back what others have beyond theirs.
        min_runtime_ms: A pod that has run for less is not preempted.
        max_cores_per_user: Cores that the tasks of one user of a queue may hold together; 0 = no limit.
        max_tasks_per_user: Tasks of one user of a queue that may run at once; 0 = no limit.
        max_submitted_tasks_per_user: Tasks that one user may have in a queue, all of workflows that have not ended; more are
            refused. 0 = no limit.
        default_timeout_ms: The timeout of tasks that state none; 0 = `max_timeout_ms`.
        max_timeout_ms: The longest timeout that a task may state; longer ones are refused. 0 = no limit.
        fit_memory: First attempts get the memory that tasks of their kind have used, with a margin, unless their document says
            otherwise (`fit_memory`); False = what they ask for.
        filters: Third-party plugins beside the built-in filters.
        costs: Third-party plugins: what every pod costs.
        first_costs: Third-party plugins: what the first pod of a group costs on a node.
        step_costs: Third-party plugins: what every pod costs once more for each pod of its group that is
            there already.
        queue_order: A third-party plugin: in which order groups of equal (aged) priority go; ties as `order`
            says.
        victim_order: A third-party plugin: which claims lose room first.
        queues: Profiles of some queues, by the queue's exact name. `PER_QUEUE` names the fields that may differ.
    """

    name: str = "flowsched"
    gang: bool = True
    interleave: bool = True
    locality: bool = True
    contention: bool = True
    packing: Literal["binpack", "spread"] = "binpack"
    backfill: Literal["easy", "none"] = "easy"
    order: Literal["rank", "shortest", "fifo"] = "shortest"
    window: int = 1024
    default_runtime_ms: int = UNKNOWN_RUNTIME_MS
    age_class_ms: int = 600_000
    promote_ms: int = 3_600_000
    half_life_ms: int = 86_400_000
    origin_rate: int = 117_000_000
    #: Makespans against those with 50: with 0 syn-genome 1.19 to 2.49 and blast-small 1.20; with 25 blast-small 1.20 and syn-genome
    #: up to 1.25; with 100 blast-small 1.15 and 1000genome-4ch 1.14, but generated cycles, soykb and montage 0.91 to 0.94.
    move_price_percent: int = 50
    shortest_wait_ms: int = 2_000
    eviction: Literal["dag", "lru"] = "dag"
    remote_reads: bool = True
    io_fill_percent: int = 90
    storages: tuple[Storage, ...] = ()
    preempt: bool = True
    reclaim: bool = True
    min_runtime_ms: int = 0
    max_cores_per_user: int = 0
    max_tasks_per_user: int = 0
    max_submitted_tasks_per_user: int = 0
    default_timeout_ms: int = 0
    max_timeout_ms: int = 0
    fit_memory: bool = False
    filters: tuple[Filter, ...] = ()
    costs: tuple[Cost, ...] = ()
    first_costs: tuple[Cost, ...] = ()
    step_costs: tuple[Cost, ...] = ()
    queue_order: QueueOrder | None = None
    victim_order: VictimOrder | None = None
    queues: Mapping[str, Profile] = field(default_factory=dict, hash=False)

    def of(self, queue: str) -> Profile:
        """The profile under which groups of a queue are ordered inside it, filtered, priced and placed."""
        return self.queues.get(queue, self) if self.queues else self

    def all_filters(self) -> tuple[Filter, ...]:
        """Built-in filters, then others'."""
        return (*BUILT_IN_FILTERS, *self.filters)

    def all_first_costs(self) -> tuple[Cost, ...]:
        """Costs of the first pod of a group on a node."""
        return (
            (StageIn(self.origin_rate, self.move_price_percent),) if self.locality else ()
        ) + self.first_costs

    def all_costs(self) -> tuple[Cost, ...]:
        """Costs of every pod."""
        home = (gather_home,) if self.locality else ()
        return home + ((slowdown_now, start_queue) if self.contention else ()) + (wishes,) + self.costs

    def all_step_costs(self) -> tuple[Cost, ...]:
        """Costs of every pod, once for each pod of its group that is already on the node."""
        return ((slowdown_step, start_step) if self.contention else ()) + self.step_costs


_TERM_NAMES: Final[Mapping[object, str]] = {
    gather_home: "gather",
    slowdown_now: "slowdown",
    start_queue: "starting",
    wishes: "preferred",
}


def term_name(cost: Cost) -> str:
    """How people read what a cost adds: "stage-in", "gather", "slowdown", "preferred", or the name of a plug-in."""
    known = _TERM_NAMES.get(cost) or getattr(cost, "name", None) or getattr(cost, "__name__", None)
    return str(known or type(cost).__name__)


#: The fields in which a queue's profile may differ from the default one; the rest concerns a cycle as a whole.
PER_QUEUE: Final = frozenset(
    {
        "name", "locality", "contention", "packing", "order", "age_class_ms", "origin_rate", "move_price_percent",
        "filters", "costs", "first_costs", "step_costs", "queue_order", "max_cores_per_user", "max_tasks_per_user",
        "max_submitted_tasks_per_user", "default_timeout_ms", "max_timeout_ms", "fit_memory",
    }
)  # fmt: skip

#: Filters for every shape. They may read its selector, tolerations, aligned requests and rules: a filter that reads more
#: needs that in the key of `feasibility.allowed_nodes`, or two shapes share a mask that is true of one.
BUILT_IN_FILTERS: Final[tuple[Filter, ...]] = (node_selector, node_taints, numa_zones)
#: Filters for the demands of a shape's rules on nodes alone. They run only for shapes with rules.
NODE_FILTERS: Final[tuple[Filter, ...]] = (node_name, node_affinity, volume_nodes)
#: Filters for their demands on the pods of nodes: as pods come, these refuse ever more nodes …
APART_FILTERS: Final[tuple[Filter, ...]] = (free_ports, away_from_others, excluded_by_others)
#: … and these may also allow nodes they refused before.
TOGETHER_FILTERS: Final[tuple[Filter, ...]] = (near_affinity, evenly_spread)

PROFILES: Final[Mapping[str, Profile]] = {
    "flowsched": Profile(),
    #: The policy of a stock cluster, at its best: the opponent in simulations and benchmarks.
    "kube-like": Profile(
        name="kube-like",
        gang=False,
        locality=False,
        contention=False,
        packing="spread",
        backfill="none",
        order="fifo",
    ),
    #: A batch scheduler that knows gangs and shares but neither data nor expected ends.
    "volcano-like": Profile(
        name="volcano-like", locality=False, contention=False, backfill="none", order="fifo"
    ),
}
