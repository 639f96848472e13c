"""What becomes of a TES task: a document of one stage, and of which run it is a call."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from flowsched.errors import Fault, TooLarge
from flowsched.workflow.formats.tes.document import workflow_of
from flowsched.workflow.formats.tes.engines import files_of, identify
from flowsched.workflow.formats.tes.task import InvalidTask, Task, encode_task, read_task
from flowsched.workflow.spec import Call, Delivered, Placed

STEP: dict[str, Any] = {"image": "a", "command": ["x"]}


def task(**fields: Any) -> Task:
    return read_task(json.dumps({"executors": [STEP], **fields}).encode())


def call_of(asked: Task) -> Call | None:
    return identify(asked).call


def stage(**fields: Any) -> dict[str, Any]:
    """The stage of the document that a task becomes."""
    document: dict[str, Any] = json.loads(workflow_of(task(**fields)).document)
    return dict(document["stages"][0])


def refused(**fields: Any) -> list[Fault]:
    with pytest.raises(InvalidTask) as caught:
        workflow_of(task(**fields))
    return list(caught.value.faults)


def test_executors_are_steps_in_their_order() -> None:
    """With images, variables, folders and streams; nulls and empty texts say nothing."""
    made = stage(
        executors=[
            {"image": "one", "command": ["a", "b"], "env": {"X": "1", "Y": None}, "workdir": "/w", "stdin": "/in",
             "stdout": "/out", "stderr": "/err", "ignore_error": True},
            {"image": "two", "command": ["c"], "workdir": "", "env": None, "ignore_error": None},
        ]
    )  # fmt: skip
    assert made["steps"] == [
        {"command": ["a", "b"], "image": "one", "env": {"X": "1"}, "workdir": "/w", "stdin": "/in", "stdout": "/out",
         "stderr": "/err", "ignore_error": True},
        {"command": ["c"], "image": "two"},
    ]  # fmt: skip


def test_a_task_that_says_nothing_of_its_needs_gets_a_core_and_two_gigabytes() -> None:
    """Decimal ones, and no limit that it did not ask for."""
    made = stage()
    assert made["resources"] == {"cpu": 1, "memory": 2_000_000_000}
    assert "limits" not in made


@pytest.mark.parametrize(
    ("url", "system"),
    [("https://example.org/ref.fa", "http"), ("s3://genomics/ref.fa", "s3")],
)
def test_a_url_as_a_path_says_what_cromwell_lacks(url: str, system: str) -> None:
    """Cromwell sends it so where its provider has no file system for the scheme."""
    (fault,) = refused(inputs=[{"name": "f", "path": url, "url": url}])
    assert (fault.path, fault.found) == ("$.inputs[0].path", f'"{url}"')
    assert fault.expected == (
        "an absolute path of the container, without .. and control characters; a URL belongs in `url`. Cromwell sends a URL as "
        f"the path where its provider has no `filesystems.{system}`: see «Inputs from elsewhere» in docs/cromwell.md"
    )


def test_gigabytes_are_decimal_and_rounded_up() -> None:
    """As TES defines them; 0 says nothing."""
    made = stage(resources={"cpu_cores": 0, "ram_gb": 6.1, "disk_gb": 0.0000000001})
    assert made["resources"] == {"cpu": 1, "memory": 6_100_000_000, "disk": 1}


def test_the_memory_limit_is_what_an_engine_meant() -> None:
    """Nextflow, Toil and Cromwell divide by 2^30: 300 MB of a process are 0.29296875, and it may use 300 MiB of memory."""
    made = stage(resources={"ram_gb": 0.29296875})
    assert made["resources"]["memory"] == 292_968_750
    assert made["limits"] == {"memory": 314_572_800}


@pytest.mark.parametrize(
    ("path", "url", "prefix", "wanted"),
    [
        ("/work/f[12].txt", "/lab/ab/f[12].txt", None, Delivered("/work/f[12].txt", "/lab/ab", path_prefix="/work")),
        ("/work/f[12].txt", "file:///lab/ab/f%5B12%5D.txt", None, Delivered("/work/f[12].txt", "/lab/ab", path_prefix="/work")),
        ("/work/*/x?", "/lab/*/x?", None, Delivered("/work/*/x?", "/lab", path_prefix="/work")),
        ("/work/*.txt", "s3://lab/ab", None, Delivered("/work/*.txt", "s3://lab/ab", path_prefix="/work")),
        ("/work/*.{bam,bai}", "/lab/ab", "/work", Delivered("/work/*.{bam,bai}", "/lab/ab", path_prefix="/work")),
        ("/work/x.{bam,bai}", "/lab/ab/x.{bam,bai}", None, Delivered("/work/x.{bam,bai}", "/lab/ab", path_prefix="/work")),
        ("/work/x.{bam,bai}", "/lab/y", None, Delivered("/work/x.{bam,bai}", "/lab/y")),
    ],
)  # fmt: skip
def test_wildcards_without_a_prefix(path: str, url: str, prefix: str | None, wanted: Delivered) -> None:
    """Nextflow sends none: what is the same for all matches is cut off, and the wildcards off the url too."""
    output = {"path": path, "url": url} | ({} if prefix is None else {"path_prefix": prefix})
    (delivered,) = workflow_of(task(outputs=[output])).spec.stages[0].container.outputs
    assert delivered == wanted


def test_parts_of_cores_are_answered_whole() -> None:
    """As newer clients may ask; Cromwell decodes whole numbers alone."""
    asked = task(resources={"cpu_cores": 1.5})
    assert json.loads(encode_task(asked))["resources"] == {"cpu_cores": 2}


def test_inputs_and_outputs_are_files_at_paths() -> None:
    """Content wins over a url unless it is empty; folders lose the slash at their end; names are kept."""
    spec = workflow_of(
        task(
            inputs=[
                {"path": "/a", "content": "text", "url": "gs://ignored"},
                {"path": "/b", "content": "", "url": "/data/b"},
                {"path": "/c", "content": ""},
                {"path": "/d/", "url": "file:///data/d/", "type": "DIRECTORY"},
                {"path": "/e", "url": "s3://bucket/key"},
                {"path": "/data/f", "url": "/data/f"},
            ],
            outputs=[
                {"path": "/o/g", "url": "/data/g", "name": "n", "path_prefix": "/ignored"},
                {"path": "/o/dir/", "url": "s3://bucket/dir/", "type": "DIRECTORY"},
                {"path": "/o/*.txt", "url": "/data/all/", "path_prefix": "/o/"},
            ],
            volumes=["/scratch/"],
        )
    ).spec
    container = spec.stages[0].container
    assert container is not None
    assert container.inputs == (
        Placed("/a", content="text"),
        Placed("/b", source="/data/b"),
        Placed("/c", content=""),
        Placed("/d", source="/data/d", directory=True),
        Placed("/e", input="file-4"),
        Placed("/data/f", source="/data/f"),
    )
    assert container.outputs == (
        Delivered("/o/g", "/data/g", name="n"),
        Delivered("/o/dir", "s3://bucket/dir", directory=True),
        Delivered("/o/*.txt", "/data/all", path_prefix="/o"),
    )
    assert container.volumes == ("/scratch",)


def test_parameters_have_no_case() -> None:
    """Queue, priority, GPUs, timeout, expected runtime, tries; what others ask for is dropped."""
    asked = task(
        resources={
            "backend_parameters": {
                "QUEUE": "lab", "User": "ann", "Priority": "7",
                "gpu_count": "2", "gpuType": "A100", "timeout": "2h", "expected_runtime": "90s",
                "attempts": "3", "memory-factor": "1.5", "fit_memory": "True", "VmSize": "x", "workflow_execution_identity": "me",
            }
        }
    )  # fmt: skip
    made = workflow_of(asked)
    document = json.loads(made.document)
    assert (document["queue"], document["user"], document["priority"]) == ("lab", "ann", 7)
    one = document["stages"][0]
    assert one["resources"]["gpu"] == "2"
    assert one["selector"] == {"nvidia.com/gpu.product": "A100"}
    assert (one["timeout"], one["estimate"]) == ("2h", {"runtime": "90s"})
    assert one["retry"] == {"attempts": 3, "memory_factor": "1.5"}
    assert one["fit_memory"] is True
    assert made.ignored == ("VmSize",)
    assert "VmSize" not in json.loads(encode_task(asked))["resources"]["backend_parameters"]


def test_faults_are_told_in_the_words_of_the_task() -> None:
    """All at once, none with a path of the document."""
    found = refused(
        executors=[{"image": "a b", "command": ["x"], "stdout": "rel"}],
        inputs=[{"path": "/a", "content": ""}, {"path": "b", "url": "c"}],
        outputs=[{"path": "/a", "url": "http://x/y"}],
        volumes=["v"],
        resources={
            "cpu_cores": 5_000_000,
            "ram_gb": 1e9,
            "backend_parameters": {"queue": "no queue", "priority": "high"},
        },
    )
    assert sorted(fault.path for fault in found) == [
        "$.executors[0].image", "$.executors[0].stdout", "$.inputs[1].path", "$.inputs[1].url", "$.outputs[0].url",
        "$.resources.backend_parameters.priority", "$.resources.backend_parameters.queue", "$.resources.cpu_cores",
        "$.resources.ram_gb", "$.resources.ram_gb", "$.volumes[0]",
    ]  # fmt: skip


def test_tags_are_labels_where_they_fit() -> None:
    """Null tags are dropped; a tag that no label can be is kept as a tag."""
    asked = task(tags={"a": "b", "n": None, "x" * 300: "long", "line\n": "y", "flowsched-plan": "p"})
    assert dict(workflow_of(asked).spec.labels) == {"a": "b", "flowsched-plan": "p"}
    assert set(asked.labels) == {"a", "x" * 300, "line\n", "flowsched-plan"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, "task"), ("  ", "task"), ("a\nb", "a b"), ("x" * 200, "x" * 128), ("WGS.Call", "WGS.Call")],
)
def test_any_name_will_do(name: str | None, expected: str) -> None:
    """A workflow's name is printable and short."""
    assert workflow_of(task(name=name)).spec.name == expected


def test_content_beyond_the_limit_is_too_large() -> None:
    """1 MiB of one file."""
    with pytest.raises(TooLarge, match="content_bytes"):
        workflow_of(task(inputs=[{"path": "/a", "content": "x" * ((1 << 20) + 1)}]))


def cromwell(**changes: Any) -> dict[str, Any]:
    here = "/c/WGS/root/call-Sub/Sub/7f/call-Merge/execution"
    return {
        "name": "Sub.Merge",
        "description": "7f:BackendJobDescriptorKey_CommandCallNode_Sub.Merge:-1:2",
        "inputs": [
            {"name": "Sub.Merge.a.0", "path": "/c/1", "url": "/h/WGS/root/call-ToBam/shard-0/execution/a"},
            {"name": "Sub.Merge.a.1", "path": "/c/2", "url": "/h/WGS/root/call-ToBam/shard-1/execution/a"},
            {"name": "Sub.Merge.b.0", "path": "/c/3", "url": "/h/WGS/root/call-Sub/Sub/7f/call-Split/execution/b"},
            {"name": "Sub.Merge.c.0", "path": "/c/4", "url": "/ref/hg38.fa"},
            {"name": "commandScript", "description": "Sub.Merge.commandScript", "path": f"{here}/script",
             "url": f"/h{here}/script"},
        ],
        "tags": {"workflow_id": "7f", "root_workflow_id": "root", "parent_workflow_id": "root"},
        **changes,
    }  # fmt: skip


def test_a_call_of_cromwell_knows_its_place_and_what_it_reads() -> None:
    """Run, node with its sub-workflows, shard, attempt, and the calls whose files are its inputs, each once."""
    assert call_of(task(**cromwell())) == Call(
        run="root", run_name="WGS", source="cromwell", node="WGS.Sub.Merge", shard=None, attempt=2,
        after=("WGS.ToBam", "WGS.Sub.Split"), task="call-Sub/Sub/7f/call-Merge",
    )  # fmt: skip


def test_a_task_of_cromwell_says_what_it_ran_out_of() -> None:
    """What is left is `rc`, and beside it what Cromwell reads of memory; it takes out what the script writes there."""
    rc = {"name": "rc", "path": "/c/execution/rc", "url": "/data/execution/rc"}
    (stage,) = json.loads(workflow_of(task(**cromwell(outputs=[rc]))).document)["stages"]
    assert stage["files"]["return_code"] == "/c/execution/rc"
    assert stage["files"]["outputs"] == [
        {"path": "/c/execution/rc", "uri": "/data/execution/rc", "name": "rc"},
        {"path": "/c/execution/memory_retry_rc", "uri": "/data/execution/memory_retry_rc"},
    ]
    assert stage["files"]["leave"] == [
        {"path": "/c/execution/memory_retry_rc", "content": "0\n", "reason": "OOMKilled"},
        {"path": "/c/execution/rc", "content": "79\n", "reason": "OOMKilled"},
    ]


def test_without_folders_a_call_of_cromwell_has_its_name() -> None:
    """The sub-workflow's id, the call and its shard are the task; a description that is none of Cromwell's says no attempt."""
    tags = {"workflow_id": "other"}
    description = "7f:BackendJobDescriptorKey_CommandCallNode_Sub.Merge:4:2"
    assert call_of(task(**cromwell(description=description, tags=tags))) == Call(
        "other", "Sub", "cromwell", "Sub.Merge", 4, 2, task="other/Sub.Merge/4"
    )
    odd = call_of(task(**cromwell(description="odd", tags=tags)))
    assert odd == Call("other", "Sub", "cromwell", "Sub.Merge")
    assert odd.identity("w1") == "w1"


SCRIPT = """#!/bin/sh
# properties = {"type": "single", "rule": "map", "input": [".s/a.txt"], "output": [".s/b.txt"], "jobid": 3}
python -m snakemake --deploy-sources /s/snakemake-workflow-sources.0123456789abcdef0123.tar.xz --attempt 2 --force
"""


def test_a_job_of_snakemake_is_a_call_of_its_sources() -> None:
    """The rule is the node; the files of its properties tell who reads what whom wrote."""
    job = task(name="snakejob.map.3.sh", inputs=[{"path": "/tmp/run.sh", "content": SCRIPT}])
    call = call_of(job)
    assert call is not None
    assert (call.run, call.run_name, call.source, call.node, call.shard, call.attempt) == (
        "snakemake-0123456789abcdef", "snakemake", "snakemake", "map", None, 2,
    )  # fmt: skip
    assert files_of(job) == ((".s/a.txt",), (".s/b.txt",))


@pytest.mark.parametrize(
    ("properties", "shard"),
    [
        ('"rule": "map", "wildcards": {"letter": "a"}, "jobid": 3', 3),
        ('"rule": "map", "wildcards": {"letter": "b"}, "jobid": 0', 0),
        ('"rule": "map", "wildcards": {}, "jobid": 3', None),
        ('"rule": "map", "wildcards": {"letter": "a"}, "jobid": -1', None),
        ('"rule": "map", "wildcards": {"letter": "a"}, "jobid": true', None),
        (
            '"type": "group", "groupid": "map", "jobid": "6fa459ea-ee8a-3ca4-894e-db77e160355e"',
            0x6160355E,
        ),
        ('"type": "group", "groupid": "map", "jobid": "none"', None),
    ],
)
def test_a_job_of_snakemake_is_a_shard_of_its_rule(properties: str, shard: int | None) -> None:
    """By the number that Snakemake's log names; a rule without wildcards has one job, and no shards."""
    script = SCRIPT.replace('"rule": "map", "input"', f'{properties}, "input"').replace(
        '"jobid": 3}', '"x": 1}'
    )
    found = call_of(task(inputs=[{"path": "/tmp/run.sh", "content": script}]))
    assert found is not None
    assert (found.node, found.shard) == ("map", shard)


def test_a_job_of_snakemake_is_the_same_task_while_it_writes_the_same_files() -> None:
    """Whatever its number: other targets number the jobs of the same sources in another way."""

    def task_of(old: str, new: str) -> str:
        found = call_of(task(inputs=[{"path": "/tmp/run.sh", "content": SCRIPT.replace(old, new)}]))
        assert found is not None
        return found.task

    assert task_of("", "") == task_of('"jobid": 3', '"jobid": 4') == task_of("--attempt 2", "--attempt 3")
    assert task_of("", "") != task_of(".s/b.txt", ".s/c.txt")
    groups = [
        f'"jobid": "6fa459ea-ee8a-3ca4-894e-db77e160355{last}", "type": "group", "x": 3' for last in "ef"
    ]
    assert task_of('"jobid": 3', groups[0]) != task_of('"jobid": 3', groups[1])


@pytest.mark.parametrize(
    "content", [SCRIPT.replace("{", "{{"), SCRIPT.replace("map", ""), "# properties = []", "x"]
)
def test_a_script_that_is_no_job_is_no_call(content: str) -> None:
    """And no fault."""
    assert call_of(task(inputs=[{"path": "/tmp/run.sh", "content": content}])) is None


def test_other_engines_name_their_runs_by_tags() -> None:
    """Whatever the case of the tag; without one a task is a workflow of its own."""
    assert call_of(task(name="s1", tags={"workflow": "wf-1", "step": "first"})) == Call(
        "wf-1", "wf-1", "tes", "first"
    )
    assert call_of(task(name="s1", tags={"WORKFLOW_ID": "cwl-01"})) == Call("cwl-01", "cwl-01", "tes", "s1")
    assert call_of(task(name="s1", tags={"project": "x"})) is None
    assert call_of(task(tags={"workflow": " "})) is None


CAMEL = {
    "executors": [{**STEP, "ignoreError": True, "env": {"pathPrefix": "as it is"}}],
    "outputs": [{"path": "/out/*.txt", "pathPrefix": "/out", "url": "file:///results", "type": "DIRECTORY"}],
    "resources": {
        "cpuCores": 3,
        "ramGb": 6.5,
        "diskGb": 40,
        "backendParameters": {"gpuCount": "1", "gpu_type": "A100"},
        "backendParametersStrict": True,
    },
    "tags": {"ramGb": "a tag keeps its name"},
}


def test_protobuf_json_of_funnels_client_means_the_same_and_is_answered_in_snake_case() -> None:
    """Funnel's Go client marshals with protojson, which writes lowerCamelCase."""
    task = read_task(json.dumps(CAMEL).encode())
    assert json.loads(encode_task(task)) == {
        "executors": [{**STEP, "ignore_error": True, "env": {"pathPrefix": "as it is"}}],
        "outputs": [
            {"path": "/out/*.txt", "path_prefix": "/out", "url": "file:///results", "type": "DIRECTORY"}
        ],
        "resources": {
            "cpu_cores": 3,
            "ram_gb": 6.5,
            "disk_gb": 40.0,
            "backend_parameters": {"gpuCount": "1", "gpu_type": "A100"},
            "backend_parameters_strict": True,
        },
        "tags": {"ramGb": "a tag keeps its name"},
    }


@pytest.mark.parametrize("both", [{"ram_gb": 4, "ramGb": 4}, {"ram_gb": None, "ramGb": 4}])
def test_both_spellings_with_one_value_are_that_value(both: dict[str, Any]) -> None:
    assert task(resources=both).resources.ram_gb == 4  # type: ignore[union-attr]


def test_both_spellings_with_two_values_are_a_fault_that_shows_both() -> None:
    with pytest.raises(InvalidTask) as refused:
        task(resources={"ram_gb": 4, "ramGb": 8})
    (fault,) = refused.value.faults
    assert (fault.path, fault.found, fault.expected) == (
        "$.resources.ramGb",
        "8, and 4 at ram_gb",
        "one of the two spellings, or the same value in both",
    )


def test_a_wrong_value_in_camel_case_is_refused_as_in_snake_case() -> None:
    with pytest.raises(InvalidTask) as refused:
        task(resources={"cpuCores": "two"})
    assert refused.value.faults[0].path == "$.resources.cpu_cores"


def test_a_task_may_have_as_many_files_as_its_body_has_room_for() -> None:
    """Joint genotyping of 935 samples reads 3,740 files; 20,000 inputs and as many outputs of short names fit into 4 MiB."""
    files = [{"path": f"/a/{n}", "url": f"/a/{n}"} for n in range(20_000)]
    given = task(inputs=files, outputs=files)
    container = workflow_of(given).spec.stages[0].container
    assert container is not None
    assert (len(container.inputs), len(container.outputs)) == (20_000, 20_000)
    assert container.inputs[3_740] == Placed("/a/3740", source="/a/3740")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tags": {f"t{n}": "v" for n in range(1001)}}, "too many tags: 1,001, the limit 'labels' is 1,000"),
        (
            {"resources": {"backend_parameters": {f"p{n}": "v" for n in range(1001)}}},
            "too many entries at $.resources.backend_parameters: 1,001, the limit 'labels' is 1,000",
        ),
        (
            {"resources": {"backendParameters": {f"p{n}": "v" for n in range(1001)}}},
            "too many entries at $.resources.backend_parameters: 1,001, the limit 'labels' is 1,000",
        ),
        ({"executors": [STEP] * 101}, "too many executors: 101, the limit 'roles' is 100"),
        ({"inputs": [{"path": "/a", "url": "/a"}] * 20_001}, "too many inputs: 20,001, the limit 'files' is 20,000"),
        ({"outputs": [{"path": "/a", "url": "/a"}] * 20_001}, "too many outputs: 20,001, the limit 'files' is 20,000"),
        ({"volumes": ["/a"] * 1001}, "too many volumes: 1,001, the limit 'inputs' is 1,000"),
        (
            {"executors": [{**STEP, "env": {f"E{n}": "" for n in range(1001)}}]},
            "too many entries at $.executors[0].env: 1,001, the limit 'environment' is 1,000",
        ),
        ({"tags": {"k" * 65_537: "v"}}, "a key at $.tags is too long (bytes): 65,537, the limit 'string_bytes' is 65,536"),
        ({"tags": {"ü" * 32_769: "v", "a": "b"}}, "a key at $.tags is too long (bytes): 65,538, the limit"),
    ],
)  # fmt: skip
def test_too_many_of_anything_is_refused_with_the_number_and_the_limit(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(TooLarge, match=re.escape(words)):
        task(**fields)


def test_a_large_task_is_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder keeps the interpreter until it ends: it never gets more than 256 KiB at once, whatever a client sends."""
    raw = json.dumps(
        {"executors": [STEP], "name": "n", "more": {f"k{i}": i for i in range(100_000)}}
    ).encode()
    sizes: list[int] = []
    decode = msgspec.json.decode

    def counted(piece: bytes) -> object:
        sizes.append(len(piece))
        return decode(piece)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    assert read_task(raw).name == "n"
    assert len(raw) > 1_000_000
    assert max(sizes) <= 256 * 1024 + 2  # with the brackets of a slice
