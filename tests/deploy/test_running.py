"""The commands of the manifests really run, with what the manifests give them: arguments, variables, rights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.conftest import Cluster
from tests.deploy.rendering import BASE, Object, documents, pod_templates, rendered_kustomize
from tests.programs import free_ports, leashed

WITHIN_S = 200.0


@pytest.fixture
def containers(kubectl: str) -> dict[str, Object]:
    templates = pod_templates(documents(rendered_kustomize(kubectl, BASE)))
    return {name: template["spec"]["containers"][0] for name, template in templates}


def command_of(
    container: Object, given: Mapping[str, str], changed: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """A container's command line and environment, as a kubelet makes them.

    Args:
        container: As rendered.
        given: What the cluster would give: variables that come from fields and secrets.
        changed: Options and variables that cannot be the same on this machine.
    """
    env = {entry["name"]: entry.get("value") or given[entry["name"]] for entry in container["env"]}
    env |= {name: value for name, value in changed.items() if not name.startswith("--")}
    arguments = [
        re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], argument) for argument in container["args"]
    ]
    for option, value in changed.items():
        if option.startswith("--"):
            arguments = [f"{option}={value}" if each.startswith(f"{option}=") else each for each in arguments]
    return [sys.executable, "-m", *container["command"], *arguments], env


@contextmanager
def running(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run it while the block does; ended by SIGKILL at the latest."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOWSCHED_")}
    with log.open("wb") as output:
        process = subprocess.Popen(leashed(command), env={**kept, **env}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answer(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """What it says once it answers 200; the test fails if it ends before, or never does."""
    end = time.monotonic() + WITHIN_S
    told = "nothing"
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as refused:
            told = refused.read().decode()
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url}: {told}\n{log.read_text(errors='replace')[-3000:]}")


def test_the_agent_starts_with_what_its_manifest_says(containers: dict[str, Object], tmp_path: Path) -> None:
    """Its probe is answered; the folders are this test's own, as a hollow node's would be."""
    (port,) = free_ports(1)
    container = containers["flowsched-agent"]
    folders = {
        "AGENT_CACHE": "plugins/flowsched.io/n1/cache",
        "AGENT_PODS": "pods",
        "AGENT_LOGS": "log",
        "AGENT_HOST": "host",
    }
    changed = {name: str(tmp_path / path) for name, path in folders.items()} | {"--port": str(port)}
    (tmp_path / "pods").mkdir()
    (tmp_path / "log").mkdir()
    given = {"FLOWSCHED_AGENT_KEY": "k" * 32, "NODE_NAME": "n1", "POD_IP": "127.0.0.1"}
    command, env = command_of(container, given, changed)
    path = container["livenessProbe"]["httpGet"]["path"]
    with running(command, env, tmp_path / "out") as process:
        assert answer(f"http://127.0.0.1:{port}{path}", process, tmp_path / "out")


@pytest.mark.kubernetes
def test_the_service_starts_with_the_rights_that_it_has(
    installed: Cluster, containers: dict[str, Object], tmp_path: Path
) -> None:
    """As its own account on a real API server: it lists and watches all it needs, leads, and is ready."""
    (port,) = free_ports(1)
    container = containers["flowsched"]
    changed = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "FLOWSCHED_ROOT": str(tmp_path),
        "KUBECONFIG": str(installed.kubeconfig("scheduler")),
    }
    given = {
        "FLOWSCHED_DATABASE": f"sqlite:///{tmp_path / 'flowsched.db'}",
        "FLOWSCHED_TOKEN": "t" * 32,
        "POD_IP": "127.0.0.1",
        "FLOWSCHED_AGENT_KEY": "k" * 32,
        "FLOWSCHED_AGENT_NAMESPACE": "flowsched-system",
    }
    command, env = command_of(container, given, changed)
    log = tmp_path / "out"
    with running(command, env, log) as process:
        for probe in ("livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert answer(f"http://127.0.0.1:{port}{path}", process, log) == "ok\n"
    assert "orbidden" not in log.read_text(errors="replace")
