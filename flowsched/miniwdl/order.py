"""One try of a WDL task as a workflow document: one stage of one step. Pure: values in, JSON values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.miniwdl.places import Place, after
from flowsched.workflow.run_tasks import LONGEST

#: Where miniwdl tells a task that its files are.
CONTAINER: Final = "/mnt/miniwdl_task_container"
#: Where a file is that the service fetches for a task.
FETCHED: Final = "/mnt/flowsched_fetched/file"
#: Where a task leaves its return code that has others than 0 for success.
_RETURN_CODE: Final = f"{CONTAINER}/return_code"
#: Longest names that documents take.
_STAGE: Final = 63
_WORKFLOW: Final = 128
#: miniwdl tries again in a fresh folder, so the service must not: a second try would find what the first one left.
_POLICIES: Final = (
    {"event": "task_evicted", "action": "fail_stage"},
    {"event": "task_unknown", "action": "fail_stage"},
)


@dataclass(frozen=True, slots=True)
class Order:
    """The data of one try of a task. All paths outside of the container are those of this host."""

    place: Place
    run: str  #: the same for all calls of a run
    attempt: int  #: the k-th try of the task, from 1
    folder: str  #: the task's run folder
    work: str  #: the working folder of this try, below `folder`
    streams: tuple[str, str]  #: names of the files in `folder` that get stdout and stderr
    shell: str  #: runs the command, which lies beside the working folder
    image: str
    inputs: Mapping[str, str]  #: path in the container -> path here; folders end with a slash
    resources: Mapping[str, Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 0
    timeout: str = ""
    return_codes: tuple[int, ...] | None = (0,)  #: with which the task has ended well; None = any
    fetch: str = ""  #: a URI to have at FETCHED
    since_ms: int = 0


def document(order: Order) -> dict[str, Any]:
    """The workflow document.

    The task's folder is mounted as a whole, so that its output appears here while it is written; a second try has its working
    folder (`work2`) mounted over that of the first.
    """
    mounts = [{"source": order.folder, "path": CONTAINER}]
    if order.work != f"{order.folder}/work":
        mounts.append({"source": order.work, "path": f"{CONTAINER}/work"})
    stdout, stderr = order.streams
    step = {
        "command": ["/bin/sh", "-c", _script(order)],
        "image": order.image,
        "workdir": f"{CONTAINER}/work",
        "stdout": f"{CONTAINER}/{stdout}",
        "stderr": f"{CONTAINER}/{stderr}",
    }
    inputs = [_input(path, here) for path, here in order.inputs.items()]
    if order.fetch:
        inputs.append({"path": FETCHED, "uri": order.fetch})
    stage: dict[str, Any] = {
        "name": order.place.name[:_STAGE],
        "steps": [step],
        "files": {"mounts": mounts, "inputs": inputs}
        | ({} if _plain(order) else {"return_code": _RETURN_CODE}),
        "resources": dict(order.resources),
        "policies": [dict(policy) for policy in _POLICIES],
    }
    if order.limits:
        stage["limits"] = dict(order.limits)
    if order.timeout:
        stage["timeout"] = order.timeout
    return {
        "name": f"{order.place.run_name}.{order.place.node}"[:_WORKFLOW],
        "queue": order.queue,
        "priority": order.priority,
        "call": _call(order),
        "stages": [stage],
    }


def _plain(order: Order) -> bool:
    return order.return_codes == (0,)


def _script(order: Order) -> str:
    """Runs the command. Each code that means success to miniwdl becomes 0; the file has the code itself, for lists and miniwdl."""
    if _plain(order):
        return f"exec {order.shell} ../command"
    good = "*" if order.return_codes is None else "|".join(map(str, order.return_codes)) or "none"
    return f"{order.shell} ../command; code=$?; echo $code > {_RETURN_CODE}; case $code in {good}) exit 0;; esac; exit $code"


def _call(order: Order) -> dict[str, Any]:
    place = order.place
    call: dict[str, Any] = {
        "run": order.run,
        "run_name": place.run_name,
        "source": "miniwdl",
        "node": place.node,
        "task": order.folder.removeprefix(place.top).strip("/")[-LONGEST:] or place.node,
        "attempt": order.attempt,
        "after": list(after(place.top, order.inputs.values())),
    }
    if place.shard is not None:
        call["shard"] = place.shard
    if order.since_ms:
        call["since_ms"] = order.since_ms
    return call


def _input(path: str, here: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": path.rstrip("/"), "uri": here.rstrip("/")}
    return entry | {"directory": True} if path.endswith("/") else entry
