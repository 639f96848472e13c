"""100 tasks at a time, each in a container of its own, against `podman run` of the same by itself.

    python bench/containers.py [--tasks 100] [--rounds 3] [--image localhost/flowsched-test/numpy:1]

The image is `make images`' (`--load` brings it into the storage that podman uses here). Both sides start the same program in
the same image with the same network, first process and memory limit, all at once; the baseline removes its containers itself
(`--rm`). Seconds from the first start to the last end, in turns, and the CPU seconds of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from flowsched.app import Settings, running
from flowsched.client import Client
from flowsched.cluster.local.settings import LocalSettings

COMMAND: Final = ("sh", "-c", "sleep 1; echo done")
MEMORY: Final = 64 * 2**20
OPTIONS: Final = (
    "--network", "host", "--user", "0:0", "--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--init",
    "--memory", f"{MEMORY}b", "--memory-swap", f"{MEMORY}b", "--shm-size", f"{MEMORY}b", "--pull", "never",
)  # fmt: skip


def machine_cpu_s() -> float:
    """CPU seconds that this machine has spent since it started, on anything."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / 100


async def bare(tasks: int, image: str) -> float:
    """Seconds that so many `podman run --rm` take, all started at once."""
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:

        async def one() -> None:
            mount = ("--mount", f"type=bind,source={folder},target={folder}", "--workdir", folder)
            started = await asyncio.create_subprocess_exec(
                "podman", "run", "--rm", *OPTIONS, *mount, image, *COMMAND,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if await started.wait():
                raise SystemExit("podman run failed; its words are above")

        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(tasks)))
        return time.perf_counter() - begun


async def ours(client: Client, tasks: int, image: str) -> float:
    """Seconds from the submission of a workflow of so many tasks to its end."""
    stage = {
        "name": "task",
        "scatter": {"count": tasks},
        "container": {"image": image},
        "command": list(COMMAND),
        "resources": {"cpu": "1", "memory": "64Mi"},
    }
    begun = time.perf_counter()
    run = await client.submit({"name": "containers", "stages": [stage]})
    view = await run.wait(600)
    taken = time.perf_counter() - begun
    if view.state != "SUCCEEDED":
        raise SystemExit(f"the workflow ended {view.state}: {await run.explain()}")
    return taken


async def measure(tasks: int, rounds: int, image: str) -> None:
    """Print every round, and the medians."""
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="flowsched-bench-") as folder:
        settings = Settings(
            port=0,
            root=Path(folder),
            log_level="error",
            local=LocalSettings(cpu=str(tasks), memory="64Gi", containers="podman"),
        )
        async with running(settings) as service, Client(service.url) as client:
            await ours(client, 1, image)
            for each in range(rounds):
                cpu: dict[str, float] = {}
                wall: dict[str, float] = {}
                for side in ("ours", "bare") if each % 2 else ("bare", "ours"):
                    before = machine_cpu_s()
                    wall[side] = await (ours(client, tasks, image) if side == "ours" else bare(tasks, image))
                    await asyncio.sleep(8)  # for what is cleared up afterwards, too
                    cpu[side] = machine_cpu_s() - before
                ratios.append((wall["ours"] / wall["bare"], cpu["ours"] / cpu["bare"]))
                print(
                    f"{tasks} tasks: ours {wall['ours']:.1f} s, bare {wall['bare']:.1f} s, ratio {ratios[-1][0]:.2f};"
                    f" CPU {cpu['ours']:.1f} s and {cpu['bare']:.1f} s, ratio {ratios[-1][1]:.2f}",
                    flush=True,
                )
    print(
        f"median ratio {statistics.median(r[0] for r in ratios):.2f}, of CPU {statistics.median(r[1] for r in ratios):.2f}"
    )


def main() -> None:
    """Read the options, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--image", default="localhost/flowsched-test/numpy:1")
    parser.add_argument("--load", metavar="FILE", help="an image's archive that podman shall load first")
    given = parser.parse_args()
    if given.load:
        subprocess.run(["podman", "load", "--quiet", "--input", given.load], check=True)
    asyncio.run(measure(given.tasks, given.rounds, given.image))


if __name__ == "__main__":
    main()
