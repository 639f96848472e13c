"""Forks services that have everything for Kubernetes imported: `python nursery.py`; see `tests/crash/nursery.py`."""

from __future__ import annotations

import contextlib
import os
import time

from tests.crash import mutants as seeds
from tests.crash import nursery
from tests.kubernetes.faults import mutants

#: Names the file that says by how many seconds a service's wall clock is off.
CLOCK = "TEST_CLOCK"


def short_lease() -> None:
    """A lease of five seconds: tests that wait for one to run out need not wait for fifteen."""
    from flowsched.control.leading import leadership

    leadership.LEASE_MS, leadership.RENEW_S = 5_000, 1.0  # type: ignore[misc]


def movable_clock() -> None:
    """A wall clock that is off by as many seconds as a file says, from one reading to the next."""
    from flowsched.clock import ServiceClock

    right_ns, file = time.time_ns, os.open(os.environ[CLOCK], os.O_RDONLY)

    def wall_ns() -> int:
        return right_ns() + int(os.pread(file, 8, 0)) * 1_000_000_000

    time.time_ns, time.time = wall_ns, lambda: wall_ns() / 1e9
    ServiceClock.__init__.__kwdefaults__["wall_ns"] = wall_ns  # bound when its module was imported


def tidy_often() -> None:
    """What is tidied each five seconds is so each second, and what nobody claims for five: tests wait for it."""
    from flowsched.cluster.kubernetes import executor
    from flowsched.cluster.kubernetes.pods import controller
    from flowsched.control.leading import recover

    recover.RECONCILE_PERIOD_S = executor.SWEEP_S = controller.GANGS_S = 1.0  # type: ignore[misc]
    recover.GRACE_MS = 5_000  # type: ignore[misc]
    *longer, _ = controller.PodTimeouts.__init__.__defaults__
    controller.PodTimeouts.__init__.__defaults__ = (*longer, 5.0)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    for name, mutant in mutants.ALL.items():
        seeds.ALL[name] = mutant.seed
    tidy_often()
    seeds.ALL |= {"short": short_lease, "clock": movable_clock}
    nursery.serve()
