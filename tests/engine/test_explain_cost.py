"""What `explain` costs: as much as there are distinct causes, however many tasks wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowsched.engine.explain import explain
from flowsched.engine.forecast import Known, forecast_of
from flowsched.workflow.estimates import Measured
from tests.engine.scene import Scene, calls_of, node


def waiting(tasks: int, **more: Any) -> Scene:
    """A workflow of one stage, of which 4 tasks run."""
    scene = Scene(node(cpu=4))
    stage = {"name": "s", "command": ["x"], "scatter": {"count": tasks}, "resources": {"cpu": 1}, **more}
    scene.submit("w", stage)
    return scene


@pytest.mark.parametrize("policy", [{}, {"retry": {"attempts": 3}}])
def test_a_hundred_times_the_waiting_tasks_cost_no_call_more(policy: dict[str, Any]) -> None:
    """NumPy looks at tasks. Python's own functions are called for distinct reasons alone."""
    costs, told = [], []
    for tasks in (1_004, 100_004):
        scene = waiting(tasks, **policy)
        explain(scene.state, scene.runs["w"], scene.now)  # what is worked out once
        calls, found = calls_of(lambda scene=scene: explain(scene.state, scene.runs["w"], scene.now))  # type: ignore[misc]
        costs.append(calls)
        told.append([(each.code, each.shards, each.tasks) for each in found if each.state == "QUEUED"])
    assert told == [
        [("Insufficient", (4, 5, 6, 7, 8), 1_000)],
        [("Insufficient", (4, 5, 6, 7, 8), 100_000)],
    ]
    assert abs(costs[1] - costs[0]) < 50


def test_a_chain_of_stages_that_no_node_can_run_is_judged_once() -> None:
    """Four times the stages cost four times the calls; each asked all stages before it whether it may be skipped."""
    costs = []
    for stages in (100, 400):
        scene = Scene(node(cpu=4))
        scene.submit(
            "w",
            *(
                {
                    "name": f"s{n}", "command": ["x"], "resources": {"cpu": 64 if n else 1},
                    **({"needs": [f"s{n - 1}"]} if n else {}),
                }
                for n in range(stages)
            ),
        )  # fmt: skip
        calls, found = calls_of(lambda: explain(scene.state, scene.runs["w"], scene.now))  # noqa: B023
        assert [each.code for each in found if each.state == "PENDING"] == ["LargerThanNode"] * (stages - 1)
        costs.append(calls)
    assert costs[1] < 6 * costs[0]


def test_four_times_the_waiting_stages_make_no_forecast_dearer() -> None:
    """Starts are planned for the first groups alone: what waits behind them is not collected."""
    costs = []
    for stages in (100, 400):
        scene = Scene(node(cpu=4))
        some = [
            {"name": f"s{at}", "command": ["x"], "scatter": {"count": 9}, "estimate": {"runtime": "1h"}}
            for at in range(stages)
        ]
        scene.submit("w", *some)
        answers = scene.state.round  # they are made when they are first read
        assert set(answers.refused) == set(answers.reasons)
        calls, found = calls_of(lambda scene=scene: forecast_of(scene.state, scene.now))  # type: ignore[misc]
        assert found is not None
        assert len(found.waiting) == 48
        costs.append(calls)
    assert costs[1] - costs[0] < 2 * 300


def test_pods_with_distinct_inputs_are_looked_at_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """No spread is worked out where the state is, and beside it one for all sizes that nearly agree."""
    asked, spread = [], Known.spread

    def counted(known: Known, size: int) -> object:
        asked.append(size)
        return spread(known, size)

    monkeypatch.setattr(Known, "spread", counted)
    scene = Scene(node(cpu=256, memory_bytes=512 << 30))
    scene.submit("w", {"name": "s", "command": ["x"], "scatter": {"count": 300}, "resources": {"cpu": 1}})
    kind = scene.runs["w"].spec.kind_of(scene.runs["w"].stages[0].spec)
    for size in range(1_000, 1_008):
        scene.state.work.estimates.learn(*kind, size, Measured(input_bytes=size))
    scene.runs["w"].stages[0].local = np.arange(1_024, 1_324)
    forecast = forecast_of(scene.state, scene.now)
    assert forecast is not None
    assert len(forecast.running) == 256
    assert len(asked) == 1  # of the group that waits
    forecast.starts()
    assert len(asked) == 3
