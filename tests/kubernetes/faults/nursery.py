"""Forks services that have everything for Kubernetes imported: `python nursery.py`; see `tests/crash/nursery.py`."""

from __future__ import annotations

import contextlib

from tests.crash import mutants as seeds
from tests.crash import nursery
from tests.kubernetes.faults import mutants


def short_lease() -> None:
    """A lease of five seconds: tests that wait for one to run out need not wait for fifteen."""
    from flowsched.control.leading import leadership

    leadership.LEASE_MS, leadership.RENEW_S = 5_000, 1.0  # type: ignore[misc]


def both(mutant: mutants.Mutant) -> None:
    """A short lease, and a seeded fault."""
    short_lease()
    mutant.seed()


def tidy_often() -> None:
    """What is tidied each five seconds is so each second: tests wait for it."""
    from flowsched.cluster.kubernetes import executor
    from flowsched.cluster.kubernetes.pods import controller
    from flowsched.control.leading import recover

    recover.RECONCILE_PERIOD_S = executor.SWEEP_S = controller.GANGS_S = 1.0  # type: ignore[misc]


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    for name, mutant in mutants.ALL.items():
        seeds.ALL[name] = mutant.seed
        seeds.ALL[f"{name}+short"] = lambda mutant=mutant: both(mutant)  # type: ignore[misc]
    tidy_often()
    seeds.ALL["short"] = short_lease
    nursery.serve()
