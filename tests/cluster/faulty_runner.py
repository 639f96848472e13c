"""A runner that dies or waits at a chosen place: `python -I -S faulty_runner.py CLUSTER_FOLDER WHERE WHAT ROOT NAME`.

WHERE: before_order, before_prepare, before_started, after_started, before_published, before_ended. WHAT: `kill` (SIGKILL to
itself), or `wait` until the attempt's folder holds a file `go`; it leaves `waiting` there meanwhile.
Or one that does neither: WHERE is `without`, and WHAT names functions of `os` that a system has not, with commas between.
"""

import os
import signal
import sys
import time

if sys.argv[2] == "without":
    for name in sys.argv[3].split(","):
        delattr(os, name)
sys.path.append(sys.argv[1])
from runner import journal, serve

folder = ""


def act():
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    open(f"{folder}/waiting", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.005)


real_take, real_prepare, real_flush = serve.Runner._accept, serve.prepare, journal.Journal.flush
real_publish = serve.Runner._publish


def take(self, order):
    global folder
    folder = order["folder"]
    if sys.argv[2] == "before_order":
        act()
    real_take(self, order)


def prepare(order):
    if sys.argv[2] == "before_prepare":
        act()
    return real_prepare(order)


def publish(self, plain):
    if sys.argv[2] == "before_published":
        act()
    real_publish(self, plain)


def flush(self):
    kinds = [
        kind
        for kind in ("started", "ended")
        if any(b'"kind": "%b"' % kind.encode() in line for line in self._lines)
    ]
    if sys.argv[2] in [f"before_{kind}" for kind in kinds]:
        act()
    real_flush(self)
    if sys.argv[2] in [f"after_{kind}" for kind in kinds]:
        act()


serve.Runner._accept, serve.prepare, journal.Journal.flush = take, prepare, flush
serve.Runner._publish = publish
serve.main(*sys.argv[4:])
os._exit(0)
