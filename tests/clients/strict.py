"""What Cromwell's TES backend can decode, and nothing else: the types of its `TesTask` (develop of February 2026).

An answer that does not decode here kills a call of Cromwell for good. Unknown fields are ignored, as spray-json does; `None`
may be left out or null; numbers and texts are not taken for one another.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class Strict(msgspec.Struct, kw_only=True):
    """Fields that are not named here are ignored."""


class Input(Strict):
    path: str
    name: str | None = None
    description: str | None = None
    url: str | None = None
    type: str | None = None
    content: str | None = None


class Output(Strict):
    path: str
    name: str | None = None
    description: str | None = None
    url: str | None = None
    type: str | None = None


#: Scala's Int.
Int = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class Resources(Strict):
    cpu_cores: Int | None = None
    ram_gb: float | None = None
    disk_gb: float | None = None
    preemptible: bool | None = None
    zones: list[str] | None = None
    backend_parameters: dict[str, str | None] | None = None


class Executor(Strict):
    image: str
    command: list[str]
    workdir: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdin: str | None = None
    env: dict[str, str] | None = None


class ExecutorLog(Strict):
    start_time: str | None = None
    end_time: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    exit_code: Int | None = None


#: A number in a text that fits an Int: an output of 2 GiB or more leaves it out.
Size = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,10}$")]


class OutputFileLog(Strict):
    url: str
    path: str
    size_bytes: Size | None = None


class TaskLog(Strict):
    start_time: str | None = None
    end_time: str | None = None
    metadata: dict[str, str] | None = None
    logs: list[ExecutorLog] | None = None
    outputs: list[OutputFileLog] | None = None
    system_logs: list[str] | None = None


class Task(Strict):
    """A task in the view FULL."""

    executors: list[Executor]
    id: str | None = None
    state: str | None = None
    name: str | None = None
    description: str | None = None
    inputs: list[Input] | None = None
    outputs: list[Output] | None = None
    resources: Resources | None = None
    volumes: list[str] | None = None
    tags: dict[str, str | None] | None = None
    logs: list[TaskLog] | None = None


class MinimalTask(Strict):
    """A task in the view MINIMAL: both are required."""

    id: str
    state: str


#: What `TesState` knows; the folding in `api` lets no other one out.
STATES = frozenset({
    "QUEUED", "INITIALIZING", "RUNNING", "COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED",
})  # fmt: skip
TERMINAL = frozenset({"COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"})


def full(raw: bytes) -> Task:
    """Decode an answer of the view FULL.

    Raises:
        msgspec.ValidationError: Cromwell would have failed the call.
    """
    task = msgspec.json.decode(raw, type=Task)
    for log in task.logs or ():
        for output in log.outputs or ():
            if output.size_bytes is not None and int(output.size_bytes) >= 2**31:
                raise msgspec.ValidationError(f"NumberFormatException: size_bytes {output.size_bytes!r}")
    if task.state not in STATES:
        raise msgspec.ValidationError(f"a state that clients do not know: {task.state!r}")
    if b"null" in raw:
        _no_nulls(msgspec.json.decode(raw), "$")
    return task


def minimal(raw: bytes) -> MinimalTask:
    """Decode an answer of the view MINIMAL.

    Raises:
        msgspec.ValidationError: As above.
    """
    task = msgspec.json.decode(raw, type=MinimalTask)
    if task.state not in STATES:
        raise msgspec.ValidationError(f"a state that clients do not know: {task.state!r}")
    return task


def _no_nulls(value: Any, path: str) -> None:
    """Cromwell takes nulls, pydantic-tes does not take all of them: so there are none."""
    if value is None:
        raise msgspec.ValidationError(f"null at {path}")
    if isinstance(value, dict):
        for name, inner in value.items():
            _no_nulls(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _no_nulls(inner, f"{path}[{number}]")
