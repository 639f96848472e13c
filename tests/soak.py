"""How many random worlds a test looks at: a few in `make test`, many in `make soak` (`FLOWSCHED_SOAK=1`).

`make soak` runs the tests that are marked with `soak`. Each of them asks here for its number, and checks the same promises
in the few worlds as in the many.
"""

from __future__ import annotations

import os

SOAK = os.environ.get("FLOWSCHED_SOAK") == "1"


def worlds(few: int, many: int) -> int:
    """The number of random worlds (seeds, or hypothesis examples) of a test.

    Args:
        few: In `make test`.
        many: In `make soak`.
    """
    return many if SOAK else few
