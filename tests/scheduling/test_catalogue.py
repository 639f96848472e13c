"""What the catalogue remembers of missing bytes is what it would work out anew, whatever has changed since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.executor.datasets import versioned
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


def test_a_swept_catalogue_knows_only_what_is_somewhere_or_needed() -> None:
    catalogue = Catalogue()
    names = [versioned(f"s3://b/{number}", "v") for number in range(5)]
    ids = [catalogue.intern(name, 9, True) for name in names]
    for number, dataset in enumerate(ids):
        catalogue.newest[f"s3://b/{number}"] = dataset
    catalogue.add_replica(ids[0], 1)
    catalogue.expect(ids[1], 1)
    catalogue.land(ids[2], 1, 0)
    stored = catalogue.intern("flowsched:w/s/0/1/out", 9, True)
    catalogue.limit(1, 100)
    catalogue.sweep({ids[3]})
    assert [catalogue.find(name) for name in names] == [*ids[:4], None]
    assert catalogue.find("flowsched:w/s/0/1/out") == stored
    assert catalogue.newest.get("s3://b/4") is None
    assert catalogue.versions_of("s3://b/4") == []
    again = catalogue.intern(names[4], 7, True)
    assert again not in ids
    catalogue.add_replica(again, 2)
    assert catalogue.nodes_of(again) == {2}
    assert catalogue.versions_of("s3://b/4") == [again]
    assert catalogue.nodes_of(ids[4]) == set()


def test_a_catalogue_is_crowded_when_it_has_doubled() -> None:
    catalogue = Catalogue()
    for number in range(10_000):
        assert not catalogue.crowded
        catalogue.add_replica(catalogue.intern(f"s3://b/{number}"), 0)
    assert catalogue.crowded
    catalogue.sweep(set())
    assert not catalogue.crowded
