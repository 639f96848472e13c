"""Fields that objects of every kind share: metadata, selectors, conditions, amounts, moments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol, TypeAlias

import msgspec
from msgspec import field

from flowsched.workflow.resources import parse_quantity

#: Resource -> quantity. The server writes texts; a user's value in a custom resource may be a number.
Amounts: TypeAlias = dict[str, str | int | float]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Read(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, rename="camel"):
    """The base of objects that an API server sends: only the fields that flowsched needs, whatever else there is.

    Not tracked by the garbage collector, as nothing here can form a cycle.
    """


class OwnerReference(Read, frozen=True):
    """An owner of an object: the object is deleted when all its owners are gone."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class Metadata(Read, frozen=True):
    """Name, identity and version. `uid` is the identity: a name may be used again."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()


class HasMetadata(Protocol):
    """An object of any kind."""

    @property
    def metadata(self) -> Metadata:
        """Name, identity and version."""
        ...


class Condition(Read, frozen=True):
    """One aspect of an object's state: "True", "False" or "Unknown", and why."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Requirement(Read, frozen=True):
    """A condition on a key: In, NotIn, Exists, DoesNotExist; on nodes also Gt and Lt."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Read, frozen=True):
    """All of its conditions must hold. An empty one selects everything; none at all (None) selects nothing."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


@lru_cache(maxsize=8192)
def quantity(value: str | int | float, scale: int = 1) -> int:
    """A Kubernetes quantity as a whole number of 1/`scale` units, rounded up. The same texts come again and again.

    Args:
        value: "500m", "8Gi", "2e3", 4.
        scale: 1000 for millicores.

    Raises:
        InvalidRequest: It is no quantity, or negative.
    """
    return parse_quantity(value, scale)


@lru_cache(maxsize=8192)
def moment_ms(timestamp: str | None) -> int | None:
    """A timestamp of the API ("2026-11-21T11:39:58Z", with or without a fraction) as wall-clock ms; None if it is none."""
    if not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def timestamp(at_ms: int) -> str:
    """Wall-clock ms as the API writes moments: whole seconds, UTC."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at_ms: int) -> str:
    """Wall-clock ms as Leases and Events write moments: with microseconds."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def condition_of(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """The condition of a type."""
    for each in conditions:
        if each.type == kind:
            return each
    return None


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector takes an object with these labels. An operator that we do not know takes nothing."""
    if selector is None:
        return False
    wanted = selector.match_labels.items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(each, labels) for each in selector.match_expressions
    )


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
