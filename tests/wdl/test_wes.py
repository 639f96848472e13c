"""GA4GH WES: a client sends a WDL, and the service runs it by the real miniwdl."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from flowsched import app, engine_programs
from flowsched.cluster.local.settings import LocalSettings
from tests.cluster.lives import living_runners
from tests.crash.harness import processes_under

pytestmark = pytest.mark.slow
WDL = """version 1.1
import "lib/tasks.wdl" as lib
workflow hello {
  input { Array[String] names }
  scatter (name in names) { call lib.greet { input: name = name } }
  output { Array[String] said = greet.said }
}
"""
TASKS = """version 1.1
task greet {
  input { String name }
  command <<< test '~{name}' != nobody && echo 'Hello, ~{name}!' >>>
  output { String said = read_string(stdout()) }
}
"""


class Wes:
    """A client of a service with a token."""

    def __init__(self, url: str, session: aiohttp.ClientSession, root: Path) -> None:
        self.url, self.session, self.root = f"{url}/ga4gh/wes/v1", session, root

    async def post(self, fields: Mapping[str, str], files: Mapping[str, str]) -> tuple[int, Any]:
        form = aiohttp.FormData(quote_fields=False)  # a slash in a name stays one, as other clients send it
        for name, value in fields.items():
            form.add_field(name, value)
        for name, text in files.items():
            form.add_field("workflow_attachment", text.encode(), filename=name)
        async with self.session.post(f"{self.url}/runs", data=form) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Any:
        async with self.session.get(f"{self.url}/{path}") as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def log(self, ident: str) -> str:
        """The engine's own log."""
        async with self.session.get((await self.get(f"runs/{ident}"))["run_log"]["stderr"]) as answer:
            return await answer.text()

    async def until(self, ident: str, *states: str) -> None:
        end = time.monotonic() + 200
        while (state := (await self.get(f"runs/{ident}/status"))["state"]) not in states:
            assert state in ("QUEUED", "RUNNING", "CANCELING"), (state, await self.log(ident))
            assert time.monotonic() < end, state
            await asyncio.sleep(0.1)


@pytest.fixture
async def wes(tmp_path: Path) -> AsyncIterator[Wes]:
    settings = app.Settings(
        root=tmp_path / "root", port=0, token="s3cret", log_level="error",
        local=LocalSettings(cpu="4", memory="16Gi", images="ignore"),
    )  # fmt: skip
    headers = {"Authorization": "Bearer s3cret"}
    async with app.running(settings) as service, aiohttp.ClientSession(headers=headers) as session:
        yield Wes(service.url, session, settings.root)


def wdl(*names: str, **more: str) -> dict[str, str]:
    params = json.dumps({"hello.names": names})
    said = {"workflow_type": "WDL", "workflow_type_version": "1.1", "workflow_url": "hello.wdl"}
    return {**said, "workflow_params": params, "tags": '{"team": "x"}', **more}


FILES = {"hello.wdl": WDL, "lib/tasks.wdl": TASKS}


async def test_a_run_gives_its_outputs_its_log_and_its_tasks(wes: Wes) -> None:
    """And is listed with its tags. Attachments lie beside the workflow, as they are named."""
    info = await wes.get("service-info")
    assert info["type"] == {"group": "org.ga4gh", "artifact": "wes", "version": "1.1.0"}
    assert info["workflow_type_versions"]["WDL"] == {"workflow_type_version": []}
    assert info["workflow_engine_versions"]["miniwdl"]["workflow_engine_version"][0][0].isdecimal()
    status, made = await wes.post(wdl("Ada", "Grace"), FILES)
    assert (status, list(made)) == (200, ["run_id"])
    ident = made["run_id"]
    own = wes.root / "wes" / ident
    assert [path.stat().st_mode & 0o777 for path in (own.parent, own, own / "request.json")] == [
        0o700,
        0o700,
        0o600,
    ]
    await wes.until(ident, "COMPLETE")
    found = await wes.get(f"runs/{ident}")
    assert (found["run_id"], found["state"]) == (ident, "COMPLETE")
    assert found["outputs"] == {"hello.said": ["Hello, Ada!", "Hello, Grace!"]}
    assert found["request"]["workflow_params"] == {"hello.names": ["Ada", "Grace"]}
    assert (found["run_log"]["name"], found["run_log"]["exit_code"]) == ("miniwdl", 0)
    assert "workflow start" in await wes.log(ident)
    async with wes.session.get(found["task_logs_url"]) as listed:
        tasks = (await listed.json())["task_logs"]
    assert [(task["id"], task["exit_code"]) for task in tasks] == [("greet.0", 0), ("greet.1", 0)]
    assert (await wes.get(f"runs/{ident}/tasks/greet.1"))["name"] == "greet"
    (run,) = (await wes.get("runs"))["runs"]
    assert (run["run_id"], run["state"], run["tags"]["team"]) == (ident, "COMPLETE", "x")
    assert (await wes.get("service-info"))["system_state_counts"] == {"COMPLETE": 1}


async def test_a_run_that_fails_or_is_cancelled_says_so(wes: Wes) -> None:
    """The engine's exit code, and why the run failed; a cancel ends engine and tasks."""
    waits = TASKS.replace("echo", "sleep 300; echo")
    failed = (await wes.post(wdl("nobody"), FILES))[1]["run_id"]
    waiting = (await wes.post(wdl("Ada"), {**FILES, "lib/tasks.wdl": waits}))[1]["run_id"]
    await wes.until(failed, "EXECUTOR_ERROR")
    log = (await wes.get(f"runs/{failed}"))["run_log"]
    assert log["exit_code"] != 0
    assert log["system_logs"][0].startswith("greet: task 0 failed")
    async with wes.session.post(f"{wes.url}/runs/{waiting}/cancel") as answer:
        assert await answer.json() == {"run_id": waiting}
    await wes.until(waiting, "CANCELED")


@pytest.mark.parametrize(
    ("change", "files", "says"),
    [
        (
            {"workflow_url": "other.wdl"},
            FILES,
            "expected the name of an attachment (hello.wdl, lib/tasks.wdl)",
        ),
        ({"workflow_type": "PY"}, FILES, "expected one of WDL, SMK, NFL, CWL"),
        ({"workflow_engine": "bash"}, FILES, "'bash' is no engine for WDL"),
        ({"workflow_params": "[1]"}, FILES, "The request is no run"),
        ({"workflow_engine_parameters": '{"; rm": ""}'}, FILES, "expected an option of the engine"),
        ({}, {**FILES, "../../token": "x"}, "without `..`"),
        ({}, {**FILES, "hello.wdl/x": "x"}, "workflow_attachment 'hello.wdl/x'"),
        ({}, {**FILES, "workflow_params.json": "{}"}, "which is the file of workflow_params"),
    ],
)
async def test_a_request_that_cannot_be_is_refused(
    change: dict[str, str], files: dict[str, str], says: str, wes: Wes
) -> None:
    """With 400 and the reason. It leaves no folder, and no run."""
    status, problem = await wes.post(wdl("Ada", **change), files)
    assert status == 400, problem
    assert says in problem["detail"]
    assert not list((wes.root / "wes").glob("*"))
    assert (await wes.get("runs"))["runs"] == []


async def test_what_is_no_run_is_not_found(wes: Wes) -> None:
    """Neither is a workflow of flowsched's own."""
    document = {"name": "a", "stages": [{"name": "t", "command": ["true"]}]}
    api = wes.url.replace("/ga4gh/wes/v1", "/api/v1/workflows")
    async with wes.session.post(api, json=document) as answer:
        own = (await answer.json())["id"]
    for ident in (own, "nothing"):
        for path in ("", "/status", "/tasks", "/tasks/a.0"):
            async with wes.session.get(f"{wes.url}/runs/{ident}{path}") as answer:
                assert answer.status == 404


async def test_a_form_without_parts_is_refused(wes: Wes) -> None:
    """As curl sends it with `-d`."""
    async with wes.session.post(f"{wes.url}/runs", data={"workflow_type": "WDL"}) as answer:
        assert answer.status == 400
        assert "expected multipart/form-data or JSON" in (await answer.json())["detail"]


async def test_a_run_whose_id_a_client_chose_shows_no_file(wes: Wes) -> None:
    """Its id may lead out of the folder of runs."""
    (wes.root / "other").mkdir()
    (wes.root / "other" / "request.json").write_text('{"workflow_type": "WDL", "workflow_url": "private"}')
    (wes.root / "wes").mkdir()
    call = {"run": "../other", "node": "miniwdl", "source": "miniwdl", "task": "head", "head": True}
    stage = {"name": "miniwdl", "command": ["true"]}
    document = {"name": "a", "call": call, "labels": {"wes_workflow_type": "WDL"}, "stages": [stage]}
    async with wes.session.post(wes.url.replace("/ga4gh/wes/v1", "/api/v1/workflows"), json=document) as sent:
        assert sent.status < 300, await sent.text()
    async with wes.session.get(URL(f"{wes.url}/runs/..%2Fother", encoded=True)) as answer:
        found = await answer.json()
        assert (answer.status, found["run_id"]) == (200, "../other")
        assert found["request"]["workflow_url"] == ""


async def test_each_engine_is_asked_for_its_version_once(monkeypatch: pytest.MonkeyPatch, wes: Wes) -> None:
    """Also by clients that ask at the same time."""
    asked = []
    monkeypatch.setattr(engine_programs, "version", lambda engine, _: asked.append(engine.program) or "1.0")
    await asyncio.gather(*(wes.get("service-info") for _ in range(3)))
    assert len(asked) == len(set(asked)) > 0


#: As Nextflow, it writes its session into a history. Without a session to resume it works for ever.
NEXTFLOW = """#!/bin/sh
mkdir -p .nextflow
printf '1\\t2\\tname\\t-\\tr\\t5-6\\t%s\\n' "nextflow $*" >> .nextflow/history
echo "$*" >> arguments
case "$*" in *-resume*) exit 0 ;; esac
sleep 1000
"""


async def test_an_engine_that_is_lost_with_all_its_processes_resumes(
    wes: Wes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a reboot of the machine: no runner is left that could say how it has ended."""
    program = tmp_path / "bin" / "nextflow"
    program.parent.mkdir()
    program.write_text(NEXTFLOW)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    status, made = await wes.post({"workflow_type": "NFL", "workflow_url": "main.nf"}, {"main.nf": ""})
    assert status == 200, made
    arguments = wes.root / "wes" / made["run_id"] / "work" / "arguments"
    while not arguments.exists() or not arguments.read_text().endswith("\n"):
        await asyncio.sleep(0.05)
    for pid in (*living_runners(wes.root), *processes_under(wes.root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await wes.until(made["run_id"], "COMPLETE")
    first, again = arguments.read_text().splitlines()
    assert "-resume" not in first
    assert "run -resume 5-6 " in again
