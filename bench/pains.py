"""The four pains of a shared training cluster, each shown with kube-like and gone with flowsched, on a virtual clock.

    python -m bench.pains [1 2 3 4 mixes]

The same engine, cycle and profiles as the service; a job gets nowhere until all its members run (`bench/trainings.py`). `kube-like`
places pod by pod, one pod of each job in turn, as job controllers create them at once; `kube-like, gang by gang` all pods of a job
before the next job's. A DEADLOCK is not a timeout here: nothing is left that could ever happen, while members hold cores and wait
for others. `bench/pains_real.py` shows the same with real processes.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.trainings import (
    FLOWSCHED,
    HOUR,
    KUBE,
    KUBE_IN_TURN,
    MINUTE,
    VOLCANO,
    Job,
    Outcome,
    machines,
    minutes,
    simulate,
    single,
    training,
)
from bench.virtual.gathering import GatheringDrive
from bench.virtual.idle import IdleHours
from flowsched.engine.events import QueueChanged
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import Queue
from flowsched.workflow.views import IdleReportView

#: Room for one and a half gangs of 8 cores.
SMALL = (3, 4)
#: Of 20 trainings: (workers, minutes).
TWENTY = (
    (4, 20), (2, 45), (8, 15), (4, 60), (6, 10), (3, 35), (8, 40), (2, 20), (4, 30), (5, 55),
    (4, 20), (2, 45), (8, 15), (4, 60), (6, 10), (3, 35), (8, 40), (2, 20), (4, 30), (5, 55),
)  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as documents have it."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def core_hours(core_ms: int) -> str:
    """In core hours."""
    return f"{core_ms / HOUR:.1f}"


# ------------------------------------------------------------------------------------------- 1: the deadlock


def deadlock(jobs: int, profile: Profile) -> Outcome:
    """So many jobs of 2 ps + 4 workers (8 cores, 10 min), all at once on 12 cores."""
    every = [training(f"job-{number + 1}", 10 * MINUTE) for number in range(jobs)]
    return simulate(every, machines(*SMALL), profile)


def pain_1() -> None:
    """Print it."""
    print(
        "\n## 1. Jobs of 2 ps + 4 workers (8 cores, 10 min) on 3 nodes of 4 cores: room for one and a half\n"
    )
    rows, orders = [], []
    for jobs in (1, 2, 5):
        for profile in (KUBE, KUBE_IN_TURN, FLOWSCHED):
            got = deadlock(jobs, profile)
            ended = f"{len(got.ended)} of {jobs}"
            rows.append(
                [
                    str(jobs),
                    profile.name,
                    ended,
                    got.verdict,
                    minutes(got.finished_ms),
                    f"{got.stuck_cores:g}",
                ]
            )
            orders.append(f"- {jobs}, {profile.name}: {', '.join(got.order)}")
    table(["jobs", "policy", "ended", "", "all done after", "cores held for ever"], rows)
    print("\nMembers in the order in which they got their nodes:\n")
    print("\n".join(orders))


# --------------------------------------------------------------------- 2: a gang too big for the room there is


def larger_than_cluster(profile: Profile) -> Outcome:
    """A gang of 16 cores on 12, and 100 small jobs (1 core, 5 min), one every 30 s, behind it."""
    big = training("big", 10 * MINUTE, workers=14, worker_cpu="1")
    return simulate([big, *stream(100, MINUTE)], machines(*SMALL), profile)


def as_large_as_cluster(profile: Profile, order: Literal["best-effort", "fifo"] = "best-effort") -> Outcome:
    """Four cores are taken for 30 min; after a minute comes a gang of all 12, in a stream of small jobs that lasts 4 hours.

    `order` of the queue: "fifo" = nobody passes who came first.
    """

    def prepare(drive: GatheringDrive) -> None:
        drive.at(0, QueueChanged(Queue("default", order=order)))

    long = single("long", 30 * MINUTE, count=4)
    big = training("big", 10 * MINUTE, MINUTE, workers=10, worker_cpu="1")
    return simulate([long, big, *stream(480)], machines(*SMALL), profile, prepare=prepare)


def stream(count: int, since_ms: int = 0) -> list[Job]:
    """Small jobs of 1 core and 5 min, one every 30 s: ten cores' worth."""
    return [single(f"small-{at:03}", 5 * MINUTE, since_ms + 30_000 * at) for at in range(count)]


def small_waits(got: Outcome, jobs: Sequence[Job]) -> list[int]:
    """How long each small job waited that ever started, ms."""
    return [got.started[job.name] - job.at_ms for job in jobs if job.name in got.started]


def pain_2() -> None:
    """Print it."""
    print("\n## 2a. A gang of 16 cores on 12, and 100 small jobs behind it\n")
    rows = []
    for profile in (KUBE, VOLCANO, FLOWSCHED):
        got = larger_than_cluster(profile)
        small = sum(name.startswith("small") for name in got.ended)
        rows.append([profile.name, f"{small} of 100", f"{got.stuck_cores:g} of 12", got.reasons["big"]])
    table(["policy", "small jobs done", "cores held for ever", "what is said of the big one"], rows)

    print(
        "\n## 2b. A gang of all 12 cores (10 min) in an endless stream of small jobs (10 cores' worth, 4 hours)\n"
    )
    rows = []
    for label, got in {
        KUBE.name: as_large_as_cluster(KUBE),
        KUBE_IN_TURN.name: as_large_as_cluster(KUBE_IN_TURN),
        "volcano-like (gangs, no reservation)": as_large_as_cluster(VOLCANO),
        "… in a queue where nobody passes who came first": as_large_as_cluster(VOLCANO, "fifo"),
        FLOWSCHED.name: as_large_as_cluster(FLOWSCHED),
    }.items():
        jobs, start = stream(480), got.started.get("big")
        waits = small_waits(got, jobs)
        before = sum(job.name in got.ended and got.ended[job.name] <= (start or 0) for job in jobs)
        rows.append(
            [
                label,
                minutes(got.promised_ms.get("big")) if got.promised_ms else "-",
                minutes(start),
                str(before),
                f"{minutes(sum(waits) // len(waits))} / {minutes(max(waits))}",
                core_hours(got.waited_core_ms),
            ]
        )
    table(
        ["policy", "promised", "big one starts", "small ended before", "small wait, mean / longest",
         "core hours held for nothing"],
        rows,
    )  # fmt: skip


# ----------------------------------------------------------------------------------- 3: staggering by hand


def twenty(
    gap_ms: int,
    profile: Profile,
    patience_ms: Callable[[Pod], int] | None = None,
    mix: Sequence[tuple[int, int]] = TWENTY,
) -> Outcome:
    """20 trainings of 5 to 14 cores and 10 to 60 min on 48 cores, one every `gap_ms`. Estimates: the next quarter of an hour."""
    jobs = [
        training(
            f"train-{at + 1:02}",
            length * MINUTE,
            at * gap_ms,
            workers=workers,
            attempts=100,
            estimate_ms=-(-(length + 1) // 15) * 15 * MINUTE,
        )
        for at, (workers, length) in enumerate(mix)
    ]
    return simulate(jobs, training_nodes(), profile, patience_ms=patience_ms, until_ms=72 * HOUR)


def training_nodes() -> list[NodeInfo]:
    """Six nodes of 8 cores."""
    return machines(6, 8)


def ten_minutes_or_so(pod: Pod) -> int:
    """Torch's ten minutes, up to two more, so that not all jobs give up in the same moment."""
    return 10 * MINUTE + int(pod.workflow.removeprefix("train-")) * 6_000


def bound_ms(mix: Sequence[tuple[int, int]] = TWENTY) -> int:
    """No schedule is shorter: all cores always busy, and no job shorter than itself."""
    work = sum((2_000 + 1_500 * workers) * length * MINUTE for workers, length in mix) // 48_000
    return max(work, *(length * MINUTE for _, length in mix))


def pain_3() -> None:
    """Print it."""
    print("\n## 3. 20 trainings (5 to 14 cores, 10 to 60 min) on 6 nodes of 8 cores\n")
    print(f"No schedule is shorter than {minutes(bound_ms())} (all cores always busy).\n")
    rows = []

    def add(label: str, got: Outcome) -> None:
        rows.append(
            [
                label,
                f"{len(got.ended)} of 20",
                got.verdict,
                minutes(got.finished_ms),
                core_hours(got.waited_core_ms),
                str(got.restarts),
            ]
        )

    add("kube-like, all at once", twenty(0, KUBE))
    add("kube-like, all at once, members give up after 10 to 12 min", twenty(0, KUBE, ten_minutes_or_so))
    add("volcano-like, all at once", twenty(0, VOLCANO))
    by_hand = {gap: twenty(gap * MINUTE, KUBE) for gap in range(1, 16)}
    done = {gap: got for gap, got in by_hand.items() if got.finished_ms is not None}
    best = min(done, key=lambda gap: done[gap].finished_ms or 0)
    add(f"kube-like, by hand, one every {best} min (the best of 1 … 15 min, with hindsight)", done[best])
    calm = min(gap for gap, got in done.items() if got.waited_core_ms == 0)
    add(f"kube-like, by hand, one every {calm} min (the shortest with which no member waits)", done[calm])
    ours = twenty(0, FLOWSCHED)
    add("flowsched, all at once", ours)
    table(["", "ended", "", "all done after", "core hours held for nothing", "members that gave up"], rows)
    stuck = [f"{gap} min" for gap, got in by_hand.items() if got.stuck]
    print(f"\nBy hand, these gaps deadlock: {', '.join(stuck) or 'none of 1 … 15 min'}.")
    assert ours.finished_ms is not None
    least = done[best].finished_ms
    assert least is not None
    print(
        f"flowsched ÷ the best by hand: {ours.finished_ms / least:.2f}; ÷ the bound: {ours.finished_ms / bound_ms():.2f}"
    )


def mixes(count: int = 30) -> None:
    """Print how the third comes out for drawn mixes of 20 trainings."""
    print(f"\n## 3, for {count} drawn mixes of 20 trainings (2 to 8 workers, 5 to 60 min)\n")
    draws = random.Random(5)
    ours, bounds, stuck, gaps = [], [], 0, []
    for _ in range(count):
        mix = [(draws.randint(2, 8), draws.randint(1, 12) * 5) for _ in range(20)]
        at_once = twenty(0, FLOWSCHED, mix=mix).finished_ms
        by_hand = {gap: twenty(gap * MINUTE, KUBE, mix=mix).finished_ms for gap in range(1, 16)}
        done = {gap: end for gap, end in by_hand.items() if end is not None}
        assert at_once is not None
        gaps.append(min(done, key=lambda gap: done[gap]))
        stuck += twenty(0, KUBE, mix=mix).stuck
        ours.append(at_once / min(done.values()))
        bounds.append(at_once / bound_ms(mix))
    mean, worst, bound = statistics.geometric_mean(ours), max(ours), statistics.geometric_mean(bounds)
    print(
        f"kube-like, all at once: {stuck} of {count} deadlock. The best gap by hand: {min(gaps)} to {max(gaps)} min."
    )
    print(
        f"flowsched, all at once ÷ the best by hand: {mean:.2f} in the geometric mean, {worst:.2f} at worst; ",
        end="",
    )
    print(f"÷ the bound: {bound:.2f}.")


# --------------------------------------------------------------------------------- 4: why do the CPUs idle?


@dataclass(frozen=True, slots=True)
class Night:
    """Twelve hours: how the jobs went, and what `explain --cluster` says of the cores that nobody held."""

    outcome: Outcome
    report: IdleReportView


def night(profile: Profile) -> Night:
    """Twelve hours on 12 cores: five trainings of 8 cores and an hour, and 18 hours of batch work that may have 2 cores."""
    idle = IdleHours()

    def prepare(drive: GatheringDrive) -> None:
        drive.idle_hours = idle
        drive.at(0, QueueChanged(Queue("batch", cap=(2_000,))))

    jobs = [training(f"job-{number + 1}", HOUR) for number in range(5)]
    batch = single("batch", HOUR, count=18, queue="batch")
    got = simulate([*jobs, batch], machines(*SMALL), profile, prepare=prepare, until_ms=12 * HOUR)
    return Night(got, idle.report(12 * HOUR))


def pain_4() -> None:
    """Print it."""
    print(
        "\n## 4. A night on 12 cores: five trainings (8 cores, an hour), and batch work whose queue may have 2 cores\n"
    )
    rows, told = [], []
    for profile in (KUBE, FLOWSCHED):
        got = night(profile)
        cpu, out = got.report.resources["cpu"], got.outcome
        rows.append(
            [
                profile.name,
                f"{sum(name.startswith('job') for name in out.ended)} of 5",
                f"{(out.held_core_ms - out.waited_core_ms) / HOUR:.0f}",
                f"{out.waited_core_ms / HOUR:.0f}",
                f"{cpu.idle:.0f}",
                ", ".join(f"{cause} {amount:.0f}" for cause, amount in cpu.causes.items()),
            ]
        )
        told.append(f"- {profile.name}: {got.report.sentences[0]}")
    table(
        ["policy", "trainings done", "core hours computed", "held by members that wait", "idle", "why"],
        rows,
    )
    print("\n`flowsched explain --cluster` says:\n")
    print("\n".join(told))


PAINS = {"1": pain_1, "2": pain_2, "3": pain_3, "4": pain_4, "mixes": mixes}


def main(which: Sequence[str]) -> None:
    """Print the pains that were asked for."""
    for name in which or ("1", "2", "3", "4"):
        PAINS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
