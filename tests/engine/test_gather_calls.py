"""Gather nodes of engines' calls: what many calls of a run write goes where the one call that reads it all will run."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.data.gather_nodes import call_home
from flowsched.engine.events import Accepted
from flowsched.engine.step import step
from flowsched.executor.datasets import versioned
from flowsched.executor.protocol import NodeChanged, PodEnded, ReplicaSeen
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.document.limits import DEFAULT
from flowsched.workflow.estimates import Measured
from flowsched.workflow.formats.tes.document import workflow_of
from flowsched.workflow.formats.tes.engines import identify
from flowsched.workflow.formats.tes.task import Asked, Output, Task, TaskExecutor
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from tests.engine.scene import GIB, Scene, node

ALIGN, MERGE, OTHER = ("align", "task"), ("merge", "task"), ("other", "task")
MINUTE = 60_000


def taught(scene: Scene, run: str, *gatherers: tuple[str, str], calls: int = 4, each: int = GIB) -> None:
    """A run of before: so many calls wrote GIB each, and each of the gatherers read them all."""
    work, none = scene.state.work, Statement()
    plan = work.engines.learned_plan
    for shard in range(calls):
        plan.note(run, f"a{shard}", ALIGN, ())
        plan.come(run, ALIGN, none)
        plan.succeeded(run, ALIGN, (), 0, none)
        work.estimates.learn(*ALIGN, MINUTE, Measured(0, output_bytes=each))
    for kind in gatherers:
        after = [f"a{shard}" for shard in range(calls)]
        plan.note(run, kind[0], kind, after)
        plan.come(run, kind, none)
        plan.succeeded(run, kind, after, calls * each, none)


def sent(scene: Scene, run: str, step: str, number: int, after: tuple[str, ...] = ()) -> Accepted:
    """A task over TES that leaves an object, as a call of a run."""
    task = Task(
        name=step,
        executors=[TaskExecutor(image="x", command=["true"])],
        outputs=[Output(path="/out/x", url=f"s3://lab/{number}")],
        resources=Asked(cpu_cores=1, ram_gb=1.0),
        tags={"workflow_id": run, "step": step},
    )
    known = identify(task)
    assert known.call is not None
    known = replace(known, call=replace(known.call, node=f"{step}-{number}", after=after))
    spec = workflow_of(task, DEFAULT, known).spec
    ident = f"{step}-{number}"
    made = scene.runs[ident] = WorkflowRun(ident, spec, StageGraph(spec), len(scene.runs) + 1)
    return Accepted(made)


@pytest.fixture
def scene() -> Scene:
    return Scene(node("n0", cpu=1), node("n1", cpu=1))


def home_of(scene: Scene, run: str) -> int | None:
    """The index of the node where a run gathers what `align` writes."""
    found = call_home(scene.state, run, ALIGN)
    return None if found is None else found[0].node


def two_calls(scene: Scene, run: str) -> None:
    """Two calls of `align`, one on each node, run and end."""
    scene.tell(*(sent(scene, run, "align", at) for at in range(2)))
    assert len(scene.launched) == 2
    launched = list(scene.launched)
    scene.start(*launched)
    for name in launched:
        pod = scene.pods[name]
        uri = versioned(f"s3://lab/{pod.workflow.removeprefix('align-')}", "1")
        scene.tell(ReplicaSeen(uri, pod.node, GIB), PodEnded(name, scene.now, 0))


def test_a_run_gathers_where_the_newest_one_had_one_reader(scene: Scene) -> None:
    """Not before it is known, nor once the reader has come; another run may gather elsewhere."""
    assert home_of(scene, "two") is None
    taught(scene, "one", MERGE)
    first = home_of(scene, "two")
    assert first is not None
    assert home_of(scene, "three") == 1 - first
    scene.state.work.engines.learned_plan.come("two", MERGE, Statement())
    assert home_of(scene, "two") is None
    assert home_of(scene, "three") == 1 - first


def test_a_kind_of_two_pipelines_is_gathered_by_neither(scene: Scene) -> None:
    """It is not known which of the two a run is."""
    taught(scene, "one", MERGE)
    taught(scene, "two", OTHER)
    assert home_of(scene, "three") is None


def test_larger_and_smaller_runs_gather_alike(scene: Scene) -> None:
    """Three small runs, one of ten times the calls: the next of either size gathers."""
    for run in ("one", "two", "three"):
        taught(scene, run, MERGE)
    taught(scene, "large", MERGE, calls=40)
    assert home_of(scene, "next") is not None
    taught(scene, "small", MERGE)
    assert home_of(scene, "after") is not None


def test_what_a_call_leaves_elsewhere_is_pushed_until_its_reader_comes(scene: Scene) -> None:
    """One of two calls ran on the gather node."""
    taught(scene, "one", MERGE)
    two_calls(scene, "two")
    assert len(scene.state.data.pushes) == 1
    scene.tell(sent(scene, "two", "merge", 9, ("align-0", "align-1")))
    assert not scene.state.data.pushes
    assert not any(scene.state.data.push_backlog.values())


def test_a_call_that_is_cancelled_teaches_and_sends_nothing(scene: Scene) -> None:
    """It ends with 0 after its cancel: nobody waits for what it has left."""
    taught(scene, "one", MERGE)
    scene.tell(*(sent(scene, "two", "align", at) for at in range(2)))
    launched = list(scene.launched)
    scene.start(*launched)
    for name in launched:
        pod = scene.pods[name]
        scene.command(pod.workflow, "cancel")
        uri = versioned(f"s3://lab/{pod.workflow.removeprefix('align-')}", "1")
        scene.tell(ReplicaSeen(uri, pod.node, GIB), PodEnded(name, scene.now, 0))
    assert not scene.state.data.pushes


def test_pushes_to_a_reader_that_does_not_come_end(scene: Scene) -> None:
    """Its engine may be gone: after half an hour nothing is copied for it any more."""
    taught(scene, "one", MERGE)
    two_calls(scene, "two")
    assert scene.state.data.pushes
    scene.submit("w", {"name": "s", "command": ["true"]})
    scene.tell(after=31 * MINUTE)
    scene.submit("v", {"name": "s", "command": ["true"]})
    assert not scene.state.data.pushes


def test_pushes_of_a_run_that_has_ended_end(scene: Scene) -> None:
    """Its head has ended."""
    taught(scene, "one", MERGE)
    two_calls(scene, "two")
    scene.state.work.engines.ended["two"] = "its engine has ended"
    scene.submit("w", {"name": "s", "command": ["true"]})
    assert not scene.state.data.pushes
    assert home_of(scene, "two") is None


def test_a_gather_node_that_an_undone_step_added_is_none(scene: Scene) -> None:
    """The round of that step chose it. Then the node is no more, and the next step chooses another."""
    taught(scene, "one", MERGE)
    scene.tell(*(NodeChanged(node(name, cpu=1, ready=False)) for name in ("n0", "n1")))
    accepted = sent(scene, "two", "align", 0)
    undone = step(scene.state, [NodeChanged(node("new", cpu=1)), accepted], scene.now)
    assert scene.state.data.call_homes == {("two", MERGE): 2}
    undone.drop()
    assert home_of(scene, "two") is None
    scene.tell(*(NodeChanged(node(name, cpu=1)) for name in ("n0", "n1")))
    assert home_of(scene, "two") in (0, 1)


@pytest.mark.parametrize("more", [{}, {"call": {"run": "two", "node": "align"}}], ids=["document", "call"])
def test_a_document_of_several_stages_gathers_by_its_own_stages(more: dict[str, Any]) -> None:
    """Also where it is one call of a larger run."""
    scene = Scene(node("n0", cpu=1), node("n1", cpu=1))
    scene.submit(
        "w",
        {
            "name": "part",
            "command": ["true"],
            "scatter": {"count": 6},
            "outputs": [{"name": "o", "path": "o"}],
            "estimate": {"output": "1Gi", "runtime": "60s"},
        },
        {"name": "all", "command": ["true"], "inputs": [{"name": "i", "from": "part.o", "match": "all"}]},
        **more,
    )
    assert list(scene.state.data.homes) == [("w", 1, 0)]
