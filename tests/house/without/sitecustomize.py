"""Python runs this at its start where PYTHONPATH names this folder: the process then lacks the ways of FLOWSCHED_WITHOUT."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "second_ways.py"))["leave_out"]()
