"""Kinds, runs, shards and attempts, from the requests that engines send."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from typing import Any, NamedTuple

import pytest

from flowsched.workflow.formats.tes.document import workflow_of
from flowsched.workflow.formats.tes.engines import (
    ENGINES,
    RESTS_MS,
    Identity,
    RunSoFar,
    continued,
    identify,
    repetition,
)
from flowsched.workflow.formats.tes.task import Task, read_task
from flowsched.workflow.run.states import RunState
from flowsched.workflow.spec import Call
from tests.tes.recordings import requests_of


def task(**fields: Any) -> Task:
    return read_task(
        json.dumps(
            {"executors": [{"image": "ubuntu:24.04", "command": ["bash", "-c", "x"]}], **fields}
        ).encode()
    )


def nextflow(name: str, own: str, reads: str = "/data/a", **tags: str) -> Task:
    """A task of nf-ga4gh 1.4.2; `own`: the two parts of its folder's name."""
    folder = f"/data/work/{own}"
    inputs = [
        {"path": f"/work/{path}", "url": url}
        for path, url in ((".command.sh", f"{folder}/.command.sh"), (".command.run", f"{folder}/.command.run"), ("a", reads))
    ]  # fmt: skip
    outputs = [{"path": f"/work/{path}", "url": f"{folder}/{path}"} for path in (".exitcode", "b")]
    return task(name=name, inputs=inputs, outputs=outputs, tags=tags)


def sprocket(name: str, group: str = "QxKpEKyK1nax-1795722212-0") -> Task:
    """A task of Sprocket 0.33."""
    return task(name=name, tags={"crankshaft-task-group": group})


def toil(name: str, store: str = "/jobs/greet") -> Task:
    """A task of toil-batch-system-tes 2.0."""
    inputs = [{"path": store, "url": f"file://{store}", "type": "DIRECTORY"}]
    executors = [{"image": "toil:7", "command": ["_toil_contained_executor", "x"]}]
    return task(name=name, inputs=inputs, executors=executors)


def cwl_tes(name: str, document: str = "file:///data/h.cwl#a/7a684191", workdir: str = "/sPsGjA") -> Task:
    """A task of cwl-tes 0.3."""
    executors = [{"image": "alpine:3.18", "command": ["echo", "9"], "workdir": workdir}]
    return task(name=name, executors=executors, tags={"CWLDocumentId": document})


def snakemake(rule: str, jobid: int) -> Task:
    """A task of Snakemake's TES plugin 0.1.3."""
    properties = json.dumps(
        {"rule": rule, "wildcards": {"n": str(jobid)}, "output": [f"{jobid}"], "jobid": jobid}
    )
    content = f"# properties = {properties}\nx snakemake-workflow-sources.0123456789abcdef01.tar.xz --attempt 2 --force"
    return task(name=f"snakejob.{rule}.{jobid}.sh", inputs=[{"path": "/run.sh", "content": content}])


def cromwell(shard: int) -> Task:
    """A task of Cromwell's TES backend, in a sub-workflow."""
    script = f"/c/WGS/root/call-Sub/Sub/7f/call-Merge/shard-{shard}/execution/script"
    return task(
        name="Sub.Merge",
        description=f"7f:BackendJobDescriptorKey_CommandCallNode_Sub.Merge:{shard}:2",
        inputs=[{"name": "commandScript", "description": "Sub.Merge.commandScript", "path": script, "url": script}],
        tags={"workflow_id": "7f", "root_workflow_id": "root"},
    )  # fmt: skip


HEX = "d895d38c1a5f63e8c28c20c1ec797e"


class Case(NamedTuple):
    """Two shards of one kind, and what the first says."""

    one: Task
    other: Task
    kind: str
    run: str
    node: str
    shard: int | None
    attempt: int


CASES = {
    "cromwell": Case(cromwell(0), cromwell(1), "Sub.Merge", "root", "WGS.Sub.Merge", 0, 2),
    "snakemake": Case(snakemake("map", 3), snakemake("map", 4), "map", "snakemake-0123456789abcdef", "map", 3, 2),
    "nextflow": Case(
        nextflow("W:GROW (s3)", f"b6/{HEX}"), nextflow("W:GROW (s4)", f"c7/{HEX}"),
        "W:GROW", "nextflow-10fd3db8b3ed237c", "W:GROW", None, 0,
    ),
    "sprocket": Case(
        sprocket("b-inner-0--make-2-dme0apGECTvG"), sprocket("b-inner-1--make-2-onlC9Zd7X64a"),
        "b-inner--make", "sprocket-QxKpEKyK1nax", "b-inner--make", 2, 0,
    ),
    "toil": Case(
        toil("'CWLJob' h.cwl.6.t.cwl kind-CWLJob/instance-kdzx5vyi v1"),
        toil("'CWLJob' h.cwl.24.t.cwl kind-CWLJob/instance-gcd5a18z v1"),
        "h.cwl.t.cwl", "toil-07e8f7d3bdf3cd0c", "h.cwl.t.cwl", 6, 1,
    ),
    "cwl-tes": Case(cwl_tes("a_98"), cwl_tes("a"), "a", "cwl-tes-sPsGjA", "a", 97, 0),
    "tes": Case(
        task(name="s1", tags={"workflow": "w", "step": "sort"}), task(name="s2", tags={"workflow": "w", "step": "sort"}),
        "sort", "w", "sort", None, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", CASES)
def test_a_task_says_its_kind_and_its_place_in_its_run(engine: str) -> None:
    """As docs/engines.md has it; all shards of a run are one stage of one workflow, and one kind."""
    case = CASES[engine]
    one, other = identify(case.one), identify(case.other)
    assert one.call is not None
    assert other.call is not None
    assert (one.kind, one.call.source, one.call.run) == (case.kind, engine, case.run)
    assert (one.call.node, one.call.shard, one.call.attempt) == (case.node, case.shard, case.attempt)
    assert (other.kind, other.call.run, other.call.node) == (case.kind, case.run, case.node)
    assert one.call.identity("w-1") != other.call.identity("w-2")


def test_every_engine_has_a_case() -> None:
    """Of those that are recognized."""
    assert list(CASES) == [source for source, _ in ENGINES]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (task(name="sample-17"), "ubuntu:24.04 bash"),
        (task(), "ubuntu:24.04 bash"),
        (task(name="sample-17", tags={"process": "align"}), "align"),
        (task(name="snakejob.one.4.sh"), "one"),
        (task(name="s1", tags={"workflow": "w"}), "ubuntu:24.04 bash"),
    ],
)
def test_a_task_of_no_known_engine_is_known_by_its_tag_or_its_program(asked: Task, kind: str) -> None:
    """Its name may be that of a sample."""
    assert identify(asked).kind == kind
    assert workflow_of(asked).spec.kind == kind


def test_a_kind_is_as_short_and_printable_as_a_name() -> None:
    """The document would be refused otherwise; the end of an image says more than its registry."""
    long = task(executors=[{"image": "x" * 300, "command": ["a\nb"]}])
    assert workflow_of(long).spec.kind == "x" * 124 + " a b"


def test_a_retry_of_toil_and_of_nextflow_is_an_attempt_of_the_same_task() -> None:
    """Toil raises the version of the job; Nextflow sends the same files from another folder, perhaps with more memory."""

    def task_of(asked: Task) -> tuple[str, int]:
        found = identify(asked).call
        assert found is not None
        return found.task, found.attempt

    jobs = [toil(f"'CWLJob' h.cwl kind-CWLJob/instance-{job}") for job in ("a v1", "a v3", "b v1")]
    assert [task_of(job) for job in jobs] == [
        ("kind-CWLJob/instance-a", 1),
        ("kind-CWLJob/instance-a", 3),
        ("kind-CWLJob/instance-b", 1),
    ]
    first, again, other = (
        nextflow("GROW (s3)", own, reads)
        for own, reads in ((f"b6/{HEX}", "/x"), (f"c7/{HEX}", "/x"), (f"d8/{HEX}", "/y"))
    )
    assert task_of(first) == task_of(again) != task_of(other)


ORDER = (  # as toil-batch-system-tes 2.0 packed it
    "gAWVjgEAAAAAAAB9lIwHY29tbWFuZJRYegEAAF90b2lsX3dvcmtlciBDV0xKb2IgZmlsZTovdmFyL3RtcC9raW5kcy1qcy9nMiBraW5kLUNXTEpvYi9pbnN0"
    "YW5jZS02cHM1MTRnNSAtLWNvbnRleHQgZ0FTVnpnQUFBQUFBQUFDTUlYUnZhV3d1WW1GMFkyaFRlWE4wWlcxekxtTnNaV0Z1ZFhCZmMzVndjRzl5ZEpTTUZG"
    "ZHZjbXRsY2tOc1pXRnVkWEJEYjI1MFpYaDBsSk9VS1lHVWZaU01FWGR2Y210bGNrTnNaV0Z1ZFhCSmJtWnZsSXdsZEc5cGJDNWlZWFJqYUZONWMzUmxiWE11"
    "WVdKemRISmhZM1JDWVhSamFGTjVjM1JsYlpTTUVWZHZjbXRsY2tOc1pXRnVkWEJKYm1admxKT1VLRTVPakNRNE9UWXlORGM0WmkwMU9UbGhMVFJpWlRZdFlX"
    "UTROeTB6TldGaE1qZzBNak0wWWplVWpBWmhiSGRoZVhPVWRKU0JsSE5pTGc9PZRzLg=="
)


def test_a_run_of_toil_is_its_workflow_whatever_its_job_store() -> None:
    """Its id is in what the worker is told; an order that cannot be read leaves the job store, which a later run may have too."""
    named = toil("'CWLJob' h.cwl kind-CWLJob/instance-a v1")
    found = []
    for order in (ORDER, ORDER[:-8], "x", "é"):
        named.executors[0].command[1] = order
        identity = identify(named)
        assert identity.call is not None
        found.append((identity.call.run, identity.call.run_name, identity.reused))
    assert found == [
        ("toil-8962478f-599a-4be6-ad87-35aa284234b7", "greet", False),
        *[("toil-07e8f7d3bdf3cd0c", "greet", True)] * 3,
    ]


WORK, OWN = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


def test_a_work_folder_with_a_uuid_is_not_the_run_of_toil() -> None:
    """The folders come before the workflow's id in the context."""
    context = b64encode(pickle.dumps((f"/scratch/{WORK}", f"/run/{WORK}", OWN, "always"))).decode()
    order = b64encode(pickle.dumps({"command": f"_toil_worker A file:/jobs --context {context} j"})).decode()
    named = toil("'CWLJob' h.cwl kind-CWLJob/instance-a v1")
    named.executors[0].command[1] = order
    found = identify(named).call
    assert found is not None
    assert found.run == f"toil-{OWN}"


def test_a_task_without_a_command_is_no_job_of_toil() -> None:
    """The check of its document refuses it."""
    empty = toil("'CWLJob' h.cwl kind-CWLJob/instance-a v1")
    empty.executors[0].command.clear()
    assert identify(empty).call is None


def test_a_tag_names_the_run_of_snakemake_where_its_sources_do_not() -> None:
    """A job without a script, and one with a script that unpacks no sources."""
    bare = task(name="snakejob.one.4.sh", tags={"run_id": "mine"})
    without = snakemake("map", 3)
    (script,) = without.inputs or ()
    script.content = (script.content or "").replace("workflow-sources", "sources")
    without.tags = {"run_id": "mine"}
    found = [identify(bare).call, identify(without).call]
    assert [(call.run, call.run_name, call.node) for call in found if call] == [
        ("mine", "mine", "one"),
        ("mine", "mine", "map"),
    ]


def test_a_long_task_leaves_room_for_its_number() -> None:
    """Several equal tasks of a run get `#2` and so on."""
    long = nextflow(f"A ({'x' * 2_000})", f"b6/{HEX}")
    call = identify(long).call
    assert call is not None
    beside = continued(call, call.run, RunSoFar(False, True, NOW, {call.task: RunState.RUNNING}), NOW, 2)
    spec = workflow_of(long, identity=Identity("A", beside)).spec
    assert spec.call is not None
    assert spec.call.task.endswith("#2")


def test_shards_inside_each_other_are_the_item_of_a_task_of_sprocket() -> None:
    """The whole path of shards tells it from the same shard of another scatter."""
    found = identify(sprocket("b-inner-0--make-2-dme0apGECTvG")).call
    assert found is not None
    assert found.task == "call-b/call-inner/shard-0/call-/call-make/shard-2"


def test_a_run_of_nextflow_has_the_name_of_its_tag() -> None:
    """Without one, all runs below a work folder have the same text."""
    tagged = identify(nextflow("A (1)", f"b6/{HEX}", workflow_id="rnaseq-7"))
    assert tagged.call is not None
    assert (tagged.call.run, tagged.call.run_name, tagged.call.shard) == ("rnaseq-7", "rnaseq-7", 1)
    assert identify(nextflow("A (1)", f"b6/{HEX}")).reused


def test_a_tool_without_a_file_has_the_kind_of_its_workflow_in_toil() -> None:
    """Its UUID is another one in the next run."""
    unit = "sl.cwl.2._:5c0668f2-4a6f-400e-955e-f6d969dae399"
    assert identify(toil(f"'CWLJob' {unit} kind-CWLJob/instance-hn709761 v1")).kind == "sl.cwl"
    assert identify(toil("'WDLTaskJob' w.count.3.command kind-X/instance-a v2")).kind == "w.count.command"
    assert identify(toil("'Root' kind-Root/instance-a v1")).kind == "Root"


def test_cwl_tes_without_a_folder_of_its_own_is_known_by_its_document() -> None:
    """A later run has the same document."""
    found = [identify(cwl_tes("a", workdir=folder)) for folder in ("/tmp/x", "/output", "/Output", "/OUTPUT")]
    assert {each.reused for each in found} == {identify(cwl_tes("a")).reused} == {True}
    assert {each.call.run for each in found if each.call is not None} == {"cwl-tes-476044acc1ca90a5"}


NOW = 100_000_000
LATE, SOON = NOW - RESTS_MS, NOW - RESTS_MS + 1
JUST = NOW - 59_999


@pytest.mark.parametrize(
    ("attempt", "so_far", "run", "task"),
    [
        (0, RunSoFar(False, True, 0, {}), "r~4", "t"),
        (0, RunSoFar(False, False, SOON, {}), "r~4", "t"),
        (0, RunSoFar(False, False, LATE, {}), "r~5", "t"),
        (0, RunSoFar(False, True, LATE, {}), "r~4", "t"),
        (0, RunSoFar(True, False, SOON, {}), "r~5", "t"),
        (0, RunSoFar(False, False, SOON, {"t": RunState.SUCCEEDED}), "r~5", "t"),
        (0, RunSoFar(False, True, SOON, {"t": RunState.SUCCEEDED}), "r~4", "t#2"),
        (0, RunSoFar(False, False, JUST, {"t": RunState.SUCCEEDED}), "r~4", "t#2"),
        (0, RunSoFar(False, False, JUST - 1, {"t": RunState.SUCCEEDED}), "r~5", "t"),
        (1, RunSoFar(False, False, NOW, {"t": RunState.SUCCEEDED}), "r~5", "t"),
        (0, RunSoFar(False, True, SOON, {"t": RunState.RUNNING, "t#7": RunState.PENDING}), "r~4", "t#8"),
        (0, RunSoFar(False, False, SOON, {"t": RunState.FAILED}), "r~4", "t"),
        (0, RunSoFar(False, False, SOON, {"t": RunState.CANCELLED}), "r~4", "t"),
        (0, RunSoFar(False, True, SOON, {"t": RunState.RUNNING, "t#2": RunState.FAILED}), "r~4", "t#2"),
        (0, RunSoFar(False, True, SOON, {"t": RunState.RUNNING, "t#2": RunState.PENDING}), "r~4", "t#3"),
        (1, RunSoFar(False, False, SOON, {"t": RunState.SUCCEEDED}), "r~5", "t"),
        (2, RunSoFar(False, False, SOON, {"t": RunState.SUCCEEDED}), "r~4", "t"),
        (1, RunSoFar(False, True, SOON, {"t": RunState.RUNNING}), "r~4", "t"),
    ],
)
def test_a_task_goes_on_with_its_run_or_begins_the_next(
    attempt: int, so_far: RunSoFar, run: str, task: str
) -> None:
    """By the end that was reported, by time, and by a task that comes again; and it is a retry only of what failed."""
    call = Call("r", "r", "nextflow", "A", attempt=attempt, task="t")
    found = continued(call, "r~4", so_far, NOW, 5)
    assert (found.run, found.task) == (run, task)
    assert continued(call, "r", so_far, NOW, 2).run == ("r" if run == "r~4" else "r~2")


def test_a_task_beside_others_has_a_number_of_its_own_while_they_are_being_accepted() -> None:
    """The database knows one of them."""
    call = Call("r", "r", "nextflow", "A", task="t")
    so_far = RunSoFar(False, True, SOON, {"t": RunState.PENDING})
    assert continued(call, "r", so_far, NOW, 2, beside=2).task == "t#3"


@pytest.mark.parametrize(
    ("run", "number"),
    [("r", 1), ("r~2", 2), ("r~10", 10), ("r~test", 0), ("r2", 0), ("r~", 0), ("~3", 0), ("r~٣", 0)],
)
def test_a_run_has_the_number_of_its_repetition(run: str, number: int) -> None:
    """The first has none in its id."""
    assert repetition("r", run) == number


@pytest.mark.parametrize(
    "asked",
    [
        sprocket("nap-3-08HBUylYzQvo", "abc"),
        toil("no name of a job"),
        task(name="GROW (s3)", inputs=[{"path": "/work/.command.run", "url": "/elsewhere/.command.run"}]),
        cwl_tes("a", document="#main"),
    ],
)
def test_a_task_that_only_looks_like_an_engine_s_is_no_call(asked: Task) -> None:
    """And no fault."""
    assert identify(asked).call is None


def test_recorded_requests_of_engines_say_their_kinds_and_runs() -> None:
    """Twenty of five engines: the kinds are few, and do not vary by shard."""
    found: dict[str, set[Identity]] = {}
    for line in requests_of("engines-2026-11.jsonl"):
        found.setdefault(line["client"].partition("-")[0], set()).add(
            identify(read_task(json.dumps(line["request"]).encode()))
        )
    kinds = {client: {each.kind for each in some} for client, some in found.items()}
    assert kinds == {
        "nextflow": {"GROW"},
        "sprocket": {"b-inner--make", "nap"},
        "toil": {"sl.cwl", "h.cwl"},
        "cwl": {"a"},
        "snakemake": {"sum", "one"},  # the recording has no scripts, which name the run
    }
    runs = {client: {each.call.run for each in some if each.call} for client, some in found.items()}
    assert {client: len(some) for client, some in runs.items()} == {
        "nextflow": 2, "sprocket": 5, "toil": 3, "cwl": 1, "snakemake": 0,
    }  # fmt: skip
