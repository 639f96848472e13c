"""Images that come from a registry: Debian's `docker-registry`, which asks for a password."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched.executor.protocol import PodEnded, PodHeld, ReplicaSeen
from tests.containers.conftest import ContainerWorld, Podman
from tests.executors.executor_contract import Observer, pod
from tests.images import unavailable

#: Of user:secret.
HTPASSWD = "user:$2b$04$A2L4kKlDTrcSoovhI1DCV.Mf/r.PSiO3m4/u/r.mIPyptE/rTzeZu\n"
CONFIG = """\
version: 0.1
log: {{level: info}}
storage: {{filesystem: {{rootdirectory: {folder}/store}}}}
http: {{addr: 127.0.0.1:{port}}}
auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}
"""


class Registry:
    """A registry with one image of a few hundred kB, which holds one program without libraries."""

    def __init__(self, folder: Path, podman: Podman) -> None:
        self.folder, self.podman = folder, podman
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.image = f"{self.host}/tests/tool:1"

    def set_up(self) -> None:
        (self.folder / "htpasswd").write_text(HTPASSWD)
        (self.folder / "config.yml").write_text(CONFIG.format(folder=self.folder, port=self.port))
        Path(self.credentials).write_text("{}")
        registries = self.folder / "registries.conf"
        registries.write_text(f'[[registry]]\nlocation = "{self.host}"\ninsecure = true\n')
        self.podman.env["CONTAINERS_REGISTRIES_CONF"] = str(registries)

    def publish(self) -> None:
        """Make the image and push it; this machine has it no more."""
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(shutil.which("catatonit") or "", "tool")
            for folder in ("proc", "sys", "dev", "tmp", "etc"):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry, io.BytesIO())
        self.podman.ask("import", "--quiet", str(archive), self.image)
        self.podman.ask("push", "--quiet", "--creds", "user:secret", self.image)
        self.podman.ask("rmi", "--force", self.image)

    def log_in(self) -> None:
        self.podman.ask(
            "login", "--username", "user", "--password", "secret", "--authfile", self.credentials, self.host
        )

    @property
    def credentials(self) -> str:
        return str(self.folder / "auth.json")


@pytest.fixture
def registry(tmp_path: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    for program in ("docker-registry", "catatonit"):
        if shutil.which(program) is None:
            unavailable(f"there is no {program}: run `make images`")
    made = Registry(tmp_path, podman)
    made.set_up()
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", podman.env["CONTAINERS_REGISTRIES_CONF"])
    monkeypatch.setenv("REGISTRY_AUTH_FILE", made.credentials)
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("REGISTRY_")
    }  # it reads these itself
    command = ["docker-registry", "serve", str(tmp_path / "config.yml")]
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            made.publish()
            yield made
        finally:
            process.kill()
            podman.env.pop("CONTAINERS_REGISTRIES_CONF")
            subprocess.run(("podman", "rmi", "--force", made.image), capture_output=True)


async def test_an_image_is_pulled_once_with_the_users_own_credentials(
    podman_world: ContainerWorld, registry: Registry
) -> None:
    """Three tasks wait for one pull; each says the digest that the registry has, and the nodes have the image now."""
    registry.log_in()
    cluster, ear, _ = await podman_world.open()
    names = ["a", "b", "c"]
    await cluster.launch([pod(name, "/tool", "--version", image=registry.image) for name in names])
    ends = [await ear.ended(name) for name in names]
    assert [(end.exit_code, end.reason) for end in ends] == [(0, "")] * 3
    manifests = (
        registry.folder / "store/docker/registry/v2/repositories/tests/tool/_manifests/revisions/sha256"
    )
    (digest,) = (folder.name for folder in manifests.iterdir())
    assert {digest_of(end) for end in ends} == {f"sha256:{digest}"}
    fetched = (registry.folder / "log").read_text().count("response completed")
    await launched_again(cluster, ear, registry)
    assert (registry.folder / "log").read_text().count("response completed") == fetched
    held = [(event.name, event.reason) for event in ear.heard if isinstance(event, PodHeld)]
    assert sorted(held) == sorted((name, reason) for name in names for reason in ("ImagePulling", ""))
    seen = [
        event.node
        for event in ear.heard
        if isinstance(event, ReplicaSeen) and event.uri == f"image:{registry.image}"
    ]
    assert sorted(seen) == ["node-0", "node-1"]


async def test_a_registry_that_refuses_is_quoted(podman_world: ContainerWorld, registry: Registry) -> None:
    """Without credentials, and for a tag that is not there: at once."""
    cluster, ear, _ = await podman_world.open()
    await cluster.launch([pod("a", "/tool", image=registry.image)])
    end = await asyncio.wait_for(ear.ended("a"), 20)
    assert (end.exit_code, end.reason) == (126, "ErrImagePull")
    assert "authentication required" in end.message
    registry.log_in()
    await cluster.launch([pod("b", "/tool", image=registry.image.replace(":1", ":none"))])
    end = await asyncio.wait_for(ear.ended("b"), 20)
    assert (end.exit_code, end.reason) == (126, "ErrImagePull")
    assert "manifest unknown" in end.message
    assert registry.image.replace(":1", ":none") in end.message


async def launched_again(cluster: object, ear: Observer, registry: Registry) -> None:
    await cluster.launch([pod("d", "/tool", "--version", image=registry.image)])  # type: ignore[attr-defined]
    assert (await ear.ended("d")).exit_code == 0


def digest_of(end: PodEnded) -> str:
    assert end.container is not None
    (image,) = end.container.images
    return image.digest
