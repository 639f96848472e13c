"""`flowsched plan`: what a WDL will run, as a table, JSON or a graph. Works without a service."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType

from flowsched.app import Settings
from flowsched.cli.options import runs, with_settings
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render, terminal_text
from flowsched.cli.printing.columns import Column, Columns
from flowsched.control.planning.wdl_path import WdlPath, folders
from flowsched.errors import InvalidRequest, TooLarge, Unsupported
from flowsched.workflow.formats.wdl.sources import Files, beside
from flowsched.workflow.plan import (
    NodePlan,
    Plan,
    RankPlan,
    StageForecast,
    prefetch,
    ranks,
    stages,
    until_text,
)

#: Inputs are JSON that people write or generate; Cromwell's largest are lists of samples.
INPUT_BYTES: Final = 64 << 20
#: Lists that a workflow reads (intervals, samples) are not longer than this.
CONTENT_BYTES: Final = 4 << 20


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
@with_settings("wdl_path")
@runs()
async def plan(
    source: Annotated[
        Path, typer.Argument(metavar="FILE.wdl", help="The workflow; imports are found beside it.")
    ],
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", metavar="JSON", help="Its inputs, as Cromwell takes them."),
    ] = None,
    *,
    settings: Settings,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or dot.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead (not a table).")] = None,
) -> None:
    """Say what a WDL will run, as far as it is known.

    Its calls, their order, how wide its scatters are, what its tasks ask for; and what is not known yet.

    Works without a server. Nothing is run, and nothing fetched.
    """
    if output not in ("table", "json", "dot"):
        raise typer.BadParameter(f"table, json, dot, not {output!r}", param_hint="--output")
    made = await asyncio.to_thread(planned, source, inputs, settings.engines.wdl_path)
    known = ranks(made, {})
    if output == "table":
        printed.show(table(made, known))
        return
    facts = {"plan": made, "ranks": known, "stages": stages(made), "files": prefetch(made)}
    text = dot(made) if output == "dot" else printed.to_json(facts, indent=2)
    if out is None:
        print(text)
    else:
        await asyncio.to_thread(out.write_text, text, encoding="utf-8")
        printed.hint(f"wrote {out}")


def planned(source: Path, inputs_file: Path | None, wdl_path: str = "") -> Plan:
    """The plan of a local WDL.

    Args:
        source: Its file.
        inputs_file: Inputs as JSON.
        wdl_path: Folders that may hold its imports, separated by colons.

    Raises:
        InvalidDocument: With file, line and column of each fault.
        ConfigurationError: One of the folders is none.
        Unsupported: miniwdl is not installed.
        OSError: The file cannot be read.
    """
    source.stat()  # a file that is not there is told as such
    if source.suffix in (".json", ".yaml", ".yml"):
        raise InvalidRequest(
            f"{source} is no WDL: plan works out what a WDL will run. A workflow document has its stages written down: "
            f"`flowsched simulate {source}` says when they would run"
        )
    try:
        from flowsched.workflow.formats.wdl.plan import plan_from
    except ModuleNotFoundError as error:
        raise Unsupported(f"planning WDL needs miniwdl ({error}): pip install 'flowsched[wdl]'") from error
    inputs = None if inputs_file is None else _inputs(inputs_file)

    library = WdlPath(folders(wdl_path))

    def read(uri: str, importer: str | None) -> tuple[str, str] | None:
        path: Path | None = source if importer is None else Path(beside(importer, uri))
        if "://" in uri or path is None or not path.is_file():
            path = library.find(uri, "")
        return None if path is None else (path.read_text(encoding="utf-8"), str(path))

    return plan_from(str(source), read, inputs, files=_files(inputs))


def _inputs(path: Path) -> dict[str, Any]:
    if path.stat().st_size > INPUT_BYTES:
        raise TooLarge(f"{path} has {path.stat().st_size} bytes; inputs may have {INPUT_BYTES}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f'{path} holds no object such as {{"workflow.input": value}}')
    return value


def _files(inputs: Any) -> Files:
    """Sizes and texts of the files here that the inputs name, and of no others: a source may name any file."""
    named = set(_texts(inputs))

    def here(name: str) -> bool:
        return name.startswith("/") and name in named and os.path.isfile(name)

    def content(name: str) -> str | None:
        if not here(name) or os.path.getsize(name) > CONTENT_BYTES:
            return None
        try:
            return Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return None

    return Files(lambda name: os.path.getsize(name) if here(name) else None, content)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def table(plan: Plan, known: dict[str, RankPlan]) -> RenderableType:
    """Nodes in the order of their levels, what each level asks for, and what is not known."""
    parents: dict[str, list[str]] = {}
    for edge in plan.edges:
        parents.setdefault(edge.child, []).append(edge.parent)
    short = len(plan.name) + 1

    def tasks(node: NodePlan) -> str:
        doubt = {"yes": "", "no": "not run: ", "unknown": "perhaps "}[node.runs]
        return doubt + ("?" if node.tasks is None else str(node.tasks))

    def shown(name: str, form: Any) -> Callable[[NodePlan], str]:
        def amount(node: NodePlan) -> str:
            value = getattr(node, name).value
            return "?" if value is None else str(form(value))

        return amount

    def after(node: NodePlan) -> str:
        return terminal_text.line(", ".join(path[short:] for path in parents.get(node.path, [])))

    def to_the_end(node: NodePlan) -> str:
        return "" if node.runs == "no" else render.seconds(known[node.path].rank_ms / 1000)

    nodes = Columns(
        sorted(plan.nodes, key=lambda each: each.level),
        Column("LEVEL", lambda node: str(node.level), rank=4, right=True, whole=True),
        Column("CALL", lambda node: terminal_text.line(node.path[short:]), cut=True, whole=True),
        Column("TASKS", tasks, whole=True),
        Column("CPU", shown("cpu", render.cores), rank=1, whole=True),
        Column("MEMORY", shown("memory", render.size), rank=1, whole=True),
        Column("DISK", shown("disk", render.size), rank=3, whole=True),
        Column("GPU", lambda node: "" if node.gpu.value == 0 else shown("gpu", str)(node), rank=2),
        Column("TO THE END", to_the_end, rank=5, right=True),
        Column("AFTER", after, rank=6, cut=True),
    )
    forecast = render.plain_table("LEVEL", "TASKS", "CPU", "MEMORY", "DISK", "GPU", "")
    for stage in stages(plan):
        forecast.add_row(*_stage(stage))
    calls = f"{len(plan.nodes)} call{'s' * (len(plan.nodes) != 1)}"
    head = (
        f"{plan.name}: {calls}, {plan.language}; a minute is taken for each task whose runtime is not known"
    )
    found: list[RenderableType] = [
        terminal_text.line(head),
        "",
        nodes,
        "",
        "Together, as far as it is known",
        forecast,
    ]
    unknown = list(_unknown(plan))
    if unknown:
        found += ["", "Not known yet", *(terminal_text.line(f"  {each}") for each in unknown)]
    found += [terminal_text.line(f"note: {note}") for note in plan.notes]
    return Group(*found)


def _stage(stage: StageForecast) -> list[str]:
    more = "and more" if stage.partial else ""
    amounts = (
        render.cores(stage.cpu_millicores),
        render.size(stage.memory_bytes),
        render.size(stage.disk_bytes),
    )
    return [str(stage.level), str(stage.tasks), *amounts, str(stage.gpus) if stage.gpus else "", more]


def _unknown(plan: Plan) -> Iterator[str]:
    """The parts of a plan that are not known, and the calls that they wait for."""
    for scatter in plan.scatters:
        if scatter.total is None:
            yield f"width of scatter ({scatter.variable} in {scatter.over}): {until_text(scatter.until)}"
    for condition in plan.conditions:
        if condition.holds == "unknown":
            yield f"if ({condition.text}): {until_text(condition.until)}"
    for node in plan.nodes:
        for name, amount in (
            ("cpu", node.cpu),
            ("memory", node.memory),
            ("disk", node.disk),
            ("gpu", node.gpu),
        ):
            if amount.value is None and node.runs != "no":
                yield f"{name} of {node.path}: {until_text(amount.until)}"


def dot(plan: Plan) -> str:
    """The plan in Graphviz's language."""
    lines = ["digraph plan {", '  node [shape=box, style=rounded, fontname="sans-serif"];']
    for node in plan.nodes:
        cpu = "? cpu" if node.cpu.value is None else f"{node.cpu.value / 1000:g} cpu"
        memory = "? memory" if node.memory.value is None else f"{node.memory.value / (1 << 30):.3g} GiB"
        gpu = f", {node.gpu.value} GPU" if node.gpu.value else ", ? GPU" if node.gpu.value is None else ""
        width = f"× {'?' if node.tasks is None else node.tasks}, " if node.scatters else ""
        label = f"{node.path[len(plan.name) + 1 :]}\n{width}{cpu}, {memory}{gpu}"
        style = {"yes": "", "unknown": ", style=dashed", "no": ", style=dotted, fontcolor=gray"}[node.runs]
        lines.append(f"  {_quoted(node.path)} [label={_quoted(label)}{style}];")
    for edge in plan.edges:
        style = " [style=dashed]" if edge.kind == "order" else ""
        lines.append(f"  {_quoted(edge.parent)} -> {_quoted(edge.child)}{style};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
