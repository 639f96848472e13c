"""The runner's program: `python -I -S run_attempt.py ROOT NAME`, with its orders as standard input and its lock as standard output.

A few lines, since a script is compiled at each start; `runner`, which stays compiled, does the work.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from runner.serve import main  # type: ignore[import-not-found]

    main(*sys.argv[1:])
    os._exit(0)  # nothing is left to be cleaned up
