"""Nodes whose clocks are wrong: what is accounted is measured by one clock, whichever that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowsched.clock import ServiceClock
from flowsched.scheduling.state.snapshot import AXES
from tests.kubernetes.faults.world import World, bag, document
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.service_world import serving
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401

RUNTIME_S = 5.0
#: Kubelets tell whole seconds.
ABOUT = pytest.approx(RUNTIME_S, abs=1.01)
#: Stage -> how far the clock of its node is ahead, s.
CLOCKS = {"right": 0, "seconds-behind": -20, "hour-behind": -3_600, "hour-ahead": 3_600}


async def test_nodes_with_wrong_clocks_are_accounted_for_what_they_ran(fake_world: World) -> None:
    """Tasks of a core run for five seconds on nodes that are 20 s or an hour off: five core-seconds each, a learned runtime of five
    seconds, and moments in order.
    """
    fake_world.fates |= {name: Fate(runtime_s=RUNTIME_S, ahead_s=ahead) for name, ahead in CLOCKS.items()}
    async with fake_world.serving() as running:
        made = await running.service.submit(document(*(bag(1, name=name) for name in CLOCKS)))
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        dispatcher = running.leader.dispatcher
        assert dispatcher is not None
        seconds = {stage.name: stage.running_seconds for stage in await running.service.stages(made.id)}
        assert seconds == dict.fromkeys(CLOCKS, ABOUT)
        held = {stage.name: stage.core_hours * 3_600 for stage in await running.service.stages(made.id)}
        assert held == dict.fromkeys(CLOCKS, pytest.approx(RUNTIME_S, abs=3))  # with their starts
        estimates = dispatcher.state.work.estimates
        learned = {name: (estimates.runtime_ms("faults", name) or 0) / 1_000 for name in CLOCKS}
        assert learned == dict.fromkeys(CLOCKS, ABOUT)
        for row in (await running.service.tasks(made.id)).tasks:
            moments = [row.ready_at, row.bound_at, row.started_at, row.ended_at]
            assert None not in moments
            assert moments == sorted(moments)  # type: ignore[type-var]


@pytest.mark.postgresql
@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
async def test_a_leader_with_a_wrong_clock_is_replaced(
    fake_world: World,
    tmp_path: Path,
    fresh_postgres: Callable[[], str],  # noqa: F811
    ahead_s: int,
) -> None:
    """Its machine is an hour ahead or behind, and another one takes over while a task of a core runs for five seconds: both have
    the database's clock. What the task held, its wait and its user's fair share are those five seconds.
    """
    fake_world.fates["bag"] = Fate(runtime_s=RUNTIME_S)
    url = fresh_postgres()
    wrong = ServiceClock(wall_ns=lambda: time.time_ns() + ahead_s * 1_000_000_000)
    settings, half_life_ms = fake_world.settings(), 32_000
    place = fake_world.connection, settings, tmp_path / "service"
    async with serving(*place, database=url, service_clock=wrong, half_life_ms=half_life_ms) as running:
        made = await running.service.submit(document(bag(1)))
        await fake_world.witness.until(lambda: [life for life in fake_world.witness.tasks() if life.runs])
        begun = (await running.service.workflow(made.id)).created_at
        assert begun.timestamp() == pytest.approx(time.time(), abs=30)
    async with serving(*place, database=url, half_life_ms=half_life_ms) as running:
        assert (await running.ended(made.id)).state == "SUCCEEDED"
        (stage,) = await running.service.stages(made.id)
        assert stage.running_seconds == ABOUT
        assert stage.core_hours * 3_600 == pytest.approx(RUNTIME_S, abs=3)
        assert stage.queued_seconds < 5
        dispatcher = running.leader.dispatcher
        assert dispatcher is not None
        (shared,) = dispatcher.state.cluster.snapshot.usage.faded().values()
        # A core for five seconds, of which a 32nd of the half-life is a second: 1 - 2 ** (-5 / 32) of it, give or take two seconds.
        assert shared[AXES.index("cpu")] == pytest.approx(103, abs=43)
