"""Runs attempts: `python -I -S runner.py` forks a runner per line of its input, `… runner.py FOLDER` is one itself.

A few lines, since a script is compiled at each start; what it does is in `running`, which is kept compiled.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    if len(sys.argv) > 1:
        from running.attempt import main  # type: ignore[import-not-found]

        main(sys.argv[1])
    else:
        from running.spawner import serve  # type: ignore[import-not-found]

        serve()
    os._exit(0)  # nothing is left to be cleaned up
