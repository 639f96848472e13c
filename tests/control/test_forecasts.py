"""Expected starts as the service has them: one forecast for all that ask, and compared with what came."""

from __future__ import annotations

import asyncio
from collections import Counter

from flowsched.control.forecasts import Forecasts
from flowsched.control.tes import waits
from flowsched.workflow.run.moves import BOUND
from tests.engine.scene import Scene, node


async def rest() -> None:
    """No step is in a thread."""


def waiting() -> Scene:
    """One core: a task of 100 s runs, and a second one waits for it."""
    scene = Scene(node(cpu=1))
    for name in ("a", "b"):
        scene.submit(name, {"name": "s", "command": ["x"], "estimate": {"runtime": "100s"}})
    return scene


def test_a_forecast_is_shared_until_it_is_old() -> None:
    """A list asks twice within two seconds and once after them, and a cycle has decided in between."""
    scene, now = waiting(), [0]
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now + now[0])

    async def ask() -> list[int]:
        found = []
        for later in (0, 1_000, 600_000):
            now[0] = later
            scene.state.round.reasons = dict(scene.state.round.reasons)
            found.append(id(await forecasts.known()))
        return found

    first, second, third = asyncio.run(ask())
    assert first == second != third


def test_a_forecast_is_compared_with_what_came() -> None:
    """The task starts as late as its interval says at most, or a millisecond later."""
    for after_ms, outcome in ((0, "held"), (1, "late")):
        scene, outcomes, later = waiting(), Counter[str](), [0]
        forecasts = Forecasts(lambda: scene.state, rest, outcomes, lambda: scene.now + later[0])  # noqa: B023
        (start,) = asyncio.run(forecasts.fresh()).values()
        stage = scene.runs["b"].stages[0]
        stage.times[0, BOUND] = start.first.high_ms + after_ms
        later[0] = 10_000
        asyncio.run(forecasts.fresh())
        assert outcomes == {outcome: 1}
        assert forecasts.hit_rate == ""


def test_the_share_that_held_is_told_once_there_are_twenty() -> None:
    """Seventeen of twenty."""
    outcomes = Counter(held=17, late=3)
    assert Forecasts(lambda: None, rest, outcomes, lambda: 0).hit_rate == "85 % of 20"


def test_a_tes_task_that_waits_is_told_when_it_starts() -> None:
    """Beside the reason, with the share of earlier forecasts that held."""
    scene = waiting()
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now)
    expected = asyncio.run(forecasts.fresh())
    (told,) = waits(scene.state, "b", scene.now, expected, "85 % of 20")
    assert told.endswith(" min (of earlier forecasts 85 % of 20 held)")
    assert "; expected to start in " in told
    (told,) = waits(scene.state, "b", scene.now, {}, "85 % of 20")
    assert "expected to start" not in told
