"""The undo log: everything that was changed through it is taken back, newest first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowsched.statement import Statement


@dataclass
class Books:
    """One of each kind of thing a statement may change."""

    numbers: np.ndarray = field(default_factory=lambda: np.array([1, 2, 3, 4]))
    table: np.ndarray = field(default_factory=lambda: np.arange(6).reshape(2, 3))
    words: dict[str, int] = field(default_factory=lambda: {"one": 1})
    names: set[str] = field(default_factory=lambda: {"a"})
    word: str = "before"

    def seen(self) -> tuple[object, ...]:
        return (self.numbers.tolist(), self.table.tolist(), dict(self.words), set(self.names), self.word)


def test_each_change_is_made_and_undone() -> None:
    """Arrays by index and by slice, mappings, sets, attributes."""
    books, statement = Books(), Statement()
    statement.set(books.numbers, np.array([0, 2]), 9)
    statement.set(books.table, (np.array([1]), 2), 7)
    statement.set(books.table, slice(0, 1), 0)
    statement.add(books.numbers, slice(None), 10)
    statement.put(books.words, "two", 2)
    statement.put(books.words, "one", 11)
    assert statement.pop(books.words, "one") == 11
    statement.put_all(books.words, {"two": 22, "three": 3})
    statement.include(books.names, "b")
    statement.include_all(books.names, ["a", "b", "c", "c"])
    statement.exclude(books.names, "a")
    statement.assign(books, "word", "after")
    assert books.seen() == (
        [19, 12, 19, 14],
        [[0, 0, 0], [3, 4, 7]],
        {"two": 22, "three": 3},
        {"b", "c"},
        "after",
    )
    assert len(statement) == 12
    statement.rollback()
    assert books.seen() == ([1, 2, 3, 4], [[0, 1, 2], [3, 4, 5]], {"one": 1}, {"a"}, "before")
    assert len(statement) == 0


def test_what_changes_nothing_is_not_noted() -> None:
    """A member that is there, a member and a key that are not."""
    books, statement = Books(), Statement()
    statement.include(books.names, "a")
    statement.exclude(books.names, "z")
    assert statement.pop(books.words, "none") is None
    assert len(statement) == 0


def test_a_rollback_may_stop_at_a_mark() -> None:
    """What was done before it stays, and can still be undone."""
    books, statement = Books(), Statement()
    statement.set(books.numbers, 0, 5)
    mark = statement.mark()
    statement.set(books.numbers, 0, 6)
    statement.put(books.words, "one", 7)
    statement.rollback(mark)
    assert books.seen()[0] == [5, 2, 3, 4]
    assert books.words == {"one": 1}
    statement.rollback()
    assert books.seen()[0] == [1, 2, 3, 4]


def test_what_was_forgotten_is_final() -> None:
    """As after a commit."""
    books, statement = Books(), Statement()
    statement.assign(books, "word", "after")
    statement.forget()
    statement.rollback()
    assert books.word == "after"


def test_a_value_that_was_none_comes_back_as_none() -> None:
    """It is not taken for an absent one."""
    words: dict[str, int | None] = {"x": None}
    statement = Statement()
    statement.put(words, "x", 1)
    statement.rollback()
    assert words == {"x": None}


def test_changes_by_hand_are_undone_in_their_turn() -> None:
    """Newest first, among the others."""
    order: list[str] = []
    statement = Statement()
    statement.undo_with(lambda: order.append("first"))
    statement.undo_with(lambda: order.append("second"))
    statement.rollback()
    assert order == ["second", "first"]


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(-5, 5)), max_size=30)


@given(CHANGES, st.integers(0, 30))
def test_any_changes_are_undone_to_any_mark(changes: list[tuple[int, int, int]], at: int) -> None:
    """Whatever was done after the mark is as if it had not been."""
    books, statement = Books(), Statement()
    mark, seen = 0, books.seen()
    for number, (kind, where, value) in enumerate(changes):
        if number == at:
            mark, seen = statement.mark(), books.seen()
        match kind:
            case 0:
                statement.set(books.numbers, where, value)
            case 1:
                statement.add(books.numbers, np.array([where]), value)
            case 2:
                statement.put(books.words, str(where), value)
            case 3:
                statement.pop(books.words, str(where))
            case 4:
                statement.include(books.names, str(value))
            case _:
                statement.exclude(books.names, str(value))
    statement.rollback(mark)
    assert books.seen() == seen
