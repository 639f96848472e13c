"""`flowsched serve` whose wall clock is ahead by as many seconds as a file says: `python shifted.py FILE serve …`.

Only the wall clock of this process is shifted, and only as a jump of the machine's would shift it: elapsed time goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

OFFSET = Path(sys.argv.pop(1))
_real_ns = time.time_ns


def shifted_ns() -> int:
    """The wall clock."""
    return _real_ns() + int(OFFSET.read_text() or 0) * 1_000_000_000


time.time_ns = shifted_ns
time.time = lambda: shifted_ns() / 1e9

if __name__ == "__main__":
    from flowsched.__main__ import main

    main()
