"""Seeded faults: each breaks a promise in how pods are made, bound and looked at, and the named tests must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: The mutant of a run of these tests; `sensitivity` sets it.
ENVIRONMENT: Final = "FLOWSCHED_FAULT_MUTANT"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded fault.

    Args:
        seed: Changes the code of this process.
        caught_by: Tests (`-k` expression) of which at least one must fail.
    """

    seed: Callable[[], None]
    caught_by: str


ALL: Final[dict[str, Mutant]] = {}
