"""A reserved start holds although estimates are wrong."""

from __future__ import annotations

from bench.virtual.drive import Drive, Fate
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.workflow.document.decode import check_workflow

SMALL = {
    "name": "small",
    "stages": [
        {
            "name": "s",
            "scatter": {"count": 2_000},
            "command": ["x"],
            "resources": {"cpu": 1},
            "estimate": {"runtime": "50ms"},
        }
    ],
}
GANG = {
    "name": "gang",
    "stages": [
        {
            "name": "g",
            "gang": True,
            "estimate": {"runtime": "5s"},
            "roles": {"worker": {"replicas": 8, "command": ["x"], "resources": {"cpu": 1}}},
        }
    ],
}


def test_a_gang_is_not_put_off_for_ever_by_small_jobs_that_overrun_their_estimate() -> None:
    """Two thousand jobs said to take 50 ms take 400 ms each; a gang of the whole cluster starts within two of them."""
    state = EngineState()
    nodes = [NodeInfo(f"n{i}", 4_000, 8 << 30) for i in range(2)]

    def fate(pod: Pod) -> Fate:
        return Fate(5_000 if pod.stage == "g" else 400 + pod.index % 7)

    drive = Drive(state, nodes, fate=fate)
    drive.submit("small", check_workflow(SMALL))
    gang = drive.submit("gang", check_workflow(GANG), at=1_000)
    drive.run(until=30_000)
    started = gang.stages[0].times[:, 4]
    assert started.min() == started.max()
    assert 1_000 < started.max() <= 3_500
