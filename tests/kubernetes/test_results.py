"""Ends of pods, completed with what their nodes' agents know."""

from __future__ import annotations

import msgspec

from flowsched.cluster.kubernetes.agents import Agents, NodeLoad
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.pods.results import Results
from flowsched.executor.protocol import ClusterEvent, PodEnded, Usage

POD = msgspec.convert(
    {"metadata": {"name": "a", "namespace": "lab", "uid": "u"}, "spec": {"nodeName": "n1"}}, Pod
)


def reported(event: PodEnded, **pods: tuple[int, int, int]) -> list[ClusterEvent]:
    """What is told of an end, where an agent has measured these pods."""
    told: list[ClusterEvent] = []
    agents = Agents("k" * 16, told.append, lambda: 0, lambda _: True)
    agents.loads.hear("n1", NodeLoad(over_ms=5_000, disk_bytes=0, pods=dict(pods)), 0.0)
    Results(agents, lambda _: POD, lambda _: None, told.append).report(event)
    return told


def test_a_pod_that_says_nothing_moved_what_was_last_measured() -> None:
    """It has no step that asks its node's agent at its end. CPU time that its node says is better: it is the task's alone."""
    end = PodEnded("fs-a", 7, 0)
    assert reported(end, u=(10, 90, 40)) == [PodEnded("fs-a", 7, 0, usage=Usage(cpu_ms=40, disk_bytes=90))]
    end = PodEnded("fs-a", 7, 0, usage=Usage(cpu_ms=5))
    assert reported(end, u=(10, 90, 40)) == [PodEnded("fs-a", 7, 0, usage=Usage(cpu_ms=5, disk_bytes=90))]


def test_what_a_pod_says_itself_is_newer() -> None:
    """Its last step read it after its task had ended."""
    end = PodEnded("fs-a", 7, 0, usage=Usage(disk_bytes=0))
    assert reported(end, u=(10, 90, 40)) == [end]


def test_of_a_pod_that_nobody_measured_nothing_is_said() -> None:
    """-1: nobody looked."""
    end = PodEnded("fs-a", 7, 0)
    assert reported(end, other=(10, 90, 40)) == [end]
