"""A session of pydantic-tes: `pydantic_tes_session.py URL FOLDER`.

It prints a line while two tasks run, and goes on when it reads one. The client sends null for each field that is not set, and reads
answers by a strict model. Nothing is tried again.
"""

from __future__ import annotations

import json
import sys
import time

from pydantictes.api import TesClient
from pydantictes.models import TesExecutor, TesFileType, TesInput, TesOutput, TesTask

URL, FOLDER = sys.argv[1:]
CLIENT = TesClient(URL)
ENDED = ("COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED")


def create(name, script):
    executor = TesExecutor(image="ubuntu:24.04", command=["sh", "-c", script], workdir="/work")
    reads = TesInput(path="/work/in", type=TesFileType.FILE, content="2\n")
    writes = TesOutput(url=f"file://{FOLDER}/{name}", path="/work/out", type=TesFileType.FILE)
    tags = {"workflow_id": "pulsar", "step": name}
    return CLIENT.create_task(
        TesTask(name=name, executors=[executor], inputs=[reads], outputs=[writes], tags=tags)
    )


def wait(created, states=ENDED):
    while True:
        CLIENT.get_task(created, "BASIC")
        task = CLIENT.get_task(created, "FULL")
        if task.state.value in states:
            return task
        time.sleep(0.1)


good, bad = create("good", "cat in in > out"), create("bad", "echo broken >&2; exit 3")
endless = create("endless", "sleep 600")
slow = create("slow", f"until test -e {FOLDER}/go; do sleep 0.1; done; echo slow > out")
wait(endless, ("RUNNING",))
wait(slow, ("RUNNING",))
print("running", flush=True)
sys.stdin.readline()
CLIENT.cancel_task(endless)
ended = {task.name: task for task in map(wait, (good, bad, endless, slow))}
log = ended["bad"].logs[-1].logs[-1]
seen = {
    "states": {name: task.state.value for name, task in ended.items()},
    "failed": [log.exit_code, log.stderr],
    "listed": len(CLIENT.list_tasks().tasks),
    "service": CLIENT.service_info().type.artifact.value,
}
print(json.dumps(seen), flush=True)
