"""docs/cromwell.md: what it tells people to type works, and what it names exists."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.namespace import refusal
from flowsched.workflow.formats.tes.document import PARAMETERS
from tests.cromwell import draft2
from tests.cromwell.sfs import Call, Cromwell
from tests.forks import ran
from tests.programs import free_ports

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "cromwell.md").read_text(encoding="utf-8")
CONFS = [
    draft2.provider(ROOT / "deploy" / "cromwell" / name) for name in ("flowsched.conf", "flowsched-tes.conf")
]
#: Where a Cromwell is, for those who have one: the tests that need it skip without.
JAR = os.environ.get("FLOWSCHED_CROMWELL_JAR", "")


def lines() -> list[str]:
    """The commands from nothing to a WDL."""
    block = TEXT.partition("<!-- from nothing -->\n```sh\n")[2].partition("```\n<!-- /from nothing -->")[0]
    return block.splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A copy of what the lines need of this repository, and an `env` with the command of this one; ends what was started."""
    why = refusal(str(tmp_path))
    if why:
        pytest.skip(f"no private mounts here: {why}")
    shutil.copytree(ROOT / "deploy" / "cromwell", tmp_path / "deploy" / "cromwell")
    command = tmp_path / "env" / "bin" / "flowsched"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/bash\nexec {sys.executable} -m flowsched "$@"\n')
    command.chmod(0o755)
    yield tmp_path
    for number in (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else ():
        os.kill(int(number), signal.SIGTERM)


def typed(place: Path, wanted: list[str]) -> subprocess.CompletedProcess[str]:
    """Run lines in bash; a service gets a free port, and its process is kept for the end."""
    (port,) = free_ports(1)
    text = (
        "\n".join(wanted)
        .replace(":8470", f":{port}")
        .replace("flowsched serve ", f"flowsched serve --port {port} ")
    )
    text = re.sub(r"&$", "&\necho $! >> pids", text, flags=re.MULTILINE)
    environment = {**os.environ, "XDG_DATA_HOME": str(place / "data"), "FLOWSCHED_ROOT": str(place / "root")}
    return subprocess.run(
        ["/bin/bash", "-e", "-c", text],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_is_nine_lines() -> None:
    """From nothing to a WDL: an environment, the command, a WDL, a service, the configuration, Cromwell, what became of it."""
    assert [line.split()[0] for line in lines()] == [
        "python3",
        "env/bin/pip",
        "export",
        "printf",
        "flowsched",
        "until",
        "cp",
        "java",
        "flowsched",
    ]


def test_the_lines_work_but_for_cromwell_itself(place: Path) -> None:
    """All but the installation, which stands ready here, and Cromwell, whose part the reconstructed one plays."""
    before = [line for line in lines() if not line.startswith(("python3 -m venv", "env/bin/pip", "java "))]
    done = typed(place, [*before[:-1], "echo $FLOWSCHED_SERVER"])
    assert done.returncode == 0, done.stderr
    cromwell = Cromwell(place / "flowsched.conf", place / "cromwell", done.stdout.split()[-1])
    call = Call(cromwell, "echo hello", docker=None)
    call.submit()
    assert call.wait() == 0
    assert call.file("stdout") == "hello\n"
    listed = subprocess.run(
        [place / "env" / "bin" / "flowsched", "ls"],
        env=cromwell.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert call.run in listed.stdout


def test_the_lines_work_with_a_cromwell(place: Path) -> None:
    """Those who have a jar of Cromwell run all of them."""
    if not JAR:
        pytest.skip("no Cromwell here: FLOWSCHED_CROMWELL_JAR names no jar")
    if shutil.which("java") is None:
        pytest.skip("no java here")
    wanted = [line for line in lines() if not line.startswith(("python3 -m venv", "env/bin/pip"))]
    done = typed(place, [line.replace("cromwell.jar", JAR) for line in wanted])
    assert done.returncode == 0, done.stderr
    assert '"w.hello.said": "hello"' in done.stdout


def test_the_wdl_is_one(tmp_path: Path) -> None:
    """As miniwdl reads it."""
    wdl = pytest.importorskip("WDL", reason="miniwdl is not installed: pip install 'flowsched[wdl]'")
    written = next(line for line in lines() if line.startswith("printf"))
    subprocess.run(["/bin/bash", "-c", written], cwd=tmp_path, check=True, timeout=60)
    document = wdl.load(str(tmp_path / "hello.wdl"))
    assert [call.name for call in document.workflow.body] == ["hello"]


def test_every_setting_of_the_table_is_set() -> None:
    """What the manual explains is in a file, in the one it says."""
    table = TEXT.partition("## Settings of Cromwell that matter")[2].partition("\n\nCromwell must not")[0]
    named = re.findall(r"^\| `([\w.-]+)`(?: \((TES|config)\))? \| ([^|]*) \|", table, re.MULTILINE)
    assert len(named) == 15
    texts = [
        (ROOT / "deploy" / "cromwell" / name).read_text() for name in ("flowsched.conf", "flowsched-tes.conf")
    ]
    for setting, only, _ in named:
        kept = {"TES": texts[1:], "config": texts[:1]}.get(only, texts)
        last = setting.rpartition(".")[2]
        assert any(last in text for text in kept), setting


def test_every_runtime_attribute_of_the_manual_is_declared() -> None:
    """A task that asks for what the manual offers is understood."""
    rows = TEXT.partition("## What a task may ask for")[2].partition("\n\nWDL 1.1")[0]
    offered = {name for row in rows.splitlines()[4:] for name in re.findall(r"`(\w+):", row.split("|")[3])}
    assert offered == {
        "cpu", "memory", "disk", "gpuCount", "gpuType", "queue", "priority", "timeout_minutes", "runtime_minutes", "maxRetries",
    }  # fmt: skip
    declared = set(draft2.declared(CONFS[0]["config"]["runtime-attributes"]))
    assert declared == offered - {"memory", "disk", "maxRetries"} | {"memory_mb", "disk_gb", "docker"}


def test_every_attribute_over_tes_is_understood() -> None:
    """Texts that are no part of TES itself arrive as backend parameters that the server knows."""
    rows = TEXT.partition("## What a task may ask for")[2].partition("\n\nWDL 1.1")[0]
    offered = {name for row in rows.splitlines()[4:] for name in re.findall(r"`(\w+):", row.split("|")[2])}
    assert offered - {"cpu", "memory", "disk", "maxRetries"} == {
        "gpuCount",
        "gpuType",
        "queue",
        "priority",
        "timeout",
        "expectedRuntime",
    }
    assert offered - {"cpu", "memory", "disk", "maxRetries"} <= set(PARAMETERS.values())


def test_every_option_of_the_manual_exists() -> None:
    """Of the commands for Cromwell, and of the service."""
    helps = ""
    for words in (["cromwell", "submit"], ["cromwell", "alive"], ["cromwell", "kill"], ["serve"]):
        helps += ran([*words, "--help"]).stdout
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert {"--retry-for", "--encoded", "--docker-cwd", "--mount", "--cwd", "--keep-days"} <= named
    assert [name for name in named if name not in helps and name != "--help"] == []


def test_every_file_of_the_manual_exists() -> None:
    """Links lead somewhere."""
    for page in (ROOT / "docs" / "cromwell.md", ROOT / "deploy" / "cromwell" / "README.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
