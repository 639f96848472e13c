"""`flowsched seff`: what tasks used of what they asked for, and what to ask for instead, as Slurm's seff has it for jobs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from flowsched.cli.following import engine_of, taken_from
from flowsched.cli.naming import index_of
from flowsched.cli.printing import output, render
from flowsched.cli.printing.columns import Column, Columns
from flowsched.cli.printing.form import Form
from flowsched.client.calls import Client
from flowsched.errors import NotFound
from flowsched.workflow.efficiency import (
    LEAST_RUN_MS,
    LEAST_SAVED_BYTES,
    EfficiencyView,
    efficiencies,
    running_ms,
    size,
    whole,
)
from flowsched.workflow.views import AttemptUseView, WorkflowView

_UNKNOWN = "-"


async def seff(client: Client, ident: str, stage: str | None, task: str | None, form: Form) -> None:
    """`flowsched seff`."""
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
    if form is not Form.TABLE:
        output.many(found, form, lambda _: Text())
        return
    view = await client.get(ident)
    output.show(efficiency_text(view, found, attempts if stage is not None else []))


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
        _stages(stages),
    ]
    if attempts:
        parts += [Text(), _attempts(attempts)]
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
    told, tries = whole(stages), sum(each.attempts for each in stages)
    used, core_seconds = told["cpu_seconds"], told["core_seconds"] or 0.0
    lines = [
        f"CPU utilized:    {_UNKNOWN if used is None else render.seconds(used)}",
        f"CPU efficiency:  {_percent(told['cpu_efficiency'])} of {render.seconds(core_seconds)} core-walltime",
        f"Running time:    {render.seconds(told['running_seconds'] or 0.0)} over {tries} attempt{'s' * (tries != 1)}",
    ]
    if view is not None and view.started_at is not None and view.ended_at is not None:
        lines.append(f"Wall-clock time: {render.seconds((view.ended_at - view.started_at).total_seconds())}")
    return [render.text(line) for line in lines]


def _stages(stages: list[EfficiencyView]) -> Columns:
    table = Columns([
        Column("STAGE", cut=True),
        Column("TRIES", rank=2, right=True),
        Column("FAILED", rank=3, right=True),
        Column("RAN", rank=1, right=True),
        Column("CORES", right=True, whole=True),
        Column("USED", right=True, whole=True),
        Column("CPU", right=True, whole=True),
        Column("MEMORY", right=True, whole=True),
        Column("PEAK", right=True, whole=True),
        Column("MEM", right=True, whole=True),
        Column("READ", rank=4, right=True),
        Column("WRITTEN", rank=5, right=True),
    ])  # fmt: skip
    for each in stages:
        table.add(
            render.text(each.stage),
            str(each.attempts),
            str(each.failed),
            render.seconds(each.running_seconds),
            f"{each.cores_asked:g}",
            _UNKNOWN if each.cores_used is None else f"{each.cores_used:.2f}",
            _percent(each.cpu_efficiency),
            size(each.memory_asked_bytes) if each.memory_asked_bytes else _UNKNOWN,
            _UNKNOWN if each.memory_used_bytes is None else size(each.memory_used_bytes),
            _percent(each.memory_efficiency),
            "" if each.read_bytes is None else render.size(each.read_bytes),
            "" if each.written_bytes is None else render.size(each.written_bytes),
        )
    return table


def _attempts(attempts: list[AttemptUseView]) -> Columns:
    table = Columns([
        Column("TASK"),
        Column("ATTEMPT", right=True),
        Column("NODE", rank=2, cut=True),
        Column("EXIT", right=True, whole=True),
        Column("REASON", rank=1, cut=True),
        Column("RAN", right=True, whole=True),
        Column("CPU TIME", right=True, whole=True),
        Column("CPU", right=True, whole=True),
        Column("PEAK", right=True, whole=True),
        Column("MEM", right=True, whole=True),
    ])  # fmt: skip
    for each in attempts:
        ran_ms, used = running_ms(each), each.usage
        cpu_ms, peak = used.get("cpu_ms", 0), used.get("max_rss_bytes", 0)
        held_ms = each.requested.get("cpu", 0) * ran_ms / 1000
        memory = each.requested.get("memory", 0)
        table.add(
            str(each.index),
            str(each.attempt),
            render.text(each.node),
            _UNKNOWN if each.exit_code is None else str(each.exit_code),
            render.text(each.reason if each.ended_at else "RUNNING"),
            render.seconds(ran_ms / 1000) if ran_ms else _UNKNOWN,
            render.seconds(cpu_ms / 1000) if cpu_ms else _UNKNOWN,
            _percent(cpu_ms / held_ms if cpu_ms and held_ms else None),
            size(peak) if peak else _UNKNOWN,
            _percent(peak / memory if peak and memory else None),
        )
    return table


def _percent(part: float | None) -> str:
    return _UNKNOWN if part is None else f"{part:.0%}"
