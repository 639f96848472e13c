"""How well amounts are predicted after five samples of a kind, on real workflows: the trend against the mean of its kind.

Every task of a trace is predicted from those of its kind that came before it in the trace, at least five, then learned. Errors are
relative to what the trace says. Printed: medians over all predictions, and over kinds (each kind's median counts once, so that
a scatter of a thousand does not speak for all), for

    bytes    what it reads and writes: the IO demand of a task
    out      what it writes
    cpu      CPU seconds
    rate     bytes over (CPU over cores + bytes over the disk's 500 MB/s)

    python bench/estimates.py [--json] [--at-most 5]     fails when the median error of `bytes` is above so many per cent
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from flowsched.workflow.estimates import OUTPUT, WRITTEN, Estimates, Measured  # noqa: E402
from flowsched.workflow.formats.wfformat import read_trace  # noqa: E402
from flowsched.workflow.traces.trace import Trace, work  # noqa: E402

#: Beside the checkout, or beside a folder that it is in.
TRACES = [
    found
    for folder in Path(__file__).resolve().parents
    for found in sorted((folder / "shared" / "data" / "wfinstances").glob("*.json*"))
]
DISK = 500_000_000
ENOUGH = 5
AMOUNTS = ("bytes", "out", "cpu", "rate")


@dataclass(frozen=True)
class Seen:
    """One task of a trace; bytes and milliseconds of CPU."""

    reads: int
    writes: int
    cpu_ms: int
    cores: int

    def amounts(self) -> dict[str, float]:
        moved = self.reads + self.writes
        return amounts(moved, self.writes, self.cpu_ms, self.cores)


def amounts(moved: float, out: float, cpu_ms: float, cores: int) -> dict[str, float]:
    seconds = cpu_ms / 1000 / cores + moved / DISK
    return {"bytes": moved, "out": out, "cpu": cpu_ms, "rate": moved / seconds if seconds else 0.0}


def tasks(trace: Trace) -> Iterator[tuple[str, Seen]]:
    """Kind and amounts of each task, in the order of the trace."""
    for task in trace.tasks:
        reads = sum(trace.files[file].size_bytes for file in task.inputs)
        writes = sum(trace.files[file].size_bytes for file in task.outputs)
        asked = work(task)
        yield task.category, Seen(reads, writes, int(asked.cpu_seconds * 1000), asked.cores)


def errors(trace: Trace) -> Iterator[tuple[str, str, float, float]]:
    """(kind, amount, error of the mean, error of the trend) of each prediction."""
    estimates = Estimates()
    before: dict[str, list[Seen]] = defaultdict(list)
    for kind, seen in tasks(trace):
        known = before[kind]
        if len(known) >= ENOUGH:
            means = [
                statistics.fmean(values)
                for values in zip(*((k.reads + k.writes, k.writes, k.cpu_ms) for k in known), strict=True)
            ]
            mean = amounts(means[0], means[1], means[2], seen.cores)
            moved = estimates.trend(trace.name, kind, WRITTEN).at(seen.reads)
            out = estimates.trend(trace.name, kind, OUTPUT).at(seen.reads)
            trend = amounts(moved, out, estimates.cpu_ms(trace.name, kind, seen.reads) or 0, seen.cores)
            for name, value in seen.amounts().items():
                if value:
                    yield kind, name, abs(mean[name] - value) / value, abs(trend[name] - value) / value
        measured = Measured(seen.reads, seen.cpu_ms, 0, seen.reads + seen.writes, 0, seen.writes)
        estimates.learn(trace.name, kind, 1, measured)
        known.append(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--at-most", type=float, default=5.0, help="per cent; default 5")
    options = parser.parse_args()
    if not TRACES:
        print(
            "no ../shared/data/wfinstances/*.json: the real traces are not on this machine; nothing is measured"
        )
        return 0
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    kinds: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for path in TRACES:
        raw = path.read_bytes()
        trace = read_trace(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for kind, name, mean, trend in errors(trace):
            pairs[name].append((mean, trend))
            kinds[name][path.name, kind].append((mean, trend))
    found = {}
    for name in AMOUNTS:
        per_kind = [
            tuple(statistics.median(each) for each in zip(*rows, strict=True))
            for rows in kinds[name].values()
        ]
        found[name] = {
            "predictions": len(pairs[name]),
            "kinds": len(per_kind),
            **{f"{model}_{over}": round(100 * statistics.median(row[at] for row in rows), 2)
               for over, rows in (("all", pairs[name]), ("kinds", per_kind)) for at, model in enumerate(("mean", "trend"))},
            **{f"{model}_worst_tenth": round(100 * statistics.quantiles([row[at] for row in pairs[name]], n=10)[-1], 1)
               for at, model in enumerate(("mean", "trend"))},
        }  # fmt: skip
    if options.json:
        print(json.dumps({"traces": len(TRACES), "errors_per_cent": found}, indent=1))
    else:
        print(f"{len(TRACES)} traces; median error in per cent, the mean of the kind -> its trend")
        for name, row in found.items():
            print(
                f"  {name:6} {row['predictions']:5} predictions {row['mean_all']:6.2f} -> {row['trend_all']:5.2f}"
                f"   {row['kinds']:3} kinds {row['mean_kinds']:6.2f} -> {row['trend_kinds']:5.2f}"
                f"   ninth decile {row['mean_worst_tenth']:6.1f} -> {row['trend_worst_tenth']:5.1f}"
            )
    worst = max(found["bytes"]["trend_all"], found["bytes"]["trend_kinds"])
    return int(worst > options.at_most)


if __name__ == "__main__":
    sys.exit(main())
