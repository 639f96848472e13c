"""Expected starts as the service has them: one forecast for all that ask, and compared with what came."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from flowsched.control.forecasts import Forecasts
from flowsched.control.tes import waits
from flowsched.engine.forecast import Forecast
from flowsched.scheduling.explain.forecast import Starts
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
    """A list asks when its service begins, twice within five seconds and once after them; a cycle has decided in between."""
    scene, now = waiting(), [0]
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now + now[0])

    async def ask() -> list[Mapping[int, Starts]]:
        found = [forecasts.known()]
        for later in (4_999, 5_000, 9_999, 600_000):
            now[0] = later
            scene.state.round.reasons = dict(scene.state.round.reasons)
            forecasts.known()
            await worked_out(forecasts)
            found.append(forecasts.known())
        return found

    begun, at_first, first, second, third = asyncio.run(ask())
    assert begun == at_first == {}  # the leader has begun a moment ago
    assert len(first) == 1
    assert first is second is not third


async def worked_out(forecasts: Forecasts) -> None:
    """No task works out a forecast any more."""
    await asyncio.gather(*forecasts._tasks._tasks)


def test_a_list_does_not_wait_for_a_forecast() -> None:
    """It shows what is known, and one task, not three, works out what is not; none within five seconds of the leader's start."""
    scene, later = waiting(), [0]
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now + later[0])

    async def ask() -> None:
        assert forecasts.known() == {}
        assert not forecasts._tasks._tasks
        later[0] = 5_000
        assert [forecasts.known() for _ in range(3)] == [{}, {}, {}]
        assert len(forecasts._tasks._tasks) == 1
        await worked_out(forecasts)
        assert len(forecasts.known()) == 1

    asyncio.run(ask())


def test_a_forecast_that_fails_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a list nor a question about one workflow fails with it, and the next question tries again."""
    scene = waiting()
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now)
    with monkeypatch.context() as broken:
        broken.setattr(Forecast, "starts", lambda *_: 1 // 0)
        assert asyncio.run(forecasts.fresh()) == {}
    assert len(asyncio.run(forecasts.fresh())) == 1


def test_a_forecast_that_begins_while_a_request_waits_answers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four requests at once one makes the first forecast, and those that wait for it share the second."""
    scene, made, starts = waiting(), [], Forecast.starts
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now)

    def counted(*args: Any) -> dict[int, Starts]:
        made.append(1)
        scene.state.round.reasons = dict(scene.state.round.reasons)  # a cycle ends meanwhile
        return starts(*args)

    monkeypatch.setattr(Forecast, "starts", counted)

    async def ask() -> None:
        first = asyncio.create_task(forecasts.fresh())
        await asyncio.sleep(0)
        await asyncio.gather(first, *(forecasts.fresh() for _ in range(3)))

    asyncio.run(ask())
    assert len(made) == 2


def test_another_term_knows_nothing_of_the_forecasts_before() -> None:
    """Its groups have the same numbers: a process that leads again shows no start of the first term, and compares none."""
    scene, outcomes = waiting(), Counter[str]()
    memory = [scene.state]
    forecasts = Forecasts(lambda: memory[0], rest, outcomes, lambda: scene.now)

    async def ask() -> None:
        assert len(await forecasts.fresh()) == 1
        scene.runs["b"].stages[0].times[0, BOUND] = scene.now + 1
        memory[0] = Scene(node(cpu=1)).state
        assert forecasts.known() == {}
        assert await forecasts.fresh() == {}

    asyncio.run(ask())
    assert not outcomes


def test_forecasts_of_groups_that_are_gone_are_dropped() -> None:
    """Else five hundred of them would keep all others from being compared."""
    scene, later = waiting(), [0]
    forecasts = Forecasts(lambda: scene.state, rest, Counter(), lambda: scene.now + later[0])
    asyncio.run(forecasts.fresh())
    assert len(forecasts._told) == 1
    (group,) = forecasts._told
    scene.state.round.reasons, later[0] = {}, 10_000
    del scene.state.work.groups[group]
    asyncio.run(forecasts.fresh())
    assert not forecasts._told


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
