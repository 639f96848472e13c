"""Values that are made quickly are values like all others."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import FrozenInstanceError, dataclass, field, replace

import msgspec
import pytest

from flowsched.values import quick


@quick
@dataclass(frozen=True, slots=True)
class Point:
    """Some of each kind of field."""

    x: int
    y: int = 2
    tags: Mapping[str, int] = field(default_factory=dict)
    word: str | None = None


def test_it_is_filled_by_position_by_name_and_by_default() -> None:
    """A default factory makes a new one each time, and only where nothing was given."""
    assert (Point(1).x, Point(1).y, Point(1).tags, Point(1).word) == (1, 2, {}, None)
    assert repr(Point(5, 6, word="w")) == "Point(x=5, y=6, tags={}, word='w')"
    assert Point(1).tags is not Point(1).tags
    assert Point(1, tags=None).tags is None  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(), (1, 2, {}, None, 5)])
def test_too_few_and_too_many_are_refused(wrong: tuple[object, ...]) -> None:
    """As of any function."""
    with pytest.raises(TypeError):
        Point(*wrong)  # type: ignore[arg-type]


def test_it_is_frozen() -> None:
    """Nobody sets or deletes a field once it is made, and it is of its own class."""
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.y
    assert type(point) is Point


def test_it_is_compared_hashed_copied_and_replaced() -> None:
    """As a frozen dataclass is."""
    one = Point(1, 2, (), "a")  # type: ignore[arg-type]
    assert one == Point(1, 2, (), "a")  # type: ignore[arg-type]
    assert len({one, Point(1, 2, (), "a"), Point(1, 2, (), "b")}) == 2  # type: ignore[arg-type]
    assert replace(one, x=9).x == 9
    assert copy(one) == deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


def test_it_is_written_and_read_as_json() -> None:
    """Launch orders are kept in this form."""
    text = b'{"x":1,"y":3,"tags":{"a":1},"word":null}'
    assert msgspec.json.encode(Point(1, 3, {"a": 1})) == text
    assert msgspec.json.decode(text, type=Point) == Point(1, 3, {"a": 1})


def test_what_is_no_plain_value_is_refused() -> None:
    """What does more than set its fields would lose the rest."""

    @dataclass(frozen=True, slots=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            assert self.x

    @dataclass(frozen=True, slots=True)
    class Child(Checked):
        y: int

    @dataclass(frozen=True)
    class Loose:
        x: int

    for refused in (Checked, Child, Loose):
        with pytest.raises(TypeError, match=f"{refused.__name__}: expected a frozen dataclass with slots"):
            quick(refused)
