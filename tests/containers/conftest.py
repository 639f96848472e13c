"""A real podman and a real Docker daemon with storages of their own, and clusters that run their tasks in them."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from flowsched.cluster.local.containers import find_engine
from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.images import ContainerSettings
from flowsched.executor.protocol import Pod
from flowsched.values import replace
from tests.cluster.conftest import RealWorld
from tests.images import image, images_folder, unavailable
from tests.programs import NotStarted, Program

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


class EngineOfTests:
    """A container engine, by its command line.

    Attributes:
        kind: The name of its program.
        folder: Where its storage is.
        env: Variables by which its program finds it.
    """

    kind: str
    folder: Path
    env: dict[str, str]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the workers of a test run."""
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            (self.kind, *arguments),
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{self.kind} {' '.join(arguments)}: {done.stderr}"
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


class Podman(EngineOfTests):
    """Podman, whose storage all workers of a test run share."""

    kind = "podman"

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


class Docker(EngineOfTests):
    """Docker, whose daemon a worker of a test run starts for itself."""

    kind = "docker"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"DOCKER_HOST": f"unix://{folder}/socket", "DOCKER_CONFIG": str(folder)}
        self._daemon = Program(
            [
                *(
                    shutil.which("dockerd") or "dockerd",
                    "--data-root",
                    f"{folder}/data",
                    "--exec-root",
                    f"{folder}/run",
                ),
                *("--host", f"unix://{folder}/socket", "--pidfile", f"{folder}/pid"),
                *("--iptables=false", "--bridge=none"),  # nothing of the machine's network is changed
            ],
            folder / "log",
        )

    def start(self) -> None:
        """Start the daemon; it answers.

        Raises:
            NotStarted: It ended; the message has the end of its log.
        """
        self._daemon.start()
        end = time.monotonic() + 60
        while subprocess.run(
            ("docker", "info"), env={**os.environ, **self.env}, capture_output=True
        ).returncode:
            self._daemon.check()
            if time.monotonic() > end:
                raise NotStarted(f"dockerd does not answer: {self._daemon.tail()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the daemon, and remove what it had."""
        if self._daemon.pid is not None:
            left = self.names()
            if left:
                self.ask("rm", "--force", *left)
            self._daemon.signal(signal.SIGTERM)
            self._daemon.wait()
        subprocess.run(
            ("umount", self.folder / "run/netns/default"), capture_output=True
        )  # dockerd forgets it
        for _ in range(100):
            if not subprocess.run(("rm", "-rf", self.folder), capture_output=True).returncode:
                return
            time.sleep(0.1)  # until the kernel has let go of its mounts


@pytest.fixture(scope="session")
def installed_podman() -> Podman:
    if shutil.which("podman") is None:
        unavailable("there is no podman: run `make images`, or install podman and runc")
    made = Podman(images_folder().parent / "podman")
    made.set_up()
    require(made)
    return made


@pytest.fixture(scope="session")
def installed_docker() -> Iterator[Docker]:
    if shutil.which("dockerd") is None or shutil.which("docker") is None or os.geteuid() != 0:
        unavailable("there is no dockerd that may be started: install docker.io, and be root")
    made = Docker(Path(tempfile.mkdtemp(prefix="fs-docker-")))
    try:
        made.start()
    except NotStarted as error:
        made.stop()
        unavailable(str(error))
    require(made)
    yield made
    made.stop()


def require(engine: EngineOfTests) -> None:
    """Skip, or fail in CI, where it runs no containers."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in engine.env.items():
            patch.setenv(key, value)
        found, why = find_engine(engine.kind)
    if found is None:
        unavailable(f"containers cannot be run here: {'; '.join(why)}")


@pytest.fixture
def podman(installed_podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Podman:
    """The podman that services of this test find."""
    for key, value in installed_podman.env.items():
        monkeypatch.setenv(key, value)
    return installed_podman


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EngineOfTests:
    """Each engine in turn, which services of this test find."""
    installed: EngineOfTests = request.getfixturevalue(f"installed_{request.param}")
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
    def __init__(self, folder: Path, engine: EngineOfTests) -> None:
        super().__init__(folder)
        self.image = engine.load("numpy")
        self.settings = ContainerSettings(engine.kind)

    async def cluster(self) -> LocalCluster:
        made = ContainerCluster(self.root, self.nodes, containers=self.settings)
        made.image = self.image
        return made


@pytest.fixture
async def container_world(tmp_path: Path, engine: EngineOfTests) -> AsyncIterator[ContainerWorld]:
    """A world whose tasks run in containers of each engine in turn."""
    async with ContainerWorld(tmp_path, engine) as world:
        yield world


@pytest.fixture
async def podman_world(tmp_path: Path, podman: Podman) -> AsyncIterator[ContainerWorld]:
    """A world whose tasks run in podman's containers."""
    async with ContainerWorld(tmp_path, podman) as world:
        yield world
