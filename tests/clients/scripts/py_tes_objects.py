"""A pipeline over an object store by py-tes, run by the Python of its own environment: `py_tes_objects.py URL TOKEN OPTIONS`.

As an engine does, it sends a task once the tasks before it are COMPLETE. Each of the chains is align (writes bytes) → sort (reads
these, writes as many) → merge (reads these). After the chains, tasks of one size each read the same reference. It prints JSON: of
each task its name, the node that it ran on and the seconds from its creation to its end, and the seconds of the chains.

Nothing of flowsched is imported here.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tes

URL, TOKEN = sys.argv[1:3]
OPTIONS: dict[str, Any] = json.loads(sys.argv[3])
CLIENT = tes.HTTPClient(URL, timeout=60, token=TOKEN)
TOP = f"s3://lab/{OPTIONS['run']}"
#: Random bytes of a megabyte, again and again: a disk that leaves out what is zero still has to write them.
ALIGN = "head -c 1048576 /dev/urandom > /tmp/m; n=0; while [ $n -lt {mb} ]; do cat /tmp/m; n=$((n+1)); done > /out/file"


def run(name: str, command: str, inputs: list[str], output: str = "") -> dict[str, Any]:
    """Send a task and wait for its end."""
    resources = tes.Resources(ram_gb=0.1)
    resources.cpu_cores = OPTIONS["cores"]  # py-tes takes whole cores only, and test machines have few
    task = tes.Task(
        name=name,
        executors=[tes.Executor(image=OPTIONS["image"], command=["sh", "-ec", command])],
        inputs=[tes.Input(url=url, path=f"/in/{number}", type="FILE") for number, url in enumerate(inputs)],
        outputs=[tes.Output(url=output, path="/out/file", type="FILE")] if output else [],
        volumes=["/out", "/tmp"],
        resources=resources,
        tags={"workflow_id": OPTIONS["run"], "step": name.partition("-")[0]},
    )
    began = time.monotonic()
    ident = CLIENT.create_task(task)
    while True:
        state = CLIENT.get_task(ident, view="MINIMAL").state
        if state not in ("QUEUED", "INITIALIZING", "RUNNING"):
            break
        time.sleep(0.2)
    took = time.monotonic() - began
    found = CLIENT.get_task(ident, view="FULL")
    if state != "COMPLETE":
        raise SystemExit(f"{name}: {state} {found.logs and found.logs[-1].system_logs}")
    return {"name": name, "node": found.logs[-1].metadata["host"], "seconds": took}


def chain(number: int) -> list[dict[str, Any]]:
    """One chain, task after task."""
    aligned, ordered = f"{TOP}/aligned-{number}.bam", f"{TOP}/sorted-{number}.bam"
    return [
        run(f"align-{number}", ALIGN.format(mb=OPTIONS["mb"]), [], aligned),
        run(f"sort-{number}", "cat /in/0 > /out/file", [aligned], ordered),
        run(f"merge-{number}", "wc -c < /in/0 > /out/file", [ordered], f"{TOP}/merged-{number}"),
    ]


def main() -> None:
    """Run both parts."""
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, OPTIONS["chains"])) as pool:
        tasks = [task for tasks in pool.map(chain, range(OPTIONS["chains"])) for task in tasks]
    makespan = time.monotonic() - began
    with ThreadPoolExecutor(max(1, OPTIONS["readers"])) as pool:
        sent = [
            pool.submit(run, f"read-{number}", "test -s /in/0", ["s3://lab/reference.fa"])
            for number in range(OPTIONS["readers"])
        ]
        tasks += [each.result() for each in sent]
    print(json.dumps({"tasks": tasks, "makespan_s": makespan}))


main()
