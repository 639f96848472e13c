"""A gang of the whole cluster under a stream of small jobs that never ends: does it start when it was promised to?

Four nodes of four cores; one-core jobs of three kinds (half a minute, one, two; lognormal around that) come faster than
the cluster can serve them. After five minutes a gang comes that needs every core. Measured is

    (start - submit) / (promised - submit)

where `promised` is the first start that was reserved for it: 1.00 is a promise kept to the ms, below that it started earlier.
Estimates of the small jobs are exact, wrong by 30 % or 100 % (lognormal), or not given: then they are learned as jobs finish.

The same stream under kube-like (pod by pod, whoever fits): the gang has not started when the stream is cut off.

    python bench/starvation.py [--json] [--seeds 5] [--at-most 1.1]     fails where EASY's mean or median is above that
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flowsched.engine.state.policy import PolicyState

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.virtual.drive import Drive, Fate  # noqa: E402
from flowsched.engine.events import EngineEvent  # noqa: E402
from flowsched.engine.state import EngineState  # noqa: E402
from flowsched.engine.state.work import GroupKey  # noqa: E402
from flowsched.engine.step import Step  # noqa: E402
from flowsched.executor.nodes import NodeInfo  # noqa: E402
from flowsched.executor.protocol import Pod  # noqa: E402
from flowsched.scheduling.policy.framework import PROFILES, Profile  # noqa: E402
from flowsched.workflow.document.decode import check_workflow  # noqa: E402

SECOND = 1_000
NODES, CORES = 4, 4
KINDS = (("short", 30), ("middle", 60), ("long", 120))
EVERY_MS = 4_000  #: a job on average: a fifth more than 16 cores serve
SUBMIT_MS = 300 * SECOND
CUT_MS = 1_800 * SECOND
GANG_MS = 300 * SECOND
MODES: tuple[tuple[str, float | None], ...] = (
    ("exact", 0.0),
    ("30 % wrong", 0.3),
    ("100 % wrong", 1.0),
    ("learned", None),
)


def small(kind: str, said_ms: int | None) -> dict[str, Any]:
    stage: dict[str, Any] = {"name": "s", "command": ["x"], "resources": {"cpu": 1}}
    if said_ms is not None:
        stage["estimate"] = {"runtime": f"{said_ms}ms"}
    return {"name": kind, "stages": [stage]}


def big() -> dict[str, Any]:
    role = {"replicas": NODES, "command": ["x"], "resources": {"cpu": CORES}}
    stage = {"name": "g", "gang": True, "estimate": {"runtime": f"{GANG_MS}ms"}, "roles": {"worker": role}}
    return {"name": "gang", "stages": [stage]}


def stream(seed: int, error: float | None) -> Iterator[tuple[int, str, int, int | None]]:
    """(at, kind, true ms, said ms) until the cut; the truth is the same whatever is said of it."""
    truth, words = random.Random(seed), random.Random(seed + 1_000_003)
    at = 0.0
    while at < CUT_MS:
        kind, median_s = truth.choice(KINDS)
        runtime = max(1, round(median_s * SECOND * truth.lognormvariate(0.0, 0.4)))
        said = None if error is None else max(1, round(runtime * words.lognormvariate(0.0, error)))
        yield int(at), kind, runtime, said
        at += truth.expovariate(1 / EVERY_MS)


def gang_starts(seed: int, error: float | None, profile: Profile) -> tuple[int | None, int | None]:
    """(first promised start, start) of the gang in ms; None where there was none before the stream was cut off."""
    truth: dict[str, int] = {}
    promised: list[int] = []

    def observe(state: EngineState, step: Step, events: Sequence[EngineEvent], now: int) -> None:
        for reservation in state.round.reservations:
            key = state.work.groups[reservation.group]
            if isinstance(key, GroupKey) and key.workflow == "gang":
                promised.append(reservation.start_ms)

    def fate(pod: Pod) -> Fate:
        return Fate(truth.get(pod.workflow, GANG_MS))

    nodes = [NodeInfo(f"n{at}", CORES * 1_000, 64 << 30) for at in range(NODES)]
    drive = Drive(EngineState(policy=PolicyState(profile=profile)), nodes, fate=fate, observe=observe)
    run = drive.submit("gang", check_workflow(big()), at=SUBMIT_MS)
    for number, (at, kind, runtime, said) in enumerate(stream(seed, error)):
        truth[f"j{number}"] = runtime
        drive.submit(f"j{number}", check_workflow(small(kind, said)), at=at)
    stage = run.stages[0]
    while drive.now < CUT_MS and not (stage.uniform is None and (stage.times[:, 4] >= 0).all()):
        drive.tick()
    begun = stage.uniform is None and bool((stage.times[:, 4] >= 0).all())
    return (promised[0] if promised else None), (int(stage.times[:, 4].max()) if begun else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-most", type=float, default=1.1)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    bad = False
    for name, error in MODES:
        factors, waits = [], []
        for seed in range(options.seeds):
            promised, started = gang_starts(seed, error, PROFILES["flowsched"])
            if promised is None or started is None:
                bad = True
                continue
            factors.append((started - SUBMIT_MS) / (promised - SUBMIT_MS))
            waits.append((started - SUBMIT_MS) / SECOND)
        row = {
            "started": len(factors),
            "median": round(statistics.median(factors), 3),
            "mean": round(statistics.fmean(factors), 3),
            "worst": round(max(factors), 3),
            "mean_wait_s": round(statistics.fmean(waits), 1),
        }
        worse = row["median"] > options.at_most or row["mean"] > options.at_most
        bad = bad or worse
        found[name] = row
        if not options.json:
            print(
                f"{name:12} started {len(factors)}/{options.seeds}, factor median {row['median']:.3f}"
                f" mean {row['mean']:.3f} worst {row['worst']:.3f}, waited {row['mean_wait_s']:.0f} s",
                flush=True,
            )
    stock = [gang_starts(seed, 0.0, PROFILES["kube-like"])[1] for seed in range(min(3, options.seeds))]
    never = sum(started is None for started in stock)
    found["kube-like"] = {
        "never_started": never,
        "of": len(stock),
        "within_s": (CUT_MS - SUBMIT_MS) // SECOND,
    }
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            f"kube-like    not started within {(CUT_MS - SUBMIT_MS) // SECOND} s in {never} of {len(stock)} streams"
        )
    return int(bad or never < len(stock))


if __name__ == "__main__":
    sys.exit(main())
