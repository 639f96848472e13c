"""Objects that cannot be understood: they are named, counted and left out, and whoever comes after them is served (row 28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from flowsched.cluster.kubernetes.metadata import HasMetadata

log = structlog.get_logger(__name__)
T = TypeVar("T", bound=HasMetadata)

#: An object that changes often is complained of now and then.
_EACH: Final = 100
#: uid -> how often. For metrics.
MISUNDERSTOOD: Final[Counter[str]] = Counter()


def taken(take: Callable[[T], None], each: T) -> bool:
    """Hand an object on. False: that failed, for whatever reason; what was known of it before stays."""
    try:
        take(each)
    except (
        Exception
    ):  # a bug of ours that somebody's object brings out must not stop the service for everybody
        meta = each.metadata
        if MISUNDERSTOOD[meta.uid] % _EACH == 0:
            log.exception(
                "an object was not understood",
                kind=type(each).__name__,
                namespace=meta.namespace,
                name=meta.name,
            )
        MISUNDERSTOOD[meta.uid] += 1
        return False
    return True
