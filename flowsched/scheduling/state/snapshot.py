"""The snapshot: nodes as arrays, and what claims on them add up to. Derived from events; a restart computes the same arrays again.

Two kinds of room. *Hard* free = allocatable - used: what a pod may take now. *Soft* free = hard - staging: what is also not the
target of a pod that waits for copies. A pod with all inputs on a node may take hard room there, so soft
claims never leave a core idle. A pod that must wait for bytes looks for soft room, so that targets do not pile up.

Every change goes through the undo log. It must not know how decisions are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.executor.nodes import ALIGNED, NodeInfo
from flowsched.executor.quotas import QuotaLimit
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.pod_group import Home
from flowsched.scheduling.state.claims import Claim, ClaimKind, DirectBook, Ledger
from flowsched.scheduling.state.gpus import GPU, Devices
from flowsched.scheduling.state.numa import Zones
from flowsched.scheduling.state.pod_index import Peers
from flowsched.scheduling.state.usage import Payer, UsageBook
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.spec import Resources

#: milli-CPU, bytes, bytes, milli-GPU, bytes/s of node disk bandwidth; extended resources are appended.
AXES: Final = ("cpu", "memory", "disk", "gpu", "io")
IO: Final = AXES.index("io")
#: The extended resource of which every pod of a Kubernetes node takes one.
PODS: Final = "pods"
#: A bound on what strangers' resource names can make of the arrays; pods that ask for more kinds fit nowhere.
MAX_AXES: Final = 64
#: Disk space is plentiful and bandwidth has a cost of its own: neither says how full a node is. Nor does a count of pods.
UNPACKED: Final = ("disk", "io", PODS)


def packing_axes(names: Sequence[str]) -> tuple[bool, ...]:
    """(R,) whether an axis says how full a node is."""
    return tuple([name not in UNPACKED for name in names])


# ---- what claims add up to ----
#
# By node, by device, by zone, and by the queue that pays.


def book(snapshot: Snapshot, claim: Claim, amount: NDArray[np.int64], sign: int) -> None:
    """A claim comes (+1) or goes (-1). `amount`: (R,) what it really holds."""
    width = len(amount)
    if claim.kind is ClaimKind.STAGING:
        snapshot.staging_claims += sign
        snapshot.matrices["staging"][claim.node, :width] += sign * amount
        return
    snapshot.matrices["used"][claim.node, :width] += sign * amount
    if claim.devices:
        snapshot.devices.book(claim.node, claim.devices, sign)
    if ALIGNED in snapshot.axes and amount[snapshot.axes.index(ALIGNED)] > 0:
        if sign > 0:
            snapshot.zones.add(claim.owner, claim.node, claim.since_ms, amount)
        else:
            snapshot.zones.remove(claim.owner, claim.node)
    if claim.rules is not None and claim.kind is not ClaimKind.NOMINATED:
        snapshot.peers.count(claim.rules, claim.node, claim.kind is ClaimKind.RELEASING, sign)
    if claim.unit and claim.kind is ClaimKind.RUNNING:
        _takeable(snapshot, claim.priority, sign)
    snapshot.direct.book(claim, sign)
    if claim.io_bytes > 0:
        snapshot.columns["io_tasks"][claim.node] += sign
    if claim.starting:
        snapshot.columns["starting"][claim.node] += sign
    if claim.in_quota:
        snapshot.quota_used[:width] += sign * amount
    snapshot.usage.book(Payer(claim.queue, claim.user), amount.tolist(), sign)


def _takeable(snapshot: Snapshot, priority: int, more: int) -> None:
    count = snapshot.takeable.get(priority, 0) + more
    if count:
        snapshot.takeable[priority] = count
    else:
        del snapshot.takeable[priority]


# ---- the snapshot ----


_NOWHERE: Final = 1 << 60  #: milli-CPU no node has
_TROUBLES: Final = 5  #: causes that one sentence names
#: One value per node, beside the (N, R) arrays.
_COLUMNS: Final[dict[str, type]] = {
    "ready": np.bool_,
    "rack": np.int32,
    "taint": np.int32,
    "disk_rate": np.int64,
    "nic_in": np.int64,
    "nic_out": np.int64,
    "io_tasks": np.int32,
    "start_ms": np.int64,
    "starting": np.int64,
    "inbound": np.int64,
    "version": np.int64,
}


class Snapshot:
    """Nodes and claims. Array properties are views of the live arrays: read them, change them only through
    methods.

    Attributes:
        axes: Names of the R resources.
        names, index: Node names in index order, and back. A node keeps its index for ever.
        taint_sets: The distinct values of `taints`, by taint id.
        racks: Rack names by rack id. Nodes that name no rack are together in the rack "".
        labels, taints: Per node, as reported.
        claims: Every claim by owner.
        nominations: Room that is being freed for a group, by the group's key; changed through statements.
        spent: Groups with a nomination that came to nothing, and when: for a while they ask for no other (`RETAKE_MS`).
        peers: The pods of claims that hold room, for rules of other pods.
        zones, devices: NUMA zones of nodes, and the pods in them; what is held of each of their GPUs.
        quotas: Limits on all pods that flowsched makes together, by the name of the quota; changed through statements.
        quota_used: (MAX_AXES,) what the claims of these pods hold.
        usage, direct: Present and past usage of queues and their users; demands of claims that hold room on shared storages.
        generation: Grows with every change of a node (not of claims): caches are valid for one generation.
        cache: For pure functions of nodes alone; emptied with every generation.
    """

    def __init__(self, extended: Sequence[str] = ()) -> None:
        self.axes: tuple[str, ...] = AXES + tuple(extended)
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.racks: list[str] = []
        self.labels: list[dict[str, str]] = []
        self.taints: list[tuple[tuple[str, str, str], ...]] = []
        self.claims: dict[str, Claim] = {}
        self.nominations: dict[int, Nomination] = {}
        self.spent: dict[int, int] = {}
        self.quotas: dict[str, tuple[QuotaLimit, ...]] = {}
        self.quota_used = np.zeros(MAX_AXES, dtype=np.int64)
        self.ledger = Ledger(len(self.axes))
        self.peers = Peers()
        self.zones = Zones()
        self.devices = Devices()
        self.zones.set_axes(self.axes)
        self.generation = 0
        self.cache: dict[Any, Any] = {}
        self._infos: list[NodeInfo] = []
        self._rack_ids: dict[str, int] = {}
        self.taint_sets: list[tuple[tuple[str, str, str], ...]] = []
        self._taint_ids: dict[tuple[tuple[str, str, str], ...], int] = {}
        self.takeable: dict[int, int] = {}  #: priority -> claims that may be taken away for others
        self.usage, self.direct = UsageBook(), DirectBook()
        self.staging_claims = 0
        self._inbound_bytes = 0
        #: by the task that gathers them: bytes that others, running or ended elsewhere, will bring it and are not under way yet
        self.coming: Mapping[tuple[str, ...], int] = {}
        #: node -> bytes that pods which this cycle has placed elsewhere will bring there, where they are gathered
        self.homeward: dict[int, int] = {}
        #: Each axis lies together: a cycle reads one of all nodes.
        self.matrices = {
            name: np.zeros((0, len(self.axes)), dtype=np.int64) for name in ("allocatable", "used", "staging")
        }
        self.columns: dict[str, NDArray[Any]] = {n: np.zeros(0, dtype=kind) for n, kind in _COLUMNS.items()}

    def __len__(self) -> int:
        """How many nodes there are, ready or not."""
        return len(self.names)

    def copy(self) -> Snapshot:
        """A copy that can be changed while this one stays. Both share values that never change (claims, nodes as reported)."""
        own = (self.claims, self.direct.claims, self.names, self.index, self.labels, self.taints, self._infos)
        memo: dict[int, Any] = {id(each): copy(each) for each in (*own, *self.ledger.flat)}
        return deepcopy(self, memo | {id(self.cache): {}})

    def coming_bytes(self, home: Home) -> int:
        """Bytes that other tasks will bring to a gather node, or that pods will which this cycle has placed."""
        return self.coming.get(home.gatherer, 0) + self.homeward.get(home.node, 0)

    def info(self, node: int) -> NodeInfo:
        """A node as it was last reported."""
        return self._infos[node]

    @property
    def troubles(self) -> str:
        """Why nodes are not ready, in words: each cause once, the first few."""
        causes = list(dict.fromkeys(info.trouble for info in self._infos if info.trouble and not info.ready))
        more = [f"and {len(causes) - _TROUBLES} more"] if len(causes) > _TROUBLES else []
        return "; ".join([*causes[:_TROUBLES], *more])

    def _matrix(self, name: str) -> NDArray[np.int64]:
        return self.matrices[name][: len(self.names), : len(self.axes)]

    def _column(self, name: str) -> NDArray[Any]:
        return self.columns[name][: len(self.names)]

    @property
    def allocatable(self) -> NDArray[np.int64]:
        """(N, R) what each node has for pods."""
        return self._matrix("allocatable")

    @property
    def used(self) -> NDArray[np.int64]:
        """(N, R) held by RUNNING, RELEASING and NOMINATED claims."""
        return self._matrix("used")

    @property
    def staging(self) -> NDArray[np.int64]:
        """(N, R) wanted by STAGING claims."""
        return self._matrix("staging")

    @property
    def ready(self) -> NDArray[np.bool_]:
        """(N,) whether the node takes new pods."""
        return self._column("ready")

    @property
    def rack(self) -> NDArray[np.int32]:
        """(N,) rack id."""
        return self._column("rack")

    @property
    def taint(self) -> NDArray[np.int32]:
        """(N,) taint id."""
        return self._column("taint")

    @property
    def disk_rate(self) -> NDArray[np.int64]:
        """(N,) bytes/s of the node's disk."""
        return self._column("disk_rate")

    @property
    def nic_in(self) -> NDArray[np.int64]:
        """(N,) bytes/s the node can receive."""
        return self._column("nic_in")

    @property
    def nic_out(self) -> NDArray[np.int64]:
        """(N,) bytes/s the node can send."""
        return self._column("nic_out")

    @property
    def io_tasks(self) -> NDArray[np.int32]:
        """(N,) IO-heavy tasks that hold room."""
        return self._column("io_tasks")

    @property
    def start_ms(self) -> NDArray[np.int64]:
        """(N,) ms by which each pod that a node is starting delays the start of the next."""
        return self._column("start_ms")

    @property
    def starts_queue(self) -> bool:
        """Whether pods that start delay each other on any node."""
        if "starts" not in self.cache:
            self.cache["starts"] = bool(self.start_ms.any())
        return bool(self.cache["starts"])

    @property
    def starting(self) -> NDArray[np.int64]:
        """(N,) pods that hold room and have not started."""
        return self._column("starting")

    @property
    def inbound(self) -> NDArray[np.int64]:
        """(N,) bytes on their way to the node, if the owner of the snapshot keeps them by `add_inbound`."""
        return self._column("inbound")

    @property
    def any_staging(self) -> bool:
        """Whether there is any STAGING claim."""
        return self.staging_claims > 0

    @property
    def any_inbound(self) -> bool:
        """Whether any bytes are on their way."""
        return self._inbound_bytes != 0

    def uniform(self, name: str) -> int | None:
        """The value all nodes share in a column such as `nic_in`; None where they differ."""
        key = ("uniform", name)
        if key not in self.cache:
            column = self._column(name)
            same = len(column) > 0 and column.min() == column.max()
            self.cache[key] = int(column[0]) if same else None
        value: int | None = self.cache[key]
        return value

    @property
    def version(self) -> NDArray[np.int64]:
        """(N,) grows with every change of the node or of a claim on it."""
        return self._column("version")

    @property
    def total(self) -> tuple[int, ...]:
        """(R,) what all ready nodes have together."""
        if "total" not in self.cache:
            self.cache["total"] = tuple(int(x) for x in self.allocatable[self.ready].sum(axis=0))
        total: tuple[int, ...] = self.cache["total"]
        return total

    @property
    def largest(self) -> tuple[int, ...]:
        """(R,) of each resource the most that a node has in all, ready or not. Zeros where there is no node."""
        if "largest" not in self.cache:
            self.cache["largest"] = tuple(int(x) for x in self.allocatable.max(axis=0, initial=0))
        largest: tuple[int, ...] = self.cache["largest"]
        return largest

    def vector(self, resources: Resources, io: int = 0) -> tuple[int, ...]:
        """(R,) what one pod asks for, `io` in bytes/s of node disk.

        An extended resource that no node has offered yet becomes an axis on which every node has 0: such a pod fits nowhere until
        a node offers it, and its shape stays true when one does.
        """
        asked = {name: amount for name, amount in resources.extended.items() if amount > 0}
        new_axes = sorted(set(asked) - set(self.axes))
        cpu = resources.cpu_millicores
        if len(self.axes) + len(new_axes) > MAX_AXES:
            cpu, new_axes = _NOWHERE, []
        if new_axes:
            self._set_axes(self.axes + tuple(new_axes))
        known = (cpu, resources.memory_bytes, resources.disk_bytes, resources.gpu_millis, io)
        return known + tuple(asked.get(name, 0) for name in self.axes[len(AXES) :])

    def pod_vector(self, resources: Resources, io: int = 0, *, aligned: bool = False) -> tuple[int, ...]:
        """(R,) what one pod of ours asks for: where nodes take only so many pods, it is one of them.

        Args:
            resources: Its request.
            io: Bytes/s of node disk bandwidth.
            aligned: It gets whole cores, where kubelets give any.
        """
        marks = [PODS, ALIGNED] if aligned else [PODS]
        for mark in marks:
            if mark in self.axes and resources.extended.get(mark, 0) < 1:
                resources = replace(resources, extended={**resources.extended, mark: 1})
        return self.vector(resources, io)

    def queue_usage(self, queue: str) -> tuple[int, ...]:
        """(R,) held by claims of this queue, children not included (STAGING claims hold nothing)."""
        used = self.usage.of_queue(queue)
        width = len(self.axes)  # a new axis that was taken back leaves a 0 behind
        return tuple(used[:width]) + (0,) * (width - len(used))

    @property
    def lowest_takeable(self) -> int | None:
        """The lowest priority of the claims that may be evicted for others; None if there is none."""
        return min(self.takeable) if self.takeable else None

    @property
    def paying_queues(self) -> tuple[str, ...]:
        """Queues that hold room now, sorted."""
        return tuple(sorted(self.usage.queues))

    # ---- nodes ----

    def put_node(self, node: NodeInfo, statement: Statement | None = None) -> int:
        """Add a node, or note how it is now. Saying the same thing again changes nothing.

        Args:
            node: The node; `ready` False = no new pods. One that is gone must have lost its labels too, or it stays
                part of its topology's domains. Extended resources not seen before become new axes.
            statement: Where to note the undo; None = final.

        Returns:
            Its index, the same for ever.
        """
        at = self.index.get(node.name)
        if at is not None and self._infos[at] == node:
            return at
        before = (len(self.axes), None if at is None else self._infos[at])
        new_axes = sorted(set(node.extended) - set(self.axes))
        if new_axes:
            self._set_axes(self.axes + tuple(new_axes))
        if at is None:
            at = self._append(node)
            self.peers.resize(len(self.names))
        self._write(at, node, +1)
        if statement is not None:
            statement.undo_with(lambda: self._undo_node(at, *before))
        return at

    def _undo_node(self, at: int, axes: int, info: NodeInfo | None) -> None:
        if info is None:
            self._write(at, self._infos[at], -1)
            self.zones.report(at, ())
            self.devices.report(at, 0)
            for array in (*self.matrices.values(), *self.columns.values()):
                array[at] = 0
            del self.index[self.names.pop()]
            self.peers.resize(len(self.names))
            for rows in (self.labels, self.taints, self._infos):
                rows.pop()
        else:
            self._write(at, info, -1)
        if axes != len(self.axes):
            self._set_axes(self.axes[:axes])

    def _set_axes(self, axes: tuple[str, ...]) -> None:
        self.axes = axes
        for name, old in self.matrices.items():
            if old.shape[1] < len(axes):
                wider = np.zeros((len(old), len(axes)), dtype=np.int64, order="F")
                wider[:, : old.shape[1]] = old
                self.matrices[name] = wider
        self.ledger.widen(len(axes))
        self.zones.set_axes(axes)
        self._changed()

    def _append(self, node: NodeInfo) -> int:
        at = len(self.names)
        capacity = len(self.columns["ready"])
        if at == capacity:
            more = max(16, capacity)
            for name, old in self.matrices.items():
                wider = np.zeros((len(old) + more, old.shape[1]), dtype=np.int64, order="F")
                wider[: len(old)] = old
                self.matrices[name] = wider
            for name, column in self.columns.items():
                self.columns[name] = np.concatenate([column, np.zeros(more, dtype=column.dtype)])
        self.names.append(node.name)
        self.index[node.name] = at
        self.labels.append({})
        self.taints.append(())
        self._infos.append(node)
        return at

    def _write(self, at: int, node: NodeInfo, step: int) -> None:
        self._infos[at] = node
        self.labels[at] = dict(node.labels)
        self.taints[at] = tuple(node.taints)
        known = (node.cpu_millicores, node.memory_bytes, node.disk_bytes, node.gpu_millis, node.disk_budget)
        row = self.matrices["allocatable"][at]
        row[:] = 0
        row[: len(AXES)] = known
        for axis, name in enumerate(self.axes[len(AXES) :], len(AXES)):
            row[axis] = node.extended.get(name, 0)
        if node.rack not in self._rack_ids:
            self._rack_ids[node.rack] = len(self.racks)
            self.racks.append(node.rack)
        taints = self.taints[at]
        if taints not in self._taint_ids:
            self._taint_ids[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        columns = {
            "taint": self._taint_ids[taints], "ready": node.ready, "rack": self._rack_ids[node.rack],
            "start_ms": node.start_ms, "disk_rate": node.disk_rate, "nic_in": node.nic_in_left, "nic_out": node.nic_out_left,
        }  # fmt: skip
        for name, value in columns.items():
            self.columns[name][at] = value
        self.columns["version"][at] += step
        self.zones.report(at, node.zones)
        self.devices.report(at, node.gpu_millis)
        self._changed()

    def set_writeable(self, writeable: bool) -> None:
        """Make the arrays read-only (False) while a plugin's code runs, or writable again (True)."""
        for array in (*self.matrices.values(), *self.columns.values(), *self.ledger.arrays):
            array.flags.writeable = writeable

    def _changed(self) -> None:
        self.generation += 1
        self.cache.clear()

    # ---- claims ----

    def claim(self, claim: Claim, statement: Statement) -> None:
        """Note a claim. One of the same owner is replaced (STAGING -> RUNNING).

        A demand for disk bandwidth beyond what the node has is taken as all it has: such a task runs alone there. If the claim
        does not say which GPUs it holds, the node's devices choose them.
        """
        self.unclaim(claim.owner, statement)
        if len(claim.amount) == len(self.axes):
            amount = np.array(claim.amount, dtype=np.int64)
        else:
            amount = np.zeros(len(self.axes), dtype=np.int64)
            amount[: len(claim.amount)] = claim.amount
        if len(claim.amount) > IO and claim.amount[IO]:
            amount[IO] = min(amount[IO], self.allocatable[claim.node, IO])
        if (amount[GPU] or claim.devices) and claim.kind is not ClaimKind.STAGING:
            claim = structs.replace(
                claim, devices=self.devices.fitted(claim.node, claim.devices, int(amount[GPU]))
            )
        self._insert(claim, amount, +1)
        statement.undo_with(self._remove, claim.owner, -1)

    def claim_all(self, claims: Iterable[Claim], statement: Statement) -> None:
        """Note claims, in order."""
        for claim in claims:
            self.claim(claim, statement)

    def unclaim(self, owner: str, statement: Statement) -> Claim | None:
        """Take a claim away; None if there is none."""
        claim = self.claims.get(owner)
        if claim is None:
            return None
        amount = self.ledger.amount_of(owner)
        self._remove(owner, +1)
        statement.undo_with(self._insert, claim, amount, -1)
        return claim

    def restake(self, claim: Claim, statement: Statement) -> None:
        """Replace a claim that holds room by one that may be taken away on other terms: nothing else of it differs."""
        self._restake(self.claims[claim.owner], claim, statement)

    def _restake(self, before: Claim, after: Claim, statement: Statement | None) -> None:
        self.claims[after.owner] = after
        self.ledger.restake(before, after)
        if after.owner in self.direct.claims:
            self.direct.claims[after.owner] = after
        if before.unit and before.kind is ClaimKind.RUNNING:
            _takeable(self, before.priority, -1)
        if after.unit and after.kind is ClaimKind.RUNNING:
            _takeable(self, after.priority, +1)
        if statement is not None:
            self.columns["version"][after.node] += 1
            statement.undo_with(self._restake, after, before, None)
        else:
            self.columns["version"][after.node] -= 1

    def started(self, owner: str, at_ms: int, statement: Statement) -> None:
        """A claim's process runs since `at_ms`: from here on taking it away loses work."""
        claim = self.claims.get(owner)
        if claim is not None and claim.started_ms is None:
            statement.put(self.claims, owner, structs.replace(claim, started_ms=at_ms, starting=False))
            if claim.starting:
                statement.add(self.starting, claim.node, -1)
            statement.set(self.ledger.started, self.ledger.slot_of(owner), at_ms)

    def add_inbound(
        self, nodes: int | NDArray[np.int64], sizes: int | NDArray[np.int64], statement: Statement
    ) -> None:
        """Note bytes on their way to nodes (negative: they have arrived). `nodes` holds no duplicates."""
        self._bring(nodes, sizes)
        statement.undo_with(lambda: self._bring(nodes, -sizes))

    def _bring(self, nodes: int | NDArray[np.int64], sizes: int | NDArray[np.int64]) -> None:
        self.inbound[nodes] += sizes
        self._inbound_bytes += sizes if isinstance(sizes, int) else int(sizes.sum())

    def _insert(self, claim: Claim, amount: NDArray[np.int64], step: int) -> None:
        self.claims[claim.owner] = claim
        self.ledger.insert(claim, amount)
        book(self, claim, amount, +1)
        self.columns["version"][claim.node] += step

    def _remove(self, owner: str, step: int) -> None:
        claim = self.claims.pop(owner)
        book(self, claim, self.ledger.amount_of(owner), -1)
        self.ledger.remove(claim)
        self.columns["version"][claim.node] += step
