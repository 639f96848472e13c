"""A TES task as a workflow document: one stage, `task`, with steps and files.

Faults of the document are given in the task's own words: `$.stages[0].files.inputs[3].uri` is `$.inputs[3].url` to its sender.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any, Final

import msgspec

from flowsched.errors import Fault, InvalidDocument
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import child, shown
from flowsched.workflow.formats.tes.engines import CROMWELL, Identity, identify
from flowsched.workflow.formats.tes.task import (
    Asked,
    Input,
    InvalidTask,
    Output,
    Task,
    TaskExecutor,
    folder_and_prefix,
    wild,
)
from flowsched.workflow.spec import Call, LeftFor, WorkflowSpec

#: The one stage of a TES task.
STAGE: Final = "task"
#: The role of the members of a gang.
MEMBER: Final = "member"
#: A task that does not say how much it needs gets so much.
DEFAULT_CORES: Final = 1
DEFAULT_RAM_GB: Final = 2
#: backend_parameters (without case, - and _) -> the name that is documented.
PARAMETERS: Final[Mapping[str, str]] = {
    name.lower(): name
    for name in (
        "queue",
        "user",
        "priority",
        "gpuCount",
        "gpuType",
        "timeout",
        "expectedRuntime",
        "attempts",
        "memoryFactor",
        "fitMemory",
        "gang",
    )
}
#: Parameters that clients send for other servers: accepted, also with backend_parameters_strict, and without meaning here.
IGNORED: Final = frozenset({"workflowexecutionidentity", "internalpathprefix"})
#: The label by which NVIDIA's feature discovery says what a node's GPUs are.
GPU_LABEL: Final = "nvidia.com/gpu.product"
#: The file beside `rc` in which 0 tells Cromwell to try the task again with more memory (`memory_retry_multiplier`).
_MEMORY_RETRY: Final = "memory_retry_rc"
_LONGEST_NAME: Final = 128
_MOST_LABELS: Final = 1_000


class TaskWorkflow(msgspec.Struct, frozen=True):
    """The workflow made of a task: the document that is stored, the same decoded, and the parameters without meaning here."""

    document: bytes
    spec: WorkflowSpec
    ignored: tuple[str, ...] = ()


def workflow_of(task: Task, limits: Limits = DEFAULT, identity: Identity | None = None) -> TaskWorkflow:
    """The workflow that a task is. Drops the parameters from `task` that are not supported, as TES demands.

    Args:
        task: As `read_task` gave it.
        limits: The limits of this installation.
        identity: Its kind and its run, if they are known better than the task alone says.

    Raises:
        TooLarge: A limit is exceeded.
        InvalidTask: With every fault.
    """
    asked = task.resources or Asked()
    known, ignored = _parameters(asked)
    if ignored and asked.backend_parameters_strict:
        raise InvalidTask(
            [Fault(child(_PARAMETERS, name), f"the key {shown(name)}", _SUPPORTED) for name in ignored]
        )
    for name in ignored:
        (asked.backend_parameters or {}).pop(name)
    document = _document(task, asked, known, identity or identify(task))
    try:
        spec = check_workflow(document, limits)
    except InvalidDocument as error:
        faults = [_of_a_url(task, in_their_words(fault)) for fault in error.faults]
        raise InvalidTask(faults) from None
    return TaskWorkflow(msgspec.json.encode(document), spec, ignored)


_PARAMETERS: Final = "$.resources.backend_parameters"
_SUPPORTED: Final = f"one of {', '.join(PARAMETERS.values())} (or backend_parameters_strict: false)"


def folded(name: str) -> str:
    """A parameter's name without the differences that do not matter: case, - and _."""
    return name.lower().replace("_", "").replace("-", "")


def _parameters(asked: Asked) -> tuple[dict[str, str], tuple[str, ...]]:
    """(supported ones by their folded name, names of those that are not)."""
    known: dict[str, str] = {}
    unknown = []
    for name, value in (asked.backend_parameters or {}).items():
        short = folded(name)
        if short in PARAMETERS and value is not None:
            known[short] = value
        elif short not in IGNORED:
            unknown.append(name)
    return known, tuple(unknown)


def _document(task: Task, asked: Asked, known: Mapping[str, str], identity: Identity) -> dict[str, Any]:
    document: dict[str, Any] = {"name": _printable(task.name or "")[:_LONGEST_NAME].strip() or STAGE}
    kind, call = _printable(identity.kind)[-_LONGEST_NAME:].strip(), identity.call
    if kind and kind != document["name"]:
        document["kind"] = kind
    if known.get("queue"):
        document["queue"] = known["queue"]
    if known.get("user"):
        document["user"] = known["user"]
    if known.get("priority"):
        document["priority"] = _number(known["priority"])
    labels = {k: v for k, v in task.labels.items() if 1 <= len(k) <= 256 and k.isprintable()}
    if labels:
        document["labels"] = dict(list(labels.items())[:_MOST_LABELS])
    if call is not None:
        document["call"] = _known_fields(call)
    document["stages"] = [_stage(task, asked, known)]
    if call is not None and call.source == CROMWELL:
        _exchange_return_codes(task, document["stages"][0]["files"])
    return document


def _exchange_return_codes(task: Task, files: dict[str, Any]) -> None:
    """Read and write the files by which a script and Cromwell tell each other how it ended: `rc`, and `memory_retry_rc` beside it.

    The script ends with 0 whatever its command did. Cromwell reads the second file only where there is a first one.
    """
    rc = next((each for each in task.outputs or () if each.name == "rc" and not wild(each)), None)
    if rc is None:
        return
    path, url = (f"{text.rpartition('/')[0]}/{_MEMORY_RETRY}" for text in (rc.path, rc.url))
    files["return_code"] = rc.path
    files["outputs"].append({"path": path, "uri": url})
    files["leave"] = [
        {"path": path, "content": "0\n", "reason": LeftFor.OOM_KILLED},
        {"path": rc.path, "content": "79\n", "reason": LeftFor.OOM_KILLED},
    ]


def _printable(text: str) -> str:
    """A text as the names of workflows are."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text.strip()


def _number(text: str) -> int | str:
    """A whole number; a text that is none is left for the document's own check to refuse."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,12}", text.strip()) else text


def _known_fields(call: Call) -> dict[str, Any]:
    """The known fields of a call."""
    fields = {name: getattr(call, name) for name in Call.__struct_fields__}
    return {name: value for name, value in fields.items() if value not in (None, 0, "", ())}


def _stage(task: Task, asked: Asked, known: Mapping[str, str]) -> dict[str, Any]:
    files: dict[str, Any] = {}
    if task.inputs:
        files["inputs"] = [_placed(task_input) for task_input in task.inputs]
    if task.outputs:
        files["outputs"] = [_delivered(taken) for taken in task.outputs]
    if task.volumes:
        files["volumes"] = [_folder(path) for path in task.volumes]
    stage: dict[str, Any] = {
        "name": STAGE,
        "steps": [_step(executor) for executor in task.executors],
        "resources": _resources(asked, known),
    }
    if files:
        stage["files"] = files
    if asked.ram_gb:
        stage["limits"] = {"memory": _bytes(asked.ram_gb, 1 << 30)}  # what engines divide by
    if known.get("gputype"):
        stage["selector"] = {GPU_LABEL: known["gputype"]}
    if known.get("gang"):
        stage |= {"gang": True, "roles": {MEMBER: {"replicas": _number(known["gang"])}}}
    if known.get("timeout"):
        stage["timeout"] = known["timeout"]
    if known.get("expectedruntime"):
        stage["estimate"] = {"runtime": known["expectedruntime"]}
    if known.get("fitmemory"):
        stage["fit_memory"] = {"true": True, "false": False}.get(
            known["fitmemory"].lower(), known["fitmemory"]
        )
    retry = {
        key: _number(known[name]) if key == "attempts" else known[name]
        for key, name in (("attempts", "attempts"), ("memory_factor", "memoryfactor"))
        if known.get(name)
    }
    if retry:
        stage["retry"] = retry
    return stage


def _resources(asked: Asked, known: Mapping[str, str]) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "cpu": asked.cpu_cores or DEFAULT_CORES,
        "memory": _bytes(asked.ram_gb or DEFAULT_RAM_GB),
    }
    if asked.disk_gb:
        resources["disk"] = _bytes(asked.disk_gb)
    if known.get("gpucount"):
        resources["gpu"] = known["gpucount"]
    return resources


#: An amount has at most 17 digits, and a unit 10: no product is rounded.
_EXACT: Final = Context(prec=40)


def _bytes(gigabytes: float, unit: int = 10**9) -> int:
    """Gigabytes as bytes, rounded up: 6.1 is 6,100,000,000, whatever binary fractions say.

    Args:
        gigabytes: As the task has them.
        unit: Bytes of one. TES says 10⁹; engines send memory divided by 2³⁰.
    """
    return int((_EXACT.create_decimal(repr(gigabytes)) * unit).to_integral_value(ROUND_CEILING, _EXACT))


def _step(executor: TaskExecutor) -> dict[str, Any]:
    step: dict[str, Any] = {"command": executor.command, "image": executor.image}
    if executor.env:
        step["env"] = executor.env
    for name in ("workdir", "stdin", "stdout", "stderr"):
        path = getattr(executor, name)
        if path is not None:
            step[name] = path
    if executor.ignore_error:
        step["ignore_error"] = True
    return step


def _placed(task_input: Input) -> dict[str, Any]:
    if task_input.content is not None:
        return {"path": task_input.path, "content": task_input.content}
    if task_input.type == "DIRECTORY":
        return {"path": _folder(task_input.path), "uri": _folder(task_input.url or ""), "directory": True}
    return {"path": task_input.path, "uri": task_input.url}


def _delivered(taken: Output) -> dict[str, Any]:
    wildcards = wild(taken)
    folder = taken.type == "DIRECTORY" or wildcards
    uri, prefix = folder_and_prefix(taken) if wildcards else (taken.url, None)
    delivered: dict[str, Any] = {
        "path": taken.path if wildcards else _folder(taken.path) if folder else taken.path,
        "uri": _folder(uri) if folder else uri,
    }
    if taken.type == "DIRECTORY":
        delivered["directory"] = True
    if prefix is not None:
        delivered["path_prefix"] = _folder(prefix)
    if taken.name:
        delivered["name"] = taken.name
    return delivered


def _folder(path: str) -> str:
    """Without the slash at its end that clients write at folders. A bucket keeps it: an S3 uri needs a key."""
    cut = path.rstrip("/")
    return cut if cut.count("/") > 2 or (not re.match(r"[a-z0-9]+:", cut) and cut) else path


_WORDS: Final = (
    (re.compile(r"^\$\.stages\[0\]\.steps\[(\d+)\]"), r"$.executors[\1]"),
    (re.compile(r"^\$\.stages\[0\]\.steps"), "$.executors"),
    (re.compile(r"^\$\.stages\[0\]\.files\.(inputs|outputs)\[(\d+)\]\.uri"), r"$.\1[\2].url"),
    (re.compile(r"^\$\.stages\[0\]\.files\."), "$."),
    (re.compile(r"^\$\.stages\[0\]\.resources\.cpu"), "$.resources.cpu_cores"),
    (re.compile(r"^\$\.stages\[0\]\.(resources|limits)\.memory"), "$.resources.ram_gb"),
    (re.compile(r"^\$\.stages\[0\]\.resources\.disk"), "$.resources.disk_gb"),
    (re.compile(r"^\$\.stages\[0\]\.resources\.gpu"), f"{_PARAMETERS}.gpuCount"),
    (re.compile(r"^\$\.stages\[0\]\.selector.*"), f"{_PARAMETERS}.gpuType"),
    (re.compile(r"^\$\.stages\[0\]\.roles.*"), f"{_PARAMETERS}.gang"),
    (re.compile(r"^\$\.stages\[0\]\.timeout"), f"{_PARAMETERS}.timeout"),
    (re.compile(r"^\$\.stages\[0\]\.estimate\.runtime"), f"{_PARAMETERS}.expectedRuntime"),
    (re.compile(r"^\$\.stages\[0\]\.retry\.attempts"), f"{_PARAMETERS}.attempts"),
    (re.compile(r"^\$\.stages\[0\]\.fit_memory"), f"{_PARAMETERS}.fitMemory"),
    (re.compile(r"^\$\.stages\[0\]\.retry\.memory_factor"), f"{_PARAMETERS}.memoryFactor"),
    (re.compile(r"^\$\.labels"), "$.tags"),
    (re.compile(r"^\$\.(queue|user|priority)"), _PARAMETERS + r".\1"),
)


def in_their_words(fault: Fault) -> Fault:
    """A fault of the task's workflow, at its place in the task."""
    for pattern, words in _WORDS:
        if pattern.match(fault.path):
            return Fault(pattern.sub(words, fault.path), fault.found, fault.expected.replace("uri", "url"))
    return fault


#: Cromwell's file system for the URLs of a scheme.
_FILE_SYSTEMS: Final = {"http": "http", "https": "http", "s3": "s3", "gs": "gcs", "ftp": "ftp"}


def _of_a_url(task: Task, fault: Fault) -> Fault:
    """A URL in place of a path: Cromwell sends it for an input whose scheme none of its file systems knows."""
    place = re.fullmatch(r"\$\.inputs\[(\d+)\]\.path", fault.path)
    scheme = place and re.match(r"([a-z0-9]+)://", (task.inputs or [])[int(place[1])].path)
    if not scheme:
        return fault
    system = _FILE_SYSTEMS.get(scheme[1], scheme[1])
    advice = (
        "; a URL belongs in `url`. Cromwell sends a URL as the path where its provider has no "
        f"`filesystems.{system}`: see «Inputs from elsewhere» in docs/cromwell.md"
    )
    return Fault(fault.path, fault.found, fault.expected + advice)
