"""wes-client, the reference client of GA4GH WES, against a real service with the real miniwdl."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowsched import app
from flowsched.cluster.local.settings import LocalSettings
from tests.clients.environments import environment, versions

pytestmark = [pytest.mark.clients, pytest.mark.slow]
WDL = """version 1.1
workflow hello {
  input { String name }
  call greet { input: name = name }
  output { String said = greet.said }
}
task greet {
  input { String name }
  command <<< echo 'Hello, ~{name}!' >>>
  output { String said = read_string(stdout()) }
}
"""


async def test_the_reference_client_runs_a_workflow(tell: Callable[[str], None], tmp_path: Path) -> None:
    """It waits for the end, prints the outputs, and lists the run."""
    venv = environment("wes-service-5")
    tell(versions(venv))
    (tmp_path / "hello.wdl").write_text(WDL)
    (tmp_path / "inputs.json").write_text('{"hello.name": "Ada"}')
    settings = app.Settings(
        root=tmp_path / "root", port=0, token="s3cret", log_level="error",
        local=LocalSettings(cpu="4", memory="16Gi", images="ignore"),
    )  # fmt: skip

    async with app.running(settings) as service:

        async def client(*words: str) -> Any:
            host = service.url.replace("http://", "any:s3cret@")
            process = await asyncio.create_subprocess_exec(
                venv / "bin" / "wes-client", "--proto", "http", "--host", host, *words,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
            )  # fmt: skip
            said, wrong = await asyncio.wait_for(process.communicate(), 200)
            assert process.returncode == 0, wrong.decode()
            return json.loads(said)

        assert "miniwdl" in (await client("--info"))["workflow_engine_versions"]
        assert await client("hello.wdl", "inputs.json") == {"hello.said": "Hello, Ada!"}
        (run,) = (await client("--list"))["runs"]
        assert run["state"] == "COMPLETE"
        found = await client("--get", run["run_id"])
        assert found["run_log"]["exit_code"] == 0
