"""The DAG of stages: which stage waits for which, shard by shard, and how long the way to the end is.

Edges are kept per stage and never expanded: a thousand stages of a thousand tasks are a thousand nodes. Between two stages
there is at most one edge, the strongest of what the document says: a barrier (`all`, or order only) covers `index`, and `index`
covers `chunk`. The only home of networkx, which explains cycles and does nothing else: the order itself is needed for each
document, and plain lists find it many times faster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.workflow.spec import Match, StageSpec, When, WorkflowSpec


class Edge(msgspec.Struct, frozen=True):
    """Stage `child` waits for stage `parent`.

    Args:
        parent: Number of the stage that is waited for.
        child: Number of the stage that waits.
        match: How shards meet; None for an edge of order only.
        input: The first input of the child that reads from the parent; None for an edge of order only.
    """

    parent: int
    child: int
    match: Match | None = None
    input: str | None = None

    @property
    def barrier(self) -> bool:
        """Whether every shard of the child waits for all shards of the parent."""
        return self.match is None or self.match is Match.ALL


def shards_read(match: Match | None, shard: int, readers: int, width: int) -> range:
    """Which of `width` shards the `shard`-th of `readers` reads; chunks differ by one shard at most."""
    if match is Match.INDEX:
        return range(shard, shard + 1)
    if match is Match.CHUNK:
        return range(shard * width // readers, (shard + 1) * width // readers)
    return range(width)


def reader_of(match: Match | None, shard: int, readers: int, width: int) -> int | None:
    """Which of `readers` reads the `shard`-th of `width` shards; None = all of them do."""
    if match is Match.INDEX:
        return shard
    return ((shard + 1) * readers - 1) // width if match is Match.CHUNK else None


class StageGraph:
    """The edges of one checked workflow, by stage number.

    Attributes:
        numbers: Stage name -> number.
        widths: (S,) shards of each stage.
        edges_in: Per stage, the edges to its parents, at most one each, in the order of parents.
        edges_out: Per stage, the edges to its children, in the order of children.
        data: Per stage, one edge for each input that reads from a stage, in the order of its inputs.
        readers: (stage, output) -> how many shards, of all stages, read one dataset of it.
        order: Stage numbers, parents first; ties in the order of the document.
        conditional: Stages that may be skipped: values or a failure decide about them, or about a stage that they come after.
    """

    __slots__ = ("conditional", "data", "edges_in", "edges_out", "numbers", "order", "readers", "widths")

    def __init__(self, workflow: WorkflowSpec) -> None:
        stages = workflow.stages
        self.numbers = {stage.name: number for number, stage in enumerate(stages)}
        self.widths = tuple(stage.width for stage in stages)
        self.data: tuple[tuple[Edge, ...], ...] = tuple(
            tuple(
                Edge(self.numbers[source.stage], number, source.match, source.name)
                for source in stage.inputs
                if source.stage is not None
            )
            for number, stage in enumerate(stages)
        )
        self.readers = Counter[tuple[str | None, str | None]]()
        for stage in stages:
            for source in stage.inputs:
                if source.stage is not None:
                    shards = stage.width if source.match is Match.ALL else 1
                    self.readers[source.stage, source.output] += shards
        self.edges_in: tuple[tuple[Edge, ...], ...] = tuple(
            self._strongest(number, stage) for number, stage in enumerate(stages)
        )
        outgoing: list[list[Edge]] = [[] for _ in stages]
        for edges in self.edges_in:
            for edge in edges:
                outgoing[edge.parent].append(edge)
        self.edges_out: tuple[tuple[Edge, ...], ...] = tuple(tuple(edges) for edges in outgoing)
        self.order = topological_order(
            [[edge.parent for edge in edges] for edges in self.edges_in],
        )
        self.conditional: set[int] = set()
        for number in self.order:
            when = stages[number].when
            if (
                when.outcome is When.FAILURE
                or when.equals
                or any(edge.parent in self.conditional for edge in self.edges_in[number])
            ):
                self.conditional.add(number)

    def _strongest(self, number: int, stage: StageSpec) -> tuple[Edge, ...]:
        found: dict[int, Edge] = {}
        for edge in self.data[number]:
            other = found.get(edge.parent)
            if other is None:
                found[edge.parent] = edge
            elif _STRENGTH[edge.match] > _STRENGTH[other.match]:
                found[edge.parent] = Edge(edge.parent, number, edge.match, other.input)
        ordered = [*stage.needs, *(condition[0] for condition in stage.when.equals)]
        for parent in (self.numbers[name] for name in ordered):
            other = found.get(parent)
            if other is None:
                found[parent] = Edge(parent, number)
            elif not other.barrier:
                found[parent] = Edge(parent, number, Match.ALL, other.input)
        return tuple(found[parent] for parent in sorted(found))

    def shard_children(self, edge: Edge, shard: int) -> range:
        """Which shards of the child wait for one shard of the parent."""
        reader = reader_of(edge.match, shard, self.widths[edge.child], self.widths[edge.parent])
        return range(self.widths[edge.child]) if reader is None else range(reader, reader + 1)

    def affected(
        self, edge: Edge, finished: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The effect of finished parent shards on the child.

        Args:
            edge: Which edge. A barrier counts once for the whole parent: ask when its last shard has
                finished.
            finished: (K,) distinct shards of the parent. Not modified.

        Returns:
            Shards of the child, ascending, and by how much the number each of them waits for falls.
        """
        shards = self.widths[edge.child]
        if edge.barrier:
            return np.arange(shards), np.ones(shards, dtype=np.int32)
        if edge.match is Match.INDEX:
            return np.sort(finished), np.ones(len(finished), dtype=np.int32)
        children, counts = np.unique(self.child_of(edge, finished), return_counts=True)
        return children, counts.astype(np.int32)

    def child_of(self, edge: Edge, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        """(K,) which shard of the child waits for each of these (K,) shards of the parent. Not for barriers."""
        if edge.match is Match.INDEX:
            return shards
        return -(-(shards + 1) * self.widths[edge.child] // self.widths[edge.parent]) - 1

    def parents_per_shard(self, edge: Edge) -> NDArray[np.int32]:
        """(W,) how many units each shard of the child waits for: the items of its chunk, else 1."""
        shards = self.widths[edge.child]
        if edge.match is not Match.CHUNK:
            return np.ones(shards, dtype=np.int32)
        bounds = np.arange(shards + 1, dtype=np.int64) * self.widths[edge.parent] // shards
        sizes: NDArray[np.int32] = np.diff(bounds).astype(np.int32)
        return sizes

    def tasks_after(self, number: int) -> int:
        """How many tasks cannot start before one task of a stage has ended, about: of later stages the part that falls to one."""
        found: set[int] = set()
        ahead = [edge.child for edge in self.edges_out[number]]
        while ahead:
            stage = ahead.pop()
            if stage not in found:
                found.add(stage)
                ahead.extend(edge.child for edge in self.edges_out[stage])
        return sum(max(1, self.widths[stage] // max(1, self.widths[number])) for stage in found)

    def upward_ranks(self, weights_ms: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The critical path from the start of each stage to the end of the workflow.

        Args:
            weights_ms: (S,) how long one task of each stage takes, transfers included. Not modified.

        Returns:
            (S,) milliseconds: the stage's own weight and the longest way through its descendants.
        """
        ranks = [int(weight) for weight in weights_ms]
        for stage in reversed(self.order):
            after = max((ranks[edge.child] for edge in self.edges_out[stage]), default=0)
            ranks[stage] += after
        return np.array(ranks, dtype=np.int64)


#: Which of two edges between the same stages waits for more.
_STRENGTH = {Match.CHUNK: 0, Match.INDEX: 1, None: 2, Match.ALL: 2}


def topological_order(parents: Sequence[Iterable[int]]) -> tuple[int, ...]:
    """Stages with parents first, ties in the order given. Stages on or behind a cycle are left out.

    Args:
        parents: Per stage, the numbers of the stages it waits for.
    """
    children: list[list[int]] = [[] for _ in parents]
    missing = [0] * len(parents)
    for child, found in enumerate(parents):
        for parent in found:
            children[parent].append(child)
            missing[child] += 1
    ready = deque(stage for stage, count in enumerate(missing) if count == 0)
    order = []
    while ready:
        stage = ready.popleft()
        order.append(stage)
        for child in children[stage]:
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    return tuple(order)


def cycles(parents: Sequence[Iterable[int]]) -> list[list[int]]:
    """One short cycle in each knot of stages that wait for each other, in the direction work would flow.

    Args:
        parents: Per stage, the numbers of the stages it waits for.

    Returns:
        Each cycle from its lowest stage on, without naming that one again at the end; knots by lowest stage.
    """
    left = set(range(len(parents))) - set(topological_order(parents))
    if not left:
        return []
    import networkx as nx  # a third of a second to load, and needed for bad documents only

    graph = nx.DiGraph(
        (parent, child) for child in sorted(left) for parent in parents[child] if parent in left
    )
    knots = (
        knot
        for knot in nx.strongly_connected_components(graph)
        if len(knot) > 1 or any(graph.has_edge(stage, stage) for stage in knot)
    )
    return [_cycle_through(graph.subgraph(knot), min(knot)) for knot in sorted(knots, key=min)]


def _cycle_through(graph, stage: int) -> list[int]:  # type: ignore[no-untyped-def]
    """A shortest cycle through `stage`, which has one."""
    before = {stage: stage}
    waiting = deque([stage])
    while waiting:
        last = waiting.popleft()
        for child in sorted(graph.successors(last)):
            if child == stage:
                path = [last]
                while path[-1] != stage:
                    path.append(before[path[-1]])
                return path[::-1]
            if child not in before:
                before[child] = last
                waiting.append(child)
    raise AssertionError("a stage of a knot has no cycle")
