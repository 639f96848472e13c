"""`python -m bench.blackbox --database sqlite|postgresql --minutes 60 --seed N`: docs/blackbox.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bench.blackbox import arena


def main() -> int:
    """Enter namespaces of its own, then run."""
    parser = argparse.ArgumentParser(prog="python -m bench.blackbox", description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of faults; workflows then have time to end"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--repo", type=Path, default=Path.cwd(), help="a checkout with .venv, or an executable flowsched"
    )
    parser.add_argument(
        "--out", type=Path, help="where evidence is kept; a folder below /var/tmp if left out"
    )
    parser.add_argument("--users", type=int, default=40, help="workflows under way at a time")
    parser.add_argument(
        "--every", type=float, default=1.5, help="mean seconds from one submission to the next"
    )
    parser.add_argument(
        "--no-row", action="store_true", help="leave the twenty poison documents in a row out"
    )
    parser.add_argument(
        "--faults", default="", help="only faults with one of these words in their names, by commas"
    )
    parser.add_argument("--pace", type=float, default=7.0, help="mean seconds from one fault to the next")
    parser.add_argument("--families", default="", help="only these families of workloads, by commas")
    chosen = parser.parse_args()
    if arena.INSIDE not in os.environ:
        return arena.enter(sys.argv[1:])
    arena.be_init()
    arena.raise_loopback()
    from bench.blackbox.run import Settings, run

    program = chosen.repo if chosen.repo.is_file() else chosen.repo / ".venv/bin/flowsched"
    if not os.access(program, os.X_OK):
        print(
            f"blackbox: found no executable {program}; expected a checkout with .venv (make test), or flowsched",
            file=sys.stderr,
        )
        return 2
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = chosen.out or Path("/var/tmp") / f"blackbox-{chosen.database}-{chosen.seed}-{stamp}"
    faults, families = (
        tuple(word for word in text.split(",") if word) for text in (chosen.faults, chosen.families)
    )
    return run(
        Settings(
            chosen.database, chosen.minutes, chosen.seed, str(program.resolve()), out.resolve(), chosen.users, chosen.every,
            row=not chosen.no_row, pace_s=chosen.pace, faults=faults, families=families,
        )
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
