"""`flowsched run`, `submit` and `retry`: hand in a document, follow it, print what it made or why it failed."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from flowsched import tokens
from flowsched.app import Settings
from flowsched.cli import failures, fetching, following, naming, used_images
from flowsched.cli.context import (
    DONE,
    INTERRUPTED,
    Options,
    about,
    ask,
    carry_out,
    client_of,
    echo,
    options,
    run,
)
from flowsched.cli.engines import EngineWorkflow, engine_workflow
from flowsched.cli.options import Id, Output, Reason, with_settings
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render, terminal_text
from flowsched.cli.printing.columns import Column, Columns
from flowsched.cli.printing.form import Form
from flowsched.client import Client, Run
from flowsched.client.documents import resolved_bytes
from flowsched.client.positions import with_lines
from flowsched.errors import (
    CannotStart,
    ConfigurationError,
    Conflict,
    InUse,
    InvalidDocument,
    InvalidRequest,
)
from flowsched.values import replace
from flowsched.workflow.formats.heads import language_of
from flowsched.workflow.views import OutputView, StageView, WorkflowView

#: PyYAML reads about 1 MB in 10 s: longer documents come as JSON.
_LONGEST_YAML: Final = 4 << 20
#: WDL of any name is known by so many first bytes.
_HEAD_BYTES: Final = 65_536
#: At the end so many outputs are printed; `show` has the rest.
OUTPUTS_SHOWN: Final = 20


commands = typer.Typer(rich_markup_mode=None)


@commands.command("run")
@with_settings(
    "root", "nodes", "cpu", "memory", "gpus", "policy", "containers", "images", "container_network", "allow_paths", port=0
)  # fmt: skip
def run_command(
    ctx: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT",
            help="A workflow as JSON or YAML (- reads standard input), or of another engine: x.wdl, main.nf, Snakefile, x.cwl.",
        ),
    ],
    settings: Settings,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Of the engine, behind its workflow.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM", help="The engine, where several run the language. [the first on the PATH]"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Save the results there, as DIR/STAGE/FILE or DIR/STAGE/SHARD/FILE."
        ),
    ] = None,
    fetch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE[.OUTPUT]",
            help="With --out: which outputs. Repeatable. [of stages without readers]",
        ),
    ] = None,
    wait_for_nodes: Annotated[
        bool, typer.Option("--wait-for-nodes", help="Wait where a task asks for what no node has.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take the results of the newest ended run of this name.")
    ] = False,
    resume_from: Annotated[
        str | None, typer.Option(metavar="RUN", help="Take the results of this run.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Run a workflow and show how it goes; needs no server.

    Starts a service in this process, on --root, unless --server (or FLOWSCHED_SERVER) names one. The exit code is
    0 if the workflow succeeded and 1 if it failed, or if a task asks for what no node has. Ctrl-C cancels the
    workflow (a second one leaves at once); with --server it leaves the workflow alone and says how to come back.

    An engine runs a workflow in WDL, Nextflow, Snakemake or CWL, and must be on the PATH. The engine sends
    its tasks to the service, works in the current folder and leaves its results there.
    """
    if fetch and out is None:
        raise typer.BadParameter(
            "it says which outputs `--out DIR` saves: give --out, too", param_hint="--fetch"
        )
    if out is not None and str(out) == "-":
        raise typer.BadParameter(
            "results are several files, which go into a folder; `flowsched get ID STAGE.OUTPUT -O -` prints one",
            param_hint="--out",
        )
    opts = options(ctx)
    here = settings if ctx.params["root"] is not None or opts.server is None else None
    results = None if out is None else Results(out, tuple(fetch or ()))
    base = resume_from or ("" if resume else None)
    foreign = language(path)
    if not foreign and (arguments or engine):
        raise typer.BadParameter(
            f"{path} is a document of flowsched, which no engine runs", param_hint="--engine"
        )
    if foreign and (results or base is not None):
        raise typer.BadParameter(
            "the engine keeps its results and what it can resume: give its own option behind --, such as `-- -resume`",
            param_hint="--out" if results else "--resume",
        )
    if here is not None:
        here = replace(here, token=secrets.token_hex(16))  # for this run: other accounts see the port, too

    def read(own: Settings | None) -> Document | EngineWorkflow:
        if not foreign:
            return document(path)
        root, token = (None, opts.token) if own is None else (own.root, own.token)
        return engine_workflow(path, foreign, engine, arguments or (), root, token)

    run(opts, _run(opts, path, here, output, results, read=read, endless=wait_for_nodes, resume=base))


@commands.command()
def submit(
    ctx: typer.Context,
    documents: Annotated[
        list[str],
        typer.Argument(metavar="DOCUMENT...", help="Workflows as JSON or YAML; - reads standard input."),
    ],
    key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Submitting it twice makes one workflow.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Show how it goes until it has ended, even if no node has room for it now."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the document; needs no server, and submits nothing.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Hand workflows to a server; prints their ids."""
    if key is not None and len(documents) > 1:
        raise typer.BadParameter(
            "a key stands for one document: submit them one by one", param_hint="--idempotency-key"
        )
    if not dry_run:
        ask(ctx, lambda client: _submit(client, documents, key, wait, output))
    else:
        carry_out(options(ctx), lambda: _check(documents))


@commands.command()
def retry(
    ctx: typer.Context,
    workflow: Id,
    reason: Reason = None,
    changed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A new run, of this document; what did not change is not run again."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Show how it goes until it has ended.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Try again what failed."""
    if changed is None:
        about(
            ctx, workflow, lambda client, ident: _retry(client, ident, reason, output, wait=wait),
            to_change=True, own=True,
        )  # fmt: skip
    elif reason is not None:
        raise typer.BadParameter("--changed makes a new run, which keeps no reason: leave out --reason")
    else:
        run(options(ctx), _resubmit(options(ctx), workflow, changed, output, wait=wait))


class Produced(msgspec.Struct, frozen=True):
    """An output of one task, for the end of a run."""

    stage: str
    index: int
    output: OutputView


class Results(msgspec.Struct, frozen=True):
    """Where outputs shall be saved at the end of a run, and which (none named: those of the final stages)."""

    out: Path
    fetch: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """A workflow document."""

    name: str  #: of its file, as the user gave it
    written: bytes  #: as it was read: JSON or YAML
    raw: bytes  #: as it is sent: JSON, and its relative URIs made absolute

    @contextmanager
    def faults_by_line(self) -> Iterator[None]:
        """Faults that the service finds in it get the line of the file."""
        try:
            yield
        except InvalidDocument as error:
            raise with_lines(error, self.name, self.written) from None

    async def submit(self, client: Client, key: str | None = None, resume: str | None = None) -> Run:
        """Hand it in.

        Raises:
            InvalidDocument: With the lines of its faults.
        """
        with self.faults_by_line():
            return await client.submit(self.raw, idempotency_key=key, resume=resume)


def document(path: str) -> Document:
    """A document (JSON or YAML) from a file, or from standard input (`-`).

    Raises:
        InvalidRequest: It is empty, of another language, or YAML that cannot be read.
    """
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    where = "standard input" if path == "-" else path
    if not raw.strip():
        raise InvalidRequest(
            f"{where} is empty; a workflow as JSON or YAML was expected: docs/workflow-document.md"
        )
    if other := language_of(where, raw[:_HEAD_BYTES]):
        raise InvalidRequest(
            f"{where} is a workflow of another engine ({other}): give its file to `flowsched run`, which starts the engine "
            "(docs/engines.md)"
        )
    folder = Path.cwd() if path == "-" else Path(path).absolute().parent
    return Document(where, raw, resolved_bytes(_as_json(raw, where), folder))


def language(path: str) -> str:
    """The language of a file that another engine runs; "" = a document of flowsched, or no file. A pipe can be read only once."""
    try:
        if Path(path).is_file():
            with open(path, "rb") as file:
                return language_of(path, file.read(_HEAD_BYTES))
    except OSError:
        pass
    return language_of(path)


def _as_json(raw: bytes, where: str) -> bytes:
    """The text of a document as JSON.

    Raises:
        InvalidRequest: It is neither JSON nor YAML; with file, line and column.
    """
    if raw.lstrip()[:1] not in (b"{", b"[") and where.endswith((".yaml", ".yml", "standard input")):
        from flowsched.workflow.formats.yaml_text import read_yaml

        try:
            return json.dumps(read_yaml(raw, _LONGEST_YAML)).encode()
        except InvalidRequest as error:
            raise type(error)(f"{where}: {error}") from None
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        hint = "" if raw.lstrip()[:1] in (b"{", b"[") else "; if it is YAML, let its name end in .yaml"
        raise InvalidRequest(f"{where}:{error.lineno}:{error.colno}: not JSON: {error.msg}{hint}") from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        pass  # the service says what is wrong with it
    return raw


def _check(paths: Sequence[str]) -> int:
    """`flowsched submit --dry-run`: read documents as the service does, and tell the faults of the first that has some.

    Asks no service.

    Raises:
        FlowschedError: A document is wrong; the message says where.
    """
    from flowsched.workflow.document.decode import decode_workflow

    for found in [document(path) for path in paths]:
        with found.faults_by_line():
            spec = decode_workflow(found.raw)
        number, tasks = len(spec.stages), sum(stage.tasks for stage in spec.stages)
        echo(
            f"{found.name} has no faults: {number} stage{'s' * (number != 1)}, {tasks} task{'s' * (tasks != 1)}"
        )
    return DONE


async def _submit(
    client: Client,
    paths: Sequence[str],
    key: str | None,
    wait: bool,
    form: Form,
) -> int:
    """`flowsched submit`. Reads all documents before it hands in the first, and hands in all before it waits for one.

    The exit code is the first that is not 0.
    """
    accepted: list[tuple[str, Run]] = []
    for path, found in [(path, document(path)) for path in paths]:
        run = await found.submit(client, key)
        accepted.append((path, run))
        if not run.created:
            echo(f"{run.id} had been accepted before, under the same key")
        for note in run.notes:
            echo(note)
        if wait:
            echo(f"submitted {run.id}")
            continue
        answer = {"id": run.id, "created": run.created}
        printed.one(answer, form, lambda ident=run.id: ident)  # type: ignore[misc]
    code = DONE
    for path, run in accepted if wait else ():
        ended = await _followed(client, run.id, form, path)
        if ended == INTERRUPTED:
            return ended
        code = code or ended
    return code


async def _followed(client: Client, ident: str, form: Form, path: str) -> int:
    """Follow a workflow of a server, and print what it made."""
    code = await following.watch(client, ident)
    if code != INTERRUPTED:
        await result(client, ident, form, own=None, path=path)
    return code


async def _resubmit(opts: Options, workflow: str, path: str, form: Form, *, wait: bool = False) -> int:
    """`flowsched retry --changed`: a new run that takes the results of another. `wait`: as for `submit`."""
    raw = document(path)
    async with client_of(opts.server, opts.token) as client:
        base = await naming.find(client, workflow, own=True)
        accepted = await raw.submit(client, resume=base)
        if wait:
            echo(f"submitted {accepted.id}")
            return await _followed(client, accepted.id, form, path)
        printed.one({"id": accepted.id, "resumes": base}, form, lambda: accepted.id)
        if form is Form.TABLE:
            printed.hint(
                f"`flowsched watch {accepted.id}` follows it; `flowsched cache {accepted.id}` says what it takes"
            )
        return DONE


async def _retry(client: Client, ident: str, reason: str | None, form: Form, *, wait: bool) -> int:
    view = await client.retry(ident, reason)
    code = await following.watch(client, ident) if wait else DONE
    if code != INTERRUPTED:
        view = await client.get(ident) if wait else view
        printed.one(view, form, lambda: render.workflow_head(view))
    if not wait and form is Form.TABLE:
        printed.hint(
            "it keeps what succeeded, with the document as it was submitted; after an edit of the document or of an input: "
            f"`flowsched retry {ident} --changed FILE`"
        )
    return code


async def _run(
    opts: Options,
    path: str,
    settings: Settings | None,
    form: Form,
    results: Results | None = None,
    *,
    read: Callable[[Settings | None], Document | EngineWorkflow],
    endless: bool = False,
    resume: str | None = None,
) -> int:
    """`flowsched run`: on a server, or (with settings) on a service in this process, or on the one that has its root already.

    `read`: gives the workflow, for a service in this process or another one. `endless`: a stage that asks for what no node has
    waits until there is one. `resume`: the run whose results are taken; "" = the newest ended one of the same name.
    """
    there = None if settings is None else tokens.url_of(settings.root)
    if settings is not None and there is not None:
        echo(f"{settings.root} belongs to the service at {there}: it runs there, on that service's nodes")
        settings = None
    own = None if settings is None else settings.root
    found = read(settings)
    if results is not None:
        fetching.check(found.raw, results.fetch)
    if settings is None:
        served: AbstractAsyncContextManager[Client] = client_of(there or opts.server, opts.token)
    else:
        served = _embedded(settings, listens=isinstance(found, EngineWorkflow))
    async with served as client:
        base = await _resumed(client, found.raw, resume, own=own is not None)
        accepted = await found.submit(client, resume=base)
        if own is None:
            echo(f"submitted {accepted.id}")
        code: int | None = None
        while code is None:
            try:
                code = await following.watch(client, accepted.id, own=own is not None, endless=endless)
            except CannotStart:
                if (code := await following.give_up(client, accepted.id)) is not None:
                    return code
        if code != INTERRUPTED:
            await result(client, accepted.id, form, own=own, results=results, path=path)
        elif own is not None and isinstance(found, Document):
            echo(f"go on: `flowsched run {path} --resume` takes what had succeeded")
        return code


async def _resumed(client: Client, raw: bytes, resume: str | None, *, own: bool = False) -> str | None:
    """The id of the run to resume.

    Args:
        client: Of the service.
        raw: The document that is to run.
        resume: The run that the user named; "" = the newest of the document's name; None = none.
        own: The service is in this process. A run that still goes on was left behind by a process that was killed: no other
            client follows it, and it is cancelled.

    Raises:
        NotFound: There is none.
        Conflict: It still goes on.
    """
    if resume is None:
        return None
    if resume:
        return await _ended(client, await client.get(await naming.find(client, resume, own=True)), own=own)
    try:
        name = json.loads(raw)["name"]
    except (ValueError, KeyError, TypeError):
        return None  # the service says what is wrong with the document
    async with aclosing(client.list(name=name, page=20)) as views:
        newest: WorkflowView | None = None
        async for view in views:
            if view.source:  # the run of another engine has no results to take: its engine keeps them
                continue
            if newest is None or view.created_at > newest.created_at:
                newest = view
            if view.ended_at is not None:  # live ones come before, each newest first
                break
    if newest is not None:
        return await _ended(client, newest, own=own)
    echo(
        f"there is no earlier run of {name!r} here: all of it runs; --resume-from RUN takes results of a run of another name"
    )
    return None


async def _ended(client: Client, view: WorkflowView, *, own: bool) -> str:
    """The id of a run, once it has ended."""
    if view.source:
        raise Conflict(
            f"{view.id} ({view.name}) is a run of {view.source}, which keeps a cache of its own: name a run of "
            "`flowsched run` or `submit`: --resume-from RUN"
        )
    if view.ended_at is None and own:
        echo(f"{view.id} was left behind: it is cancelled, and its results are kept")
        await client.cancel(view.id, reason="resumed by another run")
        view = await Run(view.id, False, client).wait()
    elif view.ended_at is None:
        raise Conflict(
            f"{view.id} ({view.name}) is {view.state}: wait for its end, or `flowsched cancel {view.id}` first; or name "
            "another: --resume-from RUN"
        )
    echo(f"resumes {view.id} ({view.state}, {view.created_at:%Y-%m-%d %H:%M})")
    return view.id


@asynccontextmanager
async def _embedded(settings: Settings, *, listens: bool) -> AsyncIterator[Client]:
    """A client of a service in this process. `listens`: an engine asks it over its port, too."""
    from flowsched import app
    from flowsched.cli.own_service import OwnService
    from flowsched.log_lines import configure_logging

    configure_logging(settings.log_level, as_json=settings.log_json, lazily=True)
    try:
        async with app.running(settings) if listens else app.alone(settings) as running:
            session = None if listens else OwnService(running.service)
            async with Client(running.url, settings.token, session=session) as client:
                app.spare_the_collector()
                yield client
    except InUse as error:
        raise in_use(error, settings.root) from None


def in_use(error: InUse, root: Path) -> ConfigurationError:
    """Another process has the root: its URL, if it is a service of this user."""
    url = tokens.url_of(root)
    where = (
        f"its service listens at {url}: give --server {url}"
        if url
        else "if it is another `flowsched run`, wait for its end (a service takes several runs at once: `flowsched serve`); "
        "if it is a service, give its --server URL"
    )
    return ConfigurationError(f"{str(error).partition('. ')[0]}; {where}; or take another --root")


async def result(
    client: Client,
    ident: str,
    form: Form,
    own: Path | None,
    results: Results | None = None,
    path: str = "FILE",
) -> None:
    """The outputs of a workflow, or why it failed, and the next commands.

    Args:
        client: Where it ran.
        ident: Which one.
        form: JSON for programs.
        own: The folder of the service in this process, if it ran there: later commands need a service on it.
        results: The outputs to save.
        path: Its document, as the user named it.
    """
    view, stages = await client.get(ident), await client.stages(ident)
    made = [] if view.source else await produced(client, ident, stages)
    images = await used_images.used_images(client, ident, stages)
    if form is not Form.TABLE:
        outputs = [{"stage": p.stage, "index": p.index, **msgspec.to_builtins(p.output)} for p in made]
        answer = {"workflow": view, "stages": stages, "outputs": outputs, "images": images}
        with printed.while_read():
            printed.one(answer, form, lambda: "")
        if results is not None and following.verdict(view) == DONE:
            await fetching.save_results(client, ident, results.out, results.fetch)
        return
    with printed.while_read():
        if printed.console(stderr=True).is_terminal:
            print()
        else:
            printed.show(render.workflow_head(view))
        printed.show(render.stage_table(stages))
        if made:
            print()
            printed.show(output_table(made))
            writing = {each.stage for each in made}
            ended = sum(stage.counts.get("SUCCEEDED", 0) for stage in stages if stage.name in writing)
            if more := ended - len({(each.stage, each.index) for each in made}):
                printed.hint(f"… and those of {more} more tasks: `flowsched get {ident} {made[-1].stage}`")
        for image in images:
            printed.show(used_images.image_line(image))
    log = ""
    if following.verdict(view) != DONE:
        log = await failures.show(client, view, own or tokens.root_of(client.url), most=3)
    elif results is not None:
        print()
        await fetching.save_results(client, ident, results.out, results.fetch)
    root = "" if own is None or own == tokens.data_folder() else f" --root {own}"
    if view.state == "FAILED":
        shown = f"`flowsched logs {view.id} {log}{root}`; " if log else ""
        again = f"`flowsched run {path} --resume{root}` runs what has not succeeded, or has changed"
        if view.source:
            again = f"run it again with what {view.source} takes to resume, behind --"
        elif own is None:
            again = following.next_try(ident, path)
        echo(f"\nnext: {shown}{again}")
    elif view.state == "SUCCEEDED" and view.source:
        for line in await client.log_tail(ident, view.source, 0, OUTPUTS_SHOWN, stream="stdout"):
            print(terminal_text.line(line))
        echo(
            f"\n{view.source} has left its results where it ran; its log: `flowsched logs {ident} {view.source} -e{root}`"
        )
    elif view.state == "SUCCEEDED":
        first = "" if own is None else f"`flowsched serve{root}`, then "
        saving = f"`flowsched get {view.id} {made[-1].stage}` saves its outputs here" if made else ""
        if results is not None:
            saving = (
                f"`flowsched get {view.id} STAGE` saves what another stage made" if len(stages) > 1 else ""
            )
        echo(f"\nnext: {first}{saving or f'`flowsched show {view.id} --tasks`'}")
    if results is not None and view.state != "SUCCEEDED":
        echo(f"{results.out} was not written: the run has not succeeded")


async def produced(client: Client, ident: str, stages: Sequence[StageView]) -> list[Produced]:
    """Outputs to show: of stages that no other one reads, and every recorded value; the first tasks of each."""
    declared: list[dict[str, Any]] = json.loads(await client.document(ident)).get("stages", [])
    writing = {stage["name"] for stage in declared if stage.get("outputs") or stage.get("container")}
    valued = {
        stage["name"] for stage in declared if any(entry.get("value") for entry in stage.get("outputs", []))
    }
    needed = {name for stage in stages for name in stage.needs}
    found: list[Produced] = []
    for stage in stages:
        last = stage.name not in needed
        if stage.name not in writing or not (last or stage.name in valued):
            continue
        if not stage.counts.get("SUCCEEDED"):
            continue
        for index in range(min(stage.width * stage.members, 8)):
            if len(found) >= OUTPUTS_SHOWN:
                return found
            task = await client.task(ident, stage.name, index)
            found += [Produced(stage.name, index, o) for o in task.outputs if last or o.value is not None]
    return found


def output_table(made: Sequence[Produced]) -> Columns:
    """Outputs with their values, or where they are."""

    def value(each: Produced) -> Text:
        found = (each.output.value or "").strip()
        return render.text(found if len(found) <= 200 else found[:200] + "…")

    def name(each: Produced) -> Text:
        return render.text(f"{each.stage}[{each.index}].{each.output.name}", "bold")

    return Columns(
        made,
        Column("OUTPUT", name, cut=True, whole=True),
        Column("SIZE", lambda each: render.size(each.output.size_bytes), right=True, whole=True),
        Column("VALUE", value, rank=1, cut=True),
        Column("ON", lambda each: render.text(", ".join(each.output.nodes)), rank=2, cut=True),
        note=lambda each: render.text(each.output.uri, "dim"),
        noted="URI",
        copied=True,
    )
