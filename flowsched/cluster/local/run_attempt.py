"""Runs attempts: `python -I -S run_attempt.py` forks a runner per line of its input, `… run_attempt.py FOLDER` is one itself.

A few lines, since a script is compiled at each start; what it does is in `runner`, which is kept compiled.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 1:
        from runner.attempt import main  # type: ignore[import-not-found]

        main(sys.argv[1])
    else:
        from runner.spawner import serve  # type: ignore[import-not-found]

        serve()
    os._exit(0)  # nothing is left to be cleaned up
