"""Runs one container task, as whoever it is started as, and prints how it ended.

python -m tests.cluster.steps_driver FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from flowsched.workflow.spec import Delivered, Placed
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained


async def main(folder: Path) -> None:
    world = RealWorld(folder)
    cluster, ear, _ = await world.open()
    placed = (Placed("/in dir/x", source=f"{folder}/outside.txt"), Placed("/etc/given", content="given"))
    outputs = (Delivered("/o/x", f"{folder}/delivered"),)
    script = "cat '/in dir/x' /etc/given > /o/x; id -u; grep -c . /etc/passwd > /dev/null && echo host; echo > '/in dir/x'"
    await cluster.launch([contained("a", script, inputs=placed, outputs=outputs)])
    end = await ear.ended("a")
    said = (
        [[step.exit_code, step.stdout, step.stderr] for step in end.container.steps]
        if end.container
        else None
    )
    print(json.dumps({"code": end.exit_code, "reason": end.reason, "message": end.message, "steps": said}))
    await world.end()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
