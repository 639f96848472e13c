"""A try of a task as a workflow document, which the service must understand."""

from __future__ import annotations

import json

from flowsched.miniwdl.order import Order, document
from flowsched.miniwdl.places import Place
from flowsched.values import replace
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.spec import Action, Call, Mount, On, Placed, Policy, Step

ORDER = Order(
    place=Place("/runs/r1", "germline", "each.align", (1,)),
    run="r1-00ff",
    attempt=1,
    folder="/runs/r1/call-each-1-x/call-align",
    work="/runs/r1/call-each-1-x/call-align/work",
    streams=("stdout.txt", "stderr.txt"),
    shell="/bin/bash",
    image="bwa:0.7.17",
    inputs={
        "/mnt/miniwdl_task_container/work/_miniwdl_inputs/0/a b.fq": "/runs/r1/call-trim/work/a b.fq",
        "/mnt/miniwdl_task_container/work/_miniwdl_inputs/0/ref/": "/data/ref/",
    },
    resources={"cpu": 4, "memory": 8_000_000_000},
    queue="lab",
    priority=7,
    since_ms=1_000,
)


def test_a_try_is_one_step_on_the_files_where_they_are() -> None:
    """The service reads it as meant: the folder at its place, inputs read only, the image, the amounts."""
    spec = decode_workflow(json.dumps(document(ORDER)).encode())
    (stage,) = spec.stages
    assert (spec.name, spec.queue, spec.priority, stage.name) == ("germline.each.align", "lab", 7, "align")
    assert stage.container is not None
    assert stage.container.mounts == (
        Mount("/runs/r1/call-each-1-x/call-align", "/mnt/miniwdl_task_container"),
    )
    assert stage.container.inputs == (
        Placed(
            "/mnt/miniwdl_task_container/work/_miniwdl_inputs/0/a b.fq",
            source="/runs/r1/call-trim/work/a b.fq",
        ),
        Placed("/mnt/miniwdl_task_container/work/_miniwdl_inputs/0/ref", source="/data/ref", directory=True),
    )
    assert stage.container.steps == (
        Step(
            ("/bin/sh", "-c", "exec /bin/bash ../command"),
            "bwa:0.7.17",
            workdir="/mnt/miniwdl_task_container/work",
            stdout="/mnt/miniwdl_task_container/stdout.txt",
            stderr="/mnt/miniwdl_task_container/stderr.txt",
        ),
    )
    assert (stage.roles[0].resources.cpu_millicores, stage.roles[0].resources.memory_bytes) == (
        4000,
        8_000_000_000,
    )


def test_it_says_of_which_run_it_is_a_call() -> None:
    """And whose outputs it reads, from where its inputs lie."""
    assert decode_workflow(json.dumps(document(ORDER)).encode()).call == Call(
        run="r1-00ff",
        run_name="germline",
        source="miniwdl",
        node="each.align",
        shard=1,
        attempt=1,
        after=("trim",),
        task="call-each-1-x/call-align",
        since_ms=1_000,
    )


def test_a_second_try_has_its_own_folder_at_the_same_place() -> None:
    """Over that of the first, so later among the mounts; its output goes to files of its own."""
    again = replace(ORDER, attempt=2, work=f"{ORDER.folder}/work2", streams=("stdout2.txt", "stderr2.txt"))
    spec = decode_workflow(json.dumps(document(again)).encode())
    container = spec.stages[0].container
    assert container is not None
    assert container.mounts == (
        Mount("/runs/r1/call-each-1-x/call-align", "/mnt/miniwdl_task_container"),
        Mount("/runs/r1/call-each-1-x/call-align/work2", "/mnt/miniwdl_task_container/work"),
    )
    assert container.steps[0].stdout == "/mnt/miniwdl_task_container/stdout2.txt"
    assert spec.call is not None
    assert spec.call.attempt == 2


def test_the_service_does_not_try_again_by_itself() -> None:
    """A second try would find what the first one left; miniwdl has a fresh folder for each."""
    stage = decode_workflow(json.dumps(document(ORDER)).encode()).stages[0]
    assert stage.retry.attempts == 1
    assert stage.policies == (
        Policy(On.TASK_EVICTED, Action.FAIL_STAGE),
        Policy(On.TASK_UNKNOWN, Action.FAIL_STAGE),
    )


def test_limits_and_a_timeout_are_said_where_there_are_any() -> None:
    """A memory limit comes from memory_limit_multiplier."""
    bare = document(ORDER)["stages"][0]
    assert "limits" not in bare
    assert "timeout" not in bare
    full = replace(ORDER, limits={"memory": 9_000_000_000}, timeout="2h")
    stage = decode_workflow(json.dumps(document(full)).encode()).stages[0]
    assert stage.timeout_ms == 7_200_000
    assert stage.roles[0].limits is not None
    assert stage.roles[0].limits.memory_bytes == 9_000_000_000


def test_names_that_are_too_long_for_a_document_are_cut() -> None:
    """WDL has no limit; the run and the call are told in full elsewhere."""
    name = "a" * 200
    spec = decode_workflow(json.dumps(document(replace(ORDER, place=Place("/r", "w", name)))).encode())
    assert (len(spec.name), len(spec.stages[0].name)) == (128, 63)


def test_return_codes_that_mean_success_are_told_and_end_with_0() -> None:
    """The task has ended well for flowsched, too, with the code that its script left; any other code is a failure."""
    for codes, case in (((0, 3), "0|3"), ((3,), "3"), (None, "*")):
        (stage,) = decode_workflow(json.dumps(document(replace(ORDER, return_codes=codes))).encode()).stages
        assert stage.container is not None
        file = "/mnt/miniwdl_task_container/return_code"
        assert stage.container.return_code == file
        assert stage.container.steps[0].command[2] == (
            f"/bin/bash ../command; code=$?; echo $code > {file}; case $code in {case}) exit 0;; esac; exit $code"
        )
    (stage,) = decode_workflow(json.dumps(document(ORDER)).encode()).stages
    assert stage.container is not None
    assert stage.container.return_code is None
