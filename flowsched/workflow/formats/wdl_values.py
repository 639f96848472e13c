"""WDL values of which only a part is known, and functions that never guess the rest.

miniwdl evaluates; what is not known stands in its values as an `Opaque`, which refuses to say what it is: whatever looks at it
raises
`Unknown`, with what would have to be known. So an expression has a value only if that follows from what is known: `length` of an
array whose
elements are not known yet, the branch of an `if` whose condition is known, a member of a struct of which another one is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from WDL import Error, Type, Value

from flowsched.workflow.plan import Until

#: Arrays are written out up to so many elements; of longer ones only the length is kept.
WRITTEN_OUT: Final = 10_000

#: What WDL calls so many bytes.
BYTE_UNITS: Final = {"B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", 1)
    for unit, base in ((letter, 1000), (f"{letter}B", 1000), (f"{letter}i", 1024), (f"{letter}iB", 1024))
}

Reasons = frozenset[Until]


class Unknown(Error.RuntimeError):
    """A value was asked for that is not known; `until` says what it waits for."""

    def __init__(self, until: Iterable[Until]) -> None:
        self.until = frozenset(until)
        super().__init__("not known yet")


class Opaque(Value.Base):
    """A value of which the type is known, and perhaps the length.

    Args:
        kind: Its type.
        until: What it waits for.
        count: Of an array: how many elements.
        variants: Of what differs between the shards of a scatter: its values, shard by shard.
    """

    def __init__(
        self,
        kind: Type.Base,
        until: Reasons,
        count: int | None = None,
        variants: Sequence[Value.Base] = (),
        length_until: Reasons | None = None,
    ) -> None:
        self.type = kind
        self.until = until
        self.count = count
        self.variants = variants
        self.length_until = until if length_until is None else length_until
        self._expr = None

    @property
    def optional(self) -> bool:
        """Whether it may turn out to be missing."""
        return bool(self.type.optional)

    @property
    def value(self) -> Any:
        """Nobody knows.

        Raises:
            Unknown: Always.
        """
        raise Unknown(self.until)

    @property
    def json(self) -> Any:
        """Nobody knows.

        Raises:
            Unknown: Always.
        """
        raise Unknown(self.until)

    def __str__(self) -> str:
        raise Unknown(self.until)

    def __eq__(self, other: object) -> bool:
        raise Unknown(self.until)

    __hash__ = None  # type: ignore[assignment]  # equality is not known either

    def coerce(self, desired_type: Type.Base | None = None) -> Value.Base:
        """The same of another type."""
        if desired_type is None or isinstance(desired_type, Type.Any) or desired_type == self.type:
            return self
        variants = tuple(each.coerce(desired_type) for each in self.variants)
        if isinstance(desired_type, Type.Array):
            return Opaque(desired_type, self.until, self.count, variants, self.length_until)
        return opaque(desired_type, self.until, self.count, variants)


def opaque(
    kind: Type.Base, until: Reasons, count: int | None = None, variants: Sequence[Value.Base] = ()
) -> Value.Base:
    """A value of this type of which nothing is known but its structure."""
    if not kind.optional and not variants:
        if isinstance(kind, Type.StructInstance) and kind.members is not None:
            return Value.Struct(kind, {name: opaque(each, until) for name, each in kind.members.items()})
        if isinstance(kind, Type.Pair):
            pair = (opaque(kind.left_type, until), opaque(kind.right_type, until))
            return Value.Pair(kind.left_type, kind.right_type, pair)
    return Opaque(kind, until, count, variants)


def repeated(kind: Type.Base, value: Value.Base, count: int) -> Value.Base:
    """What a scatter of so many shards gathers of a value that stands for each of them."""
    if count <= WRITTEN_OUT and not isinstance(value, Opaque):
        return Value.Array(kind, [value] * count)
    return Opaque(Type.Array(kind), reasons(value), count)


def parts(value: Value.Base) -> Iterator[Value.Base]:
    """A value and all that is in it."""
    stack = [value]
    while stack:
        each = stack.pop()
        yield each
        stack.extend(reversed(list(each.children)))


def reasons(*values: Value.Base) -> Reasons:
    """What they wait for; nothing if all is known."""
    found: set[Until] = set()
    for value in values:
        for each in parts(value):
            if isinstance(each, Opaque):
                found |= each.until
    return frozenset(found)


def elements(value: Value.Base) -> int | None:
    """How many elements an array has, if that is known."""
    if isinstance(value, Value.Array):
        return len(value.value)
    return value.count if isinstance(value, Opaque) else None


def length_reasons(value: Value.Base) -> Reasons:
    """What the length of an array waits for."""
    return value.length_until if isinstance(value, Opaque) else reasons(value)


def generalised(values: Sequence[Value.Base], kind: Type.Base, differs: Until) -> Value.Base:
    """What can be said of all of them: where they agree, their value; where not, an `Opaque` that holds them all."""
    first = values[0]
    if (
        all(isinstance(each, Value.Array) for each in values)
        and len({len(each.value) for each in values}) == 1
    ):
        columns = zip(*(each.value for each in values), strict=True)
        items = items_of(first.type)
        return Value.Array(items, [generalised(column, items, differs) for column in columns])
    if all(isinstance(each, Value.Struct) and each.value.keys() == first.value.keys() for each in values):
        members = {
            name: generalised([each.value[name] for each in values], first.value[name].type, differs)
            for name in first.value
        }
        return Value.Struct(_struct(first.type), members)
    if all(isinstance(each, Value.Pair) for each in values):
        left, right = sides_of(first.type)
        halves = zip(*(each.value for each in values), strict=True)
        pair = [generalised(half, side, differs) for half, side in zip(halves, (left, right), strict=True)]
        return Value.Pair(left, right, (pair[0], pair[1]))
    if (
        all(isinstance(each, _PLAIN) for each in values)
        and len({(type(each), each.value) for each in values}) == 1
    ):
        return first
    missing = any(
        isinstance(each, Value.Null) or (isinstance(each, Opaque) and each.optional) for each in values
    )
    return Opaque(
        kind.copy(optional=missing or kind.optional),
        frozenset({differs}) | reasons(*values),
        None,
        tuple(values),
    )


def items_of(kind: Type.Base) -> Type.Base:
    """What an array holds."""
    assert isinstance(kind, Type.Array)
    return kind.item_type


def sides_of(kind: Type.Base) -> tuple[Type.Base, Type.Base]:
    """What a pair holds."""
    assert isinstance(kind, Type.Pair)
    return kind.left_type, kind.right_type


def _struct(kind: Type.Base) -> Type.StructInstance | Type.Object:
    assert isinstance(kind, Type.StructInstance | Type.Object)
    return kind


_PLAIN: Final = (Value.String, Value.Int, Value.Float, Value.Boolean, Value.Null)
