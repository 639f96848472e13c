"""Which engine has sent a document, and how its users ask for more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowsched.workflow.efficiency import efficiencies
from flowsched.workflow.engine_words import engine_in, words_of
from flowsched.workflow.formats.tes.document import workflow_of
from flowsched.workflow.formats.tes.task import read_task
from tests.workflow.test_efficiency import GIB, MIB, attempt

NEXTFLOW = ["/bin/bash", "-o", "pipefail", "-c", "bash /work/1a/2b/.command.run 2>&1 | tee .command.log"]
SNAKEMAKE = '# properties = {"type": "single", "rule": "align", "jobid": 3, "wildcards": {"s": "a"}}\n' + (
    "wget snakemake-workflow-sources.0123456789abcdef.tar"
)


def of_tes(**said: Any) -> dict[str, Any]:
    """The document that a TES task becomes."""
    task = {"executors": [{"image": "a", "command": ["true"]}], **said}
    document: dict[str, Any] = json.loads(workflow_of(read_task(json.dumps(task).encode())).document)
    return document


@pytest.mark.parametrize(
    ("document", "engine"),
    [
        ({"name": "w", "stages": [{"name": "a", "command": ["x"]}]}, ""),
        ({"name": "w", "stages": [{"name": "task", "command": ["x"]}]}, ""),
        ({"name": "w", "call": {"source": "cromwell"}, "stages": [{"name": "c", "steps": []}]}, "cromwell"),
        (of_tes(), "tes"),
        (of_tes(tags={"run_id": "r1"}), "tes"),
        (of_tes(executors=[{"image": "a", "command": NEXTFLOW}]), "nextflow"),
        (of_tes(inputs=[{"path": "/s.sh", "content": SNAKEMAKE}]), "snakemake"),
    ],
)
def test_the_engine_that_sent_a_document(document: dict[str, Any], engine: str) -> None:
    """By what it says of its call; else by what only that engine sends."""
    assert engine_in(document) == engine


@pytest.mark.parametrize(
    ("engine", "memory", "cores"),
    [
        ("", "1536Mi", "2"),
        ("cromwell", '`runtime { memory: "1536 MiB" }`', "`runtime { cpu: 2 }`"),
        ("miniwdl", '`runtime { memory: "1536 MiB" }`', "`runtime { cpu: 2 }`"),
        ("snakemake", "`resources: mem_mb=1536`", "`threads: 2`"),
        ("nextflow", "`memory '1536 MB'`", "`cpus 2`"),
        ("tes", "`resources.ram_gb`: 1.5", "`resources.cpu_cores`: 2"),
        ("an engine of next year", "`resources.ram_gb`: 1.5", "`resources.cpu_cores`: 2"),
    ],
)
def test_each_engine_has_its_words(engine: str, memory: str, cores: str) -> None:
    """For an amount of memory and a number of cores."""
    words = words_of(engine)
    assert (words.memory(1536 * MIB), words.cores(2)) == (memory, cores)


def test_amounts_are_rounded_up() -> None:
    """Less would be too little; TES knows whole cores alone."""
    words = words_of("tes")
    assert (words.memory(1000 * MIB), words.cores(0.3)) == (
        "`resources.ram_gb`: 0.98",
        "`resources.cpu_cores`: 1",
    )


def test_the_advice_of_seff_is_in_the_words_of_the_engine() -> None:
    """Of memory, and of cores."""
    killed = attempt(10, 2.5, 2 * GIB, cores=4, memory=2 * GIB, code=137, reason="OOMKilled")
    (view,) = efficiencies([killed], "cromwell")
    assert view.advice == [
        'memory: 1 attempt had too little with 2 GiB: ask for `runtime { memory: "4096 MiB" }`',
        "cpu: asked for 4 cores, used at most 0.25: ask for `runtime { cpu: 0.3 }`",
    ]
