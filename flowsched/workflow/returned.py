"""Exit codes other than 0 of tasks that succeeded: Cromwell judges by a file, and a document may ignore a step's failure.

The totals of a stage count them, beside milliseconds and bytes: `returned_3` counts the tasks that succeeded with exit code 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_PREFIX: Final = "returned_"


def as_totals(returned: Mapping[int, int]) -> dict[str, int]:
    """Exit code -> tasks, as totals of a stage."""
    return {f"{_PREFIX}{code}": number for code, number in returned.items() if number}


def in_totals(totals: Mapping[str, int]) -> dict[int, int]:
    """Exit code -> tasks, of the totals of a stage."""
    return {int(name[len(_PREFIX) :]): tasks for name, tasks in totals.items() if name.startswith(_PREFIX)}


def added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Exit code -> tasks over the totals of several stages, as views have it: JSON's keys are texts."""
    found: dict[int, int] = {}
    for totals in several:
        for code, number in in_totals(totals).items():
            found[code] = found.get(code, 0) + number
    return {str(code): found[code] for code in sorted(found)}
