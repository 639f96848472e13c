"""Three trainings that share disks, placed with and without knowing what they read, on a virtual clock.

    python -m bench.io [--cases 100]

Each case: three jobs of 2 ps + 4 workers (8 cores) come a minute apart on nodes of 8 cores with a disk of 500 MB/s each. A
worker reads its part of the data while it computes (10 min), and what it reads varies from job to job: from 1 to 400 MB/s at
full speed. Readers of one disk share it, and a synchronous training is as slow as its slowest worker
(`bench/virtual/disks.py`). Documents say what workers read (`io` of the role), as a user would. Between blind and
not blind one switch of the profile differs: `contention`. Twice: on four empty nodes, where spreading pods evenly
happens to spread the reading, too; and on six nodes of which others (who read nothing) hold 0 to 6 cores each, as on any
shared cluster.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.pains import table
from bench.trainings import FLOWSCHED, KUBE, MINUTE, machines
from bench.virtual.disks import DiskDrive, Reading
from bench.virtual.drive import Fate
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.executor.foreign import RoomTaken
from flowsched.scheduling.policy.framework import Profile
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.spec import Resources

MB = 1_000_000
COMPUTE_MS = 10 * MINUTE
#: MB/s of one worker at full speed.
RATES = (1, 20, 50, 100, 200, 400)
Told = Literal["bytes", "bytes and runtime", "rate"]
BLIND = replace(FLOWSCHED, contention=False)
#: Profile, and what documents say of their workers' reading. Of a rate a budget is made as it is; of bytes and a runtime half
#: of their quotient; of bytes alone none: readers are only kept apart.
POLICIES: dict[str, tuple[Profile, Told]] = {
    "kube-like": (KUBE, "rate"),
    "flowsched, blind to IO": (BLIND, "rate"),
    "flowsched, told bytes": (FLOWSCHED, "bytes"),
    "flowsched, told bytes and a runtime": (FLOWSCHED, "bytes and runtime"),
    "flowsched, told rates": (FLOWSCHED, "rate"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one case: s from start to end of each job, and s from its arrival to its end."""

    executions: tuple[float, ...]
    turnarounds: tuple[float, ...]


def run(
    rates: tuple[int, ...], profile: Profile, taken: Sequence[int] = (0, 0, 0, 0), told: Told = "rate"
) -> Outcome:
    """One job for each rate (MB/s of one worker), a minute apart; of each node others hold so many cores."""
    drive = DiskDrive(
        EngineState(policy=PolicyState(profile=profile, secret=b"bench")),
        machines(len(taken), 8),
        fate=lambda pod: Fate(COMPUTE_MS),
    )
    for node, cores in enumerate(taken):
        if cores:
            room = Resources(cpu_millicores=cores * 1_000)
            drive.at(0, RoomTaken(f"other-{node}", f"node-{node}", room))
    for number, rate in enumerate(rates):
        each = rate * MB * COMPUTE_MS // 1000
        role = {"command": ["true"]}
        stage = {
            "name": "train",
            "gang": True,
            "roles": {
                "ps": {**role, "replicas": 2, "resources": {"cpu": 1, "memory": "1Gi"}},
                "worker": {
                    **role,
                    "replicas": 4,
                    "resources": {"cpu": "1500m", "memory": "1Gi"},
                    "io": {"read": f"{rate * MB}/s" if told == "rate" else f"{each}"},
                },
            },
            "estimate": {} if told == "bytes" else {"runtime": f"{COMPUTE_MS // 1000}s"},
        }
        name = f"job-{number}"
        drive.readings[name] = Reading(COMPUTE_MS, {"worker": each})
        drive.submit(name, check_workflow({"name": name, "stages": [stage]}), number * MINUTE)
    ended: dict[str, int] = {}
    drive.observe = lambda state, step, events, now: ended.update(dict.fromkeys(step.ended, now))
    drive.run()
    started = {one.workflow: one.start_ms + one.waited_ms for one in drive.held}
    names = [f"job-{number}" for number in range(len(rates))]
    return Outcome(
        tuple((ended[name] - started[name]) / 1000 for name in names),
        tuple((ended[name] - at * MINUTE) / 1000 for at, name in enumerate(names)),
    )


def crowd(draws: random.Random) -> tuple[int, ...]:
    """Cores that others hold on six nodes, so that three jobs still have room."""
    while True:
        taken = tuple(draws.randint(0, 6) for _ in range(6))
        if room_for_three(taken):
            return taken


def room_for_three(taken: Sequence[int]) -> bool:
    """Whether twelve workers of a core and a half and six servers of one core fit beside them, however they are placed."""
    return sum((8 - cores) // 3 * 2 for cores in taken) >= 12 + 4


def compare(drawn: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Print one table."""
    outcomes = {
        label: [run(rates, profile, taken, told) for rates, taken in drawn]
        for label, (profile, told) in POLICIES.items()
    }
    rows = []
    for label, of in outcomes.items():
        sums = [sum(each.executions) for each in of]
        turns = [sum(each.turnarounds) for each in of]
        rows.append(
            [
                label,
                f"{statistics.mean(sums):.0f}",
                f"{statistics.pstdev(sums):.0f}",
                f"{min(sums):.0f} … {max(sums):.0f}",
                f"{max(each for one in of for each in one.executions):.0f}",
                f"{statistics.mean(turns):.0f}",
                f"{max(turns):.0f}",
            ]
        )
    table(
        ["policy", "sum of execution times, mean s", "its spread, s", "from … to", "longest job, s",
         "sum of arrival to end, mean s", "worst"],
        rows,
    )  # fmt: skip
    print()
    for ours in ("flowsched, told bytes and a runtime", "flowsched, told rates"):
        for other in ("flowsched, blind to IO", "kube-like"):
            pairs = zip(outcomes[ours], outcomes[other], strict=True)
            worse = sum(sum(a.turnarounds) > sum(b.turnarounds) * 1.001 for a, b in pairs)
            print(f"{ours}: in {worse} of {len(drawn)} cases jobs end later in sum than with {other}.")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", type=int, default=100)
    cases = parser.parse_args().cases
    draws = random.Random(5)
    print(f"{cases} cases; with disks to themselves three jobs take {3 * COMPUTE_MS // 1000} s in all.\n")
    rates = [tuple(draws.choice(RATES) for _ in range(3)) for _ in range(cases)]
    print("## Four empty nodes\n")
    compare([(each, (0, 0, 0, 0)) for each in rates])
    print("\n## Six nodes of which others hold 0 to 6 cores each\n")
    compare([(each, crowd(draws)) for each in rates])


if __name__ == "__main__":
    main()
