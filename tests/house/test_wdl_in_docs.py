"""Every WDL that the documentation shows is one: a keyword as the name of a runtime attribute was not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

wdl = pytest.importorskip("WDL", reason="miniwdl is not installed: pip install 'flowsched[wdl]'")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md", *(ROOT / "deploy").glob("**/*.md")])


def fenced(page: Path) -> list[str]:
    return re.findall(r"^```wdl[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def printed(page: Path) -> list[str]:
    """What lines such as `printf 'task …' > hello.wdl` write."""
    lines = re.findall(r"^printf .* > \S+\.wdl$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        subprocess.run(
            ["/bin/bash", "-c", line.rpartition(" > ")[0]],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for line in lines
    ]


def attributes(page: Path) -> list[str]:
    """The runtime attributes in tables whose first head is `runtime { … }`, a task for each column."""
    found = []
    for table in re.findall(
        r"^\| `runtime \{ … \}`.*\n(?:\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE
    ):
        rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
        for column in range(1, len(rows[0])):
            said = [each for row in rows for each in re.findall(r"`(\w+: [^`]+)`", row[column])]
            found.append("version 1.0\ntask t {\n command {}\n runtime {\n" + "\n".join(said) + "\n}\n}\n")
    return found


SOURCES = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, text in enumerate([*fenced(page), *printed(page), *attributes(page)])
]


def test_there_are_some() -> None:
    """A fence that is spelled otherwise would go unseen."""
    assert len(SOURCES) == 5


@pytest.mark.parametrize("text", SOURCES)
def test_it_is_read_by_miniwdl(text: str, tmp_path: Path) -> None:
    """Parsed and checked, as Cromwell would before it runs anything."""
    (tmp_path / "shown.wdl").write_text(text, encoding="utf-8")
    document = wdl.load(str(tmp_path / "shown.wdl"), check_quant=False)
    assert document.tasks
