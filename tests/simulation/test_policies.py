"""What holds for every policy in the simulator: complete, possible, repeatable, and blind to what has not happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from bench.rivals import POLICIES, simulated
from flowsched.errors import ConfigurationError
from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import Stopped, World
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from tests.simulation.small import CLUSTER, workload


@pytest.mark.parametrize("policy", POLICIES)
def test_every_task_runs_once_within_the_cores(policy: str) -> None:
    """Two workflows at once: each of the 46 tasks succeeds once, and no node ever gives more than four cores."""
    world = simulated(policy, CLUSTER, [workload("one"), workload("two")])
    tasks = [line for line in world.lines if "task" in line]
    assert len(tasks) == 46
    assert set(Counter((line["workflow"], line["task"]) for line in tasks).values()) == {1}
    assert {line["outcome"] for line in tasks} == {"succeeded"}
    for node in ("n0", "n1", "n2"):
        steps = sorted(
            step
            for line in tasks
            if line["node"] == node
            for step in ((line["start"], 1, line["cores"]), (line["end"], 0, -line["cores"]))
        )
        taken = 0
        for _, _, change in steps:
            taken += change
            assert taken <= 4


@pytest.mark.parametrize("policy", POLICIES)
def test_finals_end_on_the_storage(policy: str) -> None:
    """Both reports are on the shared storage at the end."""
    world = simulated(policy, CLUSTER, [workload()])
    finals = [at for at, file in enumerate(world.workloads[0].files) if file.final]
    assert [world.file((0, at)).name for at in finals] == ["report0", "report1"]
    assert all(-1 in world.at[0, at] for at in finals)


def changed_after(work: Workload, lines: list[dict[str, Any]], moment: float) -> Workload:
    """The same workload, but all that has not ended computing by a moment takes another time; nobody expects so."""
    told = {line["task"]: line for line in lines if "task" in line}
    jobs = []
    for at, job in enumerate(work.jobs):
        line = told[job.name]
        factor = (
            1.0 if line["run_end"] <= moment else 3.0 if line["run_start"] <= moment else (0.3, 2.0)[at % 2]
        )
        jobs.append(replace(job, compute_s=job.compute_s * factor))
    return replace(work, jobs=tuple(jobs))


def known_at(lines: list[dict[str, Any]], moment: float) -> list[tuple[Any, ...]]:
    """What of a trace has happened by a moment: beginnings, and ends."""
    seen = []
    for line in lines:
        name = line.get("task") or (line["transfer"], line.get("offset", -1))
        place = line.get("node") or (line["from"], line["to"], line["kind"])
        for key in ("start", "run_start", "run_end", "end"):
            if line.get(key, moment + 1) <= moment:
                seen.append((line[key], key, line["workflow"], str(name), str(place)))
    return sorted(seen)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_knows_a_runtime_before_it_ends(policy: str, share: float) -> None:
    """With other true runtimes of all that is unfinished at T, the trace is the same up to T."""
    work = workload()
    lines = simulated(policy, CLUSTER, [work]).lines
    moment = share * max(line["end"] for line in lines)
    other = simulated(policy, CLUSTER, [changed_after(work, lines, moment)]).lines
    assert known_at(other, moment) == known_at(lines, moment)
    assert max(line["end"] for line in other) != max(line["end"] for line in lines)


def test_traces_are_the_same_in_every_process() -> None:
    """Fresh processes with other hash seeds write the same bytes under every policy."""
    digests = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.small"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
        ).stdout
        for seed in ("1", "77")
    ]
    assert len(digests[0].splitlines()) == len(POLICIES)
    assert digests[0] == digests[1]


def test_wrong_expectations_reach_the_document() -> None:
    """Aligners are expected to take twice as long: the document says so, the truth is what it was, no other kind changes."""
    work = workload()
    wrong = work.with_expected({"align": 2.0})
    before = {stage.name: stage.estimate.runtime_ms for stage in work.spec.stages}
    after = {stage.name: stage.estimate.runtime_ms for stage in wrong.spec.stages}
    kinds = {stage: work.jobs[job].category for (stage, _), job in work.numbers.items()}
    assert wrong.jobs == work.jobs
    assert wrong.expected["align"].compute_s == pytest.approx(2 * work.expected["align"].compute_s)
    # ten tasks of 20, 23, 26, 29, 20, … s: 23.9 s in the mean
    differences = {kinds[name]: (after[name] or 0) - (before[name] or 0) for name in after}
    assert differences == {"align": 23_900, "sort": 0, "merge": 0, "report": 0}


def test_an_unknown_policy_is_refused_by_name() -> None:
    """The error says what was asked for and what there is."""
    with pytest.raises(ConfigurationError, match=r"'peft': no such profile; there are flowsched"):
        simulated("peft", CLUSTER, [workload()])


@pytest.mark.parametrize("policy", ["flowsched", "heft"])
def test_a_world_that_is_stopped_goes_no_further(policy: str) -> None:
    """Somebody who waited does not wait any more."""
    worlds: list[World] = []

    def begun(world: World) -> None:
        worlds.append(world)
        world.later(1.0, lambda: setattr(world, "stopped", True))

    with pytest.raises(Stopped):
        simulated(policy, CLUSTER, [workload()], begun=begun)
    assert worlds[0].ended < len(workload().jobs)


def test_a_stage_without_an_estimate_ranks_as_in_the_service() -> None:
    """An unknown runtime is the middle of the known ones, 1 s here. As a minute it would go before 20 s that are declared."""
    stages = [
        {"name": "unknown", "command": ["x"]},
        {"name": "known", "command": ["x"], "estimate": {"runtime": "20s"}},
        {"name": "short", "command": ["x"], "estimate": {"runtime": "1s"}},
        {"name": "tiny", "command": ["x"], "estimate": {"runtime": "1s"}},
    ]
    one = SimulatedCluster((SimulatedNode("n0", 1),))
    world = simulated(
        "flowsched", one, [from_document(check_workflow({"name": "w", "stages": stages}), "w", "w")]
    )
    assert next(line["task"] for line in world.lines) == "known/0"
