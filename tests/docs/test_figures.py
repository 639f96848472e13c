"""`make bench`: a row for each figure whatever fails, commands that there are, and CPU time in which daemons count."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import figures

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
#: Uses 0.3 s of CPU in a process that has left its parent and its session, and ends with it.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while time.process_time() < 0.3:
            pass
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("bench", figures.BENCHES, ids=lambda bench: bench.name)
def test_a_row_names_a_command_that_there_is(bench: figures.Bench) -> None:
    """The program is there and has the options that the small run gives it; the page of figures names the command."""
    text = (ROOT / bench.script).read_text(encoding="utf-8")
    options = [each for each in (*bench.full.split(), *bench.quick) if each.startswith("--")]
    assert [each for each in options if f'"{each}"' not in text] == []
    assert bench.full in PAGE.read_text(encoding="utf-8")


def test_every_program_is_named() -> None:
    """A bench that neither a page nor another program names is measured by no one."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    pages += (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    others = {path: path.read_text(encoding="utf-8") for path in (ROOT / "bench").rglob("*.py")}
    assert len(others) > 40
    unnamed = [
        path.name
        for path in others
        if path.parent.name in ("bench", "kube")
        and f"{path.name}" not in pages
        and f"bench.{path.stem}" not in pages
        and not any(
            re.search(rf"import {path.stem}\b|from (bench\.)?{path.stem} import|{path.stem}\.py", text)
            for other, text in others.items()
            if other != path
        )
    ]
    assert unnamed == []


def bench(folder: Path, program: str, seconds: float = 30.0) -> figures.Bench:
    """A bench of one row, made of a program."""
    path = folder / f"made{len(list(folder.iterdir()))}.py"
    path.write_text(program)

    def read(found: dict[str, float]) -> list[figures.Figure]:
        return [figures.compared("a figure", found["ours"], found["base"], "ms", "a peer", "the disk")]

    return figures.Bench(path.stem, f"python {path}", (), read, seconds)


def test_a_bench_that_fails_has_a_row_that_says_why(tmp_path: Path) -> None:
    """The others keep theirs: a crash, figures that are none, and a bench that does not end cost one row each."""
    good = 'print("2026-11-24 [info] listening"); print(\'{"ours": 2, "base": 5}\')'
    made = [
        bench(tmp_path, good),
        bench(tmp_path, "raise SystemExit('the disk is full')"),
        bench(tmp_path, "print('{}')"),
        bench(tmp_path, "import time; time.sleep(600)", seconds=1.5),
        bench(tmp_path, good + "; raise SystemExit('one check has failed')"),
    ]
    results = figures.measure(made, minutes=10)
    assert [result.failed for result in results] == [False, True, True, True, True]
    assert [len(result.figures) for result in results] == [1, 0, 0, 0, 1]
    whys = [result.why for result in results]
    assert whys[0] == ""
    for why, said in zip(
        whys[1:],
        ("the disk is full", "KeyError: 'ours'", "not done after", "one check has failed"),
        strict=True,
    ):
        assert said in why
    for table in (figures.markdown(results), figures.plain(results)):
        assert re.search(r"a figure.*2 ms.*5 ms.*2\.5", table)
        assert "the disk is full" in table
        assert "not done after" in table
    shown = [line for line in figures.plain(results).splitlines() if "alone, in full" not in line]
    assert max(map(len, shown)) <= 80


def test_what_is_not_there_is_said_and_fails_nothing(tmp_path: Path) -> None:
    """A machine without the reference traces has a table, too."""
    plain = bench(tmp_path, "")
    lacking = figures.Bench("traces", plain.full, (), plain.read, 5, needs=lambda: "needs traces")
    [result] = figures.measure([lacking], minutes=1)
    assert (result.failed, result.why) == (False, "not measured: needs traces")


def test_a_page_gets_the_table_in_its_place() -> None:
    """What stands around it stays, and an earlier table goes."""
    page = PAGE.read_text(encoding="utf-8")
    once = figures.written(page, "| one |")
    twice = figures.written(once, "| two |")
    assert "| one |" in once
    assert "| one |" not in twice
    assert twice.replace("| two |", "| one |") == once
    with pytest.raises(SystemExit, match="no place for the table"):
        figures.written("# a page", "| one |")


@pytest.mark.skipif(
    sys.platform != "linux", reason="bench/peers.py adopts daemons, which Linux alone lets it"
)
def test_the_time_of_a_daemon_counts() -> None:
    """It has left the process that was started, and still belongs to the contender."""
    command = json.dumps([sys.executable, "-c", DAEMON])
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "peers.py"), "--account", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert found["status"] == 0
    assert found["cpu_s"] > 0.3
