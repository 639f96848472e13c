"""A try of a WDL task, as the miniwdl backend writes it, on Kubernetes: its run's folder is on a shared volume."""

from __future__ import annotations

import json
from pathlib import Path

from flowsched.miniwdl.order import Order, document
from flowsched.miniwdl.places import Place
from flowsched.workflow.document.decode import decode_workflow
from tests.executors.executor_contract import pod
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.test_container_tasks import LAB, lab, outcome, pytestmark, world

__all__ = ["pytestmark", "world"]

FOLDER = f"{LAB}/runs/20260301_w/call-count"
SCRIPT = """\
pwd
cat '_miniwdl_inputs/0/two words.txt' /mnt/miniwdl_task_container/work/_miniwdl_inputs/1/deep/three.txt > all.txt
echo changed >> '_miniwdl_inputs/0/two words.txt'
exit 3
"""


async def test_a_second_try_works_in_its_own_folder_on_inputs_it_may_not_change(world: KubeWorld) -> None:
    """Files and folders are where miniwdl says, output appears in the run's folder, and the exit code is the program's."""
    folder = lab(world) / "runs/20260301_w/call-count"
    for name in ("work", "work2/_miniwdl_inputs/0", "work2/_miniwdl_inputs/1"):
        (folder / name).mkdir(parents=True)
    (folder / "command").write_text(SCRIPT)
    (folder / "work/left").write_text("by the first try")
    for mounted in ("stdout2.txt", "stderr2.txt", "work2/_miniwdl_inputs/0/two words.txt"):
        (folder / mounted).touch()
    (folder / "work2/_miniwdl_inputs/1/deep").mkdir()
    data = lab(world) / "data"
    (data / "deep").mkdir(parents=True)
    (data / "two words.txt").write_text("two\n")
    (data / "deep/three.txt").write_text("three\n")
    order = Order(
        place=Place(f"{LAB}/runs/20260301_w", "w", "count"),
        run="r",
        attempt=2,
        folder=FOLDER,
        work=f"{FOLDER}/work2",
        streams=("stdout2.txt", "stderr2.txt"),
        shell="/bin/bash",
        image="ubuntu:24.04",
        inputs={
            "/mnt/miniwdl_task_container/work/_miniwdl_inputs/0/two words.txt": f"{LAB}/data/two words.txt",
            "/mnt/miniwdl_task_container/work/_miniwdl_inputs/1/deep/": f"{LAB}/data/deep/",
        },
        resources={"cpu": 1, "memory": 64 << 20},
    )
    (stage,) = decode_workflow(json.dumps(document(order)).encode()).stages
    assert stage.container is not None
    end = await outcome(world, pod("a", *stage.roles[0].command, container=stage.container))
    assert (end.exit_code, end.reason) == (3, "")
    assert said(folder, "stdout2.txt") == "/mnt/miniwdl_task_container/work\n"
    assert said(folder, "work2/all.txt") == "two\nthree\n"
    assert said(folder, "stderr2.txt").endswith("_miniwdl_inputs/0/two words.txt: Read-only file system\n")
    assert (data / "two words.txt").read_text() == "two\n"
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["left"]


def said(folder: Path, name: str) -> str:
    return (folder / name).read_text()
