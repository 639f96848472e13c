"""`flowsched simulate`: read, simulate under each policy, compare, write."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from rich.live import Live

from flowsched.cli.context import DONE, FAILED, options, run
from flowsched.cli.printing import output as printed
from flowsched.cli.printing.columns import Column, Columns
from flowsched.client.documents import resolved_bytes
from flowsched.client.positions import with_lines
from flowsched.errors import InvalidDocument, InvalidRequest, TooLarge
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.simulation.clusters import REFERENCE, SimulatedCluster, cluster_from, losses_of
from flowsched.simulation.documents import from_document
from flowsched.simulation.figures import Figures, figures_of, lower_bound
from flowsched.simulation.policies import simulated
from flowsched.simulation.simulate import trace_header
from flowsched.simulation.workload import Workload, by_task, from_trace, without_estimates
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.version import VERSION
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.formats.wfformat import LIMITS, read_trace
from flowsched.workflow.formats.yaml_text import read_yaml
from flowsched.workflow.learned_plan import LearnedPlan

_GZIP: Final = b"\x1f\x8b"
#: Reasons that are listed of what a policy has left undone.
_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of a simulation."""

    workloads: tuple[Path, ...]
    cluster: str
    policies: tuple[str, ...]
    arrivals: str = "0"
    errors: int = 0
    seed: int = 1
    lose: tuple[str, ...] = ()
    spread: float = 0.0
    form: str = "document"
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Simulated:
    """One policy's schedule of one run, the first of which is 1."""

    policy: str
    run: int
    figures: Figures
    lines: list[dict[str, Any]]


class Outcome(NamedTuple):
    """The simulated cluster and workloads, the lower bound of the makespan in seconds, and the result under each policy."""

    cluster: SimulatedCluster
    workloads: list[Workload]
    bound: float
    found: list[Simulated]


@dataclass(slots=True)
class Progress:
    """How far a simulation is.

    Attributes:
        tasks: How many tasks each policy has to run.
        policy: The policy that is being simulated.
        world: Its world, in which another thread lets time go by.
    """

    tasks: int = 0
    policy: str = ""
    world: World | None = None

    def line(self) -> str:
        """For a person who waits."""
        if self.world is None:
            return "reading the workloads"
        return (
            f"{self.policy}: {self.world.ended:,} of {self.tasks:,} tasks, {self.world.now:,.0f} s simulated"
        )


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def simulate(
    ctx: typer.Context,
    workloads: Annotated[
        list[Path],
        typer.Argument(metavar="WORKLOAD...", help="WfFormat traces or workflow documents."),
    ],
    cluster: Annotated[
        str,
        typer.Option(help="8x16-1g, 8x16-10g, 8x32-1g, 8x32-10g, each also with -ceph; or a YAML file."),
    ] = "8x16-1g",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="kube-like, volcano-like, flowsched …, or a profile file. May be repeated."),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Seconds between the arrivals of the workloads; 0 = all at once.")
    ] = "0",
    errors: Annotated[
        int, typer.Option(min=0, max=1000, help="How wrong estimates of compute times are, in percent.")
    ] = 0,
    spread: Annotated[
        float,
        typer.Option(
            min=0, max=10, help="How far true compute times are from those read: 0.3 = by up to 30 %."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of what is drawn: errors, spread, and arrivals that are drawn.")
    ] = 1,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE@FROM[-TO]",
            help="Lose a node at so many seconds (until); it comes back empty. May be repeated.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help="How clients submit the workloads: document; nothing (the document without estimates); "
            "tes (task by task, as an engine does).",
        ),
    ] = "document",
    repeat: Annotated[
        int,
        typer.Option(min=1, max=100, help="Simulate so many runs; each knows what the earlier ones took."),
    ] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the schedule of the last run here, as JSON lines (one policy only)."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Simulate workflows on a cluster, under any policies.

    The policies of flowsched decide as the service does; nothing is run, and no service is needed.

    All workloads share the cluster. `--arrivals 60` lets one come every minute; `~60`: at random, a minute apart on average.
    """
    if output not in ("table", "json"):
        raise typer.BadParameter(f"table or json, not {output!r}", param_hint="--output")
    if form not in ("document", "nothing", "tes"):
        raise typer.BadParameter(f"document, nothing or tes, not {form!r}", param_hint="--as")
    chosen = policy or ["flowsched"]
    if trace is not None and len(chosen) > 1:
        raise typer.BadParameter("a trace is of one policy; say --policy once", param_hint="--trace")
    lost = tuple(lose or ())
    asked = Asked(
        tuple(workloads), cluster, tuple(chosen), arrivals, errors, seed, lost, spread, form, repeat
    )
    run(options(ctx), _simulated(asked, trace, output == "json"))


async def _simulated(asked: Asked, trace: Path | None, as_json: bool) -> int:
    """Simulate, and tell what came of it. Returns the exit code: `FAILED` where a policy has left tasks undone."""
    progress = Progress()
    work = asyncio.create_task(asyncio.to_thread(_simulate, asked, progress))
    try:
        await _show_until_done(progress, work)
    except asyncio.CancelledError:  # Ctrl-C: its thread would go on to the end, and this process wait for it
        if progress.world is not None:
            progress.world.stopped = True
        raise
    outcome = await work
    await asyncio.to_thread(_print, asked, outcome, trace, as_json)
    return DONE if all(each.figures.complete for each in outcome.found) else FAILED


async def _show_until_done(progress: Progress, work: asyncio.Future[Outcome]) -> None:
    """Keep one line on the terminal up to date: thousands of tasks take minutes."""
    console = printed.console(stderr=True)
    with Live(console=console, transient=True, refresh_per_second=1, get_renderable=progress.line):
        await asyncio.wait({work})


def _simulate(asked: Asked, progress: Progress) -> Outcome:
    cluster = cluster_of(asked.cluster)
    workloads = [
        spread(wrong(each, asked.errors, asked.seed), asked.spread, asked.seed)
        for each in loaded(asked, cluster)
    ]
    if asked.form == "nothing":
        workloads = [without_estimates(each) for each in workloads]
    losses = losses_of(asked.lose, cluster)
    chosen = [policy_of(policy) for policy in asked.policies]
    bound = lower_bound(cluster, workloads)
    progress.tasks = sum(len(workload.jobs) - len(workload.skipped) for workload in workloads)
    found = []
    for policy, profile in zip(asked.policies, chosen, strict=True):
        progress.policy = Path(policy).stem if policy not in PROFILES else policy
        estimates, plan = Estimates(), LearnedPlan()
        for number in range(1, asked.repeat + 1):
            sent = [by_task(each, number) for each in workloads] if asked.form == "tes" else workloads
            world = simulated(
                profile, cluster, sent, losses, partial(setattr, progress, "world"), estimates, plan
            )
            found.append(Simulated(progress.policy, number, figures_of(world, bound), world.lines))
    return Outcome(cluster, workloads, bound, found)


def _print(asked: Asked, outcome: Outcome, trace: Path | None, as_json: bool) -> None:
    cluster, workloads, bound, found = outcome
    for each in found:
        _warn(each)
    if trace is not None:
        head = trace_header(cluster, workloads, found[0].policy, asked.seed, VERSION)
        text = "".join(json.dumps(line) + "\n" for line in [head, *found[-1].lines])
        raw = text.encode()
        trace.write_bytes(gzip.compress(raw, mtime=0) if trace.suffix == ".gz" else raw)
        printed.hint(f"wrote {trace}: {len(found[-1].lines):,} lines")
    if as_json:
        facts = [{"policy": each.policy, "run": each.run, **each.figures.to_dict()} for each in found]
        print(
            printed.to_json(
                {"cluster": asked.cluster, "bound_s": round(bound, 3), "policies": facts}, indent=2
            )
        )
    else:
        printed.show(_table(found))


def spread(workload: Workload, share: float, seed: int) -> Workload:
    """The same expectations, other truths: each task computes its own factor longer, between 1/(1+share) and 1+share."""
    if not share:
        return workload
    rng = np.random.default_rng([seed, round(share * 1_000_000), 2, *workload.name.encode()])
    factors = ((1 + share) ** rng.uniform(-1, 1, len(workload.jobs))).tolist()
    jobs = [
        replace(job, compute_s=job.compute_s * factor)
        for job, factor in zip(workload.jobs, factors, strict=True)
    ]
    return replace(workload, jobs=tuple(jobs))


def _warn(simulated: Simulated) -> None:
    """Say what no column of the table shows: that not everything came to a good end."""
    sums = simulated.figures
    if not sums.complete:
        printed.hint(f"{simulated.policy}: unfinished, {sums.tasks:,} of {sums.asked:,} tasks succeeded")
        for why in sums.unfinished[:_NAMED]:
            printed.hint(f"  {why}")
        if len(sums.unfinished) > _NAMED:
            printed.hint(f"  … and {len(sums.unfinished) - _NAMED} more")
    if sums.undelivered:
        printed.hint(
            f"{simulated.policy}: {sums.undelivered:,} final outputs were lost before they were on the storage"
        )


def cluster_of(name: str) -> SimulatedCluster:
    """A reference cluster by name, or one from a YAML file.

    Raises:
        InvalidRequest: There is neither.
        InvalidDocument: The file is no cluster.
    """
    if name in REFERENCE:
        return REFERENCE[name]
    path = Path(name)
    if not path.is_file():
        raise InvalidRequest(f"cluster {name!r}: no such file, and not one of {', '.join(REFERENCE)}")
    return cluster_from(_yaml(path, path.read_bytes()))


def policy_of(name: str) -> str | Profile:
    """A policy by name, or a profile from its file.

    Raises:
        InvalidRequest: There is neither.
    """
    if name in PROFILES:
        return name
    path = Path(name)
    if not path.is_file():
        raise InvalidRequest(f"policy {name!r}: no such file, and not one of {', '.join(PROFILES)}")
    from flowsched.control.profiles import find_plugins, read_policies

    return read_policies(path.read_bytes(), find_plugins()).default


def loaded(asked: Asked, cluster: SimulatedCluster) -> list[Workload]:
    """Read the workloads; names that occur twice get a number.

    Raises:
        InvalidRequest: One cannot be read, or the arrivals make no sense.
        InvalidDocument: One is neither a trace nor a workflow.
    """
    moments = _moments(asked)
    made: list[Workload] = []
    for path, moment in zip(asked.workloads, moments, strict=True):
        stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".yaml").removesuffix(".yml")
        same = sum(each.name == stem or each.name.startswith(f"{stem}#") for each in made)
        workload = _load(path, stem if not same else f"{stem}#{same + 1}", cluster)
        made.append(replace(workload, arrival_s=moment))
    return made


def _bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked.

    Raises:
        InvalidRequest: It cannot be read.
        TooLarge: It is.
    """
    try:
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    if len(raw) > LIMITS.document_bytes:
        raise TooLarge(f"{path}: {len(raw):,} bytes, {LIMITS.document_bytes:,} are allowed")
    return raw


def _load(path: Path, name: str, cluster: SimulatedCluster) -> Workload:
    raw = _bytes(path)
    written = json.dumps(_yaml(path, raw)).encode() if path.suffix in (".yaml", ".yml") else raw
    document = json.loads(written) if written[:1] == b"{" else None
    if isinstance(document, dict) and (written is not raw or "stages" in document):
        try:
            spec = decode_workflow(resolved_bytes(written, path.absolute().parent))
        except InvalidDocument as error:
            raise with_lines(error, str(path), raw) from None
        return from_document(spec, name, path.name)
    return from_trace(read_trace(raw), name, path.name, cluster, wow=path.name.startswith("wow-"))


def _yaml(path: Path, raw: bytes) -> object:
    try:
        return read_yaml(raw, LIMITS.document_bytes)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error


def _moments(asked: Asked) -> list[float]:
    drawn, text = asked.arrivals.startswith("~"), asked.arrivals.removeprefix("~")
    try:
        apart = float(text)
    except ValueError:
        apart = -1.0
    if not 0 <= apart < 1e9:
        raise InvalidRequest(
            f"--arrivals {asked.arrivals!r}: seconds between arrivals were expected, as 60 or ~60"
        )
    if not drawn:
        return [apart * number for number in range(len(asked.workloads))]
    gaps = np.random.default_rng([asked.seed, 1]).exponential(apart, len(asked.workloads))
    gaps[0] = 0.0
    return [round(float(moment), 3) for moment in np.cumsum(gaps)]


def wrong(workload: Workload, percent: int, seed: int) -> Workload:
    """The same work, expected wrongly: each category by its own factor, between 1/(1+e) and 1+e."""
    if not percent:
        return workload
    rng = np.random.default_rng([seed, percent, *workload.name.encode()])
    kinds = sorted(workload.expected)
    off = (1 + percent / 100) ** rng.uniform(-1, 1, len(kinds))
    return workload.with_expected(dict(zip(kinds, off.tolist(), strict=True)))


def _table(found: Sequence[Simulated]) -> Columns:
    def makespan(each: Simulated) -> str:
        return "unfinished" if each.figures.makespan_s is None else f"{each.figures.makespan_s:,.1f} s"

    def ratio(each: Simulated) -> str:
        return "-" if each.figures.ratio is None else f"{each.figures.ratio:.3f}"

    def busy(each: Simulated) -> str:
        return "-" if each.figures.busy is None else f"{100 * each.figures.busy:.1f} %"

    def tasks(each: Simulated) -> str:
        return f"{each.figures.tasks:,}" + ("" if each.figures.complete else f" of {each.figures.asked:,}")

    return Columns(
        found,
        Column("POLICY", lambda each: each.policy, cut=True, whole=True),
        *([Column("RUN", lambda each: str(each.run), right=True)] if found[-1].run > 1 else []),
        Column("MAKESPAN", makespan, right=True, whole=True),
        Column("÷ BOUND", ratio, rank=1, right=True, whole=True),
        Column(
            "COMPLETION",
            lambda each: _seconds(each.figures.mean_completion_s),
            rank=3,
            right=True,
            whole=True,
        ),
        Column("WAIT", lambda each: _seconds(each.figures.wait_s), rank=5, right=True, whole=True),
        Column(
            "MOVED", lambda each: f"{each.figures.moved_bytes / 1e9:,.1f} GB", rank=2, right=True, whole=True
        ),
        Column(
            "STORAGE",
            lambda each: f"{each.figures.storage_bytes / 1e9:,.1f} GB",
            rank=4,
            right=True,
            whole=True,
        ),
        Column("BUSY", busy, rank=6, right=True, whole=True),
        Column("TASKS", tasks, rank=7, right=True),
        Column("LOST", lambda each: f"{each.figures.lost:,}", rank=8, right=True),
    )


def _seconds(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.1f} s"
