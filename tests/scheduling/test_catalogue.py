"""What the catalogue remembers of missing bytes is what it would work out anew, whatever has changed since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.scheduling.state.data import Catalogue
from flowsched.statement import Statement

NODES, DATASETS = 3, 4
INPUTS = [(0,), (1, 0), (2, 1, 0), (3, 3), (2, 3)]
CHANGES = ("add", "drop", "expect", "unexpect", "resize", "begin", "undo")
Change = tuple[str, int, int]


def plainly(catalogue: Catalogue, inputs: tuple[int, ...], *, ordered: bool) -> list[int]:
    """The bytes that each node lacks, by the definition."""
    there = [catalogue.nodes_of(each) for each in range(DATASETS)]
    coming = [catalogue.expected_on(each) if ordered else frozenset() for each in range(DATASETS)]
    return [
        sum(
            max(catalogue.sizes[each], 1)
            for each in set(inputs)
            if node not in there[each] and node not in coming[each]
        )
        for node in range(NODES)
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(CHANGES), st.integers(0, DATASETS - 1), st.integers(0, NODES - 1)),
        max_size=40,
    )
)
def test_missing_bytes_are_those_of_now(changes: list[Change]) -> None:
    """Each change drops what is remembered of the inputs that name its dataset, and an undone step does."""
    catalogue, statement = Catalogue(), Statement()
    for each in range(DATASETS):
        catalogue.intern(f"d{each}", 10 * each)
    for at, (what, dataset, node) in enumerate(changes):
        match what:
            case "add":
                catalogue.add_replica(dataset, node, statement)
            case "drop":
                catalogue.drop_replica(dataset, node, statement)
            case "expect":
                catalogue.expect(dataset, [node, (node + 1) % NODES], statement)
            case "unexpect":
                catalogue.unexpect(dataset, node, statement)
            case "resize":
                catalogue.intern(f"d{dataset}", 100 + at)
            case "begin":
                statement.forget()
            case _:
                statement.rollback()
        for inputs in INPUTS:
            missing = catalogue.missing_bytes(inputs, NODES)
            assert missing.tolist() == plainly(catalogue, inputs, ordered=False)
            assert catalogue.unordered_bytes(inputs, NODES).tolist() == plainly(
                catalogue, inputs, ordered=True
            )
            assert bool(missing.all()) is not bool(catalogue.nodes_with_all(inputs))
