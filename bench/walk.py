"""How many modules of the service one `/bin/true` passes through, from its POST to the start of the process.

    python -m bench.walk [--list]

It runs a service in this process (SQLite, one virtual node), submits one workflow of one task from another process, and counts
with `sys.setprofile` until the task has started: the modules of flowsched whose functions were called, and the moves, that is
the calls from one module of flowsched to another. Periodic loops of the service are counted where they fall into that time, so the
smallest of several runs is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import flowsched

CODE = str(Path(flowsched.__file__).parent) + "/"
CLIENT = """
import json, sys, urllib.request
body = json.dumps({"name": "w", "stages": [{"name": "t", "command": ["touch", sys.argv[2]]}]}).encode()
urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/api/v1/workflows", body, {"Content-Type": "application/json"}))
"""


class Walk:
    """What was called: modules, and how often a call led from one into another."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.moves = 0
        self.counts = False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """See `sys.setprofile`."""
        if event != "call" or not self.counts:
            return
        here = frame.f_code.co_filename
        if not here.startswith(CODE):
            return
        self.modules.add(here[len(CODE) :])
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(CODE):
            above = above.f_back
        self.moves += above is not None and above.f_code.co_filename != here


def submit_and_wait(url: str, done: Path) -> None:
    """Submit one task that makes a file, from another process; return as soon as the file is there."""
    with subprocess.Popen([sys.executable, "-c", CLIENT, url, str(done)]):
        while not done.exists():
            time.sleep(0.005)


async def walk(root: Path, runs: int) -> list[Walk]:
    """The walks of some submissions, one after the other."""
    from flowsched import app

    found: list[Walk] = []
    current = Walk()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        current.profile(frame, event, argument)

    threading.setprofile(profile)
    sys.setprofile(profile)
    async with app.running(app.Settings(port=0, root=root, log_level="error")) as service:
        for number in range(runs):
            done = root / f"done-{number}"
            await asyncio.sleep(1.0)  # the loops of the service are at rest
            current = Walk()
            current.counts = True
            await asyncio.to_thread(submit_and_wait, service.url, done)
            current.counts = False
            found.append(current)
    sys.setprofile(None)
    return found


def main() -> None:
    """Print the smallest walk."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the modules")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        walks = asyncio.run(walk(Path(root), options.runs))
    best = min(walks, key=lambda each: (len(each.modules), each.moves))
    print(
        f"{len(best.modules)} modules, {best.moves} moves between modules (of {len(walks)} runs the smallest)"
    )
    if options.list:
        print("\n".join(sorted(best.modules)))


if __name__ == "__main__":
    main()
