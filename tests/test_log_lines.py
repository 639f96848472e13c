"""Log lines: which are written, and in which form."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
from flowsched.log_lines import configure_logging, get_logger
log = get_logger("work")
configure_logging("warning", as_json=True)
log.info("a step")
log.warning("the disk is full", path="/data")
try:
    {}["key"]
except KeyError:
    log.exception("work broke", on="key")
log.debug("a detail")
"""


def test_lines_of_the_level_and_above_are_written() -> None:
    """Lines below the level are not written, before and after. An exception comes with its traceback."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    full, broke = map(json.loads, done.stderr.splitlines())
    assert (full["level"], full["event"], full["path"]) == ("warning", "the disk is full", "/data")
    assert (broke["level"], broke["event"], broke["on"]) == ("error", "work broke", "key")
    assert broke["exception"].endswith("KeyError: 'key'")
