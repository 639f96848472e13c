"""Pod groups that wait for room, as shapes and counts, never single pods.

All amounts are whole numbers in the order and units of `Snapshot.axes` (milli-CPU, bytes, bytes, milli-GPU,
bytes/s, counts).
"""

from __future__ import annotations

import msgspec

from flowsched.executor.constraints import Rules


class Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """Everything about a pod that influences filters and costs, canonical: equal shapes get equal masks and costs. It is the key
    of much that is remembered, so it keeps its hash.

    Args:
        requests: (R,) what one pod asks for.
        selector: (label, value) pairs a node must carry, sorted.
        tolerations: (key, operator, value, effect) rows, sorted.
        io_bytes: Bytes one pod reads and writes on its node's disk while it runs.
        image: The container image, a dataset too; None where the pod has none.
        rack: None, "required" or "preferred": all members in one rack.
        one_per_node: No two pods of the group on one node.
        rules: Its further demands on nodes and other pods, and the facts that their rules may see of it; None = nothing.
        direct: Reads and writes of one pod on shared storages: (storage/read or storage/write, bytes/s), sorted.
        unknown: Anything the scheduler does not understand makes the pod its own shape.
    """

    requests: tuple[int, ...]
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    io_bytes: int = 0
    image: str | None = None
    rack: str | None = None
    one_per_node: bool = False
    rules: Rules | None = None
    unknown: str | None = None
    direct: tuple[tuple[str, int], ...] = ()


class RoleRequest(msgspec.Struct, frozen=True):
    """`count` pods of one shape; a gang starts only with at least `minimum` of them."""

    name: str
    shape: Shape
    count: int
    minimum: int


class Home(msgspec.Struct, frozen=True):
    """Where the outputs of a group will be gathered.

    Args:
        node: Its index.
        output_bytes: The output that each pod of the group brings there.
        gatherer: The task that reads all of them there, as the key of `Snapshot.coming`.
    """

    node: int
    output_bytes: int
    gatherer: tuple[str, ...] = ()


class PodGroup(msgspec.Struct, frozen=True, gc=False):
    """One item of the backlog.

    A gang (`gang` true) is placed all or nothing: at least the minimum of every role. Any other group is a
    *bag*: one role of `count` pods, of which any number may be placed.

    Args:
        key: The engine's handle, stable while the group waits; ties are broken by it.
        name: For people and explanations.
        queue: Name of the queue that pays.
        workflow: Name of the workflow.
        priority: Higher goes first inside a queue.
        rank_ms: Upward rank on the DAG: expected ms from here to the workflow's end along the longest path.
        ready_ms: When it became ready (ageing counts from here).
        gang: All or nothing.
        roles: The roles requested.
        inputs: Dataset ids (of the catalogue) every pod of the group reads on its node: what is not there is copied.
        runtime_ms: Expected runtime of its longest pod; None where nothing is known.
        high_ms: A runtime that few of its pods exceed, where that is known and above the expected one.
        min_resources: (R,) room that must be there before it starts, although not all of its pods exist yet.
        promised_ms: The start an earlier cycle reserved for it. Ends are estimates: work that is backfilled again and again could
            put it off for ever, so nothing that might run beyond this moment is let onto its room any more.
        home: Where its outputs will be gathered, if that is known.
        staged_on: Nodes its inputs have been staged to, if it has been through STAGING, for delay decisions.
        user: The user of its queue: as the workflow names it, or a foreign pod's namespace; empty if there is none.
        remote: Dataset ids that every pod reads too, but over the network, where they are not on its node.
        shut: Nodes whose caches have no room for its data now, that are drained before it will have ended, or that are barred by
            the rules of the gang that it joins. Sorted.
        preempts: Whether it may take others' room.
        extra: Its pods join a gang that goes on without them: it gets no reserved start, and keeps no other group waiting.
        part_of: The unit (as in `Claim`) that it will belong to, if others of it run: it does not take their room.
        in_quota: flowsched makes its pods, so the quotas must have room for them. Pods that others made are counted there already.
    """

    key: int
    name: str
    queue: str
    workflow: str
    priority: int
    rank_ms: int
    ready_ms: int
    gang: bool
    roles: tuple[RoleRequest, ...]
    inputs: tuple[int, ...] = ()
    runtime_ms: int | None = None
    min_resources: tuple[int, ...] | None = None
    staged_on: tuple[int, ...] = ()
    promised_ms: int | None = None
    high_ms: int | None = None
    user: str = ""
    home: Home | None = None
    shut: tuple[int, ...] = ()
    remote: tuple[int, ...] = ()
    preempts: bool = True
    extra: bool = False
    part_of: str = ""
    in_quota: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """All datasets that its pods read, copied or not."""
        return self.inputs + self.remote if self.remote else self.inputs
