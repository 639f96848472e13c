"""Everything the engine knows, in memory. Rebuilt from SQL and the cluster after a restart; changed by `step` alone."""

from __future__ import annotations

from flowsched.engine.state.cluster import Drain
from flowsched.engine.state.data import Backoff, Coming, Gather, Spread, StagingGroup
from flowsched.engine.state.foreign import ForeignKey, ForeignWork
from flowsched.engine.state.work import GroupKey, Offered, PodRef, ShapeKey
from flowsched.executor.foreign import PodTemplate
from flowsched.scheduling.plan import Reason, Reservation
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.transfers import TransferLimits, TransferOrder, TransferWant
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.run.run import StageRun, WorkflowRun


class EngineState:
    """All of it.

    Attributes:
        snapshot: Nodes and claims as arrays.
        catalogue: Datasets and where they lie.
        queues: Who pays, and in which order.
        profile: The policy in force.
        runs: Workflows that are not terminal, by id, in the order of submission.
        ready: (workflow, stage) with at least one QUEUED task.
        pods: Every pod that holds room, by name.
        staging: Groups in STAGING, by their number.
        moving: Transfers under way, by (dataset, node, piece).
        reasons: Why a group was not placed in the last cycle, by group number.
        epoch: Of this leader; part of every intent.
        secret: Gang tokens are derived from it; never written anywhere.
        remote_reads: Pods can read what lies on other nodes without a copy.
        mounted: All data lie on a storage that every node mounts, and pods read and write there: a policy without locality stages
            nothing.
    """

    def __init__(
        self,
        *,
        profile: Profile | None = None,
        queues: QueueTree | None = None,
        epoch: int = 1,
        secret: bytes = b"",
        address_start: int = 0,
        mounted: bool = False,
        remote_reads: bool = False,
    ) -> None:
        self.snapshot = Snapshot()
        self.catalogue = Catalogue()
        self.queues = queues if queues is not None else QueueTree()
        self.profile = profile if profile is not None else PROFILES["flowsched"]
        self.transfer_limits = TransferLimits()
        self.estimates = Estimates()
        self.runs: dict[str, WorkflowRun] = {}
        self.ready: set[tuple[str, int]] = set()
        self.impatient: set[tuple[str, int]] = (
            set()
        )  #: of `ready`, those that may give up waiting (gangs, policies)
        self.pods: dict[str, PodRef] = {}
        #: (workflow, stage) -> per mille of what was learned of its IO that is counted, as measured
        self.corrections: dict[tuple[str, str], int] = {}
        self.disk_free_at: dict[
            int, int
        ] = {}  #: node -> when the next task may start whose bytes keep its disk busy
        self.others: dict[
            str, int
        ] = {}  #: node, storage/read or storage/write -> bytes/s that others use, of late
        self._begin_data()
        self._begin_caches()
        self.staged_on: dict[GroupKey, tuple[int, ...]] = {}
        self.keys: dict[GroupKey | ForeignKey, int] = {}
        self.groups: dict[int, GroupKey | ForeignKey] = {}
        self.groups_of: dict[str, list[GroupKey]] = {}  #: those of `keys`, by workflow
        self.next_key = 1
        self.next_staging = 1
        self.next_address = address_start
        self.shapes: dict[ShapeKey, Shape] = {}
        self.shapes_of: dict[str, list[ShapeKey]] = {}  #: keys of `shapes`, by workflow
        self.inputs: dict[tuple[str, int], tuple[int, ...] | None] = {}
        self.reasons: dict[int, Reason] = {}
        self.refused: dict[int, PodGroup] = {}  #: what they asked for, the most important first
        self.reservations: tuple[Reservation, ...] = ()
        self.promises: dict[int, int] = {}  #: group -> the first start it was promised
        self.gang_bases: dict[tuple[str, int, int], int] = {}
        self.held: dict[str, tuple[str, str]] = {}  #: pod -> why it does not start: (reason, message)
        self._begin_foreign()
        self.drains: dict[str, Drain] = {}  #: nodes that shall be empty, by name
        #: bags of stages that have not changed since
        self.offers: dict[tuple[str, int], Offered] = {}
        self._begin_pace()
        self.epoch = epoch
        self.secret = secret
        self.mounted = mounted
        self.remote_reads = remote_reads

    def _begin_data(self) -> None:
        """What moves, and what shall: nothing yet."""
        self.staging: dict[int, StagingGroup] = {}
        #: (workflow, stage) of which tasks have changed since `staging.sweep` last looked
        self.unswept: set[tuple[str, int]] = set()
        #: what else it looks at, as it was then: replicas dropped, nodes that are ready; None = look at all
        self.swept: tuple[int, bytes] | None = None
        self.moving: dict[tuple[int, int, int], TransferOrder] = {}
        #: of those from a storage with a budget: (storage/read, bytes/s) they count for
        self.copying: dict[tuple[int, int, int], tuple[str, int]] = {}
        #: (dataset, node) -> what is still to come of it, of those that have begun to
        self.coming_in: dict[tuple[int, int], Coming] = {}
        self.transfer_backoff: dict[tuple[int, int], Backoff] = {}
        #: (workflow, stage) -> who gathers what it writes
        self.gathers: dict[tuple[str, int], Gather | None] = {}
        #: (workflow, stage) -> stages it gathers, and of how many of their shards
        self.gathered: dict[tuple[str, int], list[tuple[int, int]]] = {}
        #: (workflow, stage) -> shard -> (its home, bytes on their way there from producers); until a producer changes
        self.coming: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        #: (workflow, stage, shard) -> node where it shall find its inputs
        self.homes: dict[tuple[str, int, int], int] = {}
        #: (workflow, stage) -> milli-core ms of all that gather what it gathers, and go where its home is
        self.home_work: dict[tuple[str, int], int] = {}
        #: (dataset, node) -> what shall be pushed home, and for whom: (want, workflow, stage)
        self.pushes: dict[tuple[int, int], tuple[TransferWant, str, int]] = {}
        self.push_backlog: dict[int, int] = {}  #: node -> bytes of `pushes` to it
        self.read_from: dict[
            tuple[int, int], int
        ] = {}  #: (dataset, node) -> pods elsewhere that read it there
        self.spreads: dict[str, tuple[Spread, ...]] = {}  #: by workflow: what may be worth having everywhere
        #: what those who wait will read, by (dataset, node)
        self.foreseen: dict[tuple[int, int], TransferWant] = {}

    def _begin_caches(self) -> None:
        """What is known of who reads what; only kept while some cache has a limit (`catalogue.shelves`)."""
        #: dataset from outside -> workflow -> (stage, shard; None = all) that read it
        self.outside: dict[int, dict[str, list[tuple[int, int | None]]]] = {}
        self.noted: dict[str, tuple[int, ...]] = {}  #: workflow -> what of `outside` it reads
        #: workflow that has ended -> (stage, output) that its own stages read
        self.ended_reads: dict[str, frozenset[tuple[str, str]]] = {}
        self.cache_first: int | None = None  #: group that waits for cache longest: others leave it room ...
        self.cache_nodes: frozenset[int] = frozenset()  #: ... there

    def _begin_foreign(self) -> None:
        """What is known of others' pods: nothing yet."""
        self.foreign: dict[str, ForeignWork] = {}  #: groups of foreign pods, by key
        self.foreign_pods: dict[str, str] = {}  #: uid -> key of its group, waiting or placed
        self.foreign_shapes: dict[tuple[PodTemplate, str | None], Shape] = {}
        self.assumed: dict[str, int] = {}  #: uid of a foreign pod whose binding is under way -> since (ms)
        self.halved: set[str] = set()  #: foreign gangs that stand half placed
        self.holding: set[str] = set()  #: foreign groups for whom room is held
        self.making_way: dict[str, str] = {}  #: uid of a pod that was asked to make way -> its unit
        self.spared: dict[str, tuple[str, int]] = {}  #: unit that could not be evicted -> (group, until ms)
        self.budgets: dict[str, int] = {}  #: disruption budget -> how many of its pods may go now
        self.covered: dict[
            str, str
        ] = {}  #: uid of a pod with a node that a budget covers -> key of its group
        self.guarded: frozenset[str] = frozenset()  #: units that budgets keep where they are

    def _begin_pace(self) -> None:
        """What `engine/pacing` keeps: nobody has looked at the backlog yet."""
        self.under_way: set[str] = set()  #: pods of ours that have not got to their node yet
        self.crowded = False  #: as many as may be were under way, and no more follow for a while
        self.restless = True  #: something may let somebody start, and nobody has looked since
        self.rest_until = 0  #: no look before this moment
        self.looked_at = 0  #: the last look
        self.quiet_until = 0  #: before this moment time alone lets nobody start
        self.look_at: int | None = None  #: a look is due at this moment, whatever happens

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

    def note_change(self, run: WorkflowRun, stage: StageRun) -> None:
        """Tasks of a stage have changed: what was worked out from them before holds no more."""
        self.offers.pop((run.id, stage.number), None)
        self.unswept.add((run.id, stage.number))
        for edge in run.graph.edges_out[stage.number]:
            self.coming.pop((run.id, edge.child), None)

    def note_undone(self) -> None:
        """A step was undone: so is what was worked out in it."""
        self.offers.clear()
        self.coming.clear()
        self.swept = None
        self.snapshot.cache.clear()

    def forget(self, workflow: str) -> None:
        """Drop what is kept about a workflow that has ended. Costs what it had, however many others there are."""
        for group in self.groups_of.pop(workflow, ()):
            number = self.keys.pop(group)
            self.reasons.pop(number, None)
            self.refused.pop(number, None)
            self.staged_on.pop(group, None)
            self.snapshot.spent.pop(number, None)
            del self.groups[number]
        for shape in self.shapes_of.pop(workflow, ()):
            self.shapes.pop(shape, None)
        run = self.runs.pop(workflow, None)
        self.spreads.pop(workflow, None)
        for home in [home for home in self.homes if home[0] == workflow]:
            del self.homes[home]
        for stage in run.stages if run is not None else ():
            pair = (workflow, stage.number)
            self.ready.discard(pair)
            self.impatient.discard(pair)
            self.inputs.pop(pair, None)
            self.offers.pop(pair, None)
            self.gathers.pop(pair, None)
            self.gathered.pop(pair, None)
            self.home_work.pop(pair, None)
            self.coming.pop(pair, None)
            if stage.spec.gang:
                for shard in range(stage.spec.width):
                    self.gang_bases.pop((*pair, shard), None)

    def forget_foreign(self, key: str) -> None:
        """Drop what is kept about a foreign group of which nothing is left."""
        if key in self.foreign:
            return  # it has come back
        for group in [g for g in self.keys if isinstance(g, ForeignKey) and g.group == key]:
            self.reasons.pop(self.keys[group], None)
            self.refused.pop(self.keys[group], None)
            del self.groups[self.keys.pop(group)]
