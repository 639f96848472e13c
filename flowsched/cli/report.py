"""`flowsched report`, `trace`, `seff` and `usage`: what attempts used, for people, programs and accounts."""

from __future__ import annotations

import asyncio
import csv
import html
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from flowsched.cli.following import engine_of, taken_from
from flowsched.cli.naming import find, index_of
from flowsched.cli.options import Output, asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.columns import Column, Columns
from flowsched.cli.printing.form import Form
from flowsched.cli.printing.terminal_text import line
from flowsched.client.calls import Client
from flowsched.errors import ConfigurationError, InvalidRequest, NotFound
from flowsched.version import VERSION
from flowsched.workflow.efficiency import (
    LEAST_RUN_MS,
    LEAST_SAVED_BYTES,
    RELEASED,
    EfficiencyView,
    efficiencies,
    failed,
    memory_asked,
    running_ms,
    size,
    succeeded,
    whole,
)
from flowsched.workflow.views import AttemptUseView, UsageRowView, UsageSumView, UsageView, WorkflowView

#: Failed attempts that a report lists; it says how many more there are.
MOST_FAILED: Final = 500
_SHOWN_OF_FAILED: Final = ("stage", "index", "item", "attempt", "node", "reason", "message", "exit_code")
#: Tasks that a report draws.
MOST_TASKS: Final = 100_000
_TITLE: Final = "@TITLE@"
_DATA: Final = "@DATA@"
_UNKNOWN: Final = "-"
commands = typer.Typer(rich_markup_mode=None)


async def _written(path: Path, text: str, about: str) -> None:
    """Write to a file, and tell of it; `-` is standard output."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    await asyncio.to_thread(path.write_text, text, encoding="utf-8")
    printed.hint(f"{path}: {about}")


# ---- report: a run, or two, as one HTML file that needs neither a server nor the network ----


@commands.command()
@asks()
async def report(
    client: Client,
    ident: str,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write; - is stdout. [report-ID.html]"),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--with", metavar="ID|NAME", help="Compare it with this run."),
    ] = None,
) -> None:
    """Write a report of a workflow as one HTML file.

    Graph, timeline, usage against request, what waited for what, bytes, failed attempts. It needs no network.
    """
    second = await find(client, other) if other else None
    frame = await asyncio.to_thread(template)
    runs = [await reported(client, each) for each in (ident, second) if each is not None]
    text = filled(frame, runs, datetime.now(UTC))
    path = out or Path(f"report-{ident}{f'-{second}' if second else ''}.html")
    await _written(path, text, f"{len(text.encode()) / 1024:.0f} KiB; open it in a browser")


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
    """The data of one run for the page."""
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
        "fitted": [(each.name, words) for each in stages if (words := render.fitted_memory(each))],
        "failed": [
            {name: getattr(each, name) for name in _SHOWN_OF_FAILED}
            | {"ran_seconds": running_ms(each) / 1000}
            for each in bad[:MOST_FAILED]
        ],
        "failed_more": max(0, len(bad) - MOST_FAILED),
    }


def filled(frame: str, runs: Sequence[dict[str, Any]], now: datetime) -> str:
    """The page with its data. Texts of users stay data: none of them can end the element that holds it."""
    data = msgspec.to_builtins({"version": VERSION, "made_at": now, "runs": runs}, str_keys=True)
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(" and ".join(run["workflow"].name for run in runs) + " – flowsched report")
    before, _, rest = frame.partition(_TITLE)
    between, found, after = rest.partition(_DATA)
    if not found:
        raise ConfigurationError("the built page of the report is of another version: run `make ui` again")
    return "".join((before, title, between, embedded, after))


# ---- seff: what tasks used of what they asked for, and what to ask for instead, as Slurm's seff has it for jobs ----


@commands.command()
@asks()
async def seff(
    client: Client,
    ident: str,
    stage: Annotated[str | None, typer.Argument(help="Only this stage, with each of its attempts.")] = None,
    task: Annotated[
        str | None, typer.Argument(metavar="INDEX|ITEM|ROLE", help="Only this task of it.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Say what tasks used of what they asked for.

    CPU and memory of each stage, and what to ask for instead. As Slurm's seff, for a whole workflow.
    """
    attempts = [each async for each in client.attempts(ident)]
    if stage is not None:
        stages = [view.name for view in await client.stages(ident)]
        if stage not in stages:
            raise NotFound(f"workflow {ident} has no stage {stage!r}; it has {', '.join(stages[:20])}")
        index = None if task is None else await index_of(client, ident, stage, task)
        attempts = [each for each in attempts if each.stage == stage and index in (None, each.index)]
        if not attempts:
            raise NotFound(await _untried(client, ident, stage, index))
    found = efficiencies(attempts, await engine_of(client, ident))
    if output is not Form.TABLE:
        printed.many(found, output, lambda _: Text())
        return
    view = await client.get(ident)
    printed.show(efficiency_text(view, found, attempts if stage is not None else []))


async def _untried(client: Client, ident: str, stage: str, index: int | None) -> str:
    """Why a task, or each of a stage, has no attempt: the cache had its result, or it has not started."""
    name = f"{stage}{'' if index is None else f'[{index}]'} of {ident}"
    task = await client.task(ident, stage, index or 0)
    origin = taken_from(task.reason)
    if origin is None:
        return f"{name} has not been tried: it is {task.state}"
    workflow, its_stage, _ = origin
    return (
        f"{name} has not run: it took the result of {workflow}; next: `flowsched seff {workflow} {its_stage}`"
    )


def efficiency_text(
    view: WorkflowView, stages: list[EfficiencyView], attempts: list[AttemptUseView]
) -> RenderableType:
    """The whole, each stage, each of `attempts`, and the advice."""
    if not stages:
        over = "Nothing of it ran: its tasks came from the cache, or never started."
        return Group(
            render.workflow_head(view), Text(over if view.ended_at else "No attempt of it has ended yet.")
        )
    whole_run = None if attempts else view
    parts: list[RenderableType] = [
        render.workflow_head(view),
        *_whole(whole_run, stages),
        Text(),
        _stage_table(stages),
    ]
    if attempts:
        parts += [Text(), _attempt_table(attempts)]
    advice = [(each.stage, line) for each in stages for line in each.advice]
    parts.append(Text())
    if advice:
        parts += [render.text("Ask for instead:", "bold")]
        parts += [render.text(f"  {stage}: {line}") for stage, line in advice]
    else:
        least = f"less than a quarter, or of memory less than {size(LEAST_SAVED_BYTES)}"
        parts.append(render.text("Nothing to change: what was measured is near what was asked for, or too"))
        parts.append(render.text(f"little would be saved ({least})."))
        if all(each.cores_used is None for each in stages):
            parts.append(render.text(f"Of CPU nothing is said: no attempt ran for {LEAST_RUN_MS // 1000} s."))
    return Group(*parts)


def _whole(view: WorkflowView | None, stages: list[EfficiencyView]) -> list[Text]:
    """The sums over some stages; with the time of the run, if these are all of it."""
    sums, tries = whole(stages), sum(each.attempts for each in stages)
    used, core_seconds = sums["cpu_seconds"], sums["core_seconds"] or 0.0
    lines = [
        f"CPU utilized:    {_UNKNOWN if used is None else render.seconds(used)}",
        f"CPU efficiency:  {_percent(sums['cpu_efficiency'])} of {render.seconds(core_seconds)} core-walltime",
        f"Running time:    {render.seconds(sums['running_seconds'] or 0.0)} over {tries} attempt{'s' * (tries != 1)}",
    ]
    if view is not None and view.started_at is not None and view.ended_at is not None:
        lines.append(f"Wall-clock time: {render.seconds((view.ended_at - view.started_at).total_seconds())}")
    return [render.text(line) for line in lines]


def _stage_table(stages: list[EfficiencyView]) -> Columns:
    def used(each: EfficiencyView) -> str:
        return _UNKNOWN if each.cores_used is None else f"{each.cores_used:.2f}"

    def memory(amount: int | None) -> str:
        return _UNKNOWN if amount is None else size(amount)

    def moved(amount: int | None) -> str:
        return "" if amount is None else render.size(amount)

    return Columns(
        stages,
        Column("STAGE", lambda each: render.text(each.stage), cut=True),
        Column("TRIES", lambda each: str(each.attempts), rank=2, right=True),
        Column("FAILED", lambda each: str(each.failed), rank=3, right=True),
        Column("RAN", lambda each: render.seconds(each.running_seconds), rank=1, right=True),
        Column("CORES", lambda each: f"{each.cores_asked:g}", right=True, whole=True),
        Column("USED", used, right=True, whole=True),
        Column("CPU", lambda each: _percent(each.cpu_efficiency), right=True, whole=True),
        Column("MEMORY", lambda each: memory(each.memory_asked_bytes or None), right=True, whole=True),
        Column("PEAK", lambda each: memory(each.memory_used_bytes), right=True, whole=True),
        Column("MEM", lambda each: _percent(each.memory_efficiency), right=True, whole=True),
        Column("READ", lambda each: moved(each.read_bytes), rank=4, right=True),
        Column("WRITTEN", lambda each: moved(each.written_bytes), rank=5, right=True),
    )


def _attempt_table(attempts: list[AttemptUseView]) -> Columns:
    def some(amount: float, form: Callable[[Any], str]) -> str:
        return form(amount) if amount else _UNKNOWN

    def part(used: float, asked: float) -> str:
        return _percent(used / asked if used and asked else None)

    def cpu_ms(each: AttemptUseView) -> int:
        return each.usage.get("cpu_ms", 0)

    def peak(each: AttemptUseView) -> int:
        return each.usage.get("max_rss_bytes", 0)

    def core_ms(each: AttemptUseView) -> float:
        return each.requested.get("cpu", 0) * running_ms(each) / 1000

    return Columns(
        attempts,
        Column("TASK", lambda each: str(each.index)),
        Column("ATTEMPT", lambda each: str(each.attempt), right=True),
        Column("NODE", lambda each: render.text(each.node), rank=2, cut=True),
        Column(
            "EXIT",
            lambda each: _UNKNOWN if each.exit_code is None else str(each.exit_code),
            right=True,
            whole=True,
        ),
        Column(
            "REASON", lambda each: render.text(each.reason if each.ended_at else "RUNNING"), rank=1, cut=True
        ),
        Column("RAN", lambda each: some(running_ms(each) / 1000, render.seconds), right=True, whole=True),
        Column("CPU TIME", lambda each: some(cpu_ms(each) / 1000, render.seconds), right=True, whole=True),
        Column("CPU", lambda each: part(cpu_ms(each), core_ms(each)), right=True, whole=True),
        Column("PEAK", lambda each: some(peak(each), size), right=True, whole=True),
        Column("MEM", lambda each: part(peak(each), memory_asked(each)), right=True, whole=True),
    )


def _percent(part: float | None) -> str:
    return _UNKNOWN if part is None else f"{part:.0%}"


# ---- trace: the attempts as the trace.tsv of Nextflow (its documentation, "Trace file"); what is not measured is `-` ----


COLUMNS: Final = (
    "task_id", "hash", "native_id", "name", "status", "exit", "submit", "duration", "realtime", "%cpu",
    "peak_rss", "peak_vmem", "rchar", "wchar",
)  # fmt: skip
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


@commands.command()
@asks()
async def trace(
    client: Client,
    ident: str,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write to this file; - is stdout. [stdout]"),
    ] = None,
) -> None:
    """Write each attempt as a line of a trace.tsv.

    With the default columns and formats of Nextflow's trace file.
    """
    attempts = [each async for each in client.attempts(ident)]
    text = "".join(f"{each}\n" for each in lines(attempts))
    await _written(out or Path("-"), text, f"attempts: {len(attempts)}")
    counts = (await client.get(ident)).counts
    done, asked = counts.get("SUCCEEDED", 0), sum(counts.values()) - counts.get("SKIPPED", 0)
    if done < asked:
        printed.hint(
            f"unfinished: {done:,} of {asked:,} tasks succeeded; a task that never began has no line"
        )


def lines(attempts: Iterable[AttemptUseView]) -> Iterator[str]:
    """The head, and a line for each attempt, in the order in which they were bound to their nodes."""
    yield "\t".join(COLUMNS)
    for number, each in enumerate(sorted(attempts, key=lambda each: (each.bound_at, each.pod)), 1):
        yield "\t".join(_trace_cells(number, each))


def _trace_cells(number: int, attempt: AttemptUseView) -> list[str]:
    used, ran_ms = attempt.usage, running_ms(attempt)
    cpu_ms = used.get("cpu_ms", 0)
    name = f"{attempt.stage} ({attempt.index if attempt.item is None else attempt.item})"
    bound = attempt.bound_at.astimezone()
    span = None if attempt.ended_at is None else (attempt.ended_at - bound).total_seconds()
    return [
        str(number),
        _UNKNOWN,  # a hash of the work folder: there is none
        attempt.pod,
        " ".join(name.split()),
        status(attempt),
        _UNKNOWN if attempt.exit_code is None else str(attempt.exit_code),
        f"{bound:%Y-%m-%d %H:%M:%S}.{bound.microsecond // 1000:03d}",
        _UNKNOWN if span is None else duration(max(0, round(span * 1000))),
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


# ---- usage: core-, GPU- and GiB-hours by queue, user or label ----


_NONE: Final = "(none)"


@commands.command()
@asks()
async def usage(
    client: Client,
    by: Annotated[
        str,
        typer.Option(metavar="queue|user|label:KEY", help="A row for each queue, user or value of a label."),
    ] = "queue",
    since: Annotated[
        str | None,
        typer.Option(help="Workflows that ended from then on, and those that live: 7d, 2026-11-01. [all]"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Workflows that ended before then; a date includes its day. [those that live too]"),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Of this queue alone.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or csv.")] = "table",
) -> None:
    """Account for core-, GPU- and GiB-hours, by queue, user or label.

    Each attempt counts with its requests from its binding to its end, however it ended.
    """
    if output not in ("table", "json", "csv"):
        raise typer.BadParameter(f"table, json, csv, not {output!r}", param_hint="--output")
    try:
        view = await client.usage(by, since=since, until=until, queue=queue)
    except InvalidRequest as error:  # it names parameters of the URL, and the user wrote options
        raise InvalidRequest(re.sub(r"\?(?=(by|since|until|queue)\b)", "--", str(error))) from None
    if output == "table":
        printed.show(usage_table(view))
    elif output == "json":
        print(printed.to_json(view, indent=2))
    else:
        write_csv(view, sys.stdout)


def usage_table(view: UsageView) -> Columns:
    """A row for each name, and their sum."""

    def name(row: UsageSumView) -> Text:
        if not isinstance(row, UsageRowView):
            return Text("total", "bold")
        return render.text(_NONE, "dim") if row.name is None else render.text(row.name)

    saved = any(row.memory_saved_gib_hours for row in view.rows)
    return Columns(
        [*view.rows, view.total],
        Column(view.by.removeprefix("label:").upper(), name, cut=True),
        Column("WORKFLOWS", lambda row: str(row.workflows), rank=1, right=True),
        Column("CORE-HOURS", lambda row: render.hours(row.core_hours), right=True, whole=True),
        Column("GPU-HOURS", lambda row: render.hours(row.gpu_hours), right=True),
        Column("GiB-HOURS", lambda row: render.hours(row.memory_gib_hours), right=True),
        *(
            [Column("SAVED", lambda row: render.hours(row.memory_saved_gib_hours), right=True)]
            if saved
            else ()
        ),
        Column("RUNNING", lambda row: render.seconds(row.running_hours * 3600), rank=2, right=True),
        Column("QUEUED", lambda row: render.seconds(row.queued_hours * 3600), rank=3, right=True),
        Column("MOVED", lambda row: render.size(row.bytes_moved), rank=4, right=True),
    )


def write_csv(view: UsageView, file: Any) -> None:
    """A line for each name, without the sum: programs add by themselves. An empty name: no user, or no such label."""
    columns = [field.name for field in msgspec.structs.fields(UsageSumView)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([view.by, *columns])
    for row in view.rows:
        values = [getattr(row, column) for column in columns]
        plain = [f"{value:.6f}" if isinstance(value, float) else str(value) for value in values]
        writer.writerow([line(row.name or ""), *plain])
