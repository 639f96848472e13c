"""The DAG of stages: edges, matches, order, cycles and critical paths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from valid_documents import EVERYTHING, GERMLINE, document, encoded, stage

from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.graph import Edge, StageGraph, cycles, shards_read, topological_order
from flowsched.workflow.spec import Match


def graph_of(*stages: dict) -> StageGraph:
    return StageGraph(decode_workflow(encoded(document(*stages))))


def writer(name: str, width: int = 1, **more: object) -> dict:
    scatter = {"count": width} if width > 1 else None
    return stage(name, scatter=scatter, outputs=[{"name": "o", "path": "o"}], **more)


def reads(match: str, parent: str = "a", name: str = "i") -> dict:
    return {"name": name, "from": f"{parent}.o", "match": match}


def matched(match: str, items: int, shards: int) -> tuple[StageGraph, Edge]:
    """A graph of two stages, and the edge between them."""
    scatter = {"count": shards} if match != "index" else None
    graph = graph_of(writer("a", items), stage("b", scatter=scatter, inputs=[reads(match)]))
    return graph, graph.edges_in[1][0]


def test_the_edges_of_the_documented_example() -> None:
    """Data edges say their match and input; order edges say neither."""
    graph = StageGraph(decode_workflow(encoded(GERMLINE)))
    assert graph.numbers == {"align": 0, "sort": 1, "call": 2, "train": 3}
    assert graph.widths == (3, 3, 1, 1)
    assert graph.edges_in == (
        (),
        (Edge(0, 1, Match.INDEX, "bam"),),
        (Edge(1, 2, Match.ALL, "bams"),),
        (Edge(2, 3, None, None),),
    )
    assert graph.edges_out == (
        (Edge(0, 1, Match.INDEX, "bam"),),
        (Edge(1, 2, Match.ALL, "bams"),),
        (Edge(2, 3, None, None),),
        (),
    )
    assert graph.order == (0, 1, 2, 3)


def test_shards_that_read_one_dataset_are_counted() -> None:
    """Each of four shards reads all of `a`; of those of `c`, one reads each."""
    graph = graph_of(
        writer("a", 3),
        stage("b", scatter={"count": 4}, inputs=[reads("all")]),
        stage("c", inputs=[reads("index")]),
    )
    assert graph.readers == {("a", "o"): 5}


def test_a_value_asked_for_in_when_is_waited_for() -> None:
    """`when.equals` alone makes an edge of order."""
    graph = StageGraph(decode_workflow(encoded(EVERYTHING)))
    assert graph.edges_in[3] == (Edge(1, 3), Edge(2, 3))


@pytest.mark.parametrize(
    ("matches", "needs", "edge"),
    [
        (["index", "chunk"], [], Edge(0, 1, Match.INDEX, "i0")),
        (["chunk", "index"], [], Edge(0, 1, Match.INDEX, "i0")),
        (["index", "all"], [], Edge(0, 1, Match.ALL, "i0")),
        (["all", "all"], ["a"], Edge(0, 1, Match.ALL, "i0")),
        (["index"], ["a"], Edge(0, 1, Match.ALL, "i0")),
        (["chunk"], ["a", "a"], Edge(0, 1, Match.ALL, "i0")),
        ([], ["a", "a"], Edge(0, 1)),
    ],
)
def test_edges_between_the_same_stages_become_the_strongest(
    matches: list[str], needs: list[str], edge: Edge
) -> None:
    """A barrier covers index, and index covers chunk; the first input gives its name."""
    inputs = [reads(match, name=f"i{i}") for i, match in enumerate(matches)]
    graph = graph_of(writer("a", 3), stage("b", scatter={"count": 3}, inputs=inputs, needs=needs))
    assert graph.edges_in[1] == (edge,)
    assert graph.edges_out[0] == (edge,)
    assert [e.match for e in graph.data[1]] == matches


def test_a_chunk_is_the_documented_part() -> None:
    """Ten items on three shards are 3, 3 and 4."""
    assert [list(shards_read(Match.CHUNK, i, 3, 10)) for i in range(3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
    ]


@given(st.integers(1, 300), st.data())
def test_chunks_are_a_partition(items: int, data: st.DataObject) -> None:
    """Every item is in exactly one chunk, in order, and sizes differ by one at most."""
    shards = data.draw(st.integers(1, items))
    chunks = [list(shards_read(Match.CHUNK, i, shards, items)) for i in range(shards)]
    assert [item for chunk in chunks for item in chunk] == list(range(items))
    sizes = {len(chunk) for chunk in chunks}
    assert max(sizes) - min(sizes) <= 1


@given(st.sampled_from(["index", "chunk", "all"]), st.integers(2, 40), st.data())
def test_children_are_the_inverse_of_parents(match: str, items: int, data: st.DataObject) -> None:
    """A shard waits for its own item, its chunk or all items; counts agree with the pairs."""
    shards = items if match == "index" else data.draw(st.integers(2, items))
    graph, edge = matched(match, items, shards)
    waits = {
        "index": lambda c: [c],
        "chunk": lambda c: shards_read(Match.CHUNK, c, shards, items),
        "all": lambda c: range(items),
    }
    pairs = {(p, c) for c in range(shards) for p in waits[match](c)}
    assert pairs == {(p, c) for p in range(items) for c in graph.shard_children(edge, p)}
    if edge.barrier:
        return
    per_child = [sum(c == child for _, c in pairs) for child in range(shards)]
    assert graph.parents_per_shard(edge).tolist() == per_child
    finished = data.draw(st.lists(st.integers(0, items - 1), unique=True))
    children, counts = graph.affected(edge, np.array(finished, dtype=np.int64))
    expected = {c: sum(p in finished for p, d in pairs if d == c) for c in range(shards)}
    assert dict(zip(children.tolist(), counts.tolist(), strict=True)) == {
        c: n for c, n in expected.items() if n
    }


def test_what_each_shard_waits_for_at_the_start() -> None:
    """A barrier is one unit, an index edge one, a chunk the items it holds."""
    graph = graph_of(
        writer("a", 7),
        writer("b", 3),
        stage(
            "c",
            scatter={"count": 3},
            inputs=[reads("chunk", "a", "x"), reads("index", "b", "y")],
            needs=["d"],
        ),
        stage("d"),
    )
    missing = sum(graph.parents_per_shard(edge) for edge in graph.edges_in[2])
    assert missing.tolist() == [4, 4, 5]
    assert missing.dtype == np.int32
    assert graph.edges_in[3] == ()


def test_a_barrier_falls_once_for_every_child() -> None:
    """Whatever shard was the last."""
    graph, edge = matched("all", 5, 3)
    children, counts = graph.affected(edge, np.array([4]))
    assert (children.tolist(), counts.tolist()) == ([0, 1, 2], [1, 1, 1])


def test_upward_ranks_are_the_longest_way_to_the_end() -> None:
    """By way of b, which is longer than c; e is by itself."""
    graph = graph_of(
        stage("a"), stage("b", needs=["a"]), stage("c", needs=["a"]), stage("d", needs=["b", "c"]), stage("e")
    )
    assert graph.upward_ranks([10, 100, 5, 1000, 7]).tolist() == [1110, 1100, 1005, 1000, 7]
    assert graph.upward_ranks(np.array([1, 1, 1, 1, 1])).dtype == np.int64


def test_parents_come_first_and_ties_keep_the_order_of_the_document() -> None:
    """Though the document names children first."""
    assert topological_order([[2], [2], [], [0, 1]]) == (2, 0, 1, 3)


def test_stages_on_and_behind_a_cycle_are_left_out_of_the_order() -> None:
    """0 <-> 1 -> 2, and 3 free."""
    assert topological_order([[1], [0], [1], []]) == (3,)


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([[], [0], [1]], []),
        ([[2], [0], [1]], [[0, 1, 2]]),
        ([[0]], [[0]]),
        ([[1], [0], [1], [4], [3]], [[0, 1], [3, 4]]),
        ([[3, 1], [0], [1], [2]], [[0, 1]]),
    ],
)
def test_each_knot_shows_a_shortest_cycle_through_its_first_stage(
    parents: list[list[int]], expected: list[list[int]]
) -> None:
    """In the direction work would flow."""
    assert cycles(parents) == expected


def test_a_chain_of_ten_thousand_stages_needs_no_recursion() -> None:
    """Order, ranks and the cycle that closes it."""
    parents = [[]] + [[i] for i in range(9_999)]
    assert topological_order(parents) == tuple(range(10_000))
    parents[0] = [9_999]
    assert cycles(parents) == [list(range(10_000))]


def test_edges_are_never_expanded() -> None:
    """A million tasks behind a million others are two stages and one edge."""
    graph, edge = matched("index", 1_000_000, 1_000_000)
    assert graph.shard_children(edge, 999_999) == range(999_999, 1_000_000)
    assert len(graph.edges_in[1]) == 1
