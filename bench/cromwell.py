"""Many jobs that run `true`, as Cromwell's backends would run them: wall time, and the CPU of a job on flowsched's side.

    python bench/cromwell.py [--jobs 200] [--rate 20] [--backends local,config,tes]

No Cromwell runs here: its backends are modelled from their sources. A job is started every 1 / rate s (`job-rate-control`), by one
of six threads. Its script is Cromwell's. Local starts it in the background and looks for the file `rc`; config runs the commands of
`flowsched.conf`; tes sends a POST and asks for the task in view FULL over 32 connections, and once more at its end. Each looks at
once, and then after 1 s, 1.1 s, … (randomized as Cromwell does: by a half, over TES by 0.3). What Cromwell itself costs is left
out on all sides. All jobs must have ended with 0.

CPU of a job is that of all processes of the service and of the job, but not of `submit`, which is measured alone beside Python's
start. The script alone is measured, too: most of a job's CPU is its own `mktemp`, `tee`, `find` and `sync`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.tes import TASKS, Connection  # noqa: E402
from tests.cromwell.sfs import Call, Cromwell, Service  # noqa: E402

THREADS, CONNECTIONS = 6, 32
FIRST_PAUSE_S, FACTOR = 1.0, 1.1
ENDED = ("COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED")
STARTS = 11


class Backend(NamedTuple):
    """How one backend starts a job, and whether it has ended."""

    start: Callable[[Call], Awaitable[str]]
    ended: Callable[[Call, str], Awaitable[bool]]
    spread: float  #: of the pauses


async def measure(name: str, jobs: int, rate: float, folder: Path) -> tuple[float, float]:
    """Wall seconds of all jobs, and CPU ms of one; 0 for Local, whose jobs are not below one process."""
    port = 20_000 + os.getpid() % 20_000
    service = Service(folder / "root", port, "--images", "ignore")
    if name != "local":
        service.start()
    try:
        cromwell = Cromwell(ROOT / "deploy/cromwell/flowsched.conf", folder / "cromwell", service.url)
        script = f"#!{sys.executable}\nfrom flowsched.__main__ import main\n\nmain()\n"
        (folder / "bin/flowsched").write_text(script)  # as pip installs it
        with ThreadPoolExecutor(THREADS) as threads:
            backend = await _backend(name, port, threads)
            await _run(backend, _calls(cromwell, 5), rate)
            before = cpu_ms(folder / "root")
            calls = _calls(cromwell, jobs)
            wall_s = await _run(backend, calls, rate)
        if any(call.return_code() != 0 for call in calls):
            raise SystemExit(f"{name}: not all jobs ended well")
        return wall_s, (cpu_ms(folder / "root") - before) / jobs
    finally:
        if name != "local":
            service.kill()


def _calls(cromwell: Cromwell, count: int) -> list[Call]:
    return [Call(cromwell, "true", docker=None, path=f"call-hello/shard-{n}") for n in range(count)]


async def _run(backend: Backend, calls: list[Call], rate: float) -> float:
    chance = random.Random(7)
    began = time.monotonic()

    async def follow(number: int, call: Call) -> None:
        await asyncio.sleep(began + number / rate - time.monotonic())
        job, pause_s = await backend.start(call), FIRST_PAUSE_S
        while not await backend.ended(call, job):
            await asyncio.sleep(pause_s * chance.uniform(1 - backend.spread, 1 + backend.spread))
            pause_s *= FACTOR

    await asyncio.gather(*(follow(number, call) for number, call in enumerate(calls)))
    return time.monotonic() - began


async def _backend(name: str, port: int, threads: ThreadPoolExecutor) -> Backend:
    loop = asyncio.get_running_loop()

    async def has_rc(call: Call, _: str) -> bool:
        return call.return_code() is not None

    async def by_command(call: Call) -> str:
        return await loop.run_in_executor(threads, call.submit)

    async def locally(call: Call) -> str:
        return await loop.run_in_executor(threads, _in_background, call.execution)

    if name != "tes":
        return Backend(by_command if name == "config" else locally, has_rc, 0.5)
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.to(port))

    async def ask(method: str, path: str, body: Any = None) -> Any:
        connection = await free.get()
        try:
            return json.loads(await connection.ask(method, path, body))
        finally:
            free.put_nowait(connection)

    async def create(call: Call) -> str:
        return str((await ask("POST", TASKS, task_of(call)))["id"])

    async def is_over(_: Call, ident: str) -> bool:
        path = f"{TASKS}/{ident}?view=FULL"
        if (await ask("GET", path))["state"] not in ENDED:
            return False
        await ask("GET", path)  # for the metadata
        return True

    return Backend(create, is_over, 0.3)


def _in_background(execution: Path) -> str:
    """Local's start: a script that starts the job's own and says its pid."""
    script = execution / "script.background"
    script.write_text(
        f"#!/bin/bash\n/bin/bash {execution}/script > {execution}/stdout.background 2> {execution}/stderr.background &\necho $!\n"
    )
    with (execution / "stdout.submit").open("wb") as out:
        subprocess.run(["/bin/bash", str(script)], stdout=out, stdin=subprocess.DEVNULL, check=True)
    return ""


def task_of(call: Call) -> dict[str, Any]:
    """What Cromwell's TES backend sends of a call."""
    folder = call.execution
    script = {"name": "commandScript", "description": "hello.hello.commandScript", "type": "FILE"}
    script |= {"url": f"{folder}/script", "path": f"{folder}/script"}
    outputs = [
        {"name": name, "url": f"{folder}/{name}", "path": f"{folder}/{name}", "type": "FILE"}
        for name in ("rc", "stdout", "stderr")
    ]
    return {
        "name": "hello.hello",
        "description": f"{call.run}:BackendJobDescriptorKey_CommandCallNode_hello.hello:-1:1",
        "inputs": [script],
        "outputs": outputs,
        "resources": {"cpu_cores": 1, "ram_gb": 0.1, "disk_gb": 0.1, "preemptible": False},
        "executors": [{
            "image": "ubuntu", "command": ["/bin/bash", f"{folder}/script"],
            "stdout": f"{folder}/stdout", "stderr": f"{folder}/stderr",
        }],
        "tags": {"workflow_id": call.run, "root_workflow_id": call.run, "parent_workflow_id": None},
    }  # fmt: skip


def cpu_ms(root: Path) -> float:
    """CPU of all processes whose command line names a root, with the children that they have reaped."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(root) in (process / "cmdline").read_text():
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue  # it has ended
    return ticks / os.sysconf("SC_CLK_TCK") * 1000


def started_ms(argv: list[str], environment: dict[str, str]) -> float:
    """Median CPU ms of a program."""
    taken = []
    for _ in range(STARTS):
        null = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=[null])
        _, status, used = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"{argv} ended with {status}")
        taken.append((used.ru_utime + used.ru_stime) * 1000)
    return statistics.median(taken)


def submissions(folder: Path) -> dict[str, float]:
    """CPU of `submit` beside that of Python's start."""
    port = 20_000 + os.getpid() % 20_000
    service = Service(folder / "root", port, "--images", "ignore")
    service.start()
    try:
        program = folder / "flowsched"
        program.write_text(f"#!{sys.executable}\nfrom flowsched.__main__ import main\n\nmain()\n")
        program.chmod(0o755)
        given = (
            "--encoded",
            "--name=n",
            f"--cwd={folder}",
            "--script=/bin/true",
            "--cpu=1",
            "--memory-mb=100",
        )
        environment = {**os.environ, "FLOWSCHED_SERVER": service.url, "PYTHONPATH": str(ROOT)}
        cromwell = Cromwell(ROOT / "deploy/cromwell/flowsched.conf", folder / "cromwell", service.url)
        (call,) = _calls(cromwell, 1)
        return {
            "the script of a job alone": started_ms(
                ["/bin/bash", str(call.execution / "script")], environment
            ),
            "flowsched cromwell submit": started_ms(
                [str(program), "cromwell", "submit", *given], environment
            ),
            "python -c pass": started_ms([sys.executable, "-c", "pass"], environment),
            "python -S -E -c pass": started_ms([sys.executable, "-S", "-E", "-c", "pass"], environment),
        }
    finally:
        service.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="jobs a second")
    parser.add_argument("--backends", default="local,config,tes")
    given = parser.parse_args()
    walls: dict[str, float] = {}
    for name in given.backends.split(","):
        with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:
            walls[name], cpu = asyncio.run(measure(name, given.jobs, given.rate, Path(folder)))
        beside = (
            f", {walls[name] / walls['local']:.2f} of Local's" if name != "local" and "local" in walls else ""
        )
        more = f"; {cpu:.1f} ms of CPU a job" if cpu else ""
        print(f"{name:6} {given.jobs} jobs: {walls[name]:.2f} s{beside}{more}")
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:
        for program, taken in submissions(Path(folder)).items():
            print(f"{program}: {taken:.1f} ms of CPU")


if __name__ == "__main__":
    main()
