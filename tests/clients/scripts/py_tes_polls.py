"""One task, polled when the test says so: `py_tes_polls.py URL FILE`, a line on stdin for each poll. Nothing is tried again."""

from __future__ import annotations

import sys
import time

import tes

URL, GO = sys.argv[1:]
CLIENT = tes.HTTPClient(URL, timeout=120)
EXECUTOR = tes.Executor(image="alpine", command=["sh", "-c", f"until [ -e {GO} ]; do sleep 0.1; done"])
IDENT = CLIENT.create_task(tes.Task(name="waits", executors=[EXECUTOR]))
print("created", flush=True)
for line in sys.stdin:
    state = CLIENT.get_task(IDENT, "MINIMAL").state
    while "until the end" in line and state not in ("COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"):
        time.sleep(0.1)
        state = CLIENT.get_task(IDENT, "MINIMAL").state
    print(state, flush=True)
    if state == "COMPLETE":
        break
