"""Root and database are a pair: the root names the database that it was used with last, and a start with another one says so.

    flowsched.db.id   id and place of that database

Nothing that the other database has written is touched: files go with a row of the database that removed their workflow (`expire`),
and a start is refused while tasks of the other database run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from flowsched.cluster.local.runner.records import write_record
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import Pairing

#: The bounds of tasks and the modes of files take it for a file of the database by its beginning.
FILE: Final = "flowsched.db.id"


class _Record(msgspec.Struct):
    id: str
    place: str


def pair(root: Path, pairing: Pairing, *, is_used: bool, running: Sequence[str]) -> str:
    """Note which database the root goes with from now on.

    Args:
        root: Of the cluster.
        pairing: The database.
        is_used: The root holds attempts.
        running: The attempts that run there.

    Returns:
        The change since the last start, in words; "" = it is the same database.

    Raises:
        ConfigurationError: It is another one, and tasks of the last one run.
    """
    last, now = _read(root), _Record(pairing.database, pairing.place)
    if last is None:  # a new root, or one that an earlier version has used with this database
        same = pairing.is_known or not is_used
    else:
        same = last.id == now.id
    before = "another database" if last is None else last.place
    if not same and running and not pairing.forced:
        raise ConfigurationError(
            f"{len(running)} tasks of {before} run in {root} ({running[0]} …), and {pairing.place} does not know them: start the "
            "service with --db of that database, and let them end or cancel them. --take-over ends them, if that database is "
            "gone for good"
        )
    if last != now:
        with contextlib.suppress(OSError):  # no room: the next start says the same again
            write_record(str(root), FILE, msgspec.to_builtins(now))
    if same:
        return ""
    return (
        f"{root} was used with {before}, and now with {pairing.place}, another database: workflows, logs and results of the "
        "former stay, but are not shown. If this is a mistake, start the service with --db of the former; to take its "
        "workflows along, run `flowsched db move FROM TO` first"
    )


def _read(root: Path) -> _Record | None:
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=_Record)
    except (FileNotFoundError, IsADirectoryError, msgspec.DecodeError):
        return None
