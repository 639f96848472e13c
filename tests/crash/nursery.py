"""Forks services from a process that has everything imported: `python nursery.py`, one JSON object a line on stdin.

Starting an interpreter and importing takes longer than all the rest of a cycle, and is not what is tested here. The child is a
real service process of its own, with its own session, environment and log; it runs `flowsched.__main__.main`.

    {"argv": ["serve", …], "env": {…}, "log": "path", "mutant": ""} -> {"pid": 1234}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any


def become(order: dict[str, Any]) -> None:
    """In the child: be the service."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((null, log, log)):
        os.dup2(source, target)
    os.environ.update(order["env"])
    sys.argv = ["flowsched", *order["argv"]]
    if order["mutant"]:
        from tests.crash import mutants

        mutants.ALL[order["mutant"]]()
    from flowsched.__main__ import main

    main()


def serve() -> None:
    """Fork until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                become(json.loads(line))
            finally:
                sys.stdout = None  # type: ignore[assignment]
                os._exit(1)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    import flowsched.api.server
    import flowsched.app
    import flowsched.cli.commands
    import flowsched.cluster.local
    import flowsched.cluster.runners
    import flowsched.control.leader
    import flowsched.control.service
    import flowsched.store.database
    import flowsched.store.schema  # noqa: F401

    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    serve()
