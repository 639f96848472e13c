"""Container tasks that try to do harm: to their runner, to files that are read only, to what they deliver."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flowsched.executor.protocol import InputFile, Pod, PodEnded, PodGone, Transfer
from flowsched.workflow.spec import Delivered, Mount, Placed, Step
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained, pod

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def sh(script: str, **more: Any) -> Step:
    return Step(("/bin/sh", "-c", script), **more)


async def run(world: RealWorld, what: Pod, seconds: float = 90) -> PodEnded | PodGone:
    """How it ended; TimeoutError if it does not, after a release."""
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    try:
        return await asyncio.wait_for(ear.final("a"), seconds)
    finally:
        await cluster.release(["a"], 0)
        await world.drop()


async def test_a_pipe_as_the_file_of_a_stream_fails_the_step(real_world: RealWorld) -> None:
    """An earlier step can put anything at the path: the task has failed, not the machine."""
    steps = (sh("mkdir -p /out; mkfifo /out/log"), sh("echo hello", stdout="/out/log"))
    end = await run(real_world, contained("a", steps=steps))
    assert isinstance(end, PodEnded), end


async def test_a_pipe_without_a_writer_is_an_empty_stdin(real_world: RealWorld, tmp_path: Path) -> None:
    """Opening it would wait for whoever writes to it, for ever here, and no timeout would be heard of."""
    steps = (sh("mkdir -p /out; mkfifo /out/in"), sh("cat", stdin="/out/in"))
    what = contained("a", steps=steps, outputs=(Delivered("/out/x", f"{tmp_path}/x"),))
    end = await run(real_world, what)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (0, "")


async def test_a_link_in_a_circle_as_the_file_of_a_stream_fails_the_step(real_world: RealWorld) -> None:
    """As if the file could not be opened: it cannot."""
    steps = (sh("mkdir -p /out; ln -s log /out/log"), sh("echo hello", stdout="/out/log"))
    end = await run(real_world, contained("a", steps=steps, outputs=(Delivered("/out/x", "/nowhere/x"),)))
    assert isinstance(end, PodEnded), end
    assert end.reason == "StartFailed"


async def test_a_stream_does_not_write_to_an_input(real_world: RealWorld, tmp_path: Path) -> None:
    """Inputs are used in place and read only; so they are for the runner that writes what a step says."""
    (tmp_path / "ref").write_text("precious")
    given = (Placed("/in/ref", source=f"{tmp_path}/ref"),)
    await run(real_world, contained("a", steps=(sh("echo garbage", stdout="/in/ref"),), inputs=given))
    assert (tmp_path / "ref").read_text() == "precious"


async def test_a_stream_does_not_write_to_a_cached_dataset(real_world: RealWorld, tmp_path: Path) -> None:
    """A step makes a link where the next one's stdout shall go."""
    cluster, ear, _ = await real_world.open()
    await cluster.transfer([Transfer(real_world.outside, 7, "node-0")])
    await ear.transferred()
    steps = (sh("mkdir -p /out; ln -s /in/ref /out/log"), sh("echo garbage", stdout="/out/log"))
    what = contained(
        "a",
        steps=steps,
        inputs=(Placed("/in/ref", input="file-0"),),
        outputs=(Delivered("/out/log", f"{tmp_path}/log"),),
    )
    await cluster.launch(
        [pod("a", container=what.container, inputs=(InputFile("file-0", (real_world.outside,)),))]
    )
    await ear.final("a")
    cached = [path.read_text() for path in real_world.root.rglob("cache/*/outside.txt")]
    assert cached == ["outside"]


async def test_dev_null_stays_a_device(real_world: RealWorld) -> None:
    """A TES executor may say "stdout": "/dev/null", and its program goes on to use it."""
    await run(
        real_world, contained("a", steps=(sh("test -c /dev/null && echo device >&2", stdout="/dev/null"),))
    )
    assert (real_world.attempt("a") / "stderr").read_text() == "device\n"


IN_READ_ONLY: dict[str, dict[str, Any]] = {
    "input": {"inputs": (Placed("/ro/in/x", source=__file__),)},
    "text": {"inputs": (Placed("/ro/text", content="t"),)},
    "output": {"outputs": (Delivered("/ro/out/x", "/nowhere/x"),)},
}


@pytest.mark.parametrize("more", IN_READ_ONLY.values(), ids=IN_READ_ONLY)
async def test_nothing_is_made_in_a_read_only_mount(
    real_world: RealWorld, tmp_path: Path, more: dict[str, Any]
) -> None:
    """Neither an input nor a folder to write into: it is refused, and what to do is said."""
    folder = tmp_path / "folder"
    folder.mkdir()
    end = await run(real_world, contained("a", "true", mounts=(Mount(str(folder), "/ro", True),), **more))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (126, "ContainerPathsRefused")
    assert "mounted read-only at /ro: mount it for writing" in end.message
    assert os.listdir(folder) == []


async def test_an_input_may_cover_a_file_of_a_read_only_mount(real_world: RealWorld, tmp_path: Path) -> None:
    """Nothing has to be made for it."""
    (tmp_path / "ref").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "in").write_text("covered")
    inputs = (Placed("/ro/in", source=f"{tmp_path}/ref"),)
    what = contained("a", "test $(cat /ro/in) = x", mounts=(Mount(str(folder), "/ro", True),), inputs=inputs)
    end = await run(real_world, what)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (0, "")
    assert (folder / "in").read_text() == "covered"


async def test_what_is_in_place_is_told_also_where_other_paths_are_mapped(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """A file and a folder whose paths are the same inside and outside, beside an input that is mapped."""
    here = tmp_path / "here"
    here.mkdir()
    script = f"echo 1 > {here}/rc; mkdir -p {here}/glob; echo 22 > {here}/glob/a"
    outputs = (
        Delivered(f"{here}/rc", f"{here}/rc"),
        Delivered(f"{here}/glob", f"{here}/glob", directory=True),
    )
    inputs = (Placed("/elsewhere/x", content="t"),)
    end = await run(real_world, contained("a", script, inputs=inputs, outputs=outputs))
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert [(each.path, each.uri, each.size_bytes) for each in end.container.outputs] == [
        (f"{here}/rc", f"{here}/rc", 2),
        (f"{here}/glob/a", f"{here}/glob/a", 3),
    ]


async def test_a_link_in_a_circle_is_a_missing_output(real_world: RealWorld, tmp_path: Path) -> None:
    """What is beside it is delivered."""
    script = "mkdir -p /out; echo 1 > /out/a.txt; ln -s b.txt /out/b.txt; ln -s nowhere /out/c.txt"
    outputs = (Delivered("/out/*.txt", f"{tmp_path}/d", path_prefix="/out"),)
    end = await run(real_world, contained("a", script, outputs=outputs))
    assert end.reason == ""
    assert os.listdir(tmp_path / "d") == ["a.txt"]


async def test_links_to_the_machine_deliver_nothing_of_it(real_world: RealWorld, tmp_path: Path) -> None:
    """A folder with links to / and /proc is not the whole machine."""
    script = "mkdir -p /out/d; ln -s / /out/d/root; ln -s /proc /out/d/proc; echo 1 > /out/d/one"
    outputs = (Delivered("/out/d", f"{tmp_path}/d", directory=True),)
    end = await run(real_world, contained("a", script, outputs=outputs))
    assert end.reason == ""
    found = sorted(str(path.relative_to(tmp_path / "d")) for path in (tmp_path / "d").rglob("*"))
    assert "one" in found
    assert not [name for name in found if name.startswith(("root/etc", "root/proc", "proc/self"))]


async def test_a_process_that_flees_is_caught(real_world: RealWorld, tmp_path: Path) -> None:
    """It forks, leaves its session and ends, over and over: its heartbeat stops with the step."""
    flee = (
        "import os, sys\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()\n"
        " open(sys.argv[1], 'a').write('x')\n"
    )
    beat = tmp_path / "beat"
    beat.touch()
    script = '"$0" -S -E -c "$1" "$2" & until [ -s "$2" ]; do sleep 0.1; done; sleep 0.3'
    step = Step(("/bin/sh", "-c", script, sys.executable, flee, str(beat)))
    mounts = (Mount(str(tmp_path), str(tmp_path)),)
    await run(real_world, contained("a", steps=(step,), mounts=mounts))
    size = beat.stat().st_size
    await asyncio.sleep(0.5)
    assert size > 0
    assert beat.stat().st_size == size


@pytest.mark.parametrize("path", ["/", "/bin/sh", "/" + "n" * 300])
async def test_inputs_at_impossible_places_fail_the_start(
    real_world: RealWorld, tmp_path: Path, path: str
) -> None:
    """The attempt ends with a reason, and says nothing of the runner."""
    (tmp_path / "ref").write_text("x")
    end = await run(real_world, contained("a", "true", inputs=(Placed(path, source=f"{tmp_path}/ref"),)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (126, "StartFailed")


@pytest.mark.parametrize("path", ["/dev/x", "/sys/y", "/etc/z"])
async def test_inputs_may_lie_beside_what_the_system_has(
    real_world: RealWorld, tmp_path: Path, path: str
) -> None:
    """Devices and processes stay visible around them."""
    (tmp_path / "ref").write_text("x")
    script = f"test -c /dev/null && test -e /proc/self/stat && cat {path}"
    end = await run(real_world, contained("a", script, inputs=(Placed(path, source=f"{tmp_path}/ref"),)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, (real_world.attempt("a") / "stdout").read_text()) == (0, "x")
