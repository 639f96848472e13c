"""Applications whose executors do not exist before their driver runs, on a virtual clock."""

from __future__ import annotations

import pytest

from bench.spark import POD, run
from bench.trainings import FLOWSCHED, KUBE
from bench.virtual.applications import Application, ApplicationDrive
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.values import replace
from flowsched.workflow.spec import Resources

GB = 1_000_000_000
#: Two executors, two minutes of core time; the driver needs 5 s, a container 2 s.
APP = Application("one", POD, 2, 120_000, 2, None, 5_000)


def drive(*applications: Application, cores: int = 3) -> ApplicationDrive:
    made = ApplicationDrive(EngineState(), [NodeInfo("n0", cores * 1000, 64 * GB)], startup_ms=2_000)
    for each in applications:
        made.arrive(each)
    return made


def test_an_application_takes_its_starts_and_its_work() -> None:
    """2 s for the driver's container, 5 s until it asks, 2 s for the executors', 60 s for two minutes on two cores."""
    alone = drive(APP)
    alone.run()
    assert alone.finished == {"one": 69_000}


def test_it_begins_with_what_it_has_after_a_while_if_it_may() -> None:
    """One executor of two: from second 37 on (30 s after it asked), two minutes on one core."""
    patient = drive(replace(APP, waits_ms=30_000), cores=2)
    patient.run()
    assert patient.finished == {"one": 157_000}


def test_it_waits_for_ever_if_it_may_not() -> None:
    """One executor holds a core and waits for the second, which has no room."""
    stuck = drive(APP, cores=2)
    stuck.run()
    assert (stuck.finished, stuck.drivers, stuck.idle) == ({}, {"one"}, True)


def test_two_with_room_for_one_run_one_after_the_other_if_room_is_reserved() -> None:
    """The second driver does not start while the first's executors do not exist yet."""
    room = Resources(cpu_millicores=3_000, memory_bytes=12 * GB)
    apps = [replace(APP, name=name, min_resources=room) for name in ("one", "two")]
    both = drive(*apps, cores=4)
    both.run()
    assert both.finished == {"one": 69_000, "two": 138_000}
    assert both.most_drivers == 1


@pytest.mark.parametrize(("taken", "drivers"), [((), 32), ((2, 2, 1, 1), 26)])
def test_pod_by_pod_every_core_gets_a_driver(taken: tuple[int, ...], drivers: int) -> None:
    """104 at once on 32 cores, or on the 26 that others leave: no executor ever runs."""
    got = run(KUBE, taken=taken)
    assert (got.most_drivers, got.finished, got.stuck) == (drivers, 0, True)


def test_with_min_resources_all_finish() -> None:
    """Never more than five drivers, the number of whole applications that 32 cores hold."""
    got = run(FLOWSCHED, reserve=6)
    assert (got.most_drivers, got.finished, got.stuck) == (5, 104, False)


def test_nodes_for_drivers_deadlock_when_work_needs_all_its_executors() -> None:
    """Eight drivers share 24 cores of executors: three each."""
    assert run(KUBE, apart=1, barrier=True).stuck
    assert run(FLOWSCHED, reserve=6, barrier=True).finished == 104
