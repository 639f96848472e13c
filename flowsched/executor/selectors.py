"""Selectors: whether they select a set of labels, as Kubernetes reads them. Knows nothing of nodes or pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flowsched.executor.constraints import ANY_ADDRESS, HostPort, PodTerm, Requirement, Selector

Labels = Mapping[str, str]

_NO_LABELS: Final[Labels] = {}
_INT64: Final = 1 << 63


def selects(selector: Selector | None, labels: Labels) -> bool:
    """Whether all requirements hold. () selects everything, None nothing."""
    return selector is not None and all(holds(wanted, labels) for wanted in selector)


def holds(wanted: Requirement, labels: Labels) -> bool:
    """Whether labels meet one requirement. A label that is not there meets NotIn, and no comparison."""
    return allows(wanted, labels.get(wanted.key))


def allows(wanted: Requirement, value: str | None) -> bool:
    """Whether the value of the requirement's label meets it; None = there is no such label."""
    match wanted.operator:
        case "In":
            return value is not None and value in wanted.values
        case "NotIn":
            return value is None or value not in wanted.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compares(wanted, value)
        case _:
            return False


def _compares(wanted: Requirement, value: str) -> bool:
    have = _integer(value)
    bound = _integer(wanted.values[0]) if len(wanted.values) == 1 else None
    if have is None or bound is None:
        return False
    return have > bound if wanted.operator == "Gt" else have < bound


def _integer(text: str) -> int | None:
    """A whole number as Go's `strconv.ParseInt(text, 10, 64)` reads it; Python's own `int` takes more."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text) if len(digits) <= 19 or len(digits.lstrip("0")) <= 19 else _INT64
    return number if -_INT64 <= number < _INT64 else None


def term_selects(term: PodTerm, namespace: str, labels: Labels, namespaces: Mapping[str, Labels]) -> bool:
    """Whether a pod term means a pod.

    Args:
        term: The term.
        namespace: The pod's namespace.
        labels: The pod's labels.
        namespaces: The labels of every namespace; one that is not in it has none.
    """
    if namespace not in term.namespaces and not selects(
        term.namespace_selector, namespaces.get(namespace, _NO_LABELS)
    ):
        return False
    return selects(term.selector, labels)


def collide(one: HostPort, other: HostPort) -> bool:
    """Whether two host ports cannot be on one node: the same port, and addresses of which one is any or both are one."""
    if (one.protocol, one.port) != (other.protocol, other.port):
        return False
    return one.ip == other.ip or ANY_ADDRESS in (one.ip, other.ip)
