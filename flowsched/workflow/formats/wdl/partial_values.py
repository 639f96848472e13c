"""WDL values of which only a part is known, and functions that never guess the rest.

miniwdl evaluates. In its values, an unknown part is an `Opaque`; any use of it raises `Unknown`, with the facts that would have
to be known. So an expression has a value only if that follows from known facts: `length` of an array with unknown
elements, the branch of an `if` with a known condition, a known member of a struct that has an unknown one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from WDL import Env, Error, Expr, StdLib, Type, Value

from flowsched.workflow.formats.wdl.sources import Files
from flowsched.workflow.plan import Until

#: Arrays are written out up to so many elements; of longer ones only the length is kept.
WRITTEN_OUT: Final = 10_000

#: WDL's units of sizes, in bytes.
BYTE_UNITS: Final = {"B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", 1)
    for unit, base in ((letter, 1000), (f"{letter}B", 1000), (f"{letter}i", 1024), (f"{letter}iB", 1024))
}

Reasons = frozenset[Until]


class Unknown(Error.RuntimeError):
    """A value was asked for that is not known; `until` names the facts that it waits for."""

    def __init__(self, until: Iterable[Until]) -> None:
        self.until = frozenset(until)
        super().__init__("not known yet")


class Opaque(Value.Base):
    """A value of which the type is known, and perhaps the length.

    Args:
        kind: Its type.
        until: The facts that it waits for.
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
        """Not known yet.

        Raises:
            Unknown: Always.
        """
        raise Unknown(self.until)

    @property
    def json(self) -> Any:
        """Not known yet.

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
    """The array that a scatter of so many shards gathers from a value that stands for each of them."""
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
    """The facts that the values wait for; none if all is known."""
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
    """The facts that the length of an array waits for."""
    return value.length_until if isinstance(value, Opaque) else reasons(value)


def generalised(values: Sequence[Value.Base], kind: Type.Base, differs: Until) -> Value.Base:
    """One value for all of them: where they agree, their value; where not, an `Opaque` that holds them all."""
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
    """The type of an array's items."""
    assert isinstance(kind, Type.Array)
    return kind.item_type


def sides_of(kind: Type.Base) -> tuple[Type.Base, Type.Base]:
    """The types of a pair's sides."""
    assert isinstance(kind, Type.Pair)
    return kind.left_type, kind.right_type


def _struct(kind: Type.Base) -> Type.StructInstance | Type.Object:
    assert isinstance(kind, Type.StructInstance | Type.Object)
    return kind


_PLAIN: Final = (Value.String, Value.Int, Value.Float, Value.Boolean, Value.Null)


# ---- the functions of WDL, without files: what would read or write one is not known ----


#: A value that differs between the shards of a scatter is computed for each of them, up to so many shards.
BY_SHARD: Final = 1_000


class _Guard(StdLib.Function):
    """A function of miniwdl's that answers only if it sees nothing that is not known."""

    def __init__(self, name: str, inner: StdLib.EagerFunction) -> None:
        self._inner = inner
        self._partly: Callable[..., Value.Base | None] = _PARTLY.get(name, lambda _, __: None)

    def infer_type(self, expr: Expr.Apply) -> Type.Base:
        """As the function itself."""
        return self._inner.infer_type(expr)

    def __call__(self, expr: Expr.Apply, env: Env.Bindings[Value.Base], stdlib: StdLib.Base) -> Value.Base:
        """Evaluate the arguments, all of them even if one is not known: the answer waits for every one."""
        arguments: list[Value.Base] = []
        missing: set[Until] = set()
        for argument in expr.arguments:
            try:
                arguments.append(argument.eval(env, stdlib))
            except Unknown as error:
                missing |= error.until
        if missing:
            raise Unknown(missing | reasons(*arguments))
        answer = self._partly(expr, arguments)
        if answer is not None:
            return answer
        hidden = reasons(*arguments)
        if not hidden:
            return self._inner._call_eager(expr, arguments)
        each = self._by_shard(expr, arguments, hidden)
        if each is None:
            raise Unknown(hidden)
        return each

    def _by_shard(
        self, expr: Expr.Apply, arguments: Sequence[Value.Base], hidden: Reasons
    ) -> Value.Base | None:
        """The answers shard by shard, where nothing is hidden but that the arguments differ between the shards of one scatter."""
        widths = {len(each.variants) for each in arguments if isinstance(each, Opaque)}
        (differs, *others) = hidden
        if others or differs.kind != "shard" or len(widths) != 1 or not 0 < max(widths) <= BY_SHARD:
            return None
        rows = [
            [each.variants[shard] if isinstance(each, Opaque) else each for each in arguments]
            for shard in range(max(widths))
        ]
        if any(reasons(*row) for row in rows):
            return None
        return generalised([self._inner._call_eager(expr, row) for row in rows], expr.type, differs)


def _length(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    count = elements(arguments[0])
    if count is not None:
        return Value.Int(count)
    hidden = arguments[0]
    if isinstance(hidden, Opaque) and hidden.variants:  # each shard has its own
        return Opaque(Type.Int(), hidden.until, None, tuple(_lengths(hidden)))
    return Opaque(Type.Int(), hidden.length_until) if isinstance(hidden, Opaque) else None


def _lengths(hidden: Opaque) -> Iterator[Value.Base]:
    for each in hidden.variants:
        count = elements(each)
        yield Value.Int(count) if count is not None else Opaque(Type.Int(), reasons(each))


def _range(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    (size,) = arguments
    if isinstance(size, Opaque):
        return Opaque(Type.Array(Type.Int()), size.until)
    if isinstance(size, Value.Int) and size.value > WRITTEN_OUT:
        return Opaque(
            Type.Array(Type.Int()),
            frozenset({Until("error", f"range({size.value}) is not written out")}),
            size.value,
        )
    return None


def _zip(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    left, right = (elements(each) for each in arguments)
    if left is None or right is None:  # they are as long as each other, or the run fails
        ends = [length_reasons(each) for each in arguments]
        return Opaque(expr.type, reasons(*arguments), left or right, (), ends[0] | ends[1])
    if left != right:
        return None
    if all(isinstance(each, Value.Array) for each in arguments):
        kind = items_of(expr.type)
        left_kind, right_kind = sides_of(kind)
        pairs = zip(arguments[0].value, arguments[1].value, strict=True)
        return Value.Array(kind, [Value.Pair(left_kind, right_kind, pair) for pair in pairs])
    return Opaque(expr.type, reasons(*arguments), left)


def _cross(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    left, right = (elements(each) for each in arguments)
    if left is None or right is None:
        return None
    if left * right > WRITTEN_OUT or reasons(*arguments):
        why = reasons(*arguments) or {
            Until("error", f"cross() of {left} and {right} elements is not written out")
        }
        return Opaque(expr.type, frozenset(why), left * right)
    return None


def _at(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    array, index = arguments
    if isinstance(index, Opaque) or not isinstance(index, Value.Int):
        return None
    if isinstance(array, Value.Array) and 0 <= index.value < len(array.value):
        found: Value.Base = array.value[index.value]
        return found
    if isinstance(array, Opaque) and array.count is not None and 0 <= index.value < array.count:
        return opaque(expr.type, array.until)
    return None


def _flatten(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    (outer,) = arguments
    if not isinstance(outer, Value.Array) or not reasons(outer):
        return None
    counts = [elements(each) for each in outer.value]
    if any(count is None for count in counts):
        return None
    return Opaque(expr.type, reasons(outer), sum(count for count in counts if count is not None))


def _transpose(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    (outer,) = arguments
    rows = outer.value if isinstance(outer, Value.Array) else []
    count = elements(rows[0]) if rows else None
    return Opaque(expr.type, reasons(outer), count) if count is not None and reasons(outer) else None


def _defined(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    (value,) = arguments
    return (
        None
        if isinstance(value, Opaque) and value.optional
        else Value.Boolean(not isinstance(value, Value.Null))
    )


def _select_first(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    if not isinstance(arguments[0], Value.Array):
        return None
    for each in arguments[0].value:
        if isinstance(each, Opaque) and each.optional:
            return None  # it may be this one or a later one
        if not isinstance(each, Value.Null):
            return each.coerce(expr.type)
    return arguments[1].coerce(expr.type) if len(arguments) > 1 else None


def _select_all(expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base | None:
    array = arguments[0]
    if isinstance(array, Opaque) and array.count is not None and not items_of(array.type).optional:
        return Opaque(expr.type, array.until, array.count)
    if not isinstance(array, Value.Array) or any(
        isinstance(each, Opaque) and each.optional for each in array.value
    ):
        return None
    return Value.Array(
        items_of(expr.type), [each for each in array.value if not isinstance(each, Value.Null)]
    )


#: Functions that have a result although part of their arguments is unknown; each returns None if it has none.
_PARTLY: Final[dict[str, Callable[..., Value.Base | None]]] = {
    "length": _length,
    "range": _range,
    "zip": _zip,
    "cross": _cross,
    "_at": _at,
    "flatten": _flatten,
    "transpose": _transpose,
    "defined": _defined,
    "select_first": _select_first,
    "select_all": _select_all,
}


class PlanLibrary(StdLib.Base):
    """The standard library of WDL without files: results of functions that read or write files are not known.

    Args:
        wdl_version: Of the document.
        files: The known facts about files.
    """

    def __init__(self, wdl_version: str, files: Files) -> None:
        super().__init__(wdl_version)
        for name, function in list(vars(self).items()):
            if name.startswith("write_"):
                setattr(self, name, _Refused(name, function))
            elif name.startswith("read_"):
                setattr(self, name, _Read(name, function, files))
            elif name == "size":
                setattr(self, name, _Size(function, files))
            elif isinstance(function, StdLib.EagerFunction):
                setattr(self, name, _Guard(name, function))

    def _devirtualize_filename(self, filename: str) -> str:
        raise Unknown({Until("content", filename)})

    def _resolve_source_relative_path(self, filename: str) -> str:
        return filename


class _Size(_Guard):
    """`size()`, where the sizes are known."""

    def __init__(self, inner: StdLib.EagerFunction, files: Files) -> None:
        super().__init__("size", inner)
        self._files = files
        self._partly = self._sum

    def _sum(self, expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base:
        hidden = reasons(*arguments)
        names = [each.value for each in parts(arguments[0]) if isinstance(each, Value.String)]
        sizes = [self._files.size(name) for name in names]
        missing = hidden | {
            Until("size", name) for name, size in zip(names, sizes, strict=True) if size is None
        }
        if missing:
            raise Unknown(missing)
        total = sum(size for size in sizes if size is not None)
        unit = arguments[1].coerce(Type.String()).value if len(arguments) > 1 else "B"
        if unit not in BYTE_UNITS:
            raise Error.EvalError(expr, f"size() knows no unit {unit!r}")
        return Value.Float(total / BYTE_UNITS[unit])


class _Read(_Guard):
    """`read_lines()` and its like, where the text is known: a plan opens no file."""

    def __init__(self, name: str, inner: StdLib.EagerFunction, files: Files) -> None:
        super().__init__(name, inner)
        self._files = files
        self._parse = _PARSERS.get(name)
        self._partly = self._content

    def _content(self, expr: Expr.Apply, arguments: Sequence[Value.Base]) -> Value.Base:
        hidden = reasons(*arguments)
        names = [each.value for each in arguments if isinstance(each, Value.String)]
        text = self._files.content(names[0]) if not hidden and len(names) == 1 == len(arguments) else None
        if text is None or self._parse is None:
            raise Unknown(hidden or {Until("content", name) for name in names})
        return self._parse(text)


def _lines(text: str) -> list[str]:
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _strings(texts: Iterable[str]) -> Value.Base:
    return Value.Array(Type.String(), [Value.String(text) for text in texts])


def _table(text: str) -> Value.Base:
    return Value.Array(Type.Array(Type.String()), [_strings(line.split("\t")) for line in _lines(text)])


def _flag(text: str) -> Value.Base:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{word[:20]!r} is neither true nor false")
    return Value.Boolean(word == "true")


#: Of what is not here (objects, tables with heads) the content stays unknown.
_PARSERS: Final[dict[str, Callable[[str], Value.Base]]] = {
    "read_lines": lambda text: _strings(_lines(text)),
    "read_tsv": _table,
    "read_string": lambda text: Value.String(text.removesuffix("\n")),
    "read_int": lambda text: Value.Int(int(text)),
    "read_float": lambda text: Value.Float(float(text)),
    "read_boolean": _flag,
    "read_json": lambda text: Value.from_json(Type.Any(), json.loads(text)),
}


class _Refused(StdLib.Function):
    """A function that would write a file."""

    def __init__(self, name: str, inner: StdLib.Function) -> None:
        self._name = name
        self._inner = inner

    def infer_type(self, expr: Expr.Apply) -> Type.Base:
        """As the function itself."""
        return self._inner.infer_type(expr)

    def __call__(self, expr: Expr.Apply, env: Env.Bindings[Value.Base], stdlib: StdLib.Base) -> Value.Base:
        """Refuse: a plan writes no files."""
        raise Unknown({Until("error", f"{self._name}() writes a file, which a plan does not")})
