"""The workflow document of one Cromwell job: a script that Cromwell wrote into a folder that every node sees. Pure.

Cromwell's config backend says nothing of the workflow a job belongs to but the path of its folder, so that is read here.
Cromwell starts a process for each job, so this loads next to nothing: no `re`, no `typing`, no OpenSSL.
"""

from __future__ import annotations

from flowsched.workflow.run_tasks import Place, cromwell_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

#: The content of the job's rc file if the script has not written it when the job ends. Cromwell writes the same number when it
#: gives up waiting. It retries such a job where `maxRetries` allows; 130, 137 and 143 it reads as an abort, and does not retry.
ABANDONED: Final = "79\n"
#: The same if a client cancels the job in flowsched: an abort, as over TES.
ABORTED: Final = "143\n"
#: In `memory_retry_rc`: Cromwell tries the job again with more memory, if the workflow has the option `memory_retry_multiplier`.
OUT_OF_MEMORY: Final = "0\n"
#: A workflow's name has at most so many characters; it is only what people call it.
LONGEST_NAME: Final = 128


class Wrong(ValueError):
    """The options make no job; the message says which option, what was found and what was expected."""


class Mounted:
    """A folder that every node sees, at a path of the job's container."""

    def __init__(self, source: str, path: str) -> None:
        self.source = source
        self.path = path


class Job:
    """A job as Cromwell asks for it. Paths are of the machine that Cromwell runs on, but for `script`, which is the container's."""

    name: str
    cwd: str
    script: str
    mounts: Sequence[Mounted] = ()
    shell: str = "/bin/bash"
    image: str | None = None
    cpu: str | None = None
    memory_mb: str | None = None
    disk_gb: str | None = None
    gpu: str | None = None
    gpu_type: str | None = None
    queue: str | None = None
    priority: int | None = None
    timeout_minutes: str | None = None
    runtime_minutes: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    rc_file: str | None = None
    env: Sequence[tuple[str, str]] = ()

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)  # `dataclasses` takes longer to load than a job takes to submit


def document(job: Job) -> dict[str, Any]:
    """The workflow that runs a job: one stage with one step.

    Raises:
        Wrong: A number is none, or a path is not absolute.
    """
    for option, path in (("--cwd", job.cwd), ("--script", job.script)):
        if not path.startswith("/"):
            raise Wrong(f"{option}: found {path!r}, expected an absolute path")
    call = cromwell_place(job.cwd)
    step: dict[str, Any] = {"command": [job.shell, job.script]}
    step |= {
        key: value
        for key, value in (
            ("image", job.image),
            ("env", dict(job.env)),
            ("stdout", job.stdout and inside(job.mounts, job.stdout)),
            ("stderr", job.stderr and inside(job.mounts, job.stderr)),
        )
        if value
    }
    files: dict[str, Any] = {"mounts": [vars(mount) for mount in job.mounts]}
    if job.rc_file:
        path = inside(job.mounts, job.rc_file)
        files |= {"leave": _left(path), "return_code": path}
    stage = {"name": _stage_name(call, job), "steps": [step], "files": files} | _asked(job)
    found: dict[str, Any] = {"name": _name(call, job), "stages": [stage]}
    if job.queue:
        found["queue"] = job.queue
    if job.priority is not None:
        found["priority"] = job.priority
    if call is not None:
        found["call"] = _call(call)
    return found


def _left(rc: str) -> list[dict[str, str]]:
    """The files by which Cromwell hears of an end that the script could not tell. Of one path the first that fits is written."""
    beside = rc.rpartition("/")[0]
    return [
        {"path": f"{beside}/memory_retry_rc", "content": OUT_OF_MEMORY, "reason": "OOMKilled"},
        {"path": rc, "content": ABORTED, "reason": "Cancelled"},
        {"path": rc, "content": ABANDONED},
    ]


def idempotency_key(job: Job) -> str:
    """The same for every try to submit the same attempt of the same call: its folder and script are its own."""
    text = "\0".join(("cromwell", job.cwd, job.script))
    return "cromwell-" + _sha256(text.encode("utf-8", "surrogateescape"))


def _sha256(data: bytes) -> str:
    """By Python's own code where there is some: `hashlib` loads OpenSSL."""
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]  # from Python 3.12 on
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())


def inside(mounts: Sequence[Mounted], path: str) -> str:
    """Where a file of this machine is in the container; a path that no mount covers stays as it is."""
    best = max((m for m in mounts if _covers(m.source, path)), key=lambda m: len(m.source), default=None)
    if best is None:
        return path
    return best.path.rstrip("/") + path[len(best.source.rstrip("/")) :]


def _call(call: Place) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run": call.run,
        "run_name": call.run_name,
        "source": "cromwell",
        "node": call.node,
        "task": call.task,
    }
    if call.shard is not None:
        found["shard"] = call.shard
    return found | {"attempt": call.attempt}


def _covers(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _name(call: Place | None, job: Job) -> str:
    """The workflow's name. The service learns runtimes by it, so it is the same in every run.

    Cromwell's own name of a job holds the id of its run: what one run teaches would be lost for the next.
    """
    return job.name[:LONGEST_NAME] if call is None else call.node[-LONGEST_NAME:]


def _stage_name(call: Place | None, job: Job) -> str:
    """The call's name in its innermost workflow."""
    wished = call.node.rpartition(".")[2] if call is not None else job.name
    name = ""
    dropped = False
    for mark in wished:
        allowed = (mark.isascii() and mark.isalnum()) or mark in "-_"
        if allowed or not dropped:
            name += mark if allowed else "-"
        dropped = not allowed
    return name.lstrip("-_")[:63] or "call"


def _asked(job: Job) -> dict[str, Any]:
    """Resources, times, and the node's label where a kind of GPU is asked for."""
    resources = {
        "cpu": _amount("--cpu", job.cpu),
        "memory": _amount("--memory-mb", job.memory_mb, "Mi"),  # Cromwell's MB are 1024 × 1024 bytes
        "disk": _amount("--disk-gb", job.disk_gb, "Gi"),
        "gpu": _amount("--gpu", job.gpu),
    }
    requests = {
        name: amount
        for name, amount in resources.items()
        if amount is not None and float(amount.rstrip("GMi")) > 0
    }
    found: dict[str, Any] = {"resources": requests} if requests else {}
    if "memory" in requests:
        found["limits"] = {"memory": requests["memory"]}
    timeout, runtime = (
        _seconds(option, text)
        for option, text in (
            ("--timeout-minutes", job.timeout_minutes),
            ("--runtime-minutes", job.runtime_minutes),
        )
    )
    if timeout:
        found["timeout"] = timeout
    if runtime:
        found["estimate"] = {"runtime": runtime}
    if job.gpu_type:
        found["selector"] = {"nvidia.com/gpu.product": job.gpu_type}
    return found


def _amount(option: str, text: str | None, unit: str = "") -> str | None:
    if text is None:
        return None
    whole, point, part = text.partition(".")
    parts = ((whole, 12), (part, 6)) if point else ((whole, 12),)
    if not all(each.isascii() and each.isdigit() and len(each) <= most for each, most in parts):
        raise Wrong(f"{option}: found {text!r}, expected a number such as 4 or 0.5")
    return text + unit


def _seconds(option: str, minutes: str | None) -> float | None:
    text = _amount(option, minutes)
    return None if text is None else round(float(text) * 60, 3)
