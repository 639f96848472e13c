"""Runs one attempt of one task: `python -I -S runner.py FOLDER`.

A few lines, since a script is compiled at each start; what it does is in `running`, which is kept compiled.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from running.attempt import main  # type: ignore[import-not-found]

    main(sys.argv[1])
    os._exit(0)  # nothing is left to be cleaned up
