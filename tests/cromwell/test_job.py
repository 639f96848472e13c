"""The document of a job, and what the path of a call says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowsched.cli.cromwell_job import (
    Job,
    Mounted,
    Wrong,
    document,
    idempotency_key,
    inside,
)
from flowsched.workflow.document.decode import decode_workflow
from tests.cromwell.values import HOSTILE


def changed(job: Job, **values: Any) -> Job:
    """The same job but for some values."""
    return Job(**{**vars(job), **values})


WF = "3f2b8a0e-6d0c-4a6f-9f43-0c1d2e3f4a5b"
SUB = "11111111-2222-3333-4444-555555555555"
SUBSUB = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
CALL = f"/data/cromwell-executions/germline/{WF}/call-align/shard-3/attempt-2"
JOB = Job(
    name="cromwell_3f2b8a0e_align",
    cwd=CALL,
    script="/cromwell-executions/x/execution/script",
    mounts=[Mounted(CALL, "/cromwell-executions/x")],
    image="ubuntu@sha256:abc",
    cpu="4",
    memory_mb="8192",
    disk_gb="50",
    gpu="1",
    gpu_type="NVIDIA-A100",
    queue="genomics",
    priority=5,
    timeout_minutes="90",
    runtime_minutes="0.5",
    rc_file=f"{CALL}/execution/rc",
)


def test_the_whole_document() -> None:
    """One stage with one step, the return code that is left, the resources in their units, and the call."""
    assert document(JOB) == {
        "name": "germline.align",
        "queue": "genomics",
        "priority": 5,
        "call": {
            "run": WF,
            "run_name": "germline",
            "source": "cromwell",
            "node": "germline.align",
            "task": "call-align/shard-3",
            "shard": 3,
            "attempt": 2,
        },
        "stages": [
            {
                "name": "align",
                "steps": [
                    {
                        "command": ["/bin/bash", "/cromwell-executions/x/execution/script"],
                        "image": "ubuntu@sha256:abc",
                    }
                ],
                "files": {
                    "mounts": [{"source": CALL, "path": "/cromwell-executions/x"}],
                    "leave": [
                        {
                            "path": "/cromwell-executions/x/execution/memory_retry_rc",
                            "content": "0\n",
                            "reason": "OOMKilled",
                        },
                        {
                            "path": "/cromwell-executions/x/execution/rc",
                            "content": "143\n",
                            "reason": "Cancelled",
                        },
                        {"path": "/cromwell-executions/x/execution/rc", "content": "79\n"},
                    ],
                    "return_code": "/cromwell-executions/x/execution/rc",
                },
                "resources": {"cpu": "4", "memory": "8192Mi", "disk": "50Gi", "gpu": "1"},
                "limits": {"memory": "8192Mi"},
                "timeout": 5400.0,
                "estimate": {"runtime": 30.0},
                "selector": {"nvidia.com/gpu.product": "NVIDIA-A100"},
            }
        ],
    }


def test_a_call_has_the_same_name_in_every_run() -> None:
    """The service learns runtimes by the names of workflow and stage. A folder that is no call's has the job's name."""
    other = changed(JOB, name="cromwell_11111111_align", cwd=CALL.replace(WF, SUB))
    assert (document(other)["name"], document(other)["stages"][0]["name"]) == ("germline.align", "align")
    assert document(changed(other, cwd="/w"))["name"] == "cromwell_11111111_align"
    deep = "/".join(f"s{number}/{WF}/call-{'x' * 30}{number}" for number in range(5))
    assert document(changed(JOB, cwd=f"/{deep}"))["name"].endswith(f".{'x' * 30}3.{'x' * 30}4")


def test_the_service_reads_the_document_as_it_was_meant() -> None:
    """Every key exists, amounts are what Cromwell said."""
    spec = decode_workflow(json.dumps(document(JOB)).encode())
    stage = spec.stages[0]
    assert stage.container is not None
    assert spec.call is not None
    assert (spec.call.node, spec.call.shard, spec.call.attempt) == ("germline.align", 3, 2)
    resources = stage.roles[0].resources
    assert (resources.cpu_millicores, resources.memory_bytes) == (4000, 8_589_934_592)
    assert (stage.timeout_ms, stage.estimate.runtime_ms) == (5_400_000, 30_000)
    assert stage.retry.attempts == 1


def test_a_job_without_wishes_asks_for_nothing() -> None:
    """Zero GPUs are none; without a queue, an image or a return code the document has no such keys."""
    bare = Job(name="n", cwd="/w", script="/w/s", mounts=[Mounted("/w", "/w")], gpu="0")
    assert document(bare) == {
        "name": "n",
        "stages": [
            {
                "name": "n",
                "steps": [{"command": ["/bin/bash", "/w/s"]}],
                "files": {"mounts": [{"source": "/w", "path": "/w"}]},
            }
        ],
    }


@pytest.mark.parametrize("hostile", HOSTILE, ids=[ascii(text)[:24] for text in HOSTILE])
def test_any_text_is_a_stage_name_in_the_end(hostile: str) -> None:
    """A stage's name has few characters; a job's name may have any."""
    name = document(changed(JOB, cwd="/w", name=hostile))["stages"][0]["name"]
    assert 0 < len(name) < 64
    assert name.isascii()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cpu": "four"}, "--cpu: found 'four', expected a number such as 4 or 0.5"),
        ({"memory_mb": "8Gi"}, "--memory-mb: found '8Gi', expected a number such as 4 or 0.5"),
        ({"gpu": "-1"}, "--gpu: found '-1', expected a number such as 4 or 0.5"),
        ({"disk_gb": "1e9"}, "--disk-gb: found '1e9', expected a number such as 4 or 0.5"),
        ({"cwd": "w"}, "--cwd: found 'w', expected an absolute path"),
        ({"script": "s"}, "--script: found 's', expected an absolute path"),
    ],
)
def test_what_cannot_be_a_job_is_refused(change: dict[str, str], message: str) -> None:
    """With the option, what was found and what was expected."""
    with pytest.raises(Wrong) as caught:
        document(changed(JOB, **change))
    assert str(caught.value) == message


def test_files_are_named_as_the_container_sees_them() -> None:
    """The innermost mount decides; a neighbour with a longer name is none; what no mount covers stays."""
    mounts = [Mounted("/data", "/d"), Mounted("/data/call", "/c"), Mounted("/", "/host/")]
    assert inside(mounts, "/data/call/rc") == "/c/rc"
    assert inside(mounts, "/data/caller") == "/d/caller"
    assert inside(mounts, "/data/call") == "/c"
    assert inside(mounts, "/etc/x") == "/host/etc/x"
    assert inside(mounts[:2], "/etc/x") == "/etc/x"


def test_a_job_submitted_twice_has_one_key() -> None:
    """The folder and the script decide; resources do not, another attempt's folder does."""
    key = idempotency_key(JOB)
    assert key == idempotency_key(changed(JOB, cpu="8"))
    assert key != idempotency_key(changed(JOB, cwd=CALL.replace("attempt-2", "attempt-3")))
    assert len(key) == 73
