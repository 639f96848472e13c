"""What a cache holds, and which copies it does without."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.scheduling.state.cache_space import Caches, Copy, Need, Pin, choose
from flowsched.scheduling.state.data import Catalogue
from flowsched.statement import Statement

GB = 10**9


def copies() -> st.SearchStrategy[list[Copy]]:
    """Up to eight copies of whatever need and value."""
    each = st.tuples(st.integers(0, 9), st.sampled_from(Need), st.integers(0, 3), st.integers(0, 3))
    return st.lists(each, max_size=8).map(lambda rows: [Copy(at, *row) for at, row in enumerate(rows)])


def test_what_nobody_needs_goes_before_what_is_worth_little() -> None:
    """By need, then by value, then by last use; a result could be larger and newer for all that matters."""
    nobody = Copy(1, 5, Need.NOBODY, 900, 80)
    cheap = Copy(2, 5, Need.ELSEWHERE, 10, 90)
    dear = Copy(3, 5, Need.ELSEWHERE, 20, 10)
    last = Copy(4, 5, Need.AGAIN, 0, 0)
    assert choose([last, dear, cheap, nobody], 5) == (nobody,)
    assert choose([last, dear, cheap, nobody], 6) == (nobody, cheap)
    assert choose([last, dear, cheap, nobody], 16) == (nobody, cheap, dear, last)
    assert choose([last, dear, cheap, nobody], 21) == ()


def test_a_large_copy_of_little_value_spares_a_small_one_before_it() -> None:
    """9 bytes are wanted: the first of 2 bytes would not have helped, and stays."""
    assert [
        copy.dataset for copy in choose([Copy(1, 2, Need.NOBODY, 0, 0), Copy(2, 9, Need.NOBODY, 0, 1)], 9)
    ] == [2]


@given(copies(), st.integers(0, 40))
def test_enough_is_freed_or_nothing_and_no_copy_too_many(held: list[Copy], shortage: int) -> None:
    """What is chosen is enough, none of it could be spared, and () means that all together are too few."""
    chosen = choose(held, shortage)
    freed = sum(copy.size_bytes for copy in chosen)
    if not chosen:
        assert shortage == 0 or sum(copy.size_bytes for copy in held) < shortage
        return
    assert freed >= shortage
    for fewer in combinations(chosen, len(chosen) - 1):
        assert sum(copy.size_bytes for copy in fewer) < shortage


def caches_of(catalogue: Catalogue) -> Caches:
    """The books, which are there since some node has a limit."""
    assert catalogue.caches is not None
    return catalogue.caches


def test_a_dataset_counts_once_whether_it_is_there_comes_or_is_held() -> None:
    """3 GB are ordered, held for two pods, arrive, and go when nobody holds them; what pods will write counts beside."""
    catalogue, statement = Catalogue(), Statement()
    catalogue.limit(0, 10 * GB)
    cache = caches_of(catalogue).of[0]
    x = catalogue.intern("s3://x", 3 * GB)
    catalogue.expect(x, 0, statement)
    assert (cache.used, cache.free) == (3 * GB, 7 * GB)
    for pod in ("p", "q"):
        caches_of(catalogue).pin(pod, Pin(0, (x,), GB, 0), statement)
    assert (cache.used, cache.due, cache.free) == (3 * GB, 2 * GB, 5 * GB)
    catalogue.add_replica(x, 0, statement)
    assert cache.used == 3 * GB
    catalogue.drop_replica(x, 0, statement)
    assert cache.used == 3 * GB  # held, and wanted again
    caches_of(catalogue).release("p", statement)
    caches_of(catalogue).release("q", statement)
    assert (cache.used, cache.due, cache.free) == (0, 0, 10 * GB)
    statement.rollback()
    assert (cache.used, cache.due, cache.pinned, cache.there) == (0, 0, {}, set())


def test_what_was_there_before_the_limit_counts_and_images_never_do() -> None:
    """A limit that comes late finds what is there; a size that was not known is counted when it is."""
    catalogue = Catalogue()
    x, image = catalogue.intern("s3://x"), catalogue.intern("image:bwa", 5 * GB)
    catalogue.add_replica(x, 0)
    catalogue.add_replica(image, 0)
    catalogue.limit(0, 10 * GB)
    assert caches_of(catalogue).of[0].used == 0
    catalogue.intern("s3://x", 4 * GB)
    assert caches_of(catalogue).of[0].used == 4 * GB


def test_the_last_tenth_is_for_those_that_find_their_inputs() -> None:
    """Of 10 GB 8 are held: 2 are free for who finds most of its inputs, 1 for who brings all, any for who brings nearly none."""
    catalogue, statement = Catalogue(), Statement()
    catalogue.limit(0, 10 * GB)
    x = catalogue.intern("s3://x", 8 * GB)
    cache = caches_of(catalogue).of[0]
    caches_of(catalogue).pin("p", Pin(0, (x,), 0, 0), statement)
    assert cache.free_for(4 * GB, 3 * GB, GB) == 2 * GB
    assert cache.free_for(4 * GB, 0, GB) == 1 * GB
    caches_of(catalogue).pin("q", Pin(0, (), 3 * GB, 0), statement)
    assert cache.free == -1 * GB
    assert cache.free_for(4 * GB, 4 * GB, GB // 10) == GB // 10
