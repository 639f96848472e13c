"""No right of an owner crosses a boundary with a file: set-user-id bits, capabilities and owners stay behind.

A task of a service that runs as root delivered a program with the mode 06755, owned by root: each account of the machine was root.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.trees import seal
from flowsched.cluster.node.ranges import open_payload
from flowsched.executor.protocol import OutputFile
from flowsched.workflow.spec import Delivered, Mount
from tests.cluster.conftest import RealWorld
from tests.cluster.test_steps import run, sh
from tests.executors.executor_contract import contained, shell

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def capable(path: Path) -> bool:
    return "security.capability" in os.listxattr(path)


def with_rights(path: Path) -> Path:
    """A file that gives the rights of its owner, and a capability where this process may give one."""
    path.write_text("#!/bin/sh\n")
    if os.geteuid() == 0 and shutil.which("setcap"):
        subprocess.run(["setcap", "cap_setuid+ep", path], check=True)
    path.chmod(0o6755)
    return path


async def test_what_is_delivered_gives_no_rights(real_world: RealWorld, tmp_path: Path) -> None:
    """A file, a folder, a folder that is there already, and a file that the task wrote in place."""
    there, shared = tmp_path / "there", tmp_path / "shared"
    there.mkdir()
    shared.mkdir()
    script = f"mkdir /out/d /out/e; for f in /out/f /out/d/f /out/e/f {shared}/f; do echo x > $f; chmod 6755 $f; done"
    outputs = (
        Delivered("/out/f", f"{tmp_path}/file"),
        Delivered("/out/d", f"{tmp_path}/folder", directory=True),
        Delivered("/out/e", str(there), directory=True),
        Delivered(f"{shared}/f", f"{shared}/f"),
    )
    end = await run(
        real_world,
        contained("a", steps=(sh(script),), outputs=outputs, mounts=(Mount(str(shared), str(shared)),)),
    )
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    found = [tmp_path / "file", tmp_path / "folder/f", there / "f", shared / "f"]
    assert [oct(mode(path)) for path in found] == ["0o755"] * 4
    assert {path.stat().st_nlink for path in found} == {1}


async def test_what_is_in_the_cache_gives_no_rights(real_world: RealWorld) -> None:
    cluster, ear, _ = await real_world.open()
    await cluster.launch(
        [
            shell(
                "a",
                "echo x > result; chmod 6755 result",
                outputs=(OutputFile("out", "result", "flowsched:a/out"),),
            )
        ]
    )
    assert (await ear.ended("a")).exit_code == 0
    found = list(real_world.root.glob("nodes/*/cache/*/result"))
    assert [oct(mode(path)) for path in found] == ["0o555"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setcap"), reason="needs setcap, as root")
def test_capabilities_stay_behind(tmp_path: Path) -> None:
    """A mode says nothing of them: they are an attribute of the file, which a rename and a hard link keep."""
    made = with_rights(tmp_path / "made")
    assert capable(made)
    assert safe_paths.gives_rights(str(made))
    seal(made)
    assert not capable(made)
    assert oct(mode(made)) == "0o555"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_account_gets_no_second_name(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.touch()
    os.chown(foreign, 65534, 65534)
    assert safe_paths.gives_rights(str(foreign))


def link(source: str, name: str, **more: Any) -> None:
    os.link(source, name, **more)


@pytest.mark.parametrize("makes_links", [link, trees.no_link], ids=["links", "copies"])
def test_what_an_agent_lays_out_gives_no_rights(tmp_path: Path, makes_links: Callable[..., None]) -> None:
    """As the cache holds it, and as it is copied."""
    source, target = with_rights(tmp_path / "source"), tmp_path / "target"
    target.mkdir()
    if makes_links is link:
        seal(source)
    with safe_paths.Opened(safe_paths.open_folder(None, str(target))) as at:
        trees.place(str(source), at, "laid", makes_links)
    assert not mode(target / "laid") & 0o7000
    assert not capable(target / "laid")


class Bytes(io.BytesIO):
    came_bytes = 0


def test_a_tar_stream_gives_no_rights(tmp_path: Path) -> None:
    """Neither as it comes nor as it is sent."""
    data = Bytes()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind in (("top", tarfile.DIRTYPE), ("top/f", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.mode, info.type = 0o7755, kind
            tar.addfile(info)
    data.seek(0)
    for _ in trees.unpack(data, tmp_path / "got"):  # type: ignore[arg-type]
        pass
    assert oct(mode(tmp_path / "got")) == "0o755"
    assert oct(mode(tmp_path / "got/f")) == "0o755"


def test_a_folder_that_is_fetched_has_no_rights_in_its_archive(tmp_path: Path) -> None:
    """`flowsched get` saves a folder as an archive, which the user unpacks."""
    (tmp_path / "cache/home/d").mkdir(parents=True)
    with_rights(tmp_path / "cache/home/d/f")
    opened = open_payload(tmp_path / "cache", tmp_path / "cache/home/d")
    assert opened is not None
    with tarfile.open(fileobj=io.BytesIO(b"".join(opened[1]))) as tar:
        assert oct(tar.getmember("d/f").mode) == "0o755"
