"""Trainings that read from shared disks, on a virtual clock."""

from __future__ import annotations

import pytest

from bench.io import BLIND, run
from bench.trainings import FLOWSCHED, KUBE


@pytest.mark.parametrize(("rate", "seconds"), [(125, 600.0), (250, 1200.0), (500, 2400.0)])
def test_readers_of_one_disk_share_it(rate: int, seconds: float) -> None:
    """Four workers on one node of 500 MB/s: up to 125 MB/s each is theirs, twice as much takes twice as long."""
    assert run((rate,), BLIND, taken=(0,)).executions == (seconds,)


def test_a_training_is_as_slow_as_its_slowest_worker() -> None:
    """Three workers on one disk want 600 of its 500 MB/s; the fourth has a disk for itself and waits for them in each step."""
    assert run((200,), KUBE, taken=(4, 4)).executions == (600.0,)
    assert run((200,), KUBE, taken=(1, 6)).executions == (720.0,)


def test_who_knows_what_is_read_keeps_readers_apart() -> None:
    """The same job on two empty nodes: packed on one it takes twice as long; two workers on each do not disturb each other."""
    assert run((250,), BLIND, taken=(0, 0)).executions == (1200.0,)
    assert run((250,), FLOWSCHED, taken=(0, 0)).executions == (600.0,)


def test_servers_that_read_nothing_take_none_of_a_disk() -> None:
    """`io` of a role: two jobs of 4 × 125 MB/s fill two disks to the last byte, and neither waits."""
    got = run((125, 125), FLOWSCHED, taken=(0, 0))
    assert (got.executions, got.turnarounds) == ((600.0, 600.0), (600.0, 600.0))
