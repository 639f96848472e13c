"""The table of second ways: the page has it, and each way can be left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.second_ways import VARIABLE, WAYS, SecondWay, table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table() -> None:
    """The message holds the table to paste."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- second ways -->\n")
    assert rest.partition("<!-- /second ways -->")[0] == f"{table()}\n", (
        f"docs/architecture.md needs:\n\n{table()}\n"
    )


#: Prints whether a module has a function of the table, or a changed limit; then its child does the same.
PROGRAM = """
import importlib, subprocess, sys
module, *child = sys.argv[1:]
found = vars(importlib.import_module(module))
members = [each for value in found.values() if isinstance(value, type) for each in vars(value).values()]
files = [each.__code__.co_filename for each in (*found.values(), *members) if hasattr(each, "__code__")]
print(any(file.endswith("second_ways.py") for file in files) or found.get("THREAD_BYTES", 0) < 0, flush=True)
if child:
    subprocess.run([sys.executable, "-c", child[0], module], check=True)
"""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_process_and_its_child_lack_the_ways_that_the_variable_names(way: SecondWay) -> None:
    """Without the variable both have them."""
    answers = {}
    for names in ("", way.name):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/house/without"), VARIABLE: names}
        command = [sys.executable, "-c", PROGRAM, way.module, PROGRAM]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        answers[names] = done.stdout.split() or done.stderr
    assert answers == {"": ["False", "False"], way.name: ["True", "True"]}


def test_a_name_that_is_no_way_is_refused() -> None:
    """A way that is left out by a wrong name would be measured against itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests/house/without"), VARIABLE: "no_way"}
    found = subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, text=True, check=False)
    assert "FLOWSCHED_WITHOUT: no_way: one of score_cache, " in found.stderr
