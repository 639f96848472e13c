"""Copies of values of either kind."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from flowsched.values import replace


class Packed(msgspec.Struct, frozen=True):
    cpu: int
    memory: int = 2


@dataclass(frozen=True, slots=True)
class Plain:
    cpu: int
    memory: int = 2


@pytest.mark.parametrize("kind", [Packed, Plain])
def test_a_copy_has_the_other_fields_of_the_value(kind: type[Packed] | type[Plain]) -> None:
    """The value itself stays as it is."""
    value = kind(1, 5)
    copy = replace(value, cpu=3)
    assert (copy.cpu, copy.memory, value.cpu, type(copy)) == (3, 5, 1, kind)


@pytest.mark.parametrize("kind", [Packed, Plain])
def test_a_field_that_the_value_does_not_have_is_refused(kind: type[Packed] | type[Plain]) -> None:
    """By its name."""
    with pytest.raises(TypeError, match="gpus"):
        replace(kind(1), gpus=1)
