"""What queues deserve: literal cases, and a slow, readable oracle that gives out one unit after the other."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowsched.scheduling.queues.deserved import Claimant, deserved, poured
from flowsched.scheduling.queues.tree import Queue, QueueTree


def test_weights_divide_what_all_want() -> None:
    """One to two to three of sixty."""
    tree = QueueTree([Queue("a"), Queue("b", weight=2), Queue("c", weight=3)])
    wanted = dict.fromkeys("abc", (100,))
    assert deserved(tree, wanted, (60,)) == {"a": (10,), "b": (20,), "c": (30,)}


def test_what_one_leaves_goes_to_its_siblings_by_weight() -> None:
    """A wants four of its ten; the others share the rest of sixty two to three, on each resource by itself."""
    tree = QueueTree([Queue("a"), Queue("b", weight=2), Queue("c", weight=3)])
    wanted = {"a": (4, 0), "b": (100, 5), "c": (100, 100)}
    assert deserved(tree, wanted, (59, 30)) == {"a": (4, 0), "b": (22, 5), "c": (33, 25)}


def test_room_is_borrowed_inside_a_department_first() -> None:
    """X leaves its half of one's thirty to y; two has the other thirty whatever happens there."""
    tree = QueueTree([Queue("x", parent="one"), Queue("y", parent="one"), Queue("z", parent="two")])
    wanted = {"x": (5,), "y": (90,), "z": (90,)}
    assert deserved(tree, wanted, (60,)) == {
        "one": (30,), "x": (5,), "y": (25,), "two": (30,), "z": (30,),
    }  # fmt: skip


def test_guarantees_are_floors_and_caps_are_ceilings() -> None:
    """A is guaranteed twenty of thirty, b capped at three; c gets what is left."""
    tree = QueueTree([Queue("a", guarantee=(20,)), Queue("b", cap=(3,)), Queue("c")])
    wanted = dict.fromkeys("abc", (30,))
    assert deserved(tree, wanted, (30,)) == {"a": (20,), "b": (3,), "c": (7,)}


def test_a_guarantee_nobody_asks_for_is_lent() -> None:
    """A wants two of its twenty."""
    tree = QueueTree([Queue("a", guarantee=(20,)), Queue("b")])
    assert deserved(tree, {"a": (2,), "b": (30,)}, (30,)) == {"a": (2,), "b": (28,)}


def test_the_guarantee_of_a_child_lifts_its_parent() -> None:
    """One has no guarantee, but x below it has: two keeps what is left of thirty."""
    tree = QueueTree([Queue("x", parent="one", guarantee=(25,)), Queue("one"), Queue("two")])
    assert deserved(tree, {"x": (30,), "two": (30,)}, (30,)) == {"one": (25,), "x": (25,), "two": (5,)}


def test_guarantees_beyond_the_cluster_are_cut_in_proportion() -> None:
    """Twenty and forty of thirty: ten and twenty."""
    tree = QueueTree([Queue("a", guarantee=(20,)), Queue("b", guarantee=(40,))])
    assert deserved(tree, {"a": (99,), "b": (99,)}, (30,)) == {"a": (10,), "b": (20,)}


def test_higher_priority_drinks_first_and_leaves_guarantees() -> None:
    """C goes first and wants all; a keeps what it is guaranteed, b gets nothing."""
    tree = QueueTree([Queue("a", guarantee=(8,)), Queue("b"), Queue("c", priority=1)])
    assert deserved(tree, dict.fromkeys("abc", (99,)), (30,)) == {"a": (8,), "b": (0,), "c": (22,)}


def test_a_queues_own_groups_stand_beside_the_queues_below_it() -> None:
    """Own work of weight one beside a child of weight two: the queue as a whole gets thirty, the child twenty of it."""
    tree = QueueTree([Queue("one"), Queue("x", parent="one", weight=2)])
    assert deserved(tree, {"one": (99,), "x": (99,)}, (30,)) == {"one": (30,), "x": (20,)}


def by_hand(amount: int, claimants: list[Claimant]) -> list[int]:
    """Floors first; then unit after unit to whoever has least for its weight and wants more, first priority first."""
    got = [each.floor for each in claimants]
    for priority in sorted({each.priority for each in claimants}, reverse=True):
        while sum(got) < amount:
            thirsty = [
                (Fraction(got[at], each.weight), at)
                for at, each in enumerate(claimants)
                if each.priority == priority and got[at] < each.want
            ]
            if not thirsty:
                break
            got[min(thirsty)[1]] += 1
    return got


@st.composite
def vessels(draw: st.DrawFn) -> list[Claimant]:
    def one(at: int) -> Claimant:
        want = draw(st.integers(0, 40))
        floor = draw(st.integers(0, 8))
        return Claimant(str(at), draw(st.integers(1, 5)), draw(st.integers(0, 1)), min(floor, want), want)

    return [one(at) for at in range(draw(st.integers(1, 6)))]


@example(
    45, [Claimant("0", 4, 0, 0, 37), Claimant("1", 1, 0, 0, 23), Claimant("2", 1, 0, 0, 27)]
)  # 31 7 7, 29 8 8
@given(st.integers(0, 120), vessels())
@settings(max_examples=400, deadline=None)
def test_pouring_is_giving_out_unit_after_unit(amount: int, claimants: list[Claimant]) -> None:
    """All of it goes where anybody wants it, and each gets what the oracle gives, to within two units."""
    got = poured(amount, claimants)
    floors = sum(each.floor for each in claimants)
    assert sum(got) == min(amount, max(floors, sum(each.want for each in claimants)))
    if floors > amount:
        return
    expected = by_hand(amount, claimants)
    # Each is within a unit of the exact share (30, 7.5 and 7.5 of the example), on different sides of it.
    assert all(abs(mine - theirs) <= 2 for mine, theirs in zip(got, expected, strict=True)), expected
    for share, each in zip(got, claimants, strict=True):
        assert each.floor <= share <= each.want
