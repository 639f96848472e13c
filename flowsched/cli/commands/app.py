"""All commands, their options and their help. Bodies live in the modules they import when they run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from flowsched import variables
from flowsched.cli.commands import agent, policy, queues, reports, simulate, upkeep
from flowsched.cli.commands.options import (
    Advertise,
    AllowPaths,
    CacheContent,
    CacheSize,
    Cluster,
    ClusterOption,
    ContainerNetwork,
    Containers,
    Context,
    Cpu,
    Cromwell,
    Database,
    DiskRate,
    Document,
    Fetch,
    Gpus,
    Group,
    Id,
    Images,
    KeepDays,
    Kubeconfig,
    Labels,
    Limit,
    MaxLiveBytes,
    MaxLiveTasks,
    Memory,
    Namespace,
    NicRate,
    Nodes,
    NoToken,
    Out,
    Output,
    PieceSize,
    Policy,
    ProfilePath,
    Racks,
    Reason,
    Root,
    Supervise,
    WdlPath,
    folders_of,
    key_values,
    kubernetes_settings,
    settings_for,
    token_from,
    warn_of_unknown_variables,
)
from flowsched.cli.context import Options, about, ask, carry_out, options, run
from flowsched.cli.printing.form import Form
from flowsched.version import VERSION

_EPILOG: Final = (
    "Exit codes: 0 done; 1 a workflow failed; 2 what was asked is wrong (usage, document, id, token); "
    "3 the service cannot be reached; 130 interrupted. "
    "--server, --token and --debug may stand anywhere. "
    "Times are in the zone of this terminal (TZ); with -o json in UTC."
)

app = typer.Typer(
    name="flowsched",
    cls=Group,
    help="Workflows with dependency-aware, data-aware gang scheduling.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(queues.queue, name="queue")
app.add_typer(policy.profile, name="profile")
app.add_typer(queues.nodes, name="nodes")
app.add_typer(upkeep.db, name="db")
app.add_typer(upkeep.secret, name="secret")


@app.callback()
def main(
    ctx: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            envvar="FLOWSCHED_SERVER",
            metavar="URL",
            help="[the service on this user's data folder, else http://127.0.0.1:8470]",
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="FLOWSCHED_TOKEN", help="The server's token.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and more logs.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=lambda on: _say_version(on)
        ),
    ] = False,
) -> None:
    """Workflows with dependency-aware, data-aware gang scheduling."""
    ctx.obj = Options(server, token, debug)
    warn_of_unknown_variables(ctx)


@app.command("run")
def run_command(
    ctx: typer.Context,
    document: Document,
    root: Root = None,
    nodes: Nodes = 1,
    cpu: Cpu = None,
    memory: Memory = None,
    gpus: Gpus = 0,
    policy: Policy = "flowsched",
    containers: Containers = "auto",
    images: Images = "use",
    container_network: ContainerNetwork = "host",
    out: Out = None,
    fetch: Fetch = None,
    allow_paths: AllowPaths = None,
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
    """
    from flowsched.cli import running

    if fetch and out is None:
        raise typer.BadParameter(
            "it says which outputs `--out DIR` saves: give --out, too", param_hint="--fetch"
        )
    if out is not None and str(out) == "-":
        raise typer.BadParameter(
            "results are several files, which go into a folder; `flowsched get ID STAGE.OUTPUT -O -` prints one",
            param_hint="--out",
        )
    given = options(ctx)
    settings = None
    if root is not None or given.server is None:
        settings = settings_for(
            ctx, root=root, port=0, nodes=nodes, cpu=cpu, memory=memory, gpus=gpus, policy=policy, images=images,
            containers=containers, container_network=container_network, allow_paths=folders_of(allow_paths),
        )  # fmt: skip
    results = None if out is None else running.Results(out, tuple(fetch or ()))
    run(given, running.run(given, document, settings, output, results, endless=wait_for_nodes,
                           resume=resume_from or ("" if resume else None)))  # fmt: skip


@app.command()
def serve(
    ctx: typer.Context,
    host: Annotated[
        str, typer.Option(help="Where to listen; anything but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8470,
    db: Database = None,
    root: Root = None,
    nodes: Nodes = 1,
    cpu: Cpu = None,
    memory: Memory = None,
    gpus: Gpus = 0,
    disk_rate: DiskRate = None,
    nic_rate: NicRate = None,
    cache: CacheSize = "80%",
    piece_size: PieceSize = "128M",
    racks: Racks = 1,
    label: Labels = None,
    policy: Policy = "flowsched",
    profile: ProfilePath = None,
    containers: Containers = "auto",
    images: Images = "use",
    container_network: ContainerNetwork = "host",
    token_file: Annotated[
        Path | None, typer.Option(help="A file that holds the token clients must send.")
    ] = None,
    keep_days: KeepDays = 30.0,
    cache_content: CacheContent = "time",
    max_live_tasks: MaxLiveTasks = 10_000_000,
    max_live_bytes: MaxLiveBytes = "128Mi",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The database's former root is gone: end its tasks.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error or critical.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per line of log.")] = False,
    cluster: Cluster = "local",
    cluster_option: ClusterOption = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    advertise: Advertise = None,
    cromwell: Cromwell = "",
    wdl_path: WdlPath = "",
    allow_paths: AllowPaths = None,
    supervise: Supervise = None,
    no_token: NoToken = False,
) -> None:
    """Start the service, on this machine or on Kubernetes.

    It is the API, the scheduler and the runner in one process. On this machine a small parent process holds the port and
    starts the service again when it dies; clients wait meanwhile.

    Stops on SIGINT and SIGTERM; tasks that run go on, and the next start takes them up.

    It makes a token at its first start. Commands, the SDK and plugins of the same user find it by themselves; `flowsched token`
    prints it for other clients.
    """
    settings = settings_for(
        ctx, root=root, host=host, port=port, database=db, nodes=nodes, cpu=cpu, memory=memory, gpus=gpus,
        disk_rate=disk_rate, nic_rate=nic_rate, piece_size=piece_size, cache=cache, racks=racks,
        labels=tuple(label or ()), policy=policy, profile=profile, images=images, containers=containers,
        container_network=container_network, log_level=log_level, log_json=log_json,
        keep_days=keep_days, cache_content=cache_content, take_over=take_over, token=token_from(token_file) or options(ctx).token,
        cluster=cluster, cluster_options=key_values(cluster_option),
        kubernetes=kubernetes_settings(cluster, kubeconfig, context, namespace), advertise=advertise, cromwell=cromwell,
        wdl_path=wdl_path, max_live_tasks=max_live_tasks, max_live_bytes=max_live_bytes, allow_paths=folders_of(allow_paths),
    )  # fmt: skip
    from flowsched.cli import serving

    carry_out(options(ctx), lambda: serving.serve(settings, supervise, no_token))


@app.command()
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
    from flowsched.cli import running

    if key is not None and len(documents) > 1:
        raise typer.BadParameter(
            "a key stands for one document: submit them one by one", param_hint="--idempotency-key"
        )
    if dry_run:
        carry_out(options(ctx), lambda: running.check(documents))
        return
    ask(ctx, lambda client: running.submit(client, documents, key, wait, output))


@app.command("ls")
def list_command(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, FAILED …")] = None,
    name: Annotated[str | None, typer.Option(help="Only workflows of this name.")] = None,
    in_queue: Annotated[str | None, typer.Option("--queue", help="Only workflows of this queue.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE", help="Only workflows so labelled.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID|NAME", help="The calls of this run.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only workflows of this user.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Submitted from then on: 8h, 7d, or a date or time (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Submitted before then, likewise.")] = None,
    limit: Limit = 100,
    output: Output = Form.TABLE,
) -> None:
    """List workflows: live ones, then ended ones.

    Each part is newest first. A run of another engine (Cromwell, Snakemake, miniwdl) is one workflow; its calls
    are what `show` calls stages.
    """
    from flowsched.cli import listing

    filters = {
        "state": state and state.upper(),
        "name": name,
        "queue": in_queue,
        "label": label,
        "run": run_id,
        "user": user,
        "since": since,
        "until": until,
    }
    ask(ctx, lambda client: listing.workflows(client, filters, limit, output))


@app.command()
def show(
    ctx: typer.Context,
    workflow: Id,
    tasks: Annotated[bool, typer.Option("--tasks", help="List its tasks too.")] = False,
    state: Annotated[str | None, typer.Option(help="Only tasks in this state (with --tasks).")] = None,
    limit: Limit = 100,
    output: Output = Form.TABLE,
) -> None:
    """Show a workflow and its stages.

    How long their tasks were queued, staged and ran, and how many bytes they found or had to move.
    """
    from flowsched.cli import listing

    about(
        ctx,
        workflow,
        lambda client, ident: listing.workflow(client, ident, tasks, state and state.upper(), limit, output),
    )


@app.command("top")
def top_command(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two pictures.")] = 2.0,
    output: Output = Form.TABLE,
) -> None:
    """Show nodes, running stages and queues, live until Ctrl-C.

    CPU, memory and GPUs are what tasks have asked for, of what the node has; IN/s and OUT/s are bytes that were really copied.
    In a pipe it prints one picture; with `-o jsonl` one line of JSON each time.
    """
    from flowsched.cli import top

    ask(ctx, lambda client: top.top(client, every, output, once=once))


@app.command()
def watch(ctx: typer.Context, workflow: Id, output: Output = Form.TABLE) -> None:
    """Show how a workflow goes until it has ended.

    With `-o jsonl` each thing that has happened and happens is a line of JSON, as `events` has them.
    """
    from flowsched.cli import following

    if output is Form.TABLE:
        about(ctx, workflow, following.watch)
    else:
        about(ctx, workflow, lambda client, ident: following.events(client, ident, output, follow=True))


@app.command("events")
def events_command(
    ctx: typer.Context,
    workflow: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Print what happened in a workflow.

    Each thing that happened to it and to its tasks, with its time.
    """
    from flowsched.cli import following

    about(ctx, workflow, lambda client, ident: following.events(client, ident, output, follow=follow))


@app.command()
def cache(ctx: typer.Context, workflow: Id, output: Output = Form.TABLE) -> None:
    """Say which runs results came from, and why tasks ran."""
    from flowsched.cli import listing

    about(ctx, workflow, lambda client, ident: listing.cache(client, ident, output), own=True)


@app.command()
def explain(
    ctx: typer.Context,
    workflow: Annotated[str | None, typer.Argument(metavar="ID|NAME", help="Which workflow.")] = None,
    stage: Annotated[str | None, typer.Argument(help="Only this stage.")] = None,
    index: Annotated[
        str | None,
        typer.Argument(metavar="INDEX|ITEM|ROLE", help="Only this task: also why on its node."),
    ] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Why cores are idle instead.")] = False,
    since: Annotated[str, typer.Option(help="With --cluster: how far back, as 8h or 7d.")] = "24h",
    output: Output = Form.TABLE,
) -> None:
    """Say why tasks wait, or run where they do, or cores are idle.

    With the numbers, with what would change it, and with the time at which it will. With the INDEX of a task:
    what it cost on its node, and on those that came next. `--cluster`: why cores, memory and GPUs were idle,
    hour by hour.
    """
    from flowsched.cli import listing
    from flowsched.cli import listing as idling

    if cluster == (workflow is not None):
        raise typer.BadParameter("give the ID of a workflow, or --cluster")
    if workflow is None:
        ask(ctx, lambda client: idling.explain_cluster(client, since, output))
    else:
        about(ctx, workflow, lambda client, ident: listing.explain(client, ident, stage, index, output))


@app.command()
def logs(
    ctx: typer.Context,
    workflow: Id,
    stage: Annotated[str | None, typer.Argument(help="The stage. [the first task that failed]")] = None,
    index: Annotated[
        str | None,
        typer.Argument(metavar="INDEX|ITEM|ROLE", help="Which of its tasks. [the first]"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the task has ended: also with attempts to come."),
    ] = False,
    stderr: Annotated[bool, typer.Option("--stderr", "-e", help="What it wrote to stderr.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt; the first is 0. [the last]")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="LINES", min=0, max=1_000_000, help="So many of the last lines. [all]"
        ),
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Print where the file lies instead (of a service on this machine).")
    ] = False,
    root: Root = None,
    db: Database = None,
) -> None:
    """Print what a task wrote.

    Where no service answers on this machine, it reads the files below --root.
    """
    from flowsched.cli import following

    settings = settings_for(ctx, root=root, database=db)
    ask(
        ctx,
        lambda client: following.logs(
            client, workflow, stage, index, errors=stderr, attempt=attempt, tail=tail, follow=follow,
            where=path, settings=settings,
        ),
    )  # fmt: skip


@app.command("get")
def get_command(
    ctx: typer.Context,
    workflow: Id,
    what: Annotated[
        str | None,
        typer.Argument(metavar="STAGE[.OUTPUT]", help="Which outputs. [those of the final stages]"),
    ] = None,
    index: Annotated[
        str | None, typer.Argument(metavar="INDEX|ITEM|ROLE", help="Of one of its tasks. [all]")
    ] = None,
    into: Annotated[str, typer.Option("--out", "-O", metavar="DIR", help="Where to; - is stdout.")] = ".",
) -> None:
    """Save what a task made.

    Files keep the names that the task gave them; a folder comes as a .tar file. The outputs of a scattered stage go
    into a folder per shard. Without a stage, the outputs of the stages that no other reads go into a folder per stage.
    """
    from flowsched.cli import fetching

    about(ctx, workflow, lambda client, ident: fetching.get(client, ident, what, index, into))


@app.command()
def cancel(
    ctx: typer.Context,
    workflows: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID|NAME...", help="The workflows: ids, beginnings of ids, or names."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="All live workflows of this user.")] = None,
    in_queue: Annotated[str | None, typer.Option("--queue", help="All live workflows of this queue.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE[/INDEX]", help="Only this task: it fails for good, and its stage's policies go on."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --user or --queue: do not ask.")] = False,
    reason: Reason = None,
    output: Output = Form.TABLE,
) -> None:
    """Stop workflows, or one task; nothing of them starts any more.

    With --user and --queue: all live workflows of that user in that queue, after a question that says how many.
    """
    from flowsched.cli import cancelling

    chosen = {"user": user, "queue": in_queue}
    filters = {name: value for name, value in chosen.items() if value is not None}
    if bool(workflows) == bool(filters):
        raise typer.BadParameter("name workflows, or give --user or --queue (both: that user in that queue)")
    if task is not None and (workflows is None or len(workflows) != 1):
        raise typer.BadParameter("name the one workflow whose task it is", param_hint="--task")
    if filters:
        ask(ctx, lambda client: cancelling.matching(client, filters, reason, output, yes=yes))
    elif task is not None:
        about(
            ctx,
            (workflows or [""])[0],
            lambda client, ident: cancelling.task(client, ident, task, reason, output),
        )
    else:
        ask(ctx, lambda client: cancelling.named(client, workflows or [], reason, output))


@app.command()
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
        _command(ctx, workflow, "retry", reason, output, wait=wait)
        return
    if reason is not None:
        raise typer.BadParameter("--changed makes a new run, which keeps no reason: leave out --reason")
    from flowsched.cli import running

    run(options(ctx), running.resubmit(options(ctx), workflow, changed, output, wait=wait))


@app.command()
def pause(ctx: typer.Context, workflow: Id, reason: Reason = None, output: Output = Form.TABLE) -> None:
    """Start nothing new of a workflow; what runs goes on."""
    _command(ctx, workflow, "pause", reason, output)


@app.command()
def resume(ctx: typer.Context, workflow: Id, reason: Reason = None, output: Output = Form.TABLE) -> None:
    """Take back a pause."""
    _command(ctx, workflow, "resume", reason, output)


@app.command()
def demo(
    ctx: typer.Context,
    policy: Annotated[str | None, typer.Option(help="Only with this policy. [all, side by side]")] = None,
    kill: Annotated[int, typer.Option(min=0, help="Kill the service so many times meanwhile.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after so long.")] = None,
) -> None:
    """See it work: workflows, gangs and crashes on this machine."""
    from types import SimpleNamespace

    from flowsched.cli import demo as show_piece

    given = options(ctx)
    run(
        given,
        show_piece.main(SimpleNamespace(policy=policy, kill=kill, seconds=seconds, debug=given.debug)),
    )


@app.command()
def doctor(ctx: typer.Context, root: Root = None, db: Database = None, output: Output = Form.TABLE) -> None:
    """Check this machine, the database and the service."""
    from flowsched.cli import doctor as checks
    from flowsched.tokens import default_url

    given = options(ctx)
    settings = settings_for(ctx, root=root, database=db)
    place = checks.Place(settings.root, settings.url, given.server or default_url(), given.token)
    run(given, checks.doctor(place, output))


@app.command("token")
def token_command(ctx: typer.Context, root: Root = None) -> None:
    """Print the token of a service of this user.

    For clients that do not find it by themselves: `export FLOWSCHED_TOKEN=$(flowsched token)`.
    """
    from flowsched.cli import serving
    from flowsched.tokens import default_url

    given = options(ctx)
    folder = settings_for(ctx, root=root).root
    if root is not None:
        carry_out(given, lambda: print(serving.token(str(folder), "", None)))
    else:
        carry_out(
            given, lambda: print(serving.token(str(folder), given.server or default_url(), given.token))
        )


@app.command()
def version() -> None:
    """Print the version."""
    print(f"flowsched {VERSION} (Python {sys.version.split()[0]})")


def _say_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _command(
    ctx: typer.Context, workflow: str, kind: str, reason: str | None, output: Form, *, wait: bool = False
) -> None:
    from flowsched.cli import listing

    about(
        ctx,
        workflow,
        lambda client, ident: listing.command(client, ident, kind, reason, output, wait=wait),
        to_change=True,
        own=kind == "retry",
    )


app.add_typer(agent.pod, name="pod", hidden=True)


@app.command()
def plan(
    ctx: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="FILE.wdl", help="The workflow; imports are found beside it.")
    ],
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", metavar="JSON", help="Its inputs, as Cromwell takes them."),
    ] = None,
    wdl_path: WdlPath = "",
    output: Annotated[str, typer.Option("--output", "-o", help="table, json, dot or svg.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead (not a table).")] = None,
) -> None:
    """Say what a WDL will run, as far as it is known.

    Its calls, their order, how wide its scatters are, what its tasks ask for; and what is not known yet.

    Works without a server. Nothing is run, and nothing fetched.
    """
    from flowsched.cli import plan as planning

    if output not in list(planning.PlanForm):
        raise typer.BadParameter(f"{', '.join(planning.PlanForm)}, not {output!r}", param_hint="--output")
    run(options(ctx), planning.plan(source, inputs, wdl_path, planning.PlanForm(output), out))


app.command(name="usage")(reports.usage)
app.command(name="seff")(reports.seff)
app.command(name="trace")(reports.trace)
app.command(name="report")(reports.report)
app.command(name="simulate")(simulate.simulate)
app.command(name="snapshot")(policy.snapshot)
app.command(name="replay")(policy.replay)
app.command(name="agent")(agent.agent)


# This is for `flowsched --help`, and for global options in front. Where `cromwell` is the first word, `__main__` calls
# `cli.cromwell` without it, and without typer.
@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def cromwell(ctx: typer.Context) -> None:
    """For Cromwell's config backend: submit, alive, kill."""
    from flowsched.cli import cromwell as commands

    given = options(ctx)
    raise typer.Exit(commands.main(ctx.args, given.server, given.token))


def keep_only(word: str) -> None:
    """Forget all commands but one, if a word names one. Typer makes the options of every command it knows, in 50 ms.

    A variable of the environment that no command is known to read needs them all: see `warn_of_unknown_variables`.
    """
    commands = [each for each in app.registered_commands if _name_of(each) == word]
    groups = [each for each in app.registered_groups if each.name == word]
    if (commands or groups) and not variables.unclaimed(os.environ):
        app.registered_commands, app.registered_groups = commands, groups


def _name_of(command: CommandInfo) -> str:
    return command.name or get_command_name(command.callback.__name__ if command.callback else "")
