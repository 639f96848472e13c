"""The current figures in one table, each beside a baseline of the same run: `make bench`, within 10 minutes on two quiet cores.

    python bench/figures.py [--only NAME,NAME] [--minutes 10] [--write docs/benchmarks.md] [--list]

Every row comes from another bench, run as a program with small sizes. It names what limits it now, and the command that measures
it alone, in full. A bench that fails or takes too long has a row that says why. The table is printed all the same, and the exit
status is 1. A bench that needs what this machine does not have (reference traces, a Kubernetes API server) has a row that says
what is missing, and fails nothing. `--write` puts the table into a page, between its comments `make bench` and `end of make bench`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
BEGIN: Final = "<!-- make bench -->"
END: Final = "<!-- end of make bench -->"
#: How long a bench that is told to end may take for its own processes.
TIDY_S: Final = 15.0


class Figure(NamedTuple):
    """One row: what was measured, ours, the baseline and its name, how many times as good ours is, and what limits it."""

    what: str
    ours: str
    baseline: str
    label: str
    times: float | None
    limit: str


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench of this folder.

    `full` is the command that measures the rows alone. `quick` are the arguments of the small run. `{json}` stands for the file
    that the bench writes; a bench without it prints JSON. `needs` says what is missing on this machine, empty = nothing.
    """

    name: str
    full: str
    quick: tuple[str, ...]
    read: Callable[[Any], list[Figure]]
    seconds: float
    needs: Callable[[], str] = lambda: ""

    @property
    def script(self) -> str:
        """The path of the program."""
        return self.full.split()[1]


class Failed(Exception):
    """A bench without figures, and why."""


# ---- what each bench says ----


def tasks(found: Any) -> list[Figure]:
    """bench/peers.py: one more local task, and a small run."""
    rows = {row["name"]: row for row in found["rows"]}
    if why := rows["flowsched"]["why"]:
        raise Failed(f"flowsched: {why}")
    ours = rows["flowsched"]
    limit = "folders of attempts; SQL; `true` itself"
    made = []
    for name in ("xargs", "hyperqueue"):
        peer = rows[name]
        label = f"{name} {short(peer['version'])}".strip()
        if peer["why"]:
            said = f"{ours['cpu_ms']:.2f} ms"
            made.append(Figure("one more local task, CPU", said, "-", f"{label}: {peer['why']}", None, limit))
            continue
        made.append(compared("one more local task, CPU", ours["cpu_ms"], peer["cpu_ms"], "ms", label, limit))
    if not rows["hyperqueue"]["why"]:
        peer = rows["hyperqueue"]
        label = f"hyperqueue {short(peer['version'])}"
        made.append(
            compared(
                "a run of 10 tasks with its start, CPU",
                ours["few_cpu_s"],
                peer["few_cpu_s"],
                "s",
                label,
                "imports of Python, start of the service and of its runner",
            )
        )
    return made


def short(version: str) -> str:
    """A version without what a fix changes."""
    return ".".join(version.split(".")[:2])


def submissions(found: Any) -> list[Figure]:
    """bench/submission.py: workflows accepted."""
    limit = "CPU of the service: checks, SQL, HTTP"
    return [
        compared(
            f"POST of 50 tasks, {said}",
            found[key],
            found["bare"],
            "/s",
            "SQLite commits",
            limit,
            more=True,
        )
        for key, said in (("one", "one at a time"), ("sixteen", "16 in flight"))
    ]


def tes(found: Any) -> list[Figure]:
    """bench/tes.py on SQLite: creates and polls."""
    row = found[0]
    if row["lost"]:
        raise Failed(f"{row['lost']:.0f} accepted tasks are not in the database")

    def cpu(what: str, key: str, limit: str) -> Figure:
        return compared(f"{what}, CPU", row[key], row["bare_cpu_us"], "µs", "bare aiohttp", limit)

    return [
        cpu(
            "TES create, one connection", "single_create_cpu_us", "a commit for each create: step, SQL, fsync"
        ),
        cpu("TES create, 16 connections", "create_cpu_us", "SQL and HTTP in Python"),
        cpu("TES poll in view FULL", "ours_cpu_us", "HTTP in Python"),
        compared(
            "TES poll in view FULL, p99",
            row["ours_p99_ms"],
            row["bare_p99_ms"],
            "ms",
            "bare aiohttp",
            "what else runs on the cores",
        ),
    ]


def transitions(found: Any) -> list[Figure]:
    """bench/transitions.py on SQLite: durable task transitions."""
    rates = {name: rate["median_per_s"] for name, rate in found[0]["rates"].items()}
    return [
        compared(
            f"durable transitions, {said}",
            rates[name],
            rates["per event"],
            "/s",
            "one commit each",
            "SQL for each row",
            more=True,
        )
        for name, said in (
            ("singles, 1,000 in flight", "1,000 callers"),
            ("steps of 1,000", "steps of 1,000"),
        )
    ]


def users(found: Any) -> list[Figure]:
    """bench/users.py on SQLite: requests of many users, and a long history."""
    said: dict[str, str] = found[0]["now"]

    def number(name: str, place: int = 0) -> float:
        matching = [value for key, value in said.items() if key.startswith(name)]
        if len(matching) != 1:
            raise Failed(f"{len(matching)} figures begin with {name!r}, expected one")
        return float(matching[0].split(" / ")[place])

    history = next(int(key.split()[2].rstrip(",")) for key in said if key.startswith("ls of "))
    crowd = next(int(key.split()[0]) for key in said if "users without a pause" in key)
    living = found[0]["living"]
    rows = "JSON and HTTP of 100 workflows, in Python"

    def request(what: str, name: str) -> Figure:
        return compared(f"{what}, CPU", number(name), number("livez: CPU, ms"), "ms", "GET /livez", rows)

    return [
        request(f"{crowd} users, mean request", f"{crowd} users without a pause: CPU a request"),
        request("list of 100 running workflows", "list of 100 that live: CPU"),
        compared(
            f"`ls` after {history:,} workflows, CPU",
            number(f"ls of {history}, newest 100: CPU"),
            number("list of 100 ended: CPU"),
            "ms",
            f"after {living}",
            rows,
        ),
        compared(
            "/livez beside 210 readers of events, p99",
            number("livez, 10 replays", 1),
            number("livez alone", 1),
            "ms",
            "no readers",
            "one event loop for all streams",
        ),
    ]


def placement(found: Any) -> list[Figure]:
    """bench/placement.py: gangs against pod by pod."""
    made = []
    limits = {
        (100, 8): "fixed cost of the NumPy calls of a cycle",
        (10_000, 64): "passes over all nodes in NumPy",
        (10_000, 512): "passes over all nodes in NumPy",
    }
    for row in found["rows"]:
        limit = limits.get((row["nodes"], row["gang"]))
        if limit is None:
            continue
        what = f"gang of {row['gang']} placed on {row['nodes']:,} nodes"
        if row["exact"] != row["exact_of"]:
            raise Failed(f"{what}: {row['exact']} of {row['exact_of']} placements are the oracle's")
        made += [
            compared(what, row["cycle_ms"], row[f"{name}_ms"], "ms", name, limit)
            for name in ("plugins", "inlined")
        ]
    return made


def simulated(found: Any) -> list[Figure]:
    """bench/scale.py simulated: decisions end to end."""
    row = found["simulated"]
    return [
        compared(
            f"pods per CPU second, {row['nodes']:,} nodes",
            row["queues_pods_per_cpu_s"],
            row["inlined_loop_pods_per_cpu_s"],
            "/s",
            "placing alone",
            "steps of the engine in Python",
            more=True,
        )
    ]


def locality(found: Any) -> list[Figure]:
    """bench/locality.py: makespans of real workflows, and what deciding costs."""
    if faults := [row["faults"] for row in found if row["faults"]]:
        raise Failed(f"the referee refused a schedule: {faults[0][0]}")
    by = {(row["names"], row["policy"]): row for row in found}
    names = list(dict.fromkeys(name for name, _ in by))

    def mean(policy: str, key: str) -> float:
        return math.exp(statistics.fmean(math.log(by[name, policy][key]) for name in names))

    return [
        *(
            compared(
                f"makespan ÷ bound, {len(names)} real workflows",
                mean("flowsched", "ratio"),
                mean(policy, "ratio"),
                "",
                policy,
                "the critical path; one disk or link in the others",
            )
            for policy in ("heft", "kube-like")
        ),
        compared(
            "a simulation of one of them, CPU",
            mean("flowsched", "cpu_s"),
            mean("heft", "cpu_s"),
            "s",
            "heft",
            "ready groups priced at each event",
        ),
    ]


def backlog(found: Any) -> list[Figure]:
    """bench/kube/backlog.py: pods against a stub API server."""
    used = {
        who: statistics.median(row["cpu_us"] for row in found if row["who"] == who)
        for who in ("raw", "binds", "raw-own", "own")
    }
    limit = "a decision and the JSON of watches for each pod, in Python"
    return [
        compared(f"Kubernetes: a pod {what}, CPU", used[ours], used[raw], "µs", "raw requests", limit)
        for what, ours, raw in (("bound", "binds", "raw"), ("created and bound", "own", "raw-own"))
    ]


def api_server(found: Any) -> list[Figure]:
    """bench/kube/run.py: pods bound by a real API server."""
    size = max(row["nodes"] for row in found)
    rate = {
        who: statistics.median(row["per_s"] for row in found if row["who"] == who and row["nodes"] == size)
        for who in ("raw", "ours")
    }
    what = f"Kubernetes: pods bound, {size:,} nodes"
    limit = "the control plane's core"
    return [compared(what, rate["ours"], rate["raw"], "/s", "raw requests", limit, more=True)]


def compared(
    what: str, ours: float, baseline: float, unit: str, label: str, limit: str, more: bool = False
) -> Figure:
    """A row; the label says what the baseline is."""
    if ours <= 0 or baseline <= 0:
        raise Failed(f"{what}: {shown(ours, unit)} against {shown(baseline, unit)} is no measurement")
    times = ours / baseline if more else baseline / ours
    return Figure(what, shown(ours, unit), shown(baseline, unit), label, times, limit)


def shown(value: float, unit: str) -> str:
    """A figure with three digits."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number}{unit}" if unit.startswith("/") else f"{number} {unit}".rstrip()


# ---- what is not on each machine ----


def no_traces() -> str:
    """The reference traces and the referee lie beside the repository, or are not there."""
    shared = ROOT.parent / "shared"
    missing = [path for path in (shared / "data", shared / "tools" / "referee.py") if not path.exists()]
    return f"needs {' and '.join(path.name for path in missing)} in ../shared" if missing else ""


def no_api_server() -> str:
    """The servers etcd and kube-apiserver, as the tests find them."""
    from tests.kubernetes.hollow.binaries import find

    missing = [name for name in ("etcd", "kube-apiserver") if find(name) is None]
    return f"needs {' and '.join(missing)}: make kube-assets" if missing else ""


def no_linux() -> str:
    """CPU time of other processes is read from /proc."""
    return "" if sys.platform == "linux" else "measures CPU time on Linux only"


def one_core() -> str:
    """The stub and the service have a core each."""
    return no_linux() or ("" if (os.cpu_count() or 1) > 1 else "needs two cores")


BENCHES: Final = (
    Bench(
        "tasks",
        "python bench/peers.py",
        ("--only", "xargs,hyperqueue,flowsched", "--tasks", "1000", "--turns", "3", "--json", "{json}"),
        tasks,
        180,
        no_linux,
    ),
    Bench("submissions", "python bench/submission.py", ("--json", "--runs", "3"), submissions, 60),
    Bench(
        "tes",
        "python bench/tes.py",
        ("--json", "--no-postgresql", "--tasks", "500", "--seconds", "15", "--creates", "500"),
        tes,
        150,
        no_linux,
    ),
    Bench(
        "transitions",
        "python bench/transitions.py",
        ("--json", "--no-postgresql", "--rounds", "3", "--tasks", "5000"),
        transitions,
        60,
    ),
    Bench(
        "users",
        "python bench/users.py",
        ("--database", "sqlite", "--seconds", "4", "--history", "10000", "--requests", "200", "--json", "{json}"),
        users,
        180,
        no_linux,
    ),
    Bench(
        "placement",
        "python bench/placement.py",
        ("--nodes", "100,10000", "--gangs", "8,64,512", "--json", "{json}"),
        placement,
        120,
    ),
    Bench(
        "simulated", "python bench/scale.py simulated", ("--quick", "--json", "{json}"), simulated, 60
    ),
    Bench(
        "locality",
        "python bench/locality.py --sets dev",
        (
            "--clusters", "8x16-1g", "--policies", "kube-like,heft,flowsched", "--json", "{json}",
            "--only", "1000genome-4ch,epigenomics-1seq,smrnaseq,srasearch-20a",
        ),
        locality,
        120,
        no_traces,
    ),
    Bench(
        "backlog",
        "python bench/kube/backlog.py",
        ("--nodes", "1000", "--stages", "100", "--pods", "4000", "--rounds", "2", "--json"),
        backlog,
        150,
        one_core,
    ),
    Bench(
        "api-server",
        "python bench/kube/run.py",
        ("--nodes", "100", "--pods", "1000", "--rounds", "2", "--who", "raw,ours", "--json"),
        api_server,
        180,
        lambda: one_core() or no_api_server(),
    ),
)  # fmt: skip


# ---- running them ----


@dataclass(frozen=True, slots=True)
class Result:
    """What one bench gave: its rows, or why it has none; `failed` also where it has rows and did not end well."""

    bench: Bench
    figures: tuple[Figure, ...] = ()
    why: str = ""
    failed: bool = False


def run(bench: Bench, seconds: float) -> Result:
    """Run a bench with its small sizes. Whatever goes wrong in it is said in the result."""
    try:
        if missing := bench.needs():
            return Result(bench, why=f"not measured: {missing}")
        if seconds < 1:
            return Result(bench, why="not measured: the time is up, see --minutes", failed=True)
        with tempfile.TemporaryDirectory(prefix="flowsched-figures-") as folder:
            status, out, error = ran(bench, Path(folder), seconds)
            path = Path(folder) / "figures.json"
            text = path.read_text() if path.exists() else out
        try:
            found = json.loads(json_of(text))
        except ValueError:
            raise Failed(f"status {status} without figures: {last_line(error or out)}") from None
        figures = tuple(bench.read(found))
    except Failed as error:
        return Result(bench, why=f"failed: {error}", failed=True)
    except Exception as error:  # noqa: BLE001 - one row that cannot be made must not cost the others
        return Result(bench, why=f"failed: {type(error).__name__}: {error}", failed=True)
    why = f"failed with status {status}: {last_line(error or out)}" if status else ""
    return Result(bench, figures, why, bool(status))


def ran(bench: Bench, folder: Path, seconds: float) -> tuple[int, str, str]:
    """The exit status and what a bench printed; ended with all of its processes where it takes too long."""
    path = folder / "figures.json"
    command = [
        sys.executable,
        *bench.full.split()[1:],
        *(str(path) if each == "{json}" else each for each in bench.quick),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "out").open("w+") as out, (folder / "error").open("w+") as error:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=error, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {seconds:.0f} s") from None
        finally:
            if process.poll() is None:
                end(process)
        for file in (out, error):
            file.seek(0)
        return status, out.read(), error.read()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a bench and what it started; it may tidy up first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(TIDY_S)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def json_of(text: str) -> str:
    """What a bench printed, less the lines of its service's log before the figures."""
    lines = text.splitlines()
    return "\n".join(lines[next((at for at, line in enumerate(lines) if line[:1] in ("{", "[")), 0) :])


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


# ---- the table ----


def markdown(results: Sequence[Result]) -> str:
    """The table of a page."""
    lines = [
        "| what | ours | baseline of the same run | times as good | what limits it now | alone, in full |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        command = f"`{result.bench.full}`"
        for row in result.figures:
            base = f"{row.baseline}, {row.label}"
            lines.append(f"| {row.what} | {row.ours} | {base} | {times(row)} | {row.limit} | {command} |")
        if result.why:
            lines.append(f"| {result.bench.name} | - | {result.why.replace('|', '/')} | - | | {command} |")
    return "\n".join(lines)


def plain(results: Sequence[Result]) -> str:
    """The table of a terminal of 80 columns: below the rows of a bench, what limits them and the command of the bench."""
    lines = [f"{'what':40}{'ours':>10}{'baseline':>9} times as good as"]
    for result in results:
        for row in result.figures:
            lines.append(f"{row.what:40}{row.ours:>10}{row.baseline:>9}{times(row):>5} {row.label}")
        if result.why:
            lines += textwrap.wrap(f"{result.bench.name}: {result.why}", 80, subsequent_indent="  ")
        limits = "; ".join(dict.fromkeys(row.limit for row in result.figures))
        if limits:
            lines += textwrap.wrap(f"limit: {limits}", 80, initial_indent="  ", subsequent_indent="    ")
        lines += [f"  alone, in full: {result.bench.full}", ""]
    return "\n".join(lines).rstrip()


def times(row: Figure) -> str:
    """How many times as good as the baseline: 2 = half the time, or twice the rate."""
    if row.times is None:
        return "-"
    return f"{row.times:.0f}" if row.times >= 10 else f"{row.times:.2f}"


def head(seconds: float, before: float) -> str:
    """When and where the table was measured."""
    from flowsched.version import VERSION

    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"flowsched {VERSION} ({commit}), {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, load {before:.1f} at the start; "
        f"{seconds / 60:.0f} minutes."
    )


def written(page: str, text: str) -> str:
    """A page with the table in its place."""
    before, begin, rest = page.partition(BEGIN)
    _, end_mark, after = rest.partition(END)
    if not begin or not end_mark:
        raise SystemExit(f"the page has no place for the table: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def measure(benches: Sequence[Bench], minutes: float) -> list[Result]:
    """All benches, one after the other; the time that is left is an upper limit of each."""
    deadline = time.monotonic() + 60 * minutes
    results = []
    for bench in benches:
        begun = time.monotonic()
        results.append(run(bench, min(bench.seconds, deadline - begun)))
        print(
            f"{bench.name}: {time.monotonic() - begun:.0f} s  {results[-1].why or 'ok'}",
            file=sys.stderr,
            flush=True,
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [bench.name for bench in BENCHES]
    parser.add_argument("--only", default=",".join(names), help="names of benches, by commas")
    parser.add_argument("--minutes", type=float, default=10.0, help="no bench goes on for longer")
    parser.add_argument("--write", type=Path, help="a page that has a place for the table")
    parser.add_argument("--list", action="store_true", help="the benches, with the command of each")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{bench.name:12} {bench.full}" for bench in BENCHES))
        return 0
    asked = given.only.split(",")
    if unknown := sorted(set(asked) - set(names)):
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(names)}")
    page = given.write.read_text(encoding="utf-8") if given.write else None
    if page is not None:
        written(page, "")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the bench that runs ends, too
    load, begun = os.getloadavg()[0], time.monotonic()
    results = measure([bench for bench in BENCHES if bench.name in asked], given.minutes)
    line = head(time.monotonic() - begun, load)
    print(f"{textwrap.fill(line, 80)}\n\n{plain(results)}")
    if page is not None:
        given.write.write_text(written(page, f"{line}\n\n{markdown(results)}"), encoding="utf-8")
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
