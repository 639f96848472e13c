"""Forks services that have everything for Kubernetes imported: `python nursery.py`; see `tests/crash/nursery.py`."""

from __future__ import annotations

import contextlib

from tests.crash import mutants as seeds
from tests.crash import nursery
from tests.kubernetes.faults import mutants


def short_lease() -> None:
    """A lease of ten seconds: tests that wait for one to run out need not wait for fifteen."""
    from flowsched.control import leader

    leader.LEASE_MS, leader.RENEW_S = 10_000, 2.0  # type: ignore[misc]


def both(mutant: mutants.Mutant) -> None:
    """A short lease, and a seeded fault."""
    short_lease()
    mutant.seed()


def tidy_often() -> None:
    """What is tidied each five seconds is so each second: tests wait for it."""
    from flowsched.cluster.kubernetes import cluster
    from flowsched.control import reconcile

    reconcile.PERIOD_S = cluster.SWEEP_S = 1.0  # type: ignore[misc]


if __name__ == "__main__":
    import flowsched.api.server
    import flowsched.app
    import flowsched.cli.commands
    import flowsched.cluster.kubernetes.cluster
    import flowsched.cluster.kubernetes.credentials
    import flowsched.control.leader
    import flowsched.control.service
    import flowsched.store.database
    import flowsched.store.schema  # noqa: F401

    with contextlib.suppress(ImportError):
        import psycopg  # noqa: F401
    for name, mutant in mutants.ALL.items():
        seeds.ALL[name] = mutant.seed
        seeds.ALL[f"{name}+short"] = lambda mutant=mutant: both(mutant)  # type: ignore[misc]
    tidy_often()
    seeds.ALL["short"] = short_lease
    nursery.serve()
