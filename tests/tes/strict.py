"""A decoder as strict as the strictest client: what Cromwell must decode (view FULL), and no field that py-tes does not know."""

from __future__ import annotations

from typing import Any

KNOWN = {
    "task": {"id", "state", "name", "description", "inputs", "outputs", "resources", "executors", "volumes", "tags", "logs",
             "creation_time"},
    "input": {"name", "description", "url", "path", "type", "content", "streamable"},
    "output": {"name", "description", "url", "path", "path_prefix", "type"},
    "resources": {"cpu_cores", "preemptible", "ram_gb", "disk_gb", "zones", "backend_parameters", "backend_parameters_strict"},
    "executor": {"image", "command", "workdir", "stdin", "stdout", "stderr", "env", "ignore_error"},
    "log": {"logs", "metadata", "start_time", "end_time", "outputs", "system_logs"},
    "executor log": {"start_time", "end_time", "stdout", "stderr", "exit_code"},
    "file": {"url", "path", "size_bytes"},
}  # fmt: skip
STATES = {"QUEUED", "INITIALIZING", "RUNNING", "COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"}


def text(value: object) -> str:
    assert type(value) is str, value
    return value


def whole(value: object) -> int:
    assert type(value) is int, value
    assert -(2**31) <= value < 2**31
    return value


def known(kind: str, value: object) -> dict[str, Any]:
    """An object without fields that are not in the specification, and without nulls."""
    assert isinstance(value, dict), value
    assert set(value) <= KNOWN[kind], (kind, set(value) - KNOWN[kind])
    assert None not in value.values(), (kind, value)
    return value


def texts(value: object) -> None:
    assert isinstance(value, dict)
    for name, inner in value.items():
        text(name), text(inner)


def check_full(value: object) -> dict[str, Any]:
    """Fail on what a client could not decode; give the task back."""
    task = known("task", value)
    assert text(task["state"]) in STATES
    for name in ("id", "name", "description", "creation_time"):
        text(task.get(name, ""))
    for each in task.get("inputs", []):
        text(known("input", each)["path"])
    for each in task.get("outputs", []):
        text(known("output", each)["path"]), text(each["url"])
    for each in task["executors"]:
        known("executor", each)
        text(each["image"])
        assert [text(part) for part in each["command"]]
        texts(each.get("env", {}))
    check_resources(known("resources", task.get("resources", {})))
    texts(task.get("tags", {}))
    assert all(text(each) for each in task.get("volumes", []))
    for log in task.get("logs", []):
        check_log(log)
    return task


def check_resources(resources: dict[str, Any]) -> None:
    whole(resources.get("cpu_cores", 0))
    for name in ("ram_gb", "disk_gb"):
        assert type(resources.get(name, 0)) in (int, float)
    assert type(resources.get("preemptible", False)) is bool
    texts(resources.get("backend_parameters", {}))


def check_log(value: object) -> None:
    log = known("log", value)
    text(log.get("start_time", "")), text(log.get("end_time", ""))
    texts(log.get("metadata", {}))
    for each in log["logs"]:
        whole(known("executor log", each)["exit_code"])
        for name in ("start_time", "end_time", "stdout", "stderr"):
            assert len(text(each.get(name, "")).encode()) <= 10 << 10
    for each in log["outputs"]:
        text(known("file", each)["url"]), text(each["path"])
        assert int(text(each.get("size_bytes", "0"))) < 2**31
    for each in log.get("system_logs", []):
        assert text(each)


def check_minimal(value: object) -> dict[str, Any]:
    """The view MINIMAL: `id` and `state` alone."""
    assert isinstance(value, dict)
    assert set(value) == {"id", "state"}
    assert text(value["state"]) in STATES
    return value
