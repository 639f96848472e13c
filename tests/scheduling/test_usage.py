"""What was used: exact sums, fading in whole numbers, nothing that depends on how often one looks; rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.scheduling.state.usage import STEPS, Payer, UsageBook, UsageRow
from flowsched.statement import Statement
from tests.soak import worlds

ANN = Payer("lab", "ann")
#: A half-life of 64 seconds: a step of time is a second.
HALF = STEPS * 1000
AXES = ("cpu", "memory")


def book(half_life_ms: int = HALF) -> UsageBook:
    made = UsageBook()
    made.begin(0, half_life_ms)
    return made


def faded(of: UsageBook, payer: Payer = ANN) -> tuple[int, ...] | None:
    return of.faded().get(payer)


def test_who_has_always_held_the_same_has_held_just_that() -> None:
    """After forty half-lives of 4,000 mCPU and 8 GiB the faded average is that, to within a millionth."""
    usage = book()
    usage.book(ANN, (4000, 8 << 30), 1)
    usage.begin(40 * HALF, HALF)
    cpu, memory = faded(usage) or (0, 0)
    assert 3999 <= cpu <= 4000
    assert 8_589_900_000 <= memory <= 8 << 30


def test_a_half_life_later_it_is_a_half() -> None:
    """A million mCPU for ever, then nothing: 500,000 after one half-life, 250,000 after two; nothing after fifty."""
    usage = book()
    usage.book(ANN, (1_000_000,), 1)
    usage.begin(40 * HALF, HALF)
    usage.book(ANN, (1_000_000,), -1)
    told = []
    for lives in (1, 2, 50):
        usage.begin((40 + lives) * HALF, HALF)
        told.append(faded(usage))
    assert told[:2] == [(499_999,), (249_999,)]
    assert told[2] in (None, (0,))


@pytest.mark.timeout(60)
def test_twenty_years_cost_no_more_than_some_half_lives() -> None:
    """Once as much fades as comes, all further steps of time end alike: 600 thousand million of them are not walked through."""
    usage = book(STEPS)  # a step of time is a millisecond
    usage.book(ANN, (4000, 8 << 30), 1)
    usage.begin(400 * STEPS, STEPS)
    balance = faded(usage)
    usage.begin(20 * 365 * 86_400_000, STEPS)
    assert faded(usage) == balance


def test_the_present_step_does_not_count_yet() -> None:
    """What is held now is counted as held; its past begins with the next step of time."""
    usage = book()
    usage.book(ANN, (1000,), 1)
    usage.begin(999, HALF)
    assert faded(usage) is None
    usage.begin(1000, HALF)
    assert faded(usage) == (10,)  # 1 - 2 ** (-1/64), of a thousand


Moves = list[tuple[int, int]]


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 900)), max_size=8),
    st.lists(st.integers(0, 40_000), max_size=12),
)
@pytest.mark.soak
@settings(max_examples=worlds(80, 1000), deadline=None)
def test_looking_often_changes_nothing(moves: Moves, looks: list[int]) -> None:
    """The same bookings with and without looks in between give the same rows, to the last unit."""
    moments = [sum(gap for gap, _ in moves[: at + 1]) for at in range(len(moves))]

    def rows(look_at: list[int]) -> list[UsageRow]:
        usage = book()
        changes = [(moment, 1, amount) for moment, (_, amount) in zip(moments, moves, strict=True)]
        for moment, what, amount in sorted([*changes, *((look, 0, 0) for look in look_at)]):
            usage.begin(moment, HALF)
            if what:
                usage.book(ANN, (amount,), 1)
            else:
                usage.faded()
        usage.begin(60_000, HALF)
        return usage.rows(AXES, Statement())

    assert rows(looks) == rows([])


def test_what_is_booked_and_undone_leaves_nothing() -> None:
    """A decision that was taken back within its step."""
    usage = book()
    usage.book(ANN, (1000,), 1)
    usage.book(ANN, (1000,), -1)
    usage.begin(10_000, HALF)
    assert faded(usage) is None
    assert list(usage.queues) == []


def test_a_clock_that_goes_back_changes_nothing() -> None:
    """Nothing is counted twice."""
    usage = book()
    usage.book(ANN, (1000,), 1)
    usage.begin(10_000, HALF)
    before = faded(usage)
    usage.begin(2_000, HALF)
    assert faded(usage) == before


def lived(until: int) -> UsageBook:
    """Ann holds a core from second 2 on and bob had two until second 7."""
    usage = book()
    usage.book(Payer("lab", "bob"), (2000, 0), 1)
    usage.begin(2_000, HALF)
    usage.book(ANN, (1000, 1 << 30), 1)
    usage.begin(7_000, HALF)
    usage.book(Payer("lab", "bob"), (2000, 0), -1)
    usage.begin(until, HALF)
    return usage


def test_a_restart_goes_on_where_the_rows_and_the_running_pods_say() -> None:
    """Rows of second 8; a crash at 11.5 s; at 20 s the pod is found again: all is as if nothing had happened."""
    rows = lived(8_000).rows(AXES, Statement())
    assert [(row.user, row.at_ms) for row in rows] == [("ann", 8_000), ("bob", 8_000)]
    after = UsageBook()
    after.load(rows, AXES)
    after.begin(20_000, HALF)
    after.book(ANN, (1000, 1 << 30), 1)
    after.credit(ANN, (1000, 1 << 30), 2_000, Statement())
    expected = lived(20_000).faded()
    found = after.faded()
    assert found.keys() == expected.keys()
    for payer, amounts in found.items():
        assert all(abs(a - b) <= 1 for a, b in zip(amounts, expected[payer], strict=True))


def test_a_credit_that_is_taken_back_leaves_nothing() -> None:
    """Its step was not written: the next try counts it once."""
    usage, statement = book(), Statement()
    usage.begin(9_000, HALF)
    usage.book(ANN, (1000,), 1)
    statement.undo_with(lambda: usage.book(ANN, (1000,), -1))
    usage.credit(ANN, (1000,), 0, statement)
    assert faded(usage) == (92,)
    statement.rollback()
    assert faded(usage) is None


def test_rows_are_of_those_who_used_something_since() -> None:
    """Who just fades has no new row, nor have pods that nobody pays for; what was not written is offered again."""
    usage = lived(8_000)
    usage.book(Payer("", "kube-system"), (1000,), 1)
    kept, dropped = Statement(), Statement()
    usage.rows(AXES, dropped)
    dropped.rollback()
    assert [row.user for row in usage.rows(AXES, kept)] == ["ann", "bob"]
    usage.begin(9_000, HALF)
    assert [row.user for row in usage.rows(AXES, kept)] == ["ann"]


def test_a_resource_that_is_gone_is_forgotten() -> None:
    """Rows name resources; those that no node has any more are left out."""
    usage = UsageBook()
    usage.load([UsageRow("lab", "ann", 0, 0, {"cpu": 640_000_000, "tpu": 5})], AXES)
    usage.begin(1, HALF)
    assert faded(usage) == (6969, 0)
