"""CPU time of one more task that does nothing, `true`: flowsched beside HyperQueue, Dask, Snakemake, Luigi and GNU xargs.

    python bench/peers.py [--tasks 2000] [--turns 5] [--only xargs,hyperqueue,flowsched] [--json FILE]

Each contender runs 10 tasks and `--tasks` tasks, 4 at a time, `--turns` times, by turns with the others in an order that rotates.
The figure is the difference of both divided by the difference in tasks, the median over turns: user and system time of all
processes that the contender started, daemons included. Each keeps what it keeps by default: HyperQueue and flowsched the output
of each task, Snakemake and Luigi a file for each task that has ended. Dask keeps results in memory, xargs, the floor, nothing.

The peers come from PyPI, in the versions of `PEERS`, each into an environment of its own below the cache folder
($XDG_CACHE_HOME/flowsched/peers). A peer that cannot be installed, or fails, has a row that says why, and
the exit status is 1. Linux only: a process adopts the daemons of a contender, so that their time counts.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FEW: Final = 10
AT_ONCE: Final = 4
PATIENCE_S: Final = 900
#: Seconds in which a contender's daemons may end by themselves, and then by SIGTERM.
DAEMONS_S: Final = (5.0, 5.0)
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

HYPERQUEUE: Final = """
import sys
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

with LocalCluster(worker_config=WorkerConfig(cores={at_once})) as cluster:
    client, job = cluster.client(), Job()
    for _ in range({tasks}):
        job.program(["true"])
    client.wait_for_jobs([client.submit(job)])
"""
DASK: Final = """
import subprocess
from dask.distributed import Client, LocalCluster

def work(_):
    return subprocess.run(["true"]).returncode

if __name__ == "__main__":
    with LocalCluster(n_workers={at_once}, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        assert client.gather(client.map(work, range({tasks}), pure=False)) == [0] * {tasks}
"""
SNAKEMAKE: Final = """
rule all:
    input: expand("done/{{i}}", i=range({tasks}))
rule one:
    output: touch("done/{{i}}")
    shell: "true"
"""
LUIGI: Final = """
import subprocess, sys
import luigi

class One(luigi.Task):
    i = luigi.IntParameter()

    def output(self):
        return luigi.LocalTarget(f"done/{{self.i}}")

    def run(self):
        subprocess.run(["true"], check=True)
        self.output().open("w").close()

class All(luigi.WrapperTask):
    def requires(self):
        return [One(i) for i in range({tasks})]

if __name__ == "__main__":
    sys.exit(0 if luigi.build([All()], workers={at_once}, local_scheduler=True, log_level="ERROR") else 1)
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A contender from PyPI: its packages with versions, its program, and the command that runs it."""

    packages: tuple[str, ...]
    file: str
    program: str
    command: tuple[str, ...]


PEERS: Final = {
    "hyperqueue": Peer(("hyperqueue==0.27.0",), "work.py", HYPERQUEUE, ("python", "work.py")),
    "dask": Peer(("dask==2026.8.0", "distributed==2026.8.0"), "work.py", DASK, ("python", "work.py")),
    "luigi": Peer(("luigi==3.8.1",), "work.py", LUIGI, ("python", "work.py")),
    "snakemake": Peer(
        ("snakemake==9.27.1",),
        "Snakefile",
        SNAKEMAKE,
        ("snakemake", "--cores", str(AT_ONCE), "--quiet", "all"),
    ),
}
NAMES: Final = ("xargs", *PEERS, "flowsched")


class Missing(Exception):
    """A contender that cannot be measured here, and why."""


@dataclass
class Row:
    """What was measured of one contender. Times of a turn: CPU seconds, and wall seconds, of few tasks and of many."""

    name: str
    version: str = ""
    why: str = ""
    few: list[tuple[float, float]] = field(default_factory=list)
    many: list[tuple[float, float]] = field(default_factory=list)
    tasks: int = 0

    def per_task_ms(self, column: int = 0) -> float:
        """Median over turns of what one more task costs, in ms: CPU (0) or wall (1)."""
        pairs = zip(self.few, self.many, strict=False)
        return 1000 * statistics.median(
            (many[column] - few[column]) / (self.tasks - FEW) for few, many in pairs
        )

    def start_s(self) -> float:
        """Median CPU seconds of a whole run of `FEW` tasks."""
        return statistics.median(each[0] for each in self.few)


# ---- the contenders ----


def xargs(folder: Path, tasks: int) -> list[str]:
    """GNU xargs over so many numbers."""
    (folder / "numbers").write_text("\n".join(map(str, range(tasks))) + "\n")
    return ["xargs", "-a", "numbers", "-n", "1", "-P", str(AT_ONCE), "true"]


def flowsched(folder: Path, tasks: int) -> list[str]:
    """`flowsched run` of one stage of so many tasks."""
    stage = {
        "name": "one",
        "command": ["true"],
        "scatter": {"count": tasks},
        "resources": {"cpu": 1, "memory": "64Mi"},
    }
    (folder / "work.json").write_text(json.dumps({"name": "peers", "stages": [stage]}))
    return [
        sys.executable,
        "-m",
        "flowsched",
        "run",
        "work.json",
        "--root",
        str(folder / "root"),
        "--cpu",
        str(AT_ONCE),
    ]


def installed(name: str) -> Path:
    """The programs of a peer's environment, which is made where it is not there in this version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "flowsched" / "peers" / name
    wanted = " ".join((*PEERS[name].packages, sys.version.split()[0]))
    made = home / ".made"
    if not made.exists() or made.read_text() != wanted:
        print(f"installing {' '.join(PEERS[name].packages)} ...", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(home)], [*pip, *PEERS[name].packages]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Missing(f"not installed: {last_line(done.stderr + done.stdout)}")
        made.write_text(wanted)
    return home / "bin"


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def contender(name: str) -> tuple[str, Callable[[Path, int], list[str]]]:
    """The version of a contender, and what makes its command in a folder for so many tasks."""
    if name == "xargs":
        try:
            said = subprocess.run(["xargs", "--version"], capture_output=True, text=True, check=False).stdout
        except OSError as error:
            raise Missing(f"not there: {error}") from error
        if "GNU" not in said:
            raise Missing("the xargs of this machine is not GNU's")
        return said.splitlines()[0].split()[-1], xargs
    if name == "flowsched":
        from flowsched import __version__

        compileall.compile_dir(ROOT / "flowsched", quiet=1)  # as pip has done for the others
        return __version__, flowsched
    peer, programs = PEERS[name], installed(name)

    def made(folder: Path, tasks: int) -> list[str]:
        (folder / peer.file).write_text(peer.program.format(tasks=tasks, at_once=AT_ONCE))
        return [str(programs / peer.command[0]), *peer.command[1:]]

    return peer.packages[-1].partition("==")[2], made


# ---- measuring ----


def accounted(command: list[str]) -> dict[str, float | int | str]:
    """Run a command. Its status, wall seconds, and the CPU seconds of all its descendants, which this process adopts and ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) or prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise SystemExit(f"cannot adopt daemons: {os.strerror(ctypes.get_errno())}")
    begun = time.monotonic()
    patience = DAEMONS_S[0]
    try:
        with tempfile.TemporaryFile("w+") as out:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
            ).returncode
            wall = time.monotonic() - begun
            out.seek(0)
            said = last_line(out.read())
    except BaseException:
        patience = 0.0
        raise
    finally:
        for number, seconds in ((0, patience), (signal.SIGTERM, DAEMONS_S[1]), (signal.SIGKILL, PATIENCE_S)):
            if none_left(number, seconds):
                break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"status": status, "wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "said": said}


def none_left(number: int, patience_s: float) -> bool:
    """Send a signal (0 = none) to each child, the adopted ones too, and wait for so long; whether all have ended."""
    end = time.monotonic() + patience_s
    signalled: set[int] = set()
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in set(map(int, children)) - signalled if number else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            signalled.add(pid)
        time.sleep(0.02)
    return False


def turn(made: Callable[[Path, int], list[str]], tasks: int) -> tuple[float, float]:
    """CPU and wall seconds of one run."""
    with tempfile.TemporaryDirectory(prefix="flowsched-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--account", json.dumps(made(folder, tasks))]
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80",
            "HOME": name, "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                out, error = process.communicate(timeout=PATIENCE_S)
            except BaseException:
                process.terminate()  # it ends the contender
                raise
        if process.returncode:
            raise Missing(last_line(error))
        found = json.loads(out)
        if found["status"]:
            raise Missing(f"failed with status {found['status']}: {found['said']}")
        return found["cpu_s"], found["wall_s"]


def measure(names: list[str], tasks: int, turns: int) -> list[Row]:
    """All contenders by turns. One that fails is left out of the turns that follow."""
    rows, ready = {name: Row(name, tasks=tasks) for name in names}, {}
    for name, row in rows.items():
        try:
            row.version, ready[name] = contender(name)
        except Missing as error:
            row.why = str(error)
    for number in range(turns):
        order = list(ready)
        for name in order[number % len(order) :] + order[: number % len(order)] if order else ():
            row = rows[name]
            try:
                few, many = turn(ready[name], FEW), turn(ready[name], tasks)
            except (Missing, subprocess.TimeoutExpired) as error:
                row.why = str(error)
                del ready[name]
                continue
            row.few.append(few)
            row.many.append(many)
            print(
                f"turn {number + 1}: {name} {(many[0] - few[0]) / (tasks - FEW) * 1000:.2f} ms a task",
                file=sys.stderr,
                flush=True,
            )
    return list(rows.values())


def figures(rows: list[Row]) -> list[dict[str, object]]:
    """Figures of each contender, for programs."""
    made = []
    for row in rows:
        found: dict[str, object] = asdict(row)
        if not row.why:
            found |= {
                "cpu_ms": row.per_task_ms(),
                "wall_ms": row.per_task_ms(1),
                "few_cpu_s": row.start_s(),
            }
        made.append(found)
    return made


def table(rows: list[Row], tasks: int, turns: int) -> str:
    """The table for people."""
    ours = next((row.per_task_ms() for row in rows if row.name == "flowsched" and not row.why), None)
    lines = [
        f"`true`, {AT_ONCE} at a time, {tasks:,} tasks less {FEW}, median of {turns} turns; load {os.getloadavg()[0]:.1f}",
        f"{'':12}{'version':>10}  CPU of a task  ours ÷ it  wall of a task  CPU of {FEW} tasks",
    ]
    for row in rows:
        head = f"{row.name:12}{row.version:>10}"
        if row.why:
            lines.append(f"{head}  not measured: {row.why}")
            continue
        ratio = "" if ours is None else f"{ours / row.per_task_ms():.2f}"
        lines.append(
            f"{head}{row.per_task_ms():12.2f} ms{ratio:>11}{row.per_task_ms(1):13.2f} ms{row.start_s():15.2f} s"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default=",".join(NAMES), help="contenders, by commas")
    parser.add_argument("--json", help="write the figures to this file ('-' = standard output)")
    parser.add_argument("--account", help=argparse.SUPPRESS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # the contenders end with the bench
    if given.account:
        print(json.dumps(accounted(json.loads(given.account))))
        return 0
    names = given.only.split(",")
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no contender is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if given.tasks <= FEW:
        parser.error(f"--tasks {given.tasks}: more than {FEW} are needed")
    if sys.platform != "linux":
        print("bench/peers.py measures on Linux only: elsewhere the time of daemons cannot be counted")
        return 2
    rows = measure(names, given.tasks, given.turns)
    if given.json:
        text = json.dumps({"tasks": given.tasks, "turns": given.turns, "rows": figures(rows)}, indent=1)
        if given.json == "-":
            print(text)
        else:
            Path(given.json).write_text(text + "\n", encoding="utf-8")
    if given.json != "-":
        print(table(rows, given.tasks, given.turns))
    return 1 if any(row.why for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
