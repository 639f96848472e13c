"""`flowsched get`, and `run --out`: outputs of tasks become files here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flowsched.cli.context import DONE, echo
from flowsched.cli.naming import index_of, task_name
from flowsched.cli.options import asks
from flowsched.cli.printing import render, terminal_text
from flowsched.client import Client
from flowsched.client.calls import save_outputs, tasks_with_outputs
from flowsched.client.outputs import check_declared, declared_outputs
from flowsched.errors import Conflict, InvalidRequest, NotFound, no_such
from flowsched.workflow.views import StageView

#: A name of an output as the command line takes it: `STAGE` (all of it), `STAGE.OUTPUT`.
Wanted = tuple[str, str | None]


def wanted(text: str) -> Wanted:
    """`call.vcf` as its parts."""
    stage, dot, name = text.partition(".")
    return stage, name if dot else None


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
@asks()
async def get(
    client: Client,
    ident: str,
    what: Annotated[
        str | None,
        typer.Argument(metavar="STAGE[.OUTPUT]", help="Which outputs. [those of the final stages]"),
    ] = None,
    task: Annotated[
        str | None, typer.Argument(metavar="INDEX|ITEM|ROLE", help="Of one of its tasks. [all]")
    ] = None,
    into: Annotated[str, typer.Option("--out", "-O", metavar="DIR", help="Where to; - is stdout.")] = ".",
) -> int:
    """Save what a task made.

    Files keep the names that the task gave them; a folder comes as a .tar file. The outputs of a scattered stage go
    into a folder per shard. Without a stage, the outputs of the stages that no other reads go into a folder per stage.
    """
    if what is None:
        await _check_retained(client, ident)
        if into == "-":
            raise InvalidRequest(f"`-O -` takes one output: `flowsched get {ident} STAGE.OUTPUT -O -`")
        await save_results(client, ident, Path(into), [])
        return DONE
    asked = wanted(what)
    stages = {stage.name: stage for stage in await client.stages(ident)}
    if asked[0] not in stages:
        raise NotFound(f"workflow {ident}: {no_such('stage', asked[0], stages)}")
    await _check_retained(client, ident)
    declared = {} if asked[1] is None and task is None else declared_outputs(await client.document(ident))
    if asked[1] is not None:
        check_declared(declared, *asked, f"workflow {ident}")
    elif task in declared.get(what, []):
        raise InvalidRequest(f"{task} is an output of {what}: `flowsched get {ident} {what}.{task}`")
    index = None if task is None else await index_of(client, ident, asked[0], task)
    if into == "-":
        found = await _to_stdout(client, ident, asked, index)
    else:
        stage = stages[asked[0]]
        found = bool(await save(client, ident, [stage], [asked], Path(into), index, nested=False))
    if not found:
        raise NotFound(await _why_nothing(client, ident, stages[asked[0]], index, what))
    return DONE


async def _why_nothing(client: Client, ident: str, stage: StageView, index: int | None, what: str) -> str:
    """The message that nothing was saved, with the state of the stage or task."""
    task = None if index is None else await client.task(ident, stage.name, index)
    whose, state = (stage.name, stage.state) if task is None else (task_name(task), task.state)
    so_far = "" if (await client.get(ident)).ended_at else " so far"
    return f"{what} of {ident}: nothing was written there{so_far}; {whose} is {state}"


def check(document: bytes, fetch: Sequence[str]) -> None:
    """Refuse a name behind `--fetch` before the document runs; see `check_declared`."""
    declared = declared_outputs(document)
    for text in fetch:
        check_declared(declared, *wanted(text), "--fetch")


async def _check_retained(client: Client, ident: str) -> None:
    """Refuse a run whose outputs flowsched does not keep."""
    source = (await client.get(ident)).source
    if source:
        raise Conflict(
            f"{ident} is a run of {source}, which keeps its outputs itself, in its own folder of the run"
        )


async def _to_stdout(client: Client, ident: str, asked: Wanted, index: int | None) -> bool:
    """Write one output to stdout; False where there is none.

    Raises:
        Conflict: There are several.
    """
    found = [
        (task.index, output.name)
        async for task in tasks_with_outputs(client, ident, asked[0], index)
        for output in task.outputs
        if asked[1] in (None, output.name)
    ]
    if not found:
        return False
    if len(found) > 1:
        there = ", ".join(f"{asked[0]}.{name} {number}" for number, name in found[:5])
        raise Conflict(f"`-O -` takes exactly one output; these fit ({len(found)}): {there}")
    number, name = found[0]
    async for chunk in client.output(ident, asked[0], number, name):
        sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
    return True


async def save_results(client: Client, ident: str, out: Path, fetch: Sequence[str]) -> None:
    """Save outputs of the final stages, or those named, as OUT/STAGE/SHARD/FILE."""
    stages = await client.stages(ident)
    asked = [wanted(text) for text in fetch]
    if not asked:
        document = json.loads(await client.document(ident))
        asked = [(name, None) for name in final_stages(document)]
    if not await save(client, ident, stages, asked, out, None, nested=True):
        echo(
            f"nothing was saved in {out}: {', '.join(name for name, _ in asked)} wrote no outputs "
            f"(--fetch, or `flowsched get {ident} STAGE`, names others)"
        )


def final_stages(document: dict[str, Any]) -> list[str]:
    """The stages with outputs that no other stage reads, in the document's order."""
    stages = document.get("stages", [])
    read = {
        entry["from"].partition(".")[0]
        for stage in stages
        for entry in stage.get("inputs", [])
        if isinstance(entry.get("from"), str)
    }
    return [stage["name"] for stage in stages if stage["name"] not in read]


async def save(
    client: Client,
    ident: str,
    stages: Sequence[StageView],
    asked: Sequence[Wanted],
    out: Path,
    index: int | None,
    *,
    nested: bool,
) -> list[Path]:
    """Save what was asked for of some stages, and say each file.

    Args:
        client: Where they are.
        ident: The workflow.
        stages: All that are in `asked`.
        asked: Which outputs.
        out: Folder for the files.
        index: Of one task; None = all.
        nested: Into a folder per stage.
    """
    saved = []
    for stage in stages:
        names = [name for of_stage, name in asked if of_stage == stage.name]
        if not names:
            continue
        folder = out / stage.name if nested else out
        only = None if None in names else [name for name in names if name is not None]
        async for path, _ in save_outputs(client, ident, stage, only, folder, index):
            saved.append(path)
            echo(f"{terminal_text.line(str(path))}  {render.size(path.stat().st_size)}")
    return saved
