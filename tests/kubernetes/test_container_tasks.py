"""Container tasks on Kubernetes: a real API server, node agents, and hollow nodes that give containers their mounts."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.client import Connection
from flowsched.cluster.kubernetes.release import SharedVolume
from flowsched.scheduling.executor import DeliveredFile, InputFile, Pod, PodEnded
from flowsched.workflow.spec import Container, Delivered, Left, Mount, Placed, Step
from tests.cluster.samples import pod
from tests.kubernetes.exec_world import KubeWorld

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0,
        reason="hollow nodes make mounts as root only, and container tasks need theirs",
    ),
]

#: A path that no machine has: tasks see it by mounts alone.
LAB = "/flowsched-lab"


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    shared = (SharedVolume("lab", LAB),)
    async with KubeWorld(api, namespace, tmp_path, shared=shared) as world:
        lab(world).mkdir(parents=True)
        yield world


def lab(world: KubeWorld) -> Path:
    """The folder that stands for the shared volume."""
    return world.hollow.root / "claims" / world.namespace / "lab"


def step(script: str, *arguments: str, **fields: Any) -> Step:
    """A step that runs a shell script."""
    return Step(("/bin/sh", "-c", script, "-", *arguments), **fields)


def task(*steps: Step, name: str = "a", **fields: Any) -> Pod:
    """A pod of a container task on node-0."""
    timeout_ms = fields.pop("timeout_ms", None)
    inputs = fields.pop("stage_inputs", ())
    container = Container(steps, **fields)
    return pod(name, *steps[-1].command, container=container, timeout_ms=timeout_ms, inputs=inputs)


async def outcome(world: KubeWorld, what: Pod) -> PodEnded:
    """Run it to its end."""
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    return await ear.ended(what.name)


async def test_a_step_reads_what_the_document_holds_and_its_output_is_delivered(world: KubeWorld) -> None:
    """The input is at its path, what the step prints in its stdout file, and a copy of that in the shared folder."""
    end = await outcome(
        world,
        task(
            step('wc -c < /in/text.txt; echo "$GREETING"', env={"GREETING": "hello"}, stdout="/out/said.txt"),
            inputs=(Placed("/in/text.txt", content="twelve bytes"),),
            outputs=(Delivered("/out/said.txt", f"{LAB}/results/said.txt"),),
        ),
    )
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert (lab(world) / "results/said.txt").read_text() == "12\nhello\n"
    assert end.container is not None
    assert end.container.outputs == (DeliveredFile("/out/said.txt", f"{LAB}/results/said.txt", 9),)
    assert [(each.exit_code, each.stdout) for each in end.container.steps] == [(0, "12\nhello\n")]


async def test_three_steps_of_which_one_fails_and_is_ignored(world: KubeWorld) -> None:
    """They run in order on the same files, each with its own environment; the real exit codes are told."""
    end = await outcome(
        world,
        task(
            step("echo one >> /work/log", workdir="/work"),
            step("echo two >> log; exit 3", workdir="/work", ignore_error=True),
            step("echo three >> log; cat log > /out/all; pwd", workdir="/work", stdout="/out/where"),
            outputs=(Delivered("/out/all", f"{LAB}/all"), Delivered("/out/where", f"{LAB}/where")),
        ),
    )
    assert (end.exit_code, end.reason) == (0, "")
    assert (lab(world) / "all").read_text() == "one\ntwo\nthree\n"
    assert (lab(world) / "where").read_text() == "/work\n"
    assert end.container is not None
    assert [each.exit_code for each in end.container.steps] == [0, 3, 0]
    assert all(each.started_ms <= each.ended_ms for each in end.container.steps)
