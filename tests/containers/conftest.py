"""A real podman with a storage of its own, and clusters that run their tasks in it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from flowsched.cluster.local.containers import find_engine
from flowsched.cluster.local.executor import LocalCluster, Processes
from flowsched.cluster.local.images import ContainerSettings
from flowsched.cluster.local.processes import RunnerProcesses
from flowsched.executor.protocol import Pod
from tests.cluster.conftest import RealWorld
from tests.images import image, images_folder, unavailable

#: What a machine without CAP_SYS_RESOURCE and with mixed control groups needs, and any other takes.
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""
STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class Podman:
    """The podman of the tests, by its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def set_up(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "containers.conf").write_text(CONTAINERS_CONF)
        (self.folder / "storage.conf").write_text(STORAGE_CONF.format(folder=self.folder))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the workers of a test run."""
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            ("podman", *arguments),
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def load(self, name: str) -> str:
        """The name of an image of the tests, which is there now, as it was built last."""
        built = image(name)
        mark = self.folder / f"{name}.loaded"
        said = built.archive.with_suffix(".made").read_text()
        with self.locked():
            if not mark.exists() or mark.read_text() != said:
                self.ask("load", "--quiet", "--input", str(built.archive))
                mark.write_text(said)
        return built.name

    def names(self, *filters: str) -> list[str]:
        """The containers that there are."""
        asked = [word for each in filters for word in ("--filter", each)]
        return self.ask("ps", "--all", "--format", "{{.Names}}", *asked).split()


@pytest.fixture(scope="session")
def installed() -> Podman:
    if shutil.which("podman") is None:
        unavailable("there is no podman: run `make images`, or install podman and runc")
    made = Podman(images_folder().parent / "podman")
    made.set_up()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in made.env.items():
            patch.setenv(key, value)
        engine, why = find_engine("podman")
    if engine is None:
        unavailable(f"containers cannot be run here: {'; '.join(why)}")
    return made


@pytest.fixture
def podman(installed: Podman, monkeypatch: pytest.MonkeyPatch) -> Podman:
    """The podman that services of this test find."""
    for key, value in installed.env.items():
        monkeypatch.setenv(key, value)
    return installed


def in_image(pod: Pod, image: str) -> Pod:
    """The pod, and each of its steps, with an image."""
    container = pod.container
    if container is not None:
        container = replace(
            container, steps=tuple(replace(step, image=step.image or image) for step in container.steps)
        )
    return structs.replace(pod, image=image, container=container)


class ContainerCluster(LocalCluster):
    """A local cluster where each pod that names no image gets one."""

    image = ""

    async def launch(self, pods: Sequence[Pod]) -> None:
        await super().launch([in_image(pod, pod.image or self.image) for pod in pods])

    async def adopt(self, pods: Sequence[Pod]) -> None:
        await super().adopt([in_image(pod, pod.image or self.image) for pod in pods])


class ContainerWorld(RealWorld):
    def __init__(self, folder: Path, image: str) -> None:
        super().__init__(folder)
        self.image = image
        self.settings = ContainerSettings("podman")

    def processes(self) -> Processes:
        return RunnerProcesses(containers=self.settings)

    async def cluster(self) -> LocalCluster:
        made = ContainerCluster(self.root, self.nodes, processes=self.processes())
        made.image = self.image
        return made


@pytest.fixture
async def container_world(tmp_path: Path, podman: Podman) -> AsyncIterator[ContainerWorld]:
    async with ContainerWorld(tmp_path, podman.load("numpy")) as world:
        yield world
