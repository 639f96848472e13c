"""The package of docs/executors.md, installed: a service runs a whole workflow on the executor of its name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.packages import install
from tests.programs import Program, free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = (ROOT / "docs" / "executors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_the_code_that_is_tested() -> None:
    """Both blocks: the suite in the package's own tests, and the executor."""
    suite, code = (text for kind, text in BLOCKS if kind == "python")
    assert code == (HERE / "hosts.py").read_text(encoding="utf-8")
    tested = (HERE / "test_conformance.py").read_text(encoding="utf-8")
    assert suite == tested.replace("tests.executors.hosts", "lab_hosts").replace("tests.executors.", "")


def smaller(document: Path) -> Path:
    """The fan-out of workflows/ with 8 + 8 + 2 + 1 tasks: the sum of i² + 1 for i from 0 to 7 is 148."""
    workflow = json.loads((ROOT / "workflows" / "fan-out.json").read_text())
    square, _, subtotal, total = workflow["stages"]
    square["scatter"]["count"], subtotal["scatter"]["count"], total["env"]["EXPECTED"] = 8, 2, "148"
    document.write_text(json.dumps(workflow))
    return document


async def test_a_workflow_runs_on_the_executor_that_serve_names(tmp_path: Path) -> None:
    """Outputs travel between hosts, the sum is right, and the result is read through the service."""
    site = tmp_path / "site"
    site.mkdir()
    (project,) = (text for kind, text in BLOCKS if kind == "toml")
    install(site, "lab_hosts", (HERE / "hosts.py").read_text(), project)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "FLOWSCHED_TOKEN": "of this test"}
    flowsched = [sys.executable, "-m", "flowsched"]
    options = [f"--cluster-option={each}" for each in ("hosts=n1,n2", "command=sh -c", "cpu=1")]
    serve = [*flowsched, "serve", "--no-supervise", f"--port={port}", f"--root={tmp_path / 'root'}"]
    service = Program([*serve, "--cluster=hosts", *options], tmp_path / "log", environment)
    service.start()
    try:
        wait_until_ready(service, url)
        document, out = smaller(tmp_path / "document.json"), tmp_path / "out"
        run = [*flowsched, "run", str(document), f"--server={url}", f"--out={out}"]
        done = await asyncio.to_thread(
            subprocess.run, run, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr + service.tail()
        assert [path.read_text() for path in out.rglob("sum")] == ["148\n"]
    finally:
        await service.stop(30)
    nodes = {json.loads(pod.read_text())["node"] for pod in (tmp_path / "root" / "hosts").glob("pods/*/pod")}
    assert nodes == {"n1", "n2"}


def wait_until_ready(service: Program, url: str) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            with urlopen(f"{url}/readyz", timeout=10):
                return
        except (URLError, OSError):
            service.check()
            assert time.monotonic() < end, service.tail()
            time.sleep(0.1)
