"""Which paths of this machine are inputs and outputs, and which never are: `..` and links do not lead around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.node.origins import Origins
from flowsched.executor.protocol import (
    InputFile,
    Pod,
    PodEnded,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.values import replace
from flowsched.workflow.spec import Delivered, Left, Mount, Placed, Step
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained, pod

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


async def run(world: RealWorld, what: Pod) -> PodEnded:
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    end = await ear.ended(what.name)
    await world.drop()
    return end


def test_what_is_refused_by_default(tmp_path: Path) -> None:
    """The kernel's file systems, what a service keeps, the system's folders; a root in a home folder closes only its own."""
    (tmp_path / "token").touch()
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "own").symlink_to(tmp_path / "nodes")
    bounds = Bounds(str(tmp_path))
    refused = ["/proc/self/environ", "/proc", "/sys/x", "/dev/sda", "/dev/../proc/1/mem", "/", "/etc/shadow", "/usr/bin/env",
               "/run/secrets", f"{tmp_path}/link/shadow", f"{tmp_path}/token", f"{tmp_path}/x/../token", f"{tmp_path}/own/a",
               f"{tmp_path}/flowsched.db-wal", f"{tmp_path}/nodes/node-0/cache", str(tmp_path)]  # fmt: skip
    assert [path for path in refused if not bounds.refusal(path)] == []
    taken = [
        "/tmp/x",
        "/home/a/b",
        "/data",
        "/run/media/u/disk",
        f"{tmp_path}/mine",
        f"{tmp_path}-more/token",
        "/processed/x",
    ]
    assert [path for path in taken if bounds.refusal(path)] == []
    assert bounds.refusal(str(tmp_path.parent)) == ""
    assert "holds the service's root" in bounds.refusal(str(tmp_path.parent), whole=True)


def test_what_is_allowed_is_a_folder_and_what_lies_in_it(tmp_path: Path) -> None:
    """A sibling with the same beginning is outside; what is never allowed stays so; a folder of the system can be allowed."""
    for name in ("data", "data-more"):
        (tmp_path / name).mkdir()
    (tmp_path / "data/out").symlink_to(tmp_path / "data-more")
    bounds = Bounds(str(tmp_path / "data/root"), [str(tmp_path / "data"), "/usr/share"])
    assert bounds.refusal(f"{tmp_path}/data/x") == ""
    assert bounds.refusal("/usr/share/dict/words") == ""
    for path in ("data-more/x", "data/out/x", "data/../x", "data/root/token", "data/root"):
        assert bounds.refusal(f"{tmp_path}/{path}")
    everything = Bounds(str(tmp_path / "data/root"), ["/"])
    assert everything.refusal("/etc/hosts") == ""
    assert everything.refusal("/proc/cpuinfo")
    assert everything.refusal(f"{tmp_path}/data/root/secret")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_the_kernels_files_are_known_where_they_are_mounted_again(tmp_path: Path) -> None:
    """Told by the device, since the path says nothing."""
    import subprocess

    script = "import sys; from flowsched.cluster.local.runner.bounds import Bounds; print(Bounds().refusal(sys.argv[1]))"
    command = f"mount --bind /proc {tmp_path} && exec {sys.executable} -c '{script}' {tmp_path}/1/environ"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert "is in /proc, which belongs to the kernel" in done.stdout, done.stderr


async def test_staging_takes_nothing_from_outside(real_world: RealWorld, tmp_path: Path) -> None:
    """As uri or path, by `..` or a link; for good, with what to do."""
    (tmp_path / "link").symlink_to("/proc/self/environ")
    (tmp_path / "good").write_text("x")
    cluster, ear, _ = await real_world.open()
    uris = [f"{tmp_path}/link", f"file://{tmp_path}/../../../../../../../../proc/self/environ", f"{real_world.root}/nodes",
            str(real_world.root.parent), "/etc/passwd", f"{tmp_path}/good"]  # fmt: skip
    await cluster.transfer([Transfer(uri, 1, "node-0") for uri in uris])
    ends = await ear.transferred(len(uris))
    assert [end.uri for end in ends if isinstance(end, TransferDone)] == [f"{tmp_path}/good"]
    assert all(end.permanent for end in ends if isinstance(end, TransferFailed))
    await real_world.drop()


def sh(script: str, **more: Any) -> Step:
    return Step(("/bin/sh", "-c", script), **more)


ASKED: dict[str, dict[str, Any]] = {
    "an input of /proc": {"inputs": (Placed("/in/x", source="/proc/self/environ"),)},
    "an input of /etc": {"inputs": (Placed("/in/x", source="/etc/passwd"),)},
    "an input through a link": {"inputs": (Placed("/in/x", source="LINK/passwd"),)},
    "an input of the root": {"inputs": (Placed("/in/x", source="ROOT/nodes"),)},
    "a mount of the root": {"mounts": (Mount("ROOT/nodes", "/m"),)},
    "a mount of everything": {"mounts": (Mount("/", "/m"),)},
    "an output into /etc": {"outputs": (Delivered("/out/x", "/etc/flowsched-test-x"),)},
    "an output through ..": {"outputs": (Delivered("/out/x", "/tmp/../etc/flowsched-test-x"),)},
    "an output through a link": {"outputs": (Delivered("/out/x", "LINK/flowsched-test-x"),)},
    "an output into the root": {"outputs": (Delivered("/out/x", "ROOT/token"),)},
}


def placed_in(value: Any, root: Path, folder: Path) -> Any:
    """The samples with the paths of this test."""
    if isinstance(value, str):
        return value.replace("ROOT", str(root)).replace("LINK", f"{folder}/link")
    if isinstance(value, tuple):
        return tuple(placed_in(each, root, folder) for each in value)
    if isinstance(value, msgspec.Struct):
        texts = {
            name: getattr(value, name)
            for name in value.__struct_fields__
            if isinstance(getattr(value, name), str)
        }
        return replace(value, **{name: placed_in(text, root, folder) for name, text in texts.items()})
    return value


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_a_container_task_that_asks_for_them_does_not_begin(
    real_world: RealWorld, tmp_path: Path, asked: dict[str, Any]
) -> None:
    """PathRefused, before any step runs: nothing is written, and the message names the path."""
    (tmp_path / "link").symlink_to("/etc")
    more = {key: placed_in(value, real_world.root, tmp_path) for key, value in asked.items()}
    steps = (sh(f"touch {tmp_path}/began; mkdir -p /out; echo x > /out/x"),)
    end = await run(real_world, contained("a", steps=steps, **more))
    assert (end.exit_code, end.reason) == (126, "PathRefused")
    assert not (tmp_path / "began").exists()
    assert not Path("/etc/flowsched-test-x").exists()
    assert not (real_world.root / "token").exists()


async def test_a_step_cannot_lead_flowsched_out_by_links(real_world: RealWorld, tmp_path: Path) -> None:
    """A step makes links in what it delivers, and where the next one's stdout goes: the runner follows none of them out."""
    (real_world.root / "token").write_text("t0ken") if real_world.root.exists() else None
    folder = tmp_path / "results"
    folder.mkdir()
    steps = (
        sh(f"mkdir -p /out; ln -s {real_world.root}/nodes /out/nodes; ln -s /proc/self/environ /out/env"),
    )
    end = await run(
        real_world, contained("a", steps=steps, outputs=(Delivered("/out", f"{folder}/o", directory=True),))
    )
    assert (end.reason, sorted(os.listdir(folder))) == ("PathRefused", [])
    assert "/proc" in end.message or str(real_world.root) in end.message


async def test_what_leads_into_the_system_at_the_end_is_not_written(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """The target's parent becomes a link to /etc while the task runs; `leave` does not follow it either."""
    target = tmp_path / "results"
    target.mkdir()
    steps = (sh(f"mkdir -p /out; echo x > /out/x; rm -r {target}; ln -s /etc {target}"),)
    outputs = (Delivered("/out/x", f"{target}/flowsched-test-y"),)
    what = contained("a", steps=steps, outputs=outputs, leave=(Left("/out/x", "left"),))
    end = await run(real_world, what)
    assert (end.reason, Path("/etc/flowsched-test-y").exists()) == ("PathRefused", False)


async def test_a_staged_input_may_be_handed_on(real_world: RealWorld, tmp_path: Path) -> None:
    """It lies in the root's cache, and is the task's all the same."""
    cluster, ear, _ = await real_world.open()
    await cluster.transfer([Transfer(real_world.outside, 7, "node-0")])
    await ear.transferred()
    what = contained(
        "a",
        "mkdir -p /out; ln -s /in/ref /out/same",
        inputs=(Placed("/in/ref", input="file-0"),),
        outputs=(Delivered("/out/same", f"{tmp_path}/same"),),
    )
    await cluster.launch(
        [pod("a", container=what.container, inputs=(InputFile("file-0", (real_world.outside,)),))]
    )
    end = await ear.ended("a")
    assert (end.reason, (tmp_path / "same").read_text()) == ("", "outside")


async def test_allowed_folders_bound_both_ways(
    real_world: RealWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs come from them, outputs go there, and nowhere else."""
    for name in ("data", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    origins = Origins(bounds=Bounds(str(real_world.root), [str(tmp_path / "data")]))
    monkeypatch.setattr(real_world, "options", {"origins": origins})
    script = "mkdir -p /out; cat /in/x > /out/y"
    good = contained(
        "a", script, inputs=(Placed("/in/x", source=f"{tmp_path}/data/x"),),
        outputs=(Delivered("/out/y", f"{tmp_path}/data/y"),),
    )  # fmt: skip
    assert (await run(real_world, good)).reason == ""
    assert (tmp_path / "data/y").read_text() == "data"
    bad = contained("b", script, inputs=(Placed("/in/x", source=f"{tmp_path}/other/x"),))
    end = await run(real_world, bad)
    assert (end.reason, "see --allow-paths" in end.message) == ("PathRefused", True)
