"""What a task finds in its container, and what its end is called: a real podman, a real Docker."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from flowsched.cluster.local.containers import mark_of
from flowsched.cluster.local.images import ContainerSettings
from flowsched.executor.protocol import InputFile, PodHeld, Transfer, UsedImage
from flowsched.workflow.spec import Delivered, Mount, Placed, Step
from tests.cluster import lives
from tests.containers.conftest import ContainerWorld, EngineOfTests
from tests.executors.executor_contract import OUTSIDE, contained, pod, reads, shell


async def test_a_task_sees_its_image_and_not_this_machine(container_world: ContainerWorld) -> None:
    """Programs, variables and files are the image's; the working folder and the inputs are where they are outside."""
    cluster, ear, _ = await container_world.open()
    await cluster.transfer([Transfer(container_world.outside, len(OUTSIDE), "node-0")])
    await ear.transferred()
    script = f"""
    test ! -e {container_world.root}/nodes/node-1 || exit 11
    test ! -e {Path(__file__)} || exit 12
    python -c 'import numpy' || exit 13
    test "$(cat "$FLOWSCHED_INPUT_DATA")" = outside || exit 14
    ! (echo x > "$FLOWSCHED_INPUT_DATA") 2>/dev/null || exit 15
    test "$PWD" = "$HOME" || exit 16
    case $PATH in */.venv/*) exit 17;; esac
    test "$LINES_OF" = "one
two" || exit 18
    echo said; echo told >&2
    """
    await cluster.launch([shell("a", script, env={"LINES_OF": "one\ntwo"}, **reads(container_world.outside))])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (0, ""), await cluster.logs("a", "stderr", 0, 1000)
    assert await cluster.logs("a", "stdout", 0, 100) == (b"said\n", False)
    assert await cluster.logs("a", "stderr", 0, 100) == (b"told\n", False)
    assert end.container is not None
    (image,) = end.container.images
    assert image.name == container_world.image
    assert re.fullmatch("sha256:[0-9a-f]{64}", image.digest)
    assert 0 < end.usage.cpu_ms < 60_000


async def test_steps_run_in_images_of_their_own(
    container_world: ContainerWorld, engine: EngineOfTests, tmp_path: Path
) -> None:
    """With files at paths of the container: inputs that are there, text, mounts, volumes, what is delivered and who owns it."""
    samtools = engine.load("samtools")
    given, shared = tmp_path / "given.txt", tmp_path / "shared"
    given.write_text("given\n")
    shared.mkdir()
    task = contained(
        "a",
        steps=(
            Step(("sh", "-c", "cat; samtools --version | head -1"), image=samtools, stdin="/in/given.txt", stdout="/out/first"),
            Step(("sh", "-c", "cat /out/first /etc/note; python --version; cp /in/given.txt /vol/x; pwd"), stdout="/out/second",
                 workdir="/work/here", image=container_world.image),
            Step(("sh", "-c", "cat /vol/x > /shared/third; ! touch /in/given.txt 2>/dev/null"), image=container_world.image),
        ),
        inputs=(Placed("/in/given.txt", source=str(given)), Placed("/etc/note", content="a note\n")),
        outputs=(Delivered("/out/first", f"{tmp_path}/first"), Delivered("/out/*", f"{tmp_path}/all", path_prefix="/out")),
        mounts=(Mount(str(shared), "/shared"),),
        volumes=("/vol",),
    )  # fmt: skip
    cluster, ear, _ = await container_world.open()
    await cluster.launch([task])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, end.message) == (0, "", ""), end
    assert (tmp_path / "first").read_text().startswith("given\nsamtools 1.")
    second = (tmp_path / "all" / "second").read_text().splitlines()
    assert second[0] == "given"
    assert second[2:] == ["a note", second[3], "/work/here"]
    assert second[3].startswith("Python 3")
    assert (shared / "third").read_text() == "given\n"
    for made in (tmp_path / "first", shared / "third"):
        assert made.stat().st_uid == os.geteuid()
    assert end.container is not None
    assert [image.name for image in end.container.images] == [samtools, container_world.image]


@pytest.mark.parametrize(
    ("command", "code", "reason", "said"),
    [
        (("no-such-program",), 127, "StartFailed", "no-such-program"),
        (("/etc/passwd",), 126, "StartFailed", "permission denied"),
        (("sh", "-c", "exit 127"), 127, "", ""),
        (("sh", "-c", "exit 125"), 125, "", ""),
        (("sh", "-c", "kill -9 $$"), 137, "", "killed by signal 9"),
    ],
)
async def test_exit_codes_are_the_programs_or_the_engines(
    container_world: ContainerWorld, command: tuple[str, ...], code: int, reason: str, said: str
) -> None:
    """An engine ends with 125 to 127 if it could not start the program; a program may end with them too."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([pod("a", *command)])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (code, reason)
    assert said.lower() in end.message.lower()


async def test_the_kernel_ends_what_uses_too_much_memory(container_world: ContainerWorld) -> None:
    """All of a task's processes together; the runtime says so. One that stays below lives."""
    cluster, ear, _ = await container_world.open()
    grow = "x = bytearray({} << 20); import time; time.sleep(0.7)"
    large = pod("a", "python", "-c", grow.format(400), memory_bytes=100 << 20)
    fits = pod("b", "python", "-c", grow.format(60), memory_bytes=100 << 20)
    await cluster.launch([large, fits])
    killed, lived = await ear.ended("a"), await ear.ended("b")
    assert (killed.exit_code, killed.reason) == (137, "OOMKilled")
    assert "may use 100 MiB" in killed.message
    assert (lived.exit_code, lived.reason) == (0, "")
    assert 60 << 20 <= lived.usage.max_rss_bytes < 100 << 20


async def test_the_kernel_bounds_the_processes_of_a_task(container_world: ContainerWorld) -> None:
    """With each engine alike. Docker bounds none by itself."""
    cluster, ear, _ = await container_world.open()
    groups = "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"
    read = f"import os; print(*(open(each).read() for each in {groups!r} if os.path.exists(each)))"
    await cluster.launch([pod("a", "python", "-c", read)])
    assert (await ear.ended("a")).exit_code == 0
    said, _ = await cluster.logs("a", "stdout", 0, 1000)
    assert said == b"16384\n\n"


async def test_a_task_that_is_released_leaves_nothing(
    container_world: ContainerWorld, engine: EngineOfTests
) -> None:
    """Also one that heeds no signal, with children that have sessions of their own."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", "trap '' TERM; setsid sleep 1000 & sleep 1000; wait")])
    await ear.started("a")
    await cluster.release(["a"], 300)
    assert (await ear.ended("a")).reason == "Released"
    await container_world.drop()
    assert not engine.names("label=flowsched.attempt=a", label_of(container_world))


async def test_a_runner_that_is_killed_takes_its_container_with_it(
    container_world: ContainerWorld, engine: EngineOfTests
) -> None:
    """The attempt is lost, and nothing of it goes on."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", "sleep 1000")])
    await ear.started("a")
    until(lambda: engine.names("status=running", label_of(container_world)))
    runner = lives.runner_of(container_world.attempt("a"))
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("RunnerLost", True)
    assert not engine.names("status=running", label_of(container_world))
    await container_world.drop()
    assert not engine.names(label_of(container_world))


async def test_a_service_that_starts_removes_what_the_last_one_left(
    container_world: ContainerWorld, engine: EngineOfTests
) -> None:
    """Containers of attempts that have ended, and none of another root."""
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", "exit 0")])
    await ear.ended("a")
    assert engine.names(label_of(container_world)), "the container was removed at once: this shows nothing"
    cluster._images._engine = None  # type: ignore[attr-defined]  # as if it were killed: it sweeps no more
    cluster._images._sweeping.cancel()  # type: ignore[attr-defined]
    cluster._images._left = False  # type: ignore[attr-defined]
    cluster._images._sweeping = None  # type: ignore[attr-defined]
    await container_world.drop()
    await container_world.open()
    await container_world.drop()
    assert not engine.names(label_of(container_world))


async def test_a_service_that_only_takes_up_a_task_removes_its_container(
    container_world: ContainerWorld, engine: EngineOfTests
) -> None:
    """It has started no container, so it has looked for no engine: the attempt ends, and its container goes."""
    cluster, ear, _ = await container_world.open()
    task = shell("a", "sleep 3")
    await cluster.launch([task])
    await ear.started("a")
    await container_world.drop()
    cluster, ear, _ = await container_world.open()
    await cluster.adopt([task])
    assert (await ear.ended("a")).exit_code == 0
    await container_world.drop()
    assert not engine.names(label_of(container_world))


async def test_no_network(container_world: ContainerWorld) -> None:
    """Where the user has said so there is a loopback and nothing else."""
    container_world.settings = ContainerSettings(container_world.settings.engine, network="none")
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", 'test "$(ls /sys/class/net)" = lo')])
    assert (await ear.ended("a")).exit_code == 0


async def test_without_an_engine_a_task_is_refused(container_world: ContainerWorld) -> None:
    """With what to do; a task that names no image runs."""
    container_world.settings = ContainerSettings("none")
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", "exit 0")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (126, "ImageRefused")
    for said in (container_world.image, "--containers none", "--images ignore"):
        assert said in end.message


async def test_an_image_that_is_ignored_is_named(container_world: ContainerWorld) -> None:
    """The task runs with this machine's programs, and its record says so."""
    container_world.settings = ContainerSettings(container_world.settings.engine, images="ignore")
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", f"test -e {Path(__file__)}", image="no/such:image")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (0, "")
    assert end.container is not None
    assert end.container.images == (UsedImage("no/such:image", ""),)


async def test_an_image_that_is_not_to_be_had(container_world: ContainerWorld) -> None:
    """The task is held while there is hope, and ends in the registry's words."""
    container_world.settings = ContainerSettings(container_world.settings.engine, pull_s=8)
    cluster, ear, _ = await container_world.open()
    await cluster.launch([shell("a", "exit 0", image="127.0.0.1:9/no/such:image")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (126, "ErrImagePull")
    assert "127.0.0.1:9" in end.message
    assert "refused" in end.message
    held = [event.reason for event in ear.heard if isinstance(event, PodHeld)]
    assert held[:2] == ["ImagePulling", "ErrImagePull"]


async def test_many_inputs_are_all_there(container_world: ContainerWorld, tmp_path: Path) -> None:
    """More than are mounted one by one."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number}.txt").write_text(f"{number}\n")
    inputs = tuple(Placed(f"/data/in/{n}.txt", source=f"{folder}/{n}.txt") for n in range(300))
    cluster, ear, _ = await container_world.open()
    task = contained(
        "a", "cat /data/in/*.txt | wc -l > /data/out/count", inputs=inputs,
        outputs=(Delivered("/data/out/count", f"{tmp_path}/count"),),
    )  # fmt: skip
    await cluster.launch([task])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert (tmp_path / "count").read_text().strip() == "300"


async def test_a_staged_input_of_a_container_task(container_world: ContainerWorld) -> None:
    """It is seen at the path that the task names, and cannot be written."""
    cluster, ear, _ = await container_world.open()
    await cluster.transfer([Transfer(container_world.outside, len(OUTSIDE), "node-0")])
    await ear.transferred()
    script = 'test "$(cat /data/x.txt)" = outside && ! (echo y > /data/x.txt) 2>/dev/null && touch /data/mine'
    task = contained("a", script, inputs=(Placed("/data/x.txt", input="x"),))
    import msgspec

    await cluster.launch(
        [msgspec.structs.replace(task, inputs=(InputFile("x", (container_world.outside,)),))]
    )
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, end.message) == (0, "", "")


def label_of(world: ContainerWorld) -> str:
    return f"label=flowsched.root={mark_of(world.root.resolve())}"


def until(seen: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not seen() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.05)
