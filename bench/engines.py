"""Tiny tasks of real engines over TES, beside the engine's own local executor; and outputs to s3://, beside outputs to file://.

    python bench/engines.py [--tasks 100] [--engines toil-7,cwl-tes-0.3,snakemake-9,nextflow] [--rounds 3]

Each engine that `make clients` or `make engines` has installed runs so many parts that echo their name, and a join: on a service
over TES, and by itself. Both are whole processes, so the engine's own start counts on both sides. The local executors have the
cores of the machine, and the service has two nodes of 8 CPUs. Sprocket's local executor is docker, so Sprocket has no line here.

The second part needs no engine: it sends as many tasks in Sprocket's form, with three outputs each, to moto's S3 server and to a
folder. The goal is s3 ÷ file ≤ 1.5. The first round of it is cold: the service imports s3fs once. The median is of all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.clients.environments import home, installed
from tests.clients.live import LiveService
from tests.clients.test_engines import ENGINES, Order
from tests.crash.harness import Nursery


def own(name: str) -> Callable[[Order], list[str]] | None:
    """The same pipeline by an engine's own local executor; None = it has none without containers."""
    return {"toil-7": _toil, "cwl-tes-0.3": _cwltool, "snakemake-9": _snakemake, "nextflow": _nextflow}.get(
        name
    )


def _toil(order: Order) -> list[str]:
    command = ENGINES["toil-7"].command(order)
    at = command.index("--tesEndpoint")
    return [*command[: at - 2], *command[at + 2 :]]


def _cwltool(order: Order) -> list[str]:
    return [
        f"{order.programs}/cwltool",
        "--leave-tmpdir",
        "--parallel",
        "--outdir",
        f"{order.folder}",
        *order.cwl,
    ]


def _snakemake(order: Order) -> list[str]:
    command = ENGINES["snakemake-9"].command(order)
    return [command[0], "--cores", "2", *command[command.index("--config") :]]


def _nextflow(order: Order) -> list[str]:
    command = ENGINES["nextflow"].command(order)
    (order.folder / "nextflow.config").write_text("process.executor = 'local'\n")
    return command


def run_s(name: str, command: Callable[[Order], list[str]], order: Order) -> float:
    """How long an engine takes, in seconds. Its result must be right."""
    order.folder.mkdir()
    words = command(order)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"PATH": f"{order.programs}:{env['PATH']}", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    env |= {"PIP_FIND_LINKS": str(home() / name / "wheels"), "GITHUB_WORKSPACE": str(order.folder)}
    begun = time.perf_counter()
    ended = subprocess.run(words, cwd=order.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    taken = time.perf_counter() - begun
    made = next(order.folder.rglob("all.txt"), None)
    if ended.returncode or made is None or set(made.read_text().split()) != set(order.parts):
        raise SystemExit(f"{name} did not make all.txt:\n{ended.stdout.decode(errors='replace')[-2000:]}")
    return taken


async def outputs_s(url: str, storage: str, tasks: int) -> float:
    """How long so many tasks take, each with three outputs to a storage, in seconds."""
    async with aiohttp.ClientSession() as session:

        async def one(number: int) -> None:
            async with session.post(f"{url}/v1/tasks", json=_task(f"{storage}/{number}")) as answer:
                ident = (await answer.json())["id"]
            state = ""
            while state != "COMPLETE":
                await asyncio.sleep(0.2)
                async with session.get(f"{url}/v1/tasks/{ident}") as answer:
                    state = (await answer.json())["state"]
                if state.endswith("ERROR"):
                    raise SystemExit(f"task {ident} ended as {state}")

        begun = time.perf_counter()
        await asyncio.gather(*map(one, range(tasks)))
        return time.perf_counter() - begun


def _task(storage: str) -> dict[str, Any]:
    outputs = {"work": "DIRECTORY", "stdout": "FILE", "stderr": "FILE"}
    return {
        "executors": [
            {
                "image": "ubuntu:24.04", "command": ["sh", "-c", "echo hi; echo hi > out.txt"], "workdir": "/mnt/task/work",
                "stdout": "/mnt/task/stdout", "stderr": "/mnt/task/stderr", "ignore_error": True,
            }
        ],
        "outputs": [{"path": f"/mnt/task/{name}", "url": f"{storage}/{name}", "type": kind} for name, kind in outputs.items()],
        "resources": {"cpu_cores": 1, "ram_gb": 0.2},
    }  # fmt: skip


def object_store() -> Any:
    """Start moto's S3 server with a bucket `lab`; the environment has its address and keys, for the service to come."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    boto3.client("s3").create_bucket(Bucket="lab")
    return server


def main() -> None:
    """Print a line for each engine, and one for the storages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts = tuple(f"p{number}" for number in range(options.tasks))
    server, nursery = object_store(), Nursery()
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-engines-", dir="/var/tmp") as name:
        folder = Path(name)
        service = LiveService(folder, nursery, path=str(home() / "toil-7" / "bin"))
        try:
            service.start()
            asyncio.run(service.ready())
            for engine in filter(None, options.engines.split(",")):
                alone = own(engine)
                if alone is None or not installed(engine):
                    print(
                        f"{engine:12} {'is not installed' if alone else 'has no local executor without containers'}"
                    )
                    continue
                times: dict[str, list[float]] = {"tes": [], "own": []}
                for number in range(options.rounds):
                    for kind, command in (("tes", ENGINES[engine].command), ("own", alone)):
                        where = folder / f"{engine}-{kind}-{number}"
                        order = Order(home() / engine / "bin", service.url, where, parts)
                        times[kind].append(run_s(engine, command, order))
                print(_line(engine, "over TES", times["tes"], "own executor", times["own"]))
            stored: dict[str, list[float]] = {"s3": [], "file": []}
            for number in range(options.rounds):
                for kind, storage in (
                    ("s3", f"s3://lab/{number}"),
                    ("file", f"file://{folder}/out-{number}"),
                ):
                    stored[kind].append(asyncio.run(outputs_s(service.url, storage, options.tasks)))
            print(_line("outputs", "s3", stored["s3"], "file", stored["file"]))
        finally:
            asyncio.run(service.end())
            nursery.close()
            server.stop()


def _line(what: str, first: str, ones: list[float], second: str, others: list[float]) -> str:
    one, other = statistics.median(ones), statistics.median(others)
    return f"{what:12} {first} {one:6.1f} s, {second} {other:6.1f} s, ratio {one / other:.2f}"


if __name__ == "__main__":
    main()
