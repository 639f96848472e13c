"""Workloads in the forms in which clients submit them: as a document, without estimates, task by task over TES; and later runs."""

from __future__ import annotations

import pytest

from flowsched.errors import InvalidRequest
from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode, SimulatedStorage
from flowsched.simulation.documents import from_document
from flowsched.simulation.policies import simulated
from flowsched.simulation.workload import Workload, by_task, without_estimates
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.learned_plan import LearnedPlan
from flowsched.workflow.spec import Estimate, Traffic
from tests.simulation.made_up import Told, made

MB = 1_000_000
FAST = 10_000 * MB
#: Two nodes of one core, links of 100 MB/s, disks of 500 MB/s.
TWO = SimulatedCluster(
    tuple(
        SimulatedNode(f"n{at}", 1, disk=500 * MB, nic_in=100 * MB, nic_out=100 * MB, cache=1000 * MB)
        for at in range(2)
    ),
    SimulatedStorage("storage", disk=FAST, nic_in=FAST, nic_out=FAST),
)
#: `align` reads a reference of 100 MB and writes 200 MB, which `sort` reads.
CHAIN = made(
    TWO,
    {
        "align_1": Told(["reference"], ["bam"], seconds=1.0),
        "sort_1": Told(["bam"], ["sorted"], seconds=2.0),
    },
    {"reference": 100 * MB, "bam": 200 * MB, "sorted": 50 * MB},
)


def run(workload: Workload, policy: str = "flowsched", estimates: Estimates | None = None) -> World:
    """One run on two nodes."""
    return simulated(policy, TWO, [workload], estimates=estimates)


def tasks(world: World) -> dict[str, dict[str, object]]:
    """The lines of tasks, by name."""
    return {line["task"]: line for line in world.lines if "task" in line}


def test_an_engine_submits_kind_command_files_and_requests_of_each_task() -> None:
    """Neither a runtime nor the size of an output, and no stage that follows. URLs of outputs name the run."""
    align, sort = by_task(CHAIN, 3).submissions
    assert (align.spec.name, sort.spec.name) == ("align", "sort")
    assert (align.after, sort.after) == ((), (0,))
    (stage,) = sort.spec.stages
    assert [each.uri for each in stage.inputs] == ["s3://storage/made/1/run3"]
    assert stage.container is not None
    assert [each.uri for each in stage.container.outputs] == ["s3://storage/made/2/run3"]
    assert [step.command for step in stage.container.steps] == [("sort",)]
    assert (stage.estimate, stage.io, stage.outputs, stage.needs) == (Estimate(), Traffic(), (), ())
    assert stage.roles[0].resources == CHAIN.spec.stages[1].roles[0].resources
    assert sort.spec.call is not None
    assert (sort.spec.call.run, sort.spec.call.node) == ("made-run3", "sort")
    assert list(align.files) == ["s3://storage/made/0", "s3://storage/made/1/run3"]


def test_an_engine_sees_the_end_of_a_task_when_its_outputs_are_on_its_node() -> None:
    """200 MB take 0.4 s to a disk of 500 MB/s. The next task comes then. Only the final output goes to the storage."""
    world = run(by_task(CHAIN, 1))
    align, sort = tasks(world)["align_1"], tasks(world)["sort_1"]
    assert align["end"] - align["run_end"] == pytest.approx(0.4, abs=0.002)  # type: ignore[operator]
    assert sort["ready"] == align["end"]
    assert sort["start"] == pytest.approx(align["end"], abs=0.002)
    uploads = [line["transfer"] for line in world.lines if line.get("kind") == "upload"]
    assert uploads == ["sorted"]


def test_an_output_is_read_from_the_node_that_wrote_it() -> None:
    """Two outputs of two nodes meet: the one that is elsewhere comes from its node, as under a document."""
    meeting = made(
        TWO,
        {"one_1": Told([], ["a"]), "one_2": Told([], ["b"]), "two_1": Told(["a", "b"], ["c"])},
        {"a": 10 * MB, "b": 20 * MB, "c": 1 * MB},
    )
    for sent in (by_task(meeting, 1), meeting):
        copied = [line for line in run(sent).lines if "transfer" in line and line["to"] != "storage"]
        assert [line["transfer"] for line in copied] == ["a"]
        assert copied[0]["from"] != "storage"


def test_the_task_that_reads_an_output_runs_where_it_is() -> None:
    """Nothing is copied to a node but the reference."""
    world = run(by_task(CHAIN, 1))
    assert tasks(world)["sort_1"]["node"] == tasks(world)["align_1"]["node"]
    copied = [line["transfer"] for line in world.lines if "transfer" in line and line["to"] != "storage"]
    assert copied == ["reference"]


def test_without_locality_an_output_is_on_the_storage_alone() -> None:
    """The task writes to the storage alone, and the next one reads it there, if no memory has it."""
    bare = replace(TWO, nodes=tuple(replace(node, cache=0) for node in TWO.nodes))
    world = simulated("kube-like", bare, [by_task(CHAIN, 1)])
    moved = [(line["transfer"], line["kind"]) for line in world.lines if "transfer" in line]
    assert moved == [("reference", "read"), ("bam", "upload"), ("bam", "read"), ("sorted", "upload")]


def test_a_task_with_several_parents_is_submitted_once() -> None:
    """Two parents end at the same moment."""
    diamond = made(
        TWO,
        {
            "one_1": Told([], ["a"]),
            "one_2": Told([], ["b"]),
            "two_1": Told(["a", "b"], ["c"]),
        },
        {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB},
    )
    world = run(by_task(diamond, 1))
    assert [line["task"] for line in world.lines if "task" in line] == ["one_1", "one_2", "two_1"]
    assert world.unfinished == []


def test_a_document_without_estimates_is_the_same_document_otherwise() -> None:
    """Of a trace the document declares runtime, output and written bytes of each stage."""
    declared, bare = CHAIN.spec.stages[0], without_estimates(CHAIN).spec.stages[0]
    assert (declared.estimate, declared.io) == (Estimate(1400, 200 * MB), Traffic(write_bytes=200 * MB))
    assert (bare.estimate, bare.io) == (Estimate(), Traffic())
    assert (bare.name, bare.inputs, bare.outputs) == (declared.name, declared.inputs, declared.outputs)


#: On two cores the long task takes 10 s; behind the two short ones it ends after 11 s.
MIX = made(
    TWO,
    {
        "short_1": Told([], ["a"], seconds=1.0),
        "short_2": Told([], ["b"], seconds=1.0),
        "long_1": Told([], ["c"], seconds=10.0),
    },
    {"a": 1, "b": 1, "c": 1},
)


@pytest.mark.parametrize("way", ["nothing", "tes"])
def test_a_later_run_ranks_by_what_earlier_runs_took(way: str) -> None:
    """The first run knows nothing and goes by arrival. The second starts the kind first that took longest."""
    estimates = Estimates()
    ends = []
    for number in (1, 2):
        sent = by_task(MIX, number) if way == "tes" else without_estimates(MIX)
        ends.append(tasks(run(sent, estimates=estimates))["long_1"]["end"])
    assert ends == pytest.approx([11.0, 10.0], abs=0.05)


#: `prepare` takes 1 s, and 10 s of `train` follow it; six tasks of 3 s follow nothing.
TAIL = made(
    TWO,
    {f"side_{number}": Told([], [f"s{number}"], seconds=3.0) for number in range(6)}
    | {"prepare_1": Told([], ["p"], seconds=1.0), "train_1": Told(["p"], ["t"], seconds=10.0)},
    {**{f"s{number}": 1 for number in range(6)}, "p": 1, "t": 1},
)


@pytest.mark.parametrize(("plan", "second"), [(LearnedPlan(), 16.0), (None, 20.0)])
def test_a_later_run_starts_the_kind_first_that_long_kinds_follow(
    plan: LearnedPlan | None, second: float
) -> None:
    """Runtimes alone put `prepare` last. The edge to `train` is learned in the first run, and kept for the second."""
    estimates = Estimates()
    for number, expected in ((1, None), (2, second)):
        world = simulated("flowsched", TWO, [by_task(TAIL, number)], estimates=estimates, learned_plan=plan)
        end = max(line["end"] for line in tasks(world).values())  # type: ignore[type-var]
        assert expected is None or end == pytest.approx(expected, abs=0.1)


def test_a_document_of_files_can_be_submitted_task_by_task() -> None:
    """An input that lies beside the document is an object of the storage to the engine."""
    stages = [
        {
            "name": "one",
            "command": ["x"],
            "scatter": {"count": 2},
            "inputs": [{"name": "r", "uri": "/data/r.fq", "size": "1Mi"}],
            "outputs": [{"name": "o", "path": "o"}],
        },
        {"name": "two", "command": ["x"], "inputs": [{"name": "o", "from": "one.o"}], "needs": ["one"]},
    ]
    workload = from_document(check_workflow({"name": "w", "stages": stages}), "w", "w.json")
    world = run(by_task(workload, 1))
    assert [line["task"] for line in world.lines if "task" in line] == ["one/0", "one/1", "two/0"]
    assert world.unfinished == []


def test_a_gang_is_no_task_of_an_engine() -> None:
    """The message names the file and the stage."""
    gang = {"name": "g", "gang": True, "roles": {"worker": {"replicas": 2}}, "command": ["x"]}
    workload = from_document(check_workflow({"name": "w", "stages": [gang]}), "w", "w.json")
    with pytest.raises(InvalidRequest, match=r"w\.json: stage 'g' is a gang"):
        by_task(workload, 1)


def gathered(world: World) -> list[tuple[object, object]]:
    """(when, kind) of copies that came to the node of `merge_1` before it could start."""
    merge = tasks(world)["merge_1"]
    return [
        (line["start"], line["kind"])
        for line in world.lines
        if line.get("to") == merge["node"] and line["start"] < merge["ready"]  # type: ignore[operator]
    ]


def test_outputs_go_where_an_earlier_run_gathered_them_while_others_compute() -> None:
    """The first run does not know the task that will read all. The second sends each output to its node when it is written."""
    shards = {f"part_{at}": Told([], [f"p{at}"], seconds=2.0) for at in range(6)}
    merge = {"merge_1": Told([f"p{at}" for at in range(6)], ["whole"], seconds=1.0)}
    work = made(TWO, shards | merge, {f"p{at}": 80 * MB for at in range(6)} | {"whole": 1 * MB})
    estimates, plan, worlds = Estimates(), LearnedPlan(), []
    for number in (1, 2):
        worlds.append(
            simulated("flowsched", TWO, [by_task(work, number)], estimates=estimates, learned_plan=plan)
        )
    first, second = worlds
    assert not gathered(first)
    assert {kind for _, kind in gathered(second)} == {"push"}
    assert tasks(second)["merge_1"]["end"] < tasks(first)["merge_1"]["end"] - 0.5  # type: ignore[operator]


def test_nothing_is_sent_to_a_task_that_reads_little_of_what_others_write() -> None:
    """A report of the logs of all tasks is no gatherer of their data."""
    shards = {f"part_{at}": Told([], [f"p{at}", f"log{at}"], seconds=2.0) for at in range(6)}
    report = {"merge_1": Told([f"log{at}" for at in range(6)], ["whole"], seconds=1.0)}
    sizes = {f"p{at}": 80 * MB for at in range(6)} | {f"log{at}": 100_000 for at in range(6)}
    work = made(TWO, shards | report, sizes | {"whole": 1 * MB})
    estimates, plan = Estimates(), LearnedPlan()
    for number in (1, 2, 3):
        world = simulated("flowsched", TWO, [by_task(work, number)], estimates=estimates, learned_plan=plan)
    assert not gathered(world)
