"""104 Spark applications at once on four nodes of 8 cores and 64 GB, on a virtual clock.

    python -m bench.spark

Each has a driver and 5 executors of 1 core and 4 GB, and its driver makes the executors' pods only once it runs
(`bench/virtual/applications.py`). Contenders: pod by pod without any reservation; with drivers kept to nodes of their own
(1, 2 or 3 of the four); with a quota of so many drivers (1 … 12); and flowsched with `min_resources`. Twice: as Spark does by
default (it begins once 4 of 5 executors have registered, or after 30 s with at least one), and for work that needs all five at once
(barrier mode, as MPI-like libraries on Spark use it). Then with other numbers of executors, since a choice of nodes is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.pains import table
from bench.trainings import FLOWSCHED, KUBE, minutes
from bench.virtual.applications import DRIVER, EXECUTOR, Application, ApplicationDrive
from flowsched.engine.events import QueueChanged
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.executor.foreign import RoomTaken
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import Queue
from flowsched.values import replace
from flowsched.workflow.spec import Resources

GB = 1_000_000_000
POD = Resources(cpu_millicores=1_000, memory_bytes=4 * GB)
APPLICATIONS, EXECUTORS = 104, 5
#: Spark's defaults on Kubernetes (spark.scheduler.minRegisteredResourcesRatio, maxRegisteredResourcesWaitingTime).
REGISTERED, WAITS_MS = 4, 30_000
#: A container starts in so long, and a driver asks for executors so long after that.
STARTUP_MS, DRIVER_MS = 2_000, 5_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the applications went: how many drivers were up at most, how many applications finished, and when the last one did."""

    most_drivers: int
    finished: int
    finished_ms: int | None
    mean_ms: int
    stuck: bool


def work_ms(number: int) -> int:
    """Core ms of application `number`: from one minute to half an hour, in no order; a few long ones among many short ones."""
    return int(60_000 * 1.033 ** (number * 37 % APPLICATIONS))


def application(number: int, executors: int = EXECUTORS, **more: Any) -> Application:
    """One of them; it begins with four of five executors."""
    begins = -(-executors * REGISTERED // EXECUTORS)
    return Application(
        f"app-{number:03}", POD, executors, work_ms(number), begins, WAITS_MS, DRIVER_MS, **more
    )


def nodes(driver_nodes: int = 0) -> list[NodeInfo]:
    """Four nodes, of which some are for drivers only."""
    return [
        NodeInfo(f"node-{at}", 8_000, 64 * GB, labels={"for": DRIVER if at < driver_nodes else EXECUTOR})
        for at in range(4)
    ]


def run(
    profile: Profile,
    *,
    apart: int = 0,
    quota: int | None = None,
    reserve: int | None = None,
    barrier: bool = False,
    taken: Sequence[int] = (),
    count: int = APPLICATIONS,
    executors: int = EXECUTORS,
) -> Outcome:
    """All applications at once.

    Args:
        profile: The policy.
        apart: Nodes for drivers only.
        quota: How many drivers may be up.
        reserve: Pods for which there must be room before a driver starts (`min_resources`).
        barrier: Whether an application needs all its executors at once.
        taken: Cores of each node that others' pods hold for ever.
        count: How many applications.
        executors: Of each application.
    """
    more: dict[str, Any] = {}
    if apart:
        more["selectors"] = {role: (("for", role),) for role in (DRIVER, EXECUTOR)}
    if quota is not None:
        more["queues"] = {DRIVER: "drivers"}
    if reserve is not None:
        more["min_resources"] = Resources(cpu_millicores=reserve * 1_000, memory_bytes=reserve * 4 * GB)
    drive = ApplicationDrive(
        EngineState(policy=PolicyState(profile=profile)), nodes(apart), startup_ms=STARTUP_MS
    )
    if quota is not None:
        drive.at(0, QueueChanged(Queue("drivers", cap=(quota * 1_000,))))
    for node, cores in enumerate(taken):
        drive.at(0, RoomTaken(f"other-{node}", f"node-{node}", Resources(cpu_millicores=cores * 1_000)))
    for number in range(count):
        one = application(number, executors, **more)
        drive.arrive(replace(one, begins_with=executors, waits_ms=None) if barrier else one)
    while not drive.idle and len(drive.finished) < count:
        drive.tick()
    done = len(drive.finished)
    last = max(drive.finished.values()) if done == count else None
    mean = sum(drive.finished.values()) // max(done, 1)
    return Outcome(drive.most_drivers, done, last, mean, done < count)


def bound_ms() -> int:
    """No schedule is shorter: all cores hold pods of applications that compute, five executors for each driver."""
    return sum(work_ms(number) // EXECUTORS * 6 for number in range(APPLICATIONS)) // 32


def compare(barrier: bool) -> None:
    """Print one table."""
    rows = []

    def add(label: str, got: Outcome) -> Outcome:
        state = "DEADLOCK" if got.stuck else "all done"
        mean = minutes(got.mean_ms) if got.finished else "-"
        rows.append(
            [
                label,
                str(got.most_drivers),
                f"{got.finished} of {APPLICATIONS}",
                state,
                minutes(got.finished_ms),
                mean,
            ]
        )
        return got

    add("pod by pod, nothing reserved", run(KUBE, barrier=barrier))
    add("… with 6 of the 32 cores taken by others", run(KUBE, barrier=barrier, taken=(2, 2, 1, 1)))
    fixed = [
        add(f"pod by pod, {at} of 4 nodes for drivers", run(KUBE, apart=at, barrier=barrier))
        for at in (1, 2, 3)
    ]
    quotas = {at: run(KUBE, quota=at, barrier=barrier) for at in range(1, 13)}
    done = {at: got for at, got in quotas.items() if got.finished_ms is not None}
    best = min(done, key=lambda at: done[at].finished_ms or 0)
    add(f"pod by pod, a quota of {best} drivers (the best of 1 … 12, with hindsight)", done[best])
    whole = add(
        "flowsched, min_resources of driver + 5 executors", run(FLOWSCHED, reserve=6, barrier=barrier)
    )
    if not barrier:
        add("flowsched, min_resources of driver + 4 executors", run(FLOWSCHED, reserve=5, barrier=barrier))
    table(["", "drivers up at most", "finished", "", "all done after", "mean end"], rows)
    stuck = [str(at) for at, got in quotas.items() if got.stuck]
    least = min((got.finished_ms for got in fixed if got.finished_ms is not None), default=None)
    quota = done[best].finished_ms
    if whole.finished_ms is not None and quota is not None:
        told = f"{whole.finished_ms / least:.2f}" if least is not None else "- (all of them deadlock)"
        print(f"\nflowsched (driver + 5) ÷ the best of the fixed driver nodes: {told}", end="")
        print(
            f"; ÷ the best quota: {whole.finished_ms / quota:.2f}; ÷ the bound of {minutes(bound_ms())}: ",
            end="",
        )
        print(f"{whole.finished_ms / bound_ms():.2f}. Quotas that deadlock: {', '.join(stuck) or 'none'}.")


def other_sizes() -> None:
    """Print how each does with other numbers of executors (the same work in all)."""
    rows = []
    for executors in (1, 2, 3, 5, 8, 10):
        fixed = [run(KUBE, apart=at, executors=executors).finished_ms for at in (1, 2, 3)]
        four_fifths = -(-executors * REGISTERED // EXECUTORS)
        ours = [
            run(FLOWSCHED, reserve=1 + n, executors=executors).finished_ms for n in (executors, four_fifths)
        ]
        best = min(each for each in fixed if each is not None)
        ratios = [f"{each / best:.2f} / {each / fixed[0]:.2f}" if each and fixed[0] else "-" for each in ours]
        cells = [minutes(each).removesuffix(" min") for each in (*fixed, *ours)]
        rows.append([str(executors), *cells, *ratios])
    table(
        ["executors", "1 node for drivers", "2", "3", "flowsched, all", "flowsched, 4 of 5",
         "all ÷ best choice / ÷ 1 node", "4 of 5 ÷ best / ÷ 1 node"],
        rows,
    )  # fmt: skip


def main() -> None:
    """Print the tables."""
    print("## As Spark does: 4 of 5 executors, or at least one after 30 s\n")
    compare(barrier=False)
    print("\n## Work that needs all five executors at once\n")
    compare(barrier=True)
    print("\n## Other numbers of executors, as Spark does: minutes until all are done\n")
    other_sizes()


if __name__ == "__main__":
    main()
