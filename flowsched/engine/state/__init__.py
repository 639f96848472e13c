"""Everything the engine knows, in memory. Rebuilt from SQL and the cluster after a restart; changed by `step` alone.

Each part is a module: plain values, and no function of the engine.
"""

from __future__ import annotations

import msgspec

from flowsched.engine.state.caches import CacheState
from flowsched.engine.state.cluster import ClusterState
from flowsched.engine.state.data import DataState
from flowsched.engine.state.foreign import ForeignState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.state.round import RoundState
from flowsched.engine.state.work import WorkState
from flowsched.workflow.run.run import StageRun, WorkflowRun


class EngineState(msgspec.Struct):
    """All parts of it.

    Attributes:
        cluster: Nodes, claims and data as they are now.
        policy: The rules by which a step decides.
        work: Workflows that live, their pods, and the items of the backlog.
        data: Copies that are under way or wanted, and gather nodes.
        caches: The readers of datasets, while some cache has a limit.
        foreign: Pods that flowsched places but did not create.
        round: Answers of the last scheduling round, and when the next is due.
    """

    cluster: ClusterState = msgspec.field(default_factory=ClusterState)
    policy: PolicyState = msgspec.field(default_factory=PolicyState)
    work: WorkState = msgspec.field(default_factory=WorkState)
    data: DataState = msgspec.field(default_factory=DataState)
    caches: CacheState = msgspec.field(default_factory=CacheState)
    foreign: ForeignState = msgspec.field(default_factory=ForeignState)
    round: RoundState = msgspec.field(default_factory=RoundState)

    def note_change(self, run: WorkflowRun, stage: StageRun, *, anew: bool = False) -> None:
        """Tasks of a stage have changed: results that were worked out from them before are dropped.

        `anew`: so have facts of tasks that wait as before, as their inputs or their rank.
        """
        offers, pair = self.work.offers, (run.id, stage.number)
        offers.changed.add(pair)
        offers.tell(pair)
        cached = offers.bags.get(pair)
        if cached is not None and cached.own is not None and not anew:
            cached.moved = True
        else:
            offers.drop(pair)
        self.data.unswept.add((run.id, stage.number))
        self.data.coming_from.pop((run.id, stage.number), None)
        self.data.arriving.pop((run.id, stage.number), None)
        for edge in run.graph.edges_out[stage.number]:
            self.data.coming.pop((run.id, edge.child), None)
            gathered = self.data.gathered.get((run.id, edge.child))
            if gathered is not None and stage.number in gathered.parents:
                gathered.changed.add(stage.number)
            self.data.arriving.pop((run.id, edge.child), None)

    def note_undone(self) -> None:
        """A step was undone: so are its derived values."""
        self.work.offers.clear()
        self.data.gathered.clear()
        self.data.coming.clear()
        self.data.coming_from.clear()
        self.data.early.clear()
        self.data.arriving.clear()
        self.data.swept = None
        self.cluster.snapshot.cache.clear()

    def forget(self, workflow: str) -> None:
        """Drop the state of a workflow that has ended. The cost depends on its size alone, not on other workflows."""
        run = self.work.runs.get(workflow)
        self.data.forget(workflow, () if run is None else run.stages)
        numbers = self.work.forget(workflow)
        self.round.forget(numbers)
        for number in numbers:
            self.cluster.snapshot.spent.pop(number, None)

    def forget_foreign(self, key: str) -> None:
        """Drop the state of a foreign group of which nothing is left."""
        if key not in self.foreign.groups:  # else it has come back
            self.round.forget(self.work.forget_foreign(key))
