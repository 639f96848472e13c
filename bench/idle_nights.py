"""Why the cores of a shared cluster idle at night: three days on a virtual clock, told by `explain --cluster`.

    python bench/idle_nights.py [--json FILE]

The cluster is made so that what must come out is known beforehand, cause by cause (`EXPECTED`); the same `engine.step` as
the service runs it, and the splits of all moments are added up. Eight nodes of 16 cores work by day; four nodes of 8 cores and
4 GPUs train all the time with 3 of them. It begins at 08:00.

  day 1     the whole pool works until 20:00
  night 1   the queue `night` has work for everybody, and a cap of 32 of 128 cores: 96 idle for 12 hours
  day 2     half of the pool works; from 10:00 a gang waits for all of it and is promised 20:00; from 10:30 long
            work would fit and would delay it: 64 idle for 9.5 hours, for half an hour without anybody who would fit
  night 2   the gang until 22:00, then nothing
  day 3     the pool works, but for one node whose job waits an hour for 36 GB that come at 10 MB/s
  night 3   nothing
  GPUs      4 of 16 are free, one on each node; from the second day on a job that wants 2 on one node waits
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from flowsched.engine.state.policy import PolicyState

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.virtual.drive import Drive
from bench.virtual.idle import IdleHours
from flowsched.control.views import HOUR_MS
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.workflow.document.decode import check_workflow

GIB: Final = 1 << 30
END: Final = 72
#: Core-hours and GPU-hours by cause, worked out by hand from the words above.
EXPECTED: Final = {
    "cpu": {
        "quota": 96 * 12,
        "reserved": 64 * 9.5,
        "fragmentation": 64 * 0.5,
        "data": 16 * 1,
        "no_demand": 64 * 2 + 128 * 10 + 128 * 12,
    },
    "gpu": {"fragmentation": 2 * 48, "no_demand": 4 * 24 + 2 * 48},
}


def nodes() -> list[NodeInfo]:
    """Two pools."""
    cpu = [
        NodeInfo(f"cpu{n}", 16_000, 64 * GIB, 500 * GIB, labels={"pool": "cpu"}, nic_in_rate=10_000_000)
        for n in range(8)
    ]
    gpu = [
        NodeInfo(f"gpu{n}", 8_000, 64 * GIB, 500 * GIB, gpu_millis=4_000, labels={"pool": "gpu"})
        for n in range(4)
    ]
    return cpu + gpu


class Days:
    """Three days of work."""

    def __init__(self) -> None:
        state = EngineState(
            policy=PolicyState(
                queues=QueueTree([Queue("night", cap=(32_000,)), Queue("gpus", priority=-100)])
            )
        )
        self.idle = IdleHours()
        self.drive = Drive(state, nodes(), idle_hours=self.idle)

    def submit(
        self,
        name: str,
        at: float,
        hours: float,
        *,
        pool: str = "cpu",
        queue: str = "lab",
        priority: int = 0,
        **stage: Any,
    ) -> None:
        """Work that arrives at an hour and takes so many."""
        task = {
            "name": "run",
            "command": ["work"],
            "selector": {"pool": pool},
            "estimate": {"runtime": f"{round(hours * 60)}m"},
            **stage,
        }
        document = {"name": name, "queue": queue, "priority": priority, "stages": [task]}
        self.drive.submit(name, check_workflow(document), round(at * HOUR_MS))

    def run(self) -> None:
        """All of it."""
        node, core = {"cpu": 16, "memory": "1Gi"}, {"cpu": 1, "memory": "1Gi"}
        self.submit("day 1", 0, 12, scatter={"count": 8}, resources=node)
        self.submit("night 1", 12, 1, queue="night", scatter={"count": 480}, resources=core)
        self.drive.command("night 1", "cancel", 24 * HOUR_MS)
        self.submit("day 2", 24, 12, priority=1, scatter={"count": 4}, resources=node)
        roles = {"worker": {"replicas": 8, "resources": node}}
        self.submit("training", 26, 2, priority=1, gang=True, roles=roles)
        self.submit("long", 26.5, 48, scatter={"count": 64}, resources=core)
        self.drive.command("long", "cancel", 36 * HOUR_MS)
        self.submit("day 3", 48, 12, scatter={"count": 7}, resources=node)
        reads = [{"name": "reads", "uri": "http://outside/reads", "size": "36G"}]
        self.submit("with data", 48, 11, inputs=reads, resources=node)
        trains = {"cpu": 8, "memory": "8Gi", "gpu": 3}
        self.submit("fits", 0, END + 1, pool="gpu", queue="gpus", scatter={"count": 4}, resources=trains)
        self.submit(
            "two gpus", 24, 1, pool="gpu", queue="gpus", resources={"gpu": 2, "cpu": 0, "memory": "1Gi"}
        )
        self.drive.run(until=END * HOUR_MS - 1)


def main() -> int:
    """Print the report and whether it is what must come out."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", type=Path, help="also write the report here")
    given = options.parse_args()
    days = Days()
    days.run()
    report = days.idle.report(END * HOUR_MS)
    for sentence in report.sentences:
        print(sentence)
    right = True
    print(f"\n{'resource':10}{'cause':16}{'told':>10}{'expected':>10}")
    for resource, causes in EXPECTED.items():
        view = report.resources[resource]
        for cause in sorted(set(causes) | set(view.causes)):
            told, expected = view.causes.get(cause, 0.0), causes.get(cause, 0.0)
            right = right and abs(told - expected) <= 0.002 * view.idle
            print(f"{resource:10}{cause:16}{told:10.1f}{expected:10.1f}")
        print(f"{resource:10}{'idle':16}{view.idle:10.1f}{sum(causes.values()):10.1f}")
    print("\nas expected" if right else "\nNOT as expected")
    if given.json:
        views = {name: {"idle": view.idle, **view.causes} for name, view in report.resources.items()}
        given.json.write_text(json.dumps({"told": views, "expected": EXPECTED}, indent=2))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
