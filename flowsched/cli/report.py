"""`flowsched report`: a run, or two, as one HTML file that needs neither a server nor the network."""

from __future__ import annotations

import asyncio
import html
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from flowsched.cli.following import engine_of
from flowsched.cli.printing import output
from flowsched.client.calls import Client
from flowsched.errors import ConfigurationError
from flowsched.version import VERSION
from flowsched.workflow.efficiency import efficiencies, failed, running_ms, whole
from flowsched.workflow.views import AttemptUseView

#: Failed attempts that a report lists; it says how many more there are.
MOST_FAILED: Final = 500
#: Tasks that a report draws.
MOST_TASKS: Final = 100_000
_TITLE: Final = "@TITLE@"
_DATA: Final = "@DATA@"


async def report(client: Client, ident: str, other: str | None, path: Path | None) -> None:
    """`flowsched report`.

    Args:
        client: Of the service.
        ident: The run.
        other: The run that this one is compared with.
        path: Of the file; - is standard output. None = named after the runs, so that no run's report replaces another's.
    """
    frame = await asyncio.to_thread(template)
    runs = [await reported(client, each) for each in (ident, other) if each is not None]
    text = filled(frame, runs, datetime.now(UTC))
    if path is not None and output.is_stdout(path):
        sys.stdout.write(text)
        return
    path = path or Path(f"report-{ident}{f'-{other}' if other else ''}.html")
    await asyncio.to_thread(path.write_text, text, encoding="utf-8")
    output.hint(f"{path}: {len(text.encode()) / 1024:.0f} KiB; open it in a browser")


def template() -> str:
    """The built page without its data.

    Raises:
        ConfigurationError: This is a source checkout in which the page has not been built.
    """
    found = resources.files("flowsched.web") / "dist" / "report.html"
    try:
        return found.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"the page of the report has not been built: {found} is missing; run `make ui` in the source checkout "
            "(an installed wheel has it). `flowsched seff` and `flowsched trace` work without it"
        ) from None


async def reported(client: Client, ident: str) -> dict[str, Any]:
    """What the page shows of one run."""
    workflow, stages = await client.get(ident), await client.stages(ident)
    timelines, tasks = [], 0
    async for page in client.timelines(ident):
        timelines.append(page)
        tasks += len(page.stage)
        if tasks >= MOST_TASKS:
            break
    attempts = [each async for each in client.attempts(ident)]
    stages_used = efficiencies(attempts, await engine_of(client, ident))
    bad = [each for each in attempts if failed(each)]
    return {
        "workflow": workflow,
        "stages": stages,
        "timelines": timelines,
        "efficiency": stages_used,
        "cpu_efficiency": whole(stages_used)["cpu_efficiency"],
        "failed": [_failed(each) for each in bad[:MOST_FAILED]],
        "failed_more": max(0, len(bad) - MOST_FAILED),
    }


def _failed(attempt: AttemptUseView) -> dict[str, Any]:
    names = ("stage", "index", "item", "attempt", "node", "reason", "message", "exit_code")
    return {name: getattr(attempt, name) for name in names} | {"ran_seconds": running_ms(attempt) / 1000}


def filled(frame: str, runs: Sequence[dict[str, Any]], now: datetime) -> str:
    """The page with its data. What users wrote stays data: no text of theirs can end the element that holds it."""
    data = msgspec.to_builtins({"version": VERSION, "made_at": now, "runs": runs}, str_keys=True)
    said = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(" and ".join(run["workflow"].name for run in runs) + " – flowsched report")
    before, _, rest = frame.partition(_TITLE)
    between, found, after = rest.partition(_DATA)
    if not found:
        raise ConfigurationError("the built page of the report is of another version: run `make ui` again")
    return "".join((before, title, between, said, after))
