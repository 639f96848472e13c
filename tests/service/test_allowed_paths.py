"""A path that `serve` would refuse when a task reads or writes it is refused when the document is sent."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.service.serving import Service


def answer(service: Service, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and words of the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(service.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as given:
            return given.status, given.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def workflow(**stage: Any) -> dict[str, Any]:
    steps: dict[str, Any] = {"steps": [{"command": ["true"]}]} if "files" in stage else {"command": ["true"]}
    return {"name": "w", "stages": [{"name": "a", **steps, **stage}]}


def task(**more: Any) -> dict[str, Any]:
    return {"executors": [{"image": "i", "command": ["true"]}], **more}


def test_a_refused_path_is_a_400_with_what_allows_it(tmp_path: Path) -> None:
    """In a workflow and in a TES task: inputs, outputs and mounts, through a link too. All are named, nothing is accepted."""
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (allowed / "good").touch()
    (allowed / "link").symlink_to(other)
    bad = [
        ("/api/v1/workflows", workflow(inputs=[{"name": "x", "uri": f"{other}/f"}]), "input 'x' of stage 'a'"),
        ("/api/v1/workflows", workflow(inputs=[{"name": "x", "uri": f"file://{other}/f"}]), "input 'x' of stage 'a'"),
        ("/api/v1/workflows", workflow(files={"outputs": [{"path": "/o", "uri": f"{allowed}/link/o"}]}), "the output /o"),
        ("/api/v1/workflows", workflow(files={"mounts": [{"source": str(other), "path": "/m"}]}), "the mount at /m"),
        ("/v1/tasks", task(inputs=[{"path": "/i", "url": f"file://{other}/f"}]), "the input at /i"),
        ("/v1/tasks", task(outputs=[{"path": "/o", "url": f"{other}/o"}]), "the output /o"),
    ]  # fmt: skip
    with Service(tmp_path / "root", tmp_path / "log", "--allow-paths", str(allowed)) as service:
        service.ready()
        for path, body, where in bad:
            status, said = answer(service, path, body)
            assert status == 400, said
            assert where in said
            assert "is not below any folder that inputs may come from and outputs go to" in said
            assert "see --allow-paths" in said
        assert json.loads(service.get("/api/v1/workflows")[1])["workflows"] == []
        good = workflow(inputs=[{"name": "x", "uri": f"{allowed}/good"}])
        assert answer(service, "/api/v1/workflows", good)[0] == 202
        both = workflow(inputs=[{"name": "x", "uri": f"{other}/f"}, {"name": "y", "uri": "/etc/passwd"}])
        said = answer(service, "/api/v1/workflows", both)[1]
        assert "input 'x'" in said
        assert "input 'y'" in said


def test_what_is_never_an_input_or_output_is_refused_when_it_is_sent(tmp_path: Path) -> None:
    """Without the option: files of the kernel, of the service, of the system. A path with a template is left to the task."""
    root = tmp_path / "root"
    bad = [
        (task(outputs=[{"path": "/o", "url": "/proc/nowhere/o"}]), "belongs to the kernel"),
        (task(inputs=[{"path": "/i", "url": "file:///proc/self/environ"}]), "belongs to the kernel"),
        (task(inputs=[{"path": "/i", "url": f"file://{root}/token"}]), "what the service keeps in its root"),
        (task(inputs=[{"path": "/i", "url": "/etc/passwd"}]), "allow it by --allow-paths"),
    ]
    with Service(root, tmp_path / "log") as service:
        service.ready()
        for body, why in bad:
            status, said = answer(service, "/v1/tasks", body)
            assert (status, why in said) == (400, True), said
        scattered = workflow(scatter={"items": ["passwd"]}, inputs=[{"name": "x", "uri": "/etc/{item}"}])
        assert answer(service, "/api/v1/workflows", scattered)[0] == 202
