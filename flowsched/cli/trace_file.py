"""`flowsched trace`: the attempts of a workflow as the trace.tsv of Nextflow, with its default columns and formats.

Nextflow's documentation, "Trace file". A column that is not measured here is `-`, as Nextflow writes it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from flowsched.cli.printing import output
from flowsched.client.calls import Client
from flowsched.workflow.efficiency import RELEASED, running_ms, succeeded
from flowsched.workflow.views import AttemptUseView

COLUMNS: Final = (
    "task_id",
    "hash",
    "native_id",
    "name",
    "status",
    "exit",
    "submit",
    "duration",
    "realtime",
    "%cpu",
    "peak_rss",
    "peak_vmem",
    "rchar",
    "wchar",
)
_UNKNOWN: Final = "-"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


async def trace(client: Client, ident: str, path: Path | None) -> None:
    """`flowsched trace`. `path`: None and - are standard output."""
    attempts = [each async for each in client.attempts(ident)]
    text = "".join(f"{line}\n" for line in lines(attempts))
    if path is None or output.is_stdout(path):
        sys.stdout.write(text)
    else:
        await asyncio.to_thread(path.write_text, text)
        output.hint(f"{path}: attempts: {len(attempts)}")
    counts = (await client.get(ident)).counts
    succeeded, asked = counts.get("SUCCEEDED", 0), sum(counts.values()) - counts.get("SKIPPED", 0)
    if succeeded < asked:
        output.hint(
            f"unfinished: {succeeded:,} of {asked:,} tasks succeeded; a task that never began has no line"
        )


def lines(attempts: Iterable[AttemptUseView]) -> Iterator[str]:
    """The head, and a line for each attempt, in the order in which they were bound to their nodes."""
    yield "\t".join(COLUMNS)
    for number, each in enumerate(sorted(attempts, key=lambda each: (each.bound_at, each.pod)), 1):
        yield "\t".join(_cells(number, each))


def _cells(number: int, attempt: AttemptUseView) -> list[str]:
    used, ran_ms = attempt.usage, running_ms(attempt)
    cpu_ms = used.get("cpu_ms", 0)
    return [
        str(number),
        _UNKNOWN,  # a hash of the work folder: there is none
        attempt.pod,
        _one_line(f"{attempt.stage} ({attempt.index if attempt.item is None else attempt.item})"),
        status(attempt),
        _UNKNOWN if attempt.exit_code is None else str(attempt.exit_code),
        _moment(attempt.bound_at),
        _UNKNOWN if attempt.ended_at is None else duration(_between_ms(attempt.bound_at, attempt.ended_at)),
        duration(ran_ms) if attempt.started_at and attempt.ended_at else _UNKNOWN,
        f"{cpu_ms / ran_ms:.1%}" if cpu_ms and ran_ms else _UNKNOWN,
        _size(used, "max_rss_bytes"),
        _UNKNOWN,  # virtual memory is not measured
        _size(used, "read_bytes"),
        _size(used, "written_bytes"),
    ]


def status(attempt: AttemptUseView) -> str:
    """Nextflow's word for how it ended."""
    if attempt.ended_at is None:
        return "RUNNING" if attempt.started_at is not None else "SUBMITTED"
    if succeeded(attempt):
        return "COMPLETED"
    return "ABORTED" if attempt.reason == RELEASED else "FAILED"


def duration(ms: int) -> str:
    """Nextflow's `Duration`: `97ms`, `12.2s`, `1m 29s`, `2h 5m 3s`, `1d 2h`."""
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{_short(ms / 1000)}s"
    seconds = ms // 1000
    parts = {"d": seconds // 86_400, "h": seconds // 3600 % 24, "m": seconds // 60 % 60, "s": seconds % 60}
    return " ".join(f"{amount}{unit}" for unit, amount in parts.items() if amount)


def memory(number: int) -> str:
    """Nextflow's `MemoryUnit`: `0`, `97 B`, `35.6 MB`; a KB is 1024 B."""
    if number <= 0:
        return "0"
    unit, amount = 0, float(number)
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{_short(amount)} {_UNITS[unit]}"


def _size(used: dict[str, int], name: str) -> str:
    return memory(used[name]) if used.get(name) else _UNKNOWN


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def _between_ms(begin: datetime, end: datetime) -> int:
    return max(0, round((end - begin).total_seconds() * 1000))


def _one_line(text: str) -> str:
    return " ".join(text.split())
