"""The scope of names in a WDL workflow: their values as far as known, and the calls that these come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from WDL import Env, Error, Expr, Type, Value

from flowsched.errors import TooLarge
from flowsched.workflow.formats.wdl.partial_values import PlanLibrary, Unknown, opaque, reasons
from flowsched.workflow.plan import Until

Paths = frozenset[str]
NOBODY: Final[Paths] = frozenset()


@dataclass(frozen=True, slots=True)
class Bound:
    """The meaning of a name.

    Args:
        value: As far as it is known.
        kind: Its type, as it is declared.
        data: Nodes that wrote what it is made from.
        waits: Nodes that must have ended before it can be had, though nothing of theirs is in it.
    """

    value: Value.Base
    kind: Type.Base
    data: Paths = NOBODY
    waits: Paths = NOBODY


@dataclass(slots=True)
class Scope:
    """Names, and those around them. Handed to miniwdl as the environment of an evaluation: it asks for names one by one."""

    outer: Scope | None = None
    names: dict[str, Bound] = field(default_factory=dict)
    lazy: dict[str, Callable[[], Bound]] = field(default_factory=dict)  #: worked out when first asked for

    def find(self, name: str) -> Bound | None:
        """The meaning of a name; None if it is not one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if name in scope.lazy:
                scope.names[name] = scope.lazy.pop(name)()
                return scope.names[name]
            scope = scope.outer
        return None

    def __getitem__(self, name: str) -> Value.Base:
        """The value of a name, as miniwdl asks for it.

        Raises:
            Unknown: The name means nothing (which the type check should have found).
        """
        found = self.find(name)
        if found is None:
            raise Unknown({Until("error", f"nothing is called {name}")})
        return found.value


def evaluated(expr: Expr.Base, scope: Scope, library: PlanLibrary, kind: Type.Base | None = None) -> Bound:
    """An expression's value as far as it is known, as `kind`, and where it comes from.

    Raises:
        TooLarge: There is not enough memory for it.
    """
    data, waits = origins(expr, scope)
    wanted = kind if kind is not None else expr.type
    try:
        value = expr.eval(_environment(scope), library)
        if kind is not None:
            value = value.coerce(kind)
    except Unknown as error:
        value = opaque(wanted, error.until)
    except Error.RuntimeError as error:
        if isinstance(error.__cause__, MemoryError):
            raise TooLarge(f"{shown(expr)} takes more memory than there is") from error
        hidden = _hidden(expr, scope) | (
            error.__cause__.until if isinstance(error.__cause__, Unknown) else frozenset()
        )
        value = opaque(wanted, hidden or frozenset({Until("error", f"{shown(expr)} fails: {error}")}))
    return Bound(value, wanted, data, waits)


def _environment(scope: Scope) -> Env.Bindings[Value.Base]:
    """A scope, where miniwdl's types want its own environment; it only ever asks for single names."""
    return scope  # type: ignore[return-value]


def _hidden(expr: Expr.Base, scope: Scope) -> frozenset[Until]:
    """The unknown facts behind the names in an expression: if there are any, a failure is not the user's."""
    found = [scope.find(name) for name in named(expr)]
    return reasons(*(each.value for each in found if each is not None))


def origins(expr: Expr.Base, scope: Scope) -> tuple[Paths, Paths]:
    """The nodes that the names in an expression come from, and those they wait for."""
    data: set[str] = set()
    waits: set[str] = set()
    for name in named(expr):
        found = scope.find(name)
        if found is not None:
            data |= found.data
            waits |= found.waits
    return frozenset(data), frozenset(waits)


def named(expr: Expr.Base) -> Iterator[str]:
    """The names in an expression."""
    stack = [expr]
    while stack:
        each = stack.pop()
        if isinstance(each, Expr.Ident):
            yield each.name
        stack.extend(child for child in each.children if isinstance(child, Expr.Base))


def together(*groups: Iterable[str]) -> Paths:
    """All of them."""
    return frozenset().union(*groups)


def merged(names: Mapping[str, Bound], prefix: str) -> dict[str, Bound]:
    """The same names behind a prefix, as outputs are behind the name of their call."""
    return {f"{prefix}.{name}": bound for name, bound in names.items()}


def shown(expr: Expr.Base | None, most: int = 200) -> str:
    """An expression as it is written, shortened."""
    text = " ".join(str(expr).split()) if expr is not None else ""
    return text if len(text) <= most else f"{text[: most - 1]}…"
