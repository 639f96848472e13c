"""The spawner of runners that die or wait at a chosen place: `python -I -S faulty_runner.py CLUSTER_FOLDER WHERE WHAT`.

WHERE: before_lock, after_lock, before_started, after_started, before_exit. WHAT: `kill` (SIGKILL to
itself), or `wait` until the attempt's folder holds a file `go`; it leaves `waiting` there meanwhile.
"""

import os
import signal
import sys
import time

sys.path.append(sys.argv[1])
from runner import attempt, spawner, task


def act(folder: str) -> None:
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    open(f"{folder}/waiting", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.005)


real_lock, real_prepare = attempt.take_lock, attempt.prepare
real_started, real_end = task.write_record, attempt.write_end


def take_lock(folder):
    act(folder)
    return real_lock(folder)


def prepare(folder, order):
    act(folder)
    return real_prepare(folder, order)


def write_started(folder, name, record):
    real_started(folder, name, record)
    act(folder)


def write_started_late(folder, name, record):
    act(folder)
    real_started(folder, name, record)


def write_exit(folder, name, record):
    if name == "exit.json":
        act(folder)
    real_end(folder, name, record)


match sys.argv[2]:
    case "before_lock":
        attempt.take_lock = take_lock
    case "after_lock":
        attempt.prepare = prepare
    case "before_started":
        task.write_record = write_started_late
    case "after_started":
        task.write_record = write_started
    case "before_exit":
        attempt.write_end = write_exit
spawner.serve()
os._exit(0)
