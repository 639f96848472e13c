"""How good the suggestions of `explain` are: each is applied, and made smaller by one unit, on random clusters.

    python bench/suggestions.py [--cases 1000] [--wild 300] [--json FILE]

`planted`: a group that would start, and things put in its way one after the other until one stops it (twelve kinds; see
tests/scheduling/waiting_cases.py). `wild`: whatever chance puts together, seldom one thing alone, so that often no single
change would do and nothing is suggested. `found` = a single change is suggested; `starts` = the group starts once it is
applied to a copy; `minimal` = one unit less does not start it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "scheduling"))

from waiting_cases import first, starts_with, starts_with_less, waiting, wild

from flowsched.scheduling.explain.remedies import Situation


def measure(cases: Iterator[tuple[int, str, Situation]]) -> dict[str, Any]:
    """Counts over some cases."""
    found = starts = minimal = total = 0
    kinds: Counter[str] = Counter()
    times: list[float] = []
    for _, _, s in cases:
        total += 1
        begin = time.perf_counter()
        change = first(s)
        times.append(time.perf_counter() - begin)
        if change is None:
            continue
        found += 1
        kinds[change.kind.value] += 1
        starts += starts_with(s, change)
        minimal += not starts_with_less(s, change)
    return {
        "cases": total,
        "found": found,
        "starts": starts,
        "minimal": minimal,
        "ms_median": round(1000 * statistics.median(times), 1),
        "ms_p99": round(1000 * sorted(times)[int(0.99 * len(times))], 1),
        "kinds": dict(kinds.most_common()),
    }


def main() -> int:
    """Print a line for each kind of cases; fails where a suggestion does not hold."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cases", type=int, default=1000)
    options.add_argument("--wild", type=int, default=300)
    options.add_argument("--json", type=Path, help="also write the figures here")
    given = options.parse_args()
    rows = {"planted": measure(waiting(given.cases)), "wild": measure(wild(given.wild))}
    print(f"{'':9}{'cases':>7}{'found':>9}{'starts':>9}{'minimal':>9}{'median':>9}{'p99':>9}")
    for name, row in rows.items():
        shares = (
            row["found"] / row["cases"],
            *(row[key] / max(row["found"], 1) for key in ("starts", "minimal")),
        )
        said = "".join(f"{100 * share:8.1f}%" for share in shares)
        print(f"{name:9}{row['cases']:7}{said}{row['ms_median']:6} ms{row['ms_p99']:6} ms")
        print(f"{'':9}{', '.join(f'{kind} {number}' for kind, number in row['kinds'].items())}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))
    good = rows["planted"]["starts"] >= 0.98 * rows["planted"]["cases"]
    return 0 if good and all(row["starts"] == row["minimal"] == row["found"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
