"""docs/wdl.md: what it tells people to type does what it says, and it names every setting."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowsched.miniwdl.backend import DEFAULTS
from tests.wdl.engine import REPOSITORY, Engine, Service

TEXT = (REPOSITORY / "docs" / "wdl.md").read_text(encoding="utf-8")
EXAMPLE = REPOSITORY / "workflows" / "wdl-variant-calling"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def typed(line: str, engine: Engine, service: Service, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the page in a folder, with the service that runs here in place of the default."""
    environment = {
        name: value
        for name, value in engine.environment().items()
        if not name.startswith("MINIWDL__") and name != "MINIWDL_CFG"
    }
    bin_folder = str(Path(sys.executable).parent)
    environment |= {"FLOWSCHED_SERVER": service.url, "PATH": f"{bin_folder}:{environment['PATH']}"}
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )


@pytest.mark.slow
def test_the_first_steps_work_as_they_are_written(engine: Engine, service: Service, tmp_path: Path) -> None:
    """The document, the configuration, and the two lines to type, from the page itself."""
    (tmp_path / "hello.wdl").write_text(blocks("wdl")[0])
    (tmp_path / "miniwdl.cfg").write_text(blocks("ini")[0])
    run, listing = next(block for block in blocks("sh") if "hello.wdl" in block).splitlines()
    done = typed(run, engine, service, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"] == {"hello.greetings": ["Hello, Ada!", "Hello, Grace!"]}
    shown = typed(listing, engine, service, tmp_path)
    (line,) = (line for line in shown.stdout.splitlines() if line.startswith("hello "))
    assert re.search("SUCCEEDED +2/2", line)


@pytest.mark.slow
def test_the_larger_example_finds_the_variants(engine: Engine, service: Service, tmp_path: Path) -> None:
    """The same seven as variant-calling.json, which a plain script has found too."""
    pytest.importorskip("pysam", reason="needs the extra: pip install 'flowsched[genomics]'")
    change, line = next(block for block in blocks("sh") if "variant-calling" in block).splitlines()
    folder = REPOSITORY / change.removeprefix("cd ")
    assert folder == EXAMPLE
    done = typed(line.replace("--dir /tmp", f"--dir {tmp_path}"), engine, service, folder)
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert outputs["variant_calling.summary"] == {
        "reads": 3307,
        "duplicates": 53,
        "variants": 7,
        "snps": 4,
        "indels": 3,
    }
    records = [
        line.split("\t")[:5]
        for line in Path(outputs["variant_calling.variants"]).read_text().splitlines()
        if not line.startswith("#")
    ]
    assert records == [
        ["seq1", "288", ".", "A", "ACATAG"],
        ["seq1", "548", ".", "C", "A"],
        ["seq1", "1294", ".", "A", "G"],
        ["seq2", "156", ".", "AA", "AAGA"],
        ["seq2", "505", ".", "A", "G"],
        ["seq2", "784", ".", "CAATT", "CAATTAATT"],
        ["seq2", "1344", ".", "A", "C"],
    ]
    (run,) = (view for view in service.runs() if view.name == "variant_calling")
    assert (run.stages, run.tasks, run.state) == (5, 36, "SUCCEEDED")


def test_every_setting_is_on_the_page() -> None:
    """With its default, and nothing else is."""
    table = TEXT.partition("## Settings")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.M))
    assert sorted(told) == sorted(DEFAULTS)
    shown = {name: default for name, default in DEFAULTS.items() if default}
    assert {name: told[name].strip("`") for name in shown} == shown


def test_the_example_s_configuration_is_that_of_the_page() -> None:
    """One to copy."""
    assert (EXAMPLE / "miniwdl.cfg").read_text() == blocks("ini")[0]


def test_the_page_needs_nothing_that_is_not_installed() -> None:
    """`miniwdl` comes with the extra."""
    assert shutil.which("miniwdl", path=str(Path(sys.executable).parent)) is not None
