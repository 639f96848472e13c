"""Forks services from a process that has everything imported: `python nursery.py`, one JSON object a line on stdin.

Starting an interpreter and importing takes longer than all the rest of a cycle, and is not what is tested here. The child is a
real service process of its own, with its own session, environment and log; it runs `flowsched.__main__.main`.

    {"argv": ["serve", …], "env": {…}, "log": "path", "mutant": "one+other", "port": 0} -> {"pid": 1234}
    {"listen": true} -> {"port": 5678}
    {"close": 5678} -> {}

A port that the nursery listens on is handed over to each service that is forked for it (`LISTEN_FDS`), as the supervisor of
`flowsched serve` does: while none of them lives, clients wait.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
from typing import Any

import flowsched

#: The descriptor of a service's first socket, see `flowsched.listening`.
FIRST_FD = 3
BACKLOG = 1024


def import_all() -> None:
    """Import every module of the product here: the command line imports what it needs late, in each service anew."""
    for module in pkgutil.walk_packages(flowsched.__path__, "flowsched."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # it needs a package that is not installed
                importlib.import_module(module.name)


def become(order: dict[str, Any], held: dict[int, int]) -> None:
    """In the child: be the service.

    Args:
        held: The listening sockets of all services, by port.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((null, log, log)):
        os.dup2(source, target)
    mine = held.get(order["port"], -1)
    for fd in held.values():
        if fd != mine:
            os.close(fd)
    os.environ.update(order["env"])
    if mine >= 0:
        os.dup2(mine, FIRST_FD)
        if mine != FIRST_FD:
            os.close(mine)
        os.environ.update({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
    sys.argv = ["flowsched", *order["argv"]]
    for name in filter(None, order["mutant"].split("+")):
        from tests.crash import mutants

        mutants.ALL[name]()
    from flowsched.__main__ import main

    main()


def serve() -> None:
    """Fork until stdin ends."""
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    held: dict[int, int] = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer = {}
        if "listen" in order:
            made = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
            answer = {"port": made.getsockname()[1]}
            held[answer["port"]] = made.detach()
        elif "close" in order:
            os.close(held.pop(order["close"]))
        else:
            answer = {"pid": os.fork()}
        if answer.get("pid") == 0:
            try:
                become(order, held)
            finally:
                sys.stdout = None  # type: ignore[assignment]
                os._exit(1)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    serve()
