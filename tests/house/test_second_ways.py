"""The table of second ways: the page has it, and each way can be left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.second_ways import VARIABLE, WAYS, table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table() -> None:
    """The message holds the table to paste."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- second ways -->\n")
    assert rest.partition("<!-- /second ways -->")[0] == f"{table()}\n", (
        f"docs/architecture.md needs:\n\n{table()}\n"
    )


#: Prints which functions of the table have changed the modules, each by a member of its own or by a limit; then a child does so.
PROGRAM = """
import importlib, subprocess, sys
modules, *child = sys.argv[1:]
changed = set()
for module in modules.split():
    found = vars(importlib.import_module(module))
    members = [each for value in found.values() if isinstance(value, type) for each in vars(value).values()]
    codes = [each.__code__ for each in (*found.values(), *members) if hasattr(each, "__code__")]
    changed |= {each.co_qualname.partition(".")[0] for each in codes if each.co_filename.endswith("second_ways.py")}
    changed |= {"_small_bodies"} if found.get("THREAD_BYTES", 0) < 0 else set()
print(*sorted(changed), flush=True)
if child:
    subprocess.run([sys.executable, "-c", child[0], modules], check=True)
"""


def test_a_process_and_its_child_lack_the_ways_that_the_variable_names() -> None:
    """Without the variable both have them."""
    modules, answers = " ".join(sorted({way.module for way in WAYS})), {}
    for names in ("", ",".join(way.name for way in WAYS)):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/house/without"), VARIABLE: names}
        command = [sys.executable, "-c", PROGRAM, modules, PROGRAM]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        answers[bool(names)] = done.stdout.splitlines() or done.stderr
    every = " ".join(sorted(f"_{way.name}" for way in WAYS))
    assert answers == {False: ["", ""], True: [every, every]}


def test_a_name_that_is_no_way_is_refused() -> None:
    """A way that is left out by a wrong name would be measured against itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/house/without"), VARIABLE: "no_way"}
    found = subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, text=True, check=False)
    assert "FLOWSCHED_WITHOUT: no_way: one of score_cache, " in found.stderr
