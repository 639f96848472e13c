"""Apptainer's command line: no registry that these tests reach has apptainer, so a program of the tests stands in for it.

What it takes is what apptainer-exec(1) and apptainer-pull(1) of version 1.4 have, and any other option is refused as apptainer
refuses it. What it says of a program that is not there is what apptainer 1.2.5 said (apptainer/apptainer issue 2003). It runs
programs with this machine's files: what is mounted where is read from its arguments.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.images import ContainerSettings
from flowsched.executor.protocol import Pod
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import ExecutorContract, pod, shell

IMAGE = "docker.io/library/tool:1"
APPTAINER = """#!{python}
import json, os, shutil, sys
FLAGS = {{"--containall", "--no-eval", "--writable-tmpfs", "--nv", "--net"}}
VALUES = {{"--bind", "--pwd", "--network"}}

def fatal(text):
    print("FATAL:  ", text, file=sys.stderr)
    sys.exit(255)

verb, *rest = sys.argv[1:]
if verb == "--version":
    print("apptainer version 1.4.0")
elif verb == "pull":
    force, path, source = rest
    if (force, source) != ("--force", "docker://{image}"):
        fatal(f"While making image from oci registry: manifest unknown: {{source}}")
    with open(path, "w") as file:
        file.write("an image")
elif verb == "exec":
    given = []
    while rest[0].startswith("-"):
        option = rest.pop(0)
        if option not in FLAGS | VALUES:
            print(f"Error for command 'exec': unknown flag: {{option}}", file=sys.stderr)
            sys.exit(1)
        given.append([option, rest.pop(0)] if option in VALUES else [option])
    image, program, *arguments = rest
    if not os.path.isfile(image):
        fatal(f"could not open image {{image}}: no such file or directory")
    with open({log!r}, "a") as log:
        print(json.dumps([given, image, program, *arguments]), file=log)
    said = {{key.removeprefix("APPTAINERENV_"): value for key, value in os.environ.items() if key.startswith("APPTAINERENV_")}}
    os.chdir(dict(each for each in given if len(each) == 2).get("--pwd", "/"))
    found = shutil.which(program, path=said.get("PATH", os.defpath))
    if found is None:
        fatal(f'"{{program}}": executable file not found in $PATH')
    os.execve(found, [program, *arguments], {{"PATH": os.defpath, **said}})
else:
    fatal(f"unknown command {{verb}}")
"""


class ApptainerCluster(LocalCluster):
    """A local cluster where each pod that names no image gets one."""

    async def launch(self, pods: list[Pod]) -> None:  # type: ignore[override]
        await super().launch([structs.replace(pod, image=IMAGE) for pod in pods])

    async def adopt(self, pods: list[Pod]) -> None:  # type: ignore[override]
        await super().adopt([structs.replace(pod, image=IMAGE) for pod in pods])


class ApptainerWorld(RealWorld):
    log: Path

    async def cluster(self) -> LocalCluster:
        return ApptainerCluster(self.root, self.nodes, containers=ContainerSettings("apptainer"))


@pytest.fixture
async def apptainer_world(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ApptainerWorld]:
    folder = tmp_path_factory.mktemp("bin")
    program, log = folder / "apptainer", folder / "log"
    program.write_text(APPTAINER.format(python=sys.executable, image=IMAGE, log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    async with ApptainerWorld(tmp_path) as world:
        world.log = log
        yield world


class TestApptainer(ExecutorContract):
    """All but container tasks, whose files lie elsewhere in the container."""

    @pytest.fixture
    def world(self, apptainer_world: ApptainerWorld) -> ApptainerWorld:
        return apptainer_world

    def _needs_container_tasks(self) -> None:
        pytest.skip("the program that stands in for apptainer mounts nothing")


async def test_a_task_is_contained_and_sees_its_folder(apptainer_world: ApptainerWorld) -> None:
    """Nothing of the machine is seen but the working folder and the cache, which is read only."""
    cluster, ear, _ = await apptainer_world.open()
    await cluster.launch([shell("a", 'echo "$SAID in $PWD"', env={"SAID": "x y"})])
    assert (await ear.ended("a")).exit_code == 0
    said, _ = await cluster.logs("a", "stdout", 0, 1000)
    assert said.startswith(b"x y in /")
    given, image, *command = json.loads(apptainer_world.log.read_text())
    assert [each for each in given if len(each) == 1] == [
        ["--containall"],
        ["--no-eval"],
        ["--writable-tmpfs"],
    ]
    binds = [each[1].split(":") for each in given if each[0] == "--bind"]
    assert [len(bind) for bind in binds] == [2] + [3] * (len(binds) - 1)
    assert all(bind[2] == "ro" for bind in binds[1:])
    assert image.endswith(".sif")
    assert command[0].endswith("sh")


async def test_a_program_that_is_not_in_the_image(apptainer_world: ApptainerWorld) -> None:
    """Apptainer ends with 255, which a program may do, too: its words tell."""
    cluster, ear, _ = await apptainer_world.open()
    await cluster.launch([pod("a", "no-such-program"), pod("b", "sh", "-c", "exit 255", index=1)])
    missing, ended = await ear.ended("a"), await ear.ended("b")
    assert (missing.exit_code, missing.reason) == (127, "StartFailed")
    assert "no-such-program" in missing.message
    assert (ended.exit_code, ended.reason) == (255, "")
