"""Entries of flowsched's own folders that flowsched has not made: they are left alone, and logged with what to do."""

from __future__ import annotations

import os

from flowsched.log_lines import get_logger

log = get_logger(__name__)


def leave_alone(path: str | os.PathLike[str]) -> None:
    """Log that an entry is not flowsched's: a start that stopped at it would run no task."""
    log.warning(
        "skipped an entry that is not flowsched's; move it out of this folder, or remove it",
        path=os.fspath(path),
    )
