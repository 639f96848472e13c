"""`flowsched`, and `python -m flowsched`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading

#: Python's collector looks at what is loaded after every 700 new objects, which is a tenth of what loading costs; nothing of it is
#: ever garbage. Loading all of a service makes 400,000. A service chooses anew when it is there (`app.COLLECT`).
COLLECT = (400_000, 4, 250)
#: numpy's library of linear algebra, which flowsched does not call, starts a thread for each core when it is loaded: 0.06 s of CPU
#: time on two cores. It reads this variable then; a user's own value stays.
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["pod"] and sys.argv[2:3] != ["--help"]:
        from flowsched.cluster.kubernetes.steps import program  # without typer: each task starts two of them

        raise SystemExit(program.main(sys.argv[2:]))
    if sys.argv[1:2] == ["cromwell"]:
        from flowsched.cli import cromwell  # Cromwell starts one for every job

        os._exit(
            cromwell.main(sys.argv[2:])
        )  # it has flushed its lines; to take Python down costs a tenth of a submission
    gc.set_threshold(*COLLECT)
    os.environ.setdefault(BLAS_THREADS, "1")
    from flowsched import credentials
    from flowsched.cli.app import app

    credentials.restore()
    try:
        app(prog_name="flowsched")
    except SystemExit as end:
        if isinstance(end.code, int):
            _end(end.code)
        raise


def _end(code: int) -> None:
    """End this process without taking down what is loaded, which costs 0.07 s: a fifteenth of a short `run`.

    Returns where something still has to be done: a thread lives, a profiler or a debugger looks on, or the last output cannot be
    written.
    """
    if threading.active_count() > 1 or sys.getprofile() or sys.gettrace():
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    main()
