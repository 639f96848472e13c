"""What may be dropped from caches with a limit, and where there is no room for a task's data.

What is held for somebody stays. So does what is being copied from there, a result, and the last copy of what somebody still
reads, unless nothing else goes on: then it is made again by its producer, once, and after that the limit gives way, since
waiting would help nobody (`desperate`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.inputs import MissingInput, dataset_ids
from flowsched.engine.readers import CERTAIN, Readers, note_outside
from flowsched.engine.state import EngineState
from flowsched.executor.protocol import Pod
from flowsched.scheduling.eviction import Copy, Need
from flowsched.scheduling.shelves import Hold
from flowsched.scheduling.snapshot import Claim
from flowsched.statement import Statement
from flowsched.workflow.run import StageRun, WorkflowRun

#: A last copy is dropped, and a limit gives way, for who has waited so long on a node where nothing is held for others.
LAST_RESORT_MS: Final = 600_000
#: Where a reader is expected, a copy is worth so many times more than elsewhere.
_EXPECTED_HERE: Final = 4


class Look:
    """What may be dropped where, in one step."""

    def __init__(self, state: EngineState) -> None:
        note_outside(state)
        self.state = state
        self.readers = Readers(state)
        self.planned: set[tuple[int, int]] = set()  #: (dataset, node) that this step's placements read
        self.sources = {(o.dataset, o.source) for o in state.moving.values()}
        self._free: NDArray[np.int64] | None = None
        #: node -> (changes of its shelf, bytes that may go, bytes by dataset)
        self._loose: dict[int, tuple[int, int, dict[int, int]]] = {}

    def copies(self, node: int, spare: Collection[int] = (), most: Need = Need.ELSEWHERE) -> list[Copy]:
        """What may be dropped on a node. `spare`: not these."""
        shelves = self.state.catalogue.shelves
        assert shelves is not None
        shelf, lru = shelves.of[node], self.state.profile.eviction == "lru"
        found = []
        for dataset in sorted(shelf.there):
            if dataset in shelf.held or dataset in spare:
                continue
            need = self._need(dataset, node)
            if need is None or need > most:
                continue
            used_at = shelves.used_at.get((dataset, node), 0)
            if lru and need < Need.AGAIN:
                found.append(Copy(dataset, shelves.sizes[dataset], Need.ELSEWHERE, used_at, used_at))
            else:
                found.append(Copy(dataset, shelves.sizes[dataset], need, self.value(dataset, node), used_at))
        return found

    def tight(self, size_bytes: int) -> list[int]:
        """Nodes that have not so many bytes free as things were when the step first asked."""
        shelves = self.state.catalogue.shelves
        assert shelves is not None
        if self._free is None:
            self._nodes = np.fromiter(shelves.of, np.int64, len(shelves.of))
            self._free = np.array(
                [shelf.free - shelf.limit // 10 for shelf in shelves.of.values()], dtype=np.int64
            )
        tight: list[int] = self._nodes[self._free < size_bytes].tolist()
        return tight

    def loose(self, node: int, without: Collection[int] = ()) -> int:
        """Bytes on a node that may go, some datasets apart."""
        shelves = self.state.catalogue.shelves
        assert shelves is not None
        changes = shelves.of[node].changes
        known = self._loose.get(node)
        if known is None or known[0] != changes:
            sizes = {copy.dataset: copy.size_bytes for copy in self.copies(node)}
            known = self._loose[node] = (changes, sum(sizes.values()), sizes)
        return known[1] - sum([known[2].get(dataset, 0) for dataset in without])

    def value(self, dataset: int, node: int) -> int:
        """What it would cost to have a dataset again on a node, for each byte, times how surely it is read there."""
        state, use = self.state, self.readers.use(dataset)
        others = self._others(dataset, node)
        weight = use.weight
        if (dataset, node) in state.foreseen or node in use.homes:
            weight = max(weight, CERTAIN) * _EXPECTED_HERE
        rate = max(1, int(state.snapshot.nic_in[node]))
        if not others:
            rate = max(1, min(rate, state.transfer_limits.origin_rate))
        return weight * 1_000_000 // (len(others) + 1) * 1_000 // rate

    def _others(self, dataset: int, node: int) -> list[int]:
        ready = self.state.snapshot.ready
        return [each for each in self.state.catalogue.nodes_of(dataset) if each != node and ready[each]]

    def _need(self, dataset: int, node: int) -> Need | None:
        """How much a copy is needed; None = it stays."""
        catalogue = self.state.catalogue
        if (
            node in catalogue.expected_on(dataset)
            or (dataset, node) in self.sources
            or (dataset, node) in self.planned
            or (dataset, node) in self.state.read_from
        ):
            return None
        if node not in catalogue.nodes_of(dataset):
            return Need.NOBODY  # pieces of a copy that nobody waits for any more
        use = self.readers.use(dataset)
        again = catalogue.origins[dataset] or bool(self._others(dataset, node))
        if use.result:
            return Need.NOBODY if again else None
        if not use.readers:
            return Need.NOBODY
        if again:
            return Need.ELSEWHERE
        return Need.AGAIN if self._remakeable(dataset) else None

    def _remakeable(self, dataset: int) -> bool:
        """Whether its producer could write it again, and has not had to before."""
        found = self.readers.producer(dataset)
        if found is None or self.state.catalogue.uris[dataset].split("/", 4)[3] != "0":
            return False
        run, stage, shard = found
        try:
            inputs = dataset_ids(self.state, run, stage, shard)
        except MissingInput:
            return False
        return not any(self.state.catalogue.lost(each) for each in inputs)


def written_by(state: EngineState, run: WorkflowRun, stage: StageRun, inputs: Sequence[int]) -> int:
    """Bytes one shard is expected to write: what was learned, else what its document says."""
    if not stage.spec.outputs:
        return 0
    size = sum(state.catalogue.sizes[dataset] for dataset in inputs)
    learned = state.estimates.output_bytes(run.spec.name, stage.spec.name, size)
    return learned if learned is not None else stage.spec.estimate.output_bytes or 0


def desperate(state: EngineState, node: int, waited_ms: int) -> bool:
    """Whether nothing that ends would make room on a node: then last copies go, and the limit gives way."""
    if not (state.pods or state.moving or state.staging):
        return True
    shelves = state.catalogue.shelves
    if waited_ms < LAST_RESORT_MS or shelves is None or shelves.of[node].holds:
        return False
    return not any(order.dest == node for order in state.moving.values())


def shut_nodes(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: Sequence[int], key: int, waited_ms: int
) -> tuple[int, ...]:
    """Nodes whose caches have no room for what a task reads and writes, whatever may be dropped there.

    Args:
        state: With its `look`.
        run, stage: Of the task.
        inputs: Dataset ids.
        key: Number of its group: room that others leave to it is its own.
        waited_ms: For how long it has been ready.
    """
    look, shelves = state.look, state.catalogue.shelves
    if look is None or shelves is None:
        return ()
    unique = tuple(dict.fromkeys(inputs))
    reads = sum([shelves.sizes[dataset] for dataset in unique])
    writes = written_by(state, run, stage, unique)
    total = reads + writes
    left_to_other = state.cache_nodes if state.cache_first not in (None, key) else frozenset()
    shut = []
    for node in (*look.tight(total), *sorted(left_to_other)):
        shelf = shelves.of[node]
        here = sum([shelves.sizes[d] for d in unique if shelf.has(d)])
        if node in left_to_other:
            fits = total == here
        elif total - here <= (free := shelf.free_for(reads, here, writes)):
            fits = True
        else:
            fits = total - here <= free + look.loose(node, unique)
            fits = fits or (reads <= shelf.limit and desperate(state, node, waited_ms))
        if not fits:
            shut.append(node)
    return tuple(sorted(set(shut)))


def hold_again(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    task: int,
    pod: Pod,
    claim: Claim,
    statement: Statement,
) -> None:
    """After a restart: a pod that may still be there goes on reading what it read, and writing."""
    if state.catalogue.shelves is None:
        return
    uris = dict.fromkeys(uri for given in pod.inputs for uri in given.uris)
    reads = tuple(state.catalogue.intern(uri) for uri in uris)
    inputs = tuple(state.catalogue.intern(uri) for uri in uris if uri not in pod.remote)
    writes = written_by(state, run, stage, reads) if task % stage.members == 0 else 0
    state.catalogue.shelves.hold(pod.name, Hold(claim.node, inputs, writes, claim.since_ms), statement)
