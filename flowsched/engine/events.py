"""Events of `step` that do not come from the cluster (those are `executor.protocol.ClusterEvent`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flowsched.engine.memoization import ShardLookup
from flowsched.engine.state.cluster import DrainOrder
from flowsched.executor.protocol import ClusterEvent, Pod
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import Queue
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec


class Accepted(msgspec.Struct, frozen=True):
    """A workflow was durably accepted. `run` is fresh: only this event refers to it."""

    run: WorkflowRun


class Command(msgspec.Struct, frozen=True):
    """A user's word on a workflow: `cancel`, `cancel_task` (of `task` of `stage`), `pause`, `resume` or `retry`.

    `number` is its row, marked done with the step.
    """

    workflow: str
    kind: str
    number: int | None = None
    reason: str = ""  #: why, in the user's words
    stage: str = ""
    task: int = 0


class Recovered(msgspec.Struct, frozen=True):
    """A workflow was read back from SQL after a restart, with the pods that may still be there."""

    run: WorkflowRun
    pods: tuple[Pod, ...] = ()


class Revived(msgspec.Struct, frozen=True):
    """A terminal workflow was read back from SQL, since the user asked for a retry."""

    run: WorkflowRun
    number: int | None = None
    reason: str = ""  #: why it is tried again, in the user's words


class CallsRanked(msgspec.Struct, frozen=True):
    """The ranks by a plan of calls that were accepted without one: their time to the end of their runs."""

    ranks: Mapping[str, int]  #: workflow -> ms, see `Call.rank_ms`


class BindingsSettled(msgspec.Struct, frozen=True):
    """Bindings that an earlier leader had under way can take place no more: the cluster's state of these pods is final."""

    uids: tuple[str, ...]


class QueueChanged(msgspec.Struct, frozen=True):
    """A queue was created or changed."""

    queue: Queue


class QueueRemoved(msgspec.Struct, frozen=True):
    """A queue has no settings of its own any more; groups that still name it get the default ones."""

    name: str


class NodeDrained(msgspec.Struct, frozen=True):
    """A node takes no new pods, now or from a later moment on; None = it is used again."""

    node: str
    order: DrainOrder | None


class ProfileChanged(msgspec.Struct, frozen=True):
    """Another policy is in force from now on."""

    profile: Profile


class Stored(msgspec.Struct, frozen=True):
    """A dataset is on a storage that lasts: no copy on a node is the last one."""

    uri: str


class Ended(msgspec.Struct, frozen=True):
    """A workflow, unknown here, that ended in an earlier life of the service: data that only its stages read are not needed."""

    workflow: str
    spec: WorkflowSpec


class LookedUp(msgspec.Struct, frozen=True):
    """The datasets from outside that ready shards of a stage read, and the cached results for these shards.

    Args:
        workflow, stage: Of the shards.
        found: The cached results, by shard.
        others: Shards that the cache was not asked for.
        names: URI -> the dataset that it is now.
        in_place: Those of them that nodes read where they lie.
        sizes: Dataset -> its bytes, as its store reports them.
        looks: `WorkflowRun.looks` when this was asked; an answer to an earlier question is ignored.
    """

    workflow: str
    stage: int
    found: tuple[ShardLookup, ...] = ()
    others: tuple[int, ...] = ()
    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    looks: int = 0


class Tick(msgspec.Struct, frozen=True):
    """Only the time: examine again the work that waits for a moment."""


EngineEvent = (
    Accepted
    | Command
    | Recovered
    | Revived
    | CallsRanked
    | BindingsSettled
    | QueueChanged
    | QueueRemoved
    | ProfileChanged
    | NodeDrained
    | Stored
    | Ended
    | LookedUp
    | Tick
    | ClusterEvent
)
