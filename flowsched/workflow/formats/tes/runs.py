"""The run that a TES task belongs to: TES carries no DAG, but engines leave traces of theirs in their tasks.

Cromwell: the tags `root_workflow_id` and `workflow_id`, and the folders of its calls. Snakemake: the properties in its job script.
Others: a tag that names the run. Without such a tag there is no call, and the task is a workflow of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from flowsched.values import replace
from flowsched.workflow.formats.tes.task import Input, Task
from flowsched.workflow.run_tasks import LONGEST, cromwell_place
from flowsched.workflow.spec import Call

#: Tags that name a run, where neither Cromwell nor Snakemake is the sender; the first that is there counts.
RUN_TAGS: Final = ("workflow_id", "workflow_run_id", "run_id", "workflow", "workflow_name")
#: Tags that name a node of it; else it is the task's name.
NODE_TAGS: Final = ("step", "node", "rule", "process", "job_name")
#: The source of calls that Cromwell makes.
CROMWELL: Final = "cromwell"
_MOST_AFTER: Final = 1_000
_DESCRIPTION: Final = re.compile(
    r"[^:]*:BackendJobDescriptorKey_CommandCallNode_(.+):(-1|[0-9]{1,9}):([0-9]{1,6})"
)
_PROPERTIES: Final = re.compile(r"^# properties = (\{.*\})\s*$", re.MULTILINE)
_SOURCES: Final = re.compile(r"snakemake-workflow-sources\.([0-9a-f]{16,})\.tar")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT: Final = re.compile(r" --attempt ([0-9]{1,6}) ")


def call_of(task: Task) -> Call | None:
    """Of which run a task is a call, as far as the task itself says; None if it says nothing."""
    found = _cromwell(task) or _snakemake(task) or _tagged(task)
    if found is None or not found.run.strip() or not found.node.strip():
        return None
    return replace(
        found, run=found.run[:LONGEST], run_name=found.run_name[:LONGEST], node=found.node[:LONGEST]
    )


def _cromwell(task: Task) -> Call | None:
    tags = task.labels
    script = next((each for each in task.inputs or () if _is_script(each)), None)
    if script is None or not tags.get("workflow_id"):
        return None
    run = tags.get("root_workflow_id") or tags["workflow_id"]
    place = cromwell_place(script.path, run) or cromwell_place(script.url or "", run)
    match = _DESCRIPTION.fullmatch(task.description or "")
    attempt = max(1, int(match[3])) if match else 1
    if place is None:
        name = match[1] if match else task.name or ""
        shard = int(match[2]) if match and int(match[2]) >= 0 else None
        known = f"{tags['workflow_id']}/{name}/{match[2]}"[-LONGEST:] if match else ""
        return Call(run, name.partition(".")[0], CROMWELL, name, shard, attempt if match else 0, task=known)
    return Call(
        run=run,
        run_name=place.run_name,
        source=CROMWELL,
        node=place.node,
        shard=place.shard,
        attempt=attempt if match else place.attempt,
        task=place.task,
        after=_after(task, run, place.node),
    )


def _is_script(task_input: Input) -> bool:
    return task_input.name == "commandScript" and (task_input.description or "").endswith(".commandScript")


def _after(task: Task, run: str, node: str) -> tuple[str, ...]:
    """The nodes that have the inputs below their folders, each once, in the order of the inputs."""
    nodes: dict[str, None] = {}
    for task_input in task.inputs or ():
        place = cromwell_place(task_input.url or "", run)
        if place is not None and place.node != node:
            nodes[place.node] = None
    return tuple(nodes)[:_MOST_AFTER]


def _snakemake(task: Task) -> Call | None:
    """A job of Snakemake's TES plugin: its run is known by the sources that all its jobs unpack."""
    found = snakemake_job(task)
    if found is None:
        return None
    text, properties = found
    sources = _SOURCES.search(text)
    node = properties.get("rule") or properties.get("groupid")
    if sources is None or not isinstance(node, str):
        return None
    attempt = _ATTEMPT.search(text)
    return Call(
        run=f"snakemake-{sources[1][:16]}",
        run_name="snakemake",
        source="snakemake",
        node=node,
        shard=_snakemake_shard(properties),
        attempt=max(1, int(attempt[1])) if attempt else 1,
        task=_snakemake_task(properties),
    )


def _snakemake_task(properties: Mapping[str, Any]) -> str:
    """Which job of its rule: its wildcards and output files; of a group, the UUID that Snakemake makes of those of its jobs.

    Not the `jobid`: with other targets, Snakemake numbers the jobs of the same sources in another way.
    """
    known = (
        [properties.get("jobid")]
        if properties.get("type") == "group"
        else [properties.get("wildcards"), properties.get("output")]
    )
    return hashlib.sha256(msgspec.json.encode(known, order="deterministic")).hexdigest()[:32]


def _snakemake_shard(properties: Mapping[str, Any]) -> int | None:
    """Which job of its rule: the `jobid` that Snakemake's own log names; None of a rule without wildcards, which has one job.

    Snakemake numbers the jobs of a DAG, those included that have nothing to do, in an order that the sources alone decide: a
    job has the same number when the run is started again. A group's `jobid` is a UUID of its rules and wildcards; its last
    31 bits are the number.
    """
    ident = properties.get("jobid")
    if properties.get("type") == "group" and isinstance(ident, str):
        return int(ident[-8:], 16) % (1 << 31) if _UUID.fullmatch(ident) else None
    return ident if properties.get("wildcards") and type(ident) is int and 0 <= ident < 1 << 31 else None


def snakemake_job(task: Task) -> tuple[str, Mapping[str, Any]] | None:
    """(job script, its properties) of a job of Snakemake; None if the task is none."""
    for task_input in task.inputs or ():
        line = (
            _PROPERTIES.search(task_input.content)
            if task_input.content and "# properties = " in task_input.content
            else None
        )
        if line is None:
            continue
        try:
            properties = msgspec.json.decode(line[1])
        except msgspec.DecodeError:
            continue
        if isinstance(properties, dict):
            return task_input.content or "", properties
    return None


def files_of(task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(inputs, outputs) as names that mean the same file in every task of its run."""
    reads = [each.url for each in task.inputs or () if each.url]
    writes = [each.url for each in task.outputs or ()]
    job = snakemake_job(task)
    if job is not None:
        reads += _texts(job[1].get("input"))
        writes += _texts(job[1].get("output"))
    return tuple(map(_same, reads)), tuple(map(_same, writes))


def _texts(value: object) -> Iterator[str]:
    yield from (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _same(url: str) -> str:
    return url.removeprefix("file://").rstrip("/") or "/"


def _tagged(task: Task) -> Call | None:
    tags = {key.lower(): value for key, value in task.labels.items()}
    run = next((tags[name] for name in RUN_TAGS if tags.get(name, "").strip()), None)
    if run is None:
        return None
    node = next((tags[name] for name in NODE_TAGS if tags.get(name, "").strip()), None) or task.name or "task"
    return Call(run, tags.get("workflow_name") or run, "tes", node)
