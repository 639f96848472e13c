"""Third-party plug-ins: their form, their parameters, and the consequences of a failure.

A plug-in is a function that `plugin` has marked with its kind. Its first arguments are those of the kind's protocol in
`framework`; keyword-only ones are parameters, with a default, set by name in a profile.

Every call goes through a guard. A plug-in that raises, or answers with something else than was asked for, decides nothing: a
filter lets the pod onto no node (rather none than a wrong one), a cost counts for nothing, an order is the built-in one. The
guard counts this in its `Trouble`, which decides nothing either: it is there to be reported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from flowsched.errors import ConfigurationError
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.state.claims import Claim
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: Where `plugin` puts the kind.
_MARK: Final = "__flowsched_plugin__"
#: The types of a parameter, and how a profile's reader names them.
_WORDS: Final[Mapping[type, str]] = {bool: "true or false", int: "a whole number", str: "text"}
#: 34 years: larger costs would not fit 64 bits together.
DEAREST_MS: Final = 1 << 40


class Kind(StrEnum):
    """The kind of a plugin; the fields of a profile that may name it are in `FIELDS`."""

    FILTER = "filter"
    COST = "cost"
    QUEUE_ORDER = "queue-order"
    VICTIM = "victim"


#: By kind, which fields of a profile name plugins of it.
FIELDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.FILTER: ("filters",),
    Kind.COST: ("costs", "first_costs", "step_costs"),
    Kind.QUEUE_ORDER: ("queue_order",),
    Kind.VICTIM: ("victim_order",),
}
#: How many arguments the protocol of a kind has.
_ARGUMENTS: Final[Mapping[Kind, int]] = {Kind.FILTER: 2, Kind.COST: 4, Kind.QUEUE_ORDER: 2, Kind.VICTIM: 3}


def plugin(kind: str) -> Callable[[F], F]:
    """Mark a function as a plugin: `filter`, `cost`, `queue-order` or `victim`.

    Raises:
        ConfigurationError: There is no such kind.
    """
    known = {each.value: each for each in Kind}
    if kind not in known:
        raise ConfigurationError(f"there is no kind of plugin {kind!r}; there are {', '.join(known)}")

    def mark(function: F) -> F:
        setattr(function, _MARK, known[kind])
        return function

    return mark


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a plugin: `type` is bool, int or str."""

    name: str
    type: type
    default: object

    @property
    def expected(self) -> str:
        """In words."""
        return _WORDS[self.type]


@dataclass(frozen=True, slots=True)
class Offered:
    """A plugin that was found.

    Args:
        name: By which profiles name it.
        kind: Its kind.
        function: The function itself.
        origin: Where it comes from, for people.
        about: The first line of its docstring.
        parameters: The parameters that it accepts.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    origin: str = ""
    about: str = ""
    parameters: tuple[Parameter, ...] = ()


def offered(name: str, found: object, origin: str = "") -> Offered:
    """Inspect the object of an entry point.

    Raises:
        ConfigurationError: It is no plugin; the message says why.
    """
    kind = getattr(found, _MARK, None)
    if not callable(found) or not isinstance(kind, Kind):
        raise ConfigurationError(
            f"{found!r} is not marked as a plugin: put @plugin({' | '.join(repr(k.value) for k in Kind)}) before it"
        )
    signature = inspect.signature(found)
    plain = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(plain) != _ARGUMENTS[kind] or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in plain):
        raise ConfigurationError(
            f"it takes {len(plain)} arguments, a {kind} takes {_ARGUMENTS[kind]}; parameters come after a *"
        )
    hints = get_type_hints(found)
    parameters = []
    for each in signature.parameters.values():
        if each.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if each.default is inspect.Parameter.empty:
            raise ConfigurationError(f"its parameter {each.name} has no default")
        declared = hints.get(each.name, type(each.default))
        if declared not in _WORDS or type(each.default) is not declared:
            raise ConfigurationError(
                f"its parameter {each.name} is {each.default!r}, not a bool, int or str as it says"
            )
        parameters.append(Parameter(each.name, declared, each.default))
    about = (inspect.getdoc(found) or "").partition("\n")[0]
    return Offered(name, kind, found, origin, about, tuple(parameters))


class WrongAnswer(Exception):
    """A plugin answered with something else than its protocol says."""


@dataclass(slots=True)
class Trouble:
    """How often a plugin failed in a profile, and how it did first and last."""

    times: int = 0
    first: str = ""
    last: str = ""

    def note(self, error: Exception) -> None:
        """Count one failure."""
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        file = at.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2] if at is not None else ""
        line = at.tb_lineno if at is not None else 0
        where = "" if isinstance(error, WrongAnswer) else f" ({file}:{line})"
        self.last = f"{type(error).__name__}: {error}{where}"
        self.first = self.first or self.last
        self.times += 1


@dataclass(frozen=True, slots=True)
class Guard:
    """A plugin as a profile names it. Equal guards give equal answers, whatever trouble they had.

    Args:
        name: Of the plugin.
        function: It.
        parameters: The values of its parameters, sorted by name.
        trouble: How it fared.
    """

    name: str
    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...] = ()
    trouble: Trouble = field(default_factory=Trouble, compare=False, repr=False)

    def ask(self, snapshot: Snapshot | None, check: Callable[[Any], T], *arguments: object) -> T | None:
        """Its answer, checked; None where it has none to give. The arrays of `snapshot` cannot be changed meanwhile."""
        try:
            if snapshot is not None:
                snapshot.set_writeable(False)
            return check(self.function(*arguments, **dict(self.parameters)))
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything; the error is noted, not swallowed
            self.trouble.note(error)
            return None
        finally:
            if snapshot is not None:
                snapshot.set_writeable(True)


@dataclass(frozen=True, slots=True)
class GuardedFilter(Guard):
    """A filter that lets a pod nowhere where it fails."""

    def __call__(self, snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
        """See `framework.Filter`."""

        def check(answer: Any) -> tuple[NDArray[np.bool_], str]:
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise WrongAnswer(f"a filter answers (mask, why), this one with {_described(answer)}")
            mask, why = answer
            if not isinstance(why, str):
                raise WrongAnswer(f"a filter says why in a text, this one in {_described(why)}")
            return _array(mask, np.dtype(np.bool_), len(snapshot)), why

        answer = self.ask(snapshot, check, snapshot, shape)
        if answer is None:
            return np.zeros(len(snapshot), dtype=np.bool_), f"are not judged: plugin {self.name} failed"
        return answer


@dataclass(frozen=True, slots=True)
class GuardedCost(Guard):
    """A cost that counts for nothing where it fails."""

    def __call__(
        self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
    ) -> NDArray[np.int64] | None:
        """See `framework.Cost`."""

        def check(answer: Any) -> NDArray[np.int64] | None:
            if answer is None:
                return None
            cost = _array(answer, np.dtype(np.int64), len(snapshot))
            if len(cost) and not 0 <= int(cost.min()) <= int(cost.max()) <= DEAREST_MS:
                raise WrongAnswer(
                    f"costs are 0 to {DEAREST_MS} ms, these {int(cost.min())} to {int(cost.max())}"
                )
            return cost

        return self.ask(snapshot, check, snapshot, catalogue, group, role)


@dataclass(frozen=True, slots=True)
class GuardedQueueOrder(Guard):
    """An order of groups; the built-in one where it fails."""

    def __call__(self, groups: Sequence[PodGroup], now: int) -> NDArray[np.int64]:
        """See `framework.QueueOrder`."""
        keys = self.ask(None, lambda answer: _keys(answer, len(groups)), groups, now)
        return np.zeros(len(groups), dtype=np.int64) if keys is None else keys


@dataclass(frozen=True, slots=True)
class GuardedVictimOrder(Guard):
    """An order of victims; the built-in one where it fails."""

    def __call__(self, snapshot: Snapshot, victims: Sequence[Sequence[Claim]], now: int) -> NDArray[np.int64]:
        """See `framework.VictimOrder`."""
        keys = self.ask(snapshot, lambda answer: _keys(answer, len(victims)), snapshot, victims, now)
        return np.zeros(len(victims), dtype=np.int64) if keys is None else keys


_GUARDS: Final[Mapping[Kind, type[Guard]]] = {
    Kind.FILTER: GuardedFilter,
    Kind.COST: GuardedCost,
    Kind.QUEUE_ORDER: GuardedQueueOrder,
    Kind.VICTIM: GuardedVictimOrder,
}


def guarded(what: Offered, parameters: Mapping[str, object]) -> Guard:
    """A plugin with its parameters (those left out have their defaults)."""
    values = {each.name: parameters.get(each.name, each.default) for each in what.parameters}
    return _GUARDS[what.kind](what.name, what.function, tuple(sorted(values.items())))


def _keys(answer: Any, rows: int) -> NDArray[np.int64]:
    if isinstance(answer, np.ndarray) and answer.ndim == 2 and answer.shape[1]:
        _array(answer[:, 0], np.dtype(np.int64), rows)
        return answer
    return _array(answer, np.dtype(np.int64), rows)


def _array(answer: Any, kind: np.dtype[Any], rows: int) -> NDArray[Any]:
    """An array of one value for each row: whole numbers of fewer bits are taken too."""
    if isinstance(answer, np.ndarray) and answer.shape == (rows,):
        if answer.dtype == kind:
            return answer.copy()  # it may be a view of an array that changes later
        if kind.kind == "i" and answer.dtype.kind in "iu" and answer.dtype.itemsize < kind.itemsize:
            return answer.astype(kind)
    raise WrongAnswer(f"an array of {rows} {kind} is asked for, this is {_described(answer)}")


def _described(answer: object) -> str:
    if isinstance(answer, np.ndarray):
        return f"an array {answer.shape} of {answer.dtype}"
    return f"a {type(answer).__name__}"
