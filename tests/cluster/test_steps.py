"""Container tasks on this machine: what steps see, what they leave, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import flowsched
from flowsched.cluster.local.runner.outputs import Refused
from flowsched.cluster.local.runner.places import Places, plan
from flowsched.cluster.local.runner.steps import Appended
from flowsched.cluster.local.runner.task import Task
from flowsched.executor.protocol import (
    ContainerReport,
    DeliveredFile,
    InputFile,
    Pod,
    PodEnded,
    Transfer,
)
from flowsched.workflow.spec import Delivered, Left, Mount, Placed, Step
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained, eventually, pod, said

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def sh(script: str, *arguments: str, **more: Any) -> Step:
    """A step that is a shell script."""
    return Step(("/bin/sh", "-c", script, *arguments), **more)


async def run(world: RealWorld, what: Pod) -> PodEnded:
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    end = await ear.ended(what.name)
    await world.drop()
    return end


def log(world: RealWorld, stream: str = "stdout", name: str = "a") -> str:
    return (world.attempt(name) / stream).read_text()


def tree(folder: Path) -> dict[str, str]:
    """The files of a folder, by their relative paths."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


async def test_steps_run_in_order_on_the_same_files(real_world: RealWorld, tmp_path: Path) -> None:
    """Each sees what the one before it wrote, and the result is in place when the end is told."""
    steps = (sh("echo one > /out/text"), sh("echo two >> /out/text"), sh("cat /out/text > /out/all"))
    outputs = (Delivered("/out/all", f"{tmp_path}/results/all"),)
    end = await run(real_world, contained("a", steps=steps, outputs=outputs))
    assert (end.exit_code, end.reason, end.message) == (0, "", "")
    assert tree(tmp_path / "results") == {"all": "one\ntwo\n"}
    assert end.container is not None
    assert end.container.outputs == (DeliveredFile("/out/all", f"{tmp_path}/results/all", 8),)


async def test_inputs_are_where_the_container_wants_them(real_world: RealWorld, tmp_path: Path) -> None:
    """Files and folders of this machine used in place and read-only, datasets of the cache, and given text."""
    folder = tmp_path / "reference"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/x").write_text("x")
    (tmp_path / "plain.txt").write_text("plain")
    cluster, ear, _ = await real_world.open()
    await cluster.transfer([Transfer(real_world.outside, 7, "node-0")])
    await ear.transferred()
    placed = (
        Placed("/data in/plain.txt", source=f"{tmp_path}/plain.txt"),
        Placed("/ref", source=str(folder), directory=True),
        Placed("/data in/staged", input="file-2"),
        Placed("/data in/text", content="grüße\r\n\n"),
    )
    script = "cd '/data in'; cat plain.txt /ref/deep/x staged text; for f in plain.txt /ref/new staged; do echo > $f; done"
    what = contained("a", script, "true", inputs=placed)
    what = pod("a", container=what.container, inputs=(InputFile("file-2", (real_world.outside,)),))
    await cluster.launch([what])
    end = await ear.ended("a")
    assert (
        world_log := (real_world.attempt("a") / "stdout").read_bytes()
    ) == "plainxoutsidegrüße\r\n\n".encode()
    assert log(real_world, "stderr").count("Read-only file system") == 3, world_log
    assert (end.exit_code, (tmp_path / "plain.txt").read_text()) == (2, "plain")
    assert sorted(os.listdir(folder)) == ["deep"]


async def test_what_the_host_has_stays_visible(real_world: RealWorld, tmp_path: Path) -> None:
    """Programs come from it, also where a folder of it holds one of the task's own files."""
    placed = (Placed("/etc/of-the-task", content="mine\n"),)
    end = await run(
        real_world,
        contained("a", "ls /etc/hosts /usr/bin/env; cat /etc/of-the-task; ls /proc/self/exe", inputs=placed),
    )
    assert end.exit_code == 0
    assert log(real_world) == "/etc/hosts\n/usr/bin/env\nmine\n/proc/self/exe\n"
    assert not Path("/etc/of-the-task").exists()


def planned(folder: Path, most: int, *outputs: str) -> Places:
    """The places of a container whose outputs go elsewhere."""
    delivered = [
        {"path": path, "local": f"{folder}/r", "directory": False, "prefix": None} for path in outputs
    ]
    empty: dict[str, Any] = {key: [] for key in ("inputs", "steps", "mounts", "volumes", "leave")}
    return plan(f"{folder}/room", f"{folder}/work", {**empty, "outputs": delivered}, most)


def test_a_folder_with_very_many_entries(tmp_path: Path) -> None:
    """It is refused, with its name and what to do; but for the folders of temporary files, of which nothing is shown then."""
    (tmp_path / "full").mkdir()
    for number in range(5000):
        (tmp_path / f"full/{number}").touch()
    assert len(planned(tmp_path, 5000, f"{tmp_path}/full/out").nodes[f"{tmp_path}/full"].shown) == 5000
    with pytest.raises(Refused) as refusal:
        planned(tmp_path, 4999, f"{tmp_path}/full/out")
    assert refusal.value.args[0] == "ContainerPathsRefused"
    assert refusal.value.args[1].startswith(f"{tmp_path}/full has 5000 entries on this machine")
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(tempfile.NamedTemporaryFile(dir="/tmp"))
        nodes = planned(tmp_path, 99, "/tmp/out").nodes
    assert nodes["/tmp"].shown == frozenset()
    assert nodes[f"{tmp_path}/work"].whole  # which steps see in any case,
    assert nodes[str(tmp_path)].shown == frozenset()  # and nothing on the way to it


async def test_two_attempts_with_the_same_paths_do_not_meet(real_world: RealWorld, tmp_path: Path) -> None:
    """Both write /out/x and a new file in /tmp at the same time, and each finds its own."""
    script = "echo $NAME > /out/x; echo $NAME > /tmp/flowsched-both; sleep 0.3; cat /out/x /tmp/flowsched-both > /out/y"
    cluster, ear, _ = await real_world.open()
    pods = []
    for number, name in enumerate(("a", "b")):
        outputs = (
            Delivered("/out/y", f"{tmp_path}/{name}-y"),
            Delivered("/tmp/flowsched-both", f"{tmp_path}/{name}-both"),
        )
        pods.append(contained(name, script, outputs=outputs, env={"NAME": name}, index=number))
    await cluster.launch(pods)
    for name in ("a", "b"):
        assert (await ear.ended(name)).exit_code == 0
        assert (tmp_path / f"{name}-y").read_text() == f"{name}\n{name}\n"
        assert (tmp_path / f"{name}-both").read_text() == f"{name}\n"
    assert not Path("/tmp/flowsched-both").exists()


def test_the_end_of_an_attempts_process_shows_before_it_is_reaped(tmp_path: Path) -> None:
    """The runner listens to it no longer then: a pipe whose other end is closed is always ready."""
    program = (
        "import os, socket; from runner.shim import Apart\n"
        f"apart = Apart({{'name': 'a', 'folder': {str(tmp_path)!r}, 'container': {{}}}}, [], socket.socket())\n"
        "before = apart.is_shut; os.waitid(os.P_PID, apart.pid, os.WEXITED | os.WNOWAIT)\n"
        "print(before, apart.records(), apart.is_shut)"
    )
    folder = Path(flowsched.__file__).parent / "cluster/local"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "False [] True\n", done.stderr


async def test_a_step_that_may_fail(real_world: RealWorld) -> None:
    """The next one runs; the last one's failure counts for nothing either, but its code is told."""
    steps = (
        sh("exit 4", ignore_error=True),
        Step(("/no/such",), ignore_error=True),
        sh("echo on"),
        sh("exit 5", ignore_error=True),
    )
    end = await run(real_world, contained("a", steps=steps))
    assert (end.exit_code, end.reason, log(real_world)) == (0, "", "on\n")
    assert end.container is not None
    assert [step.exit_code for step in end.container.steps] == [4, 127, 0, 5]


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_step_that_fails(real_world: RealWorld, tmp_path: Path, is_last: bool) -> None:
    """Its code is the attempt's; its streams are delivered, and its files, unless another attempt follows that writes them."""
    steps = (
        sh(
            "echo partial > /out/result; echo said; echo why >&2; exit 9",
            stdout="/out/said",
            stderr="/out/why",
        ),
        sh("echo never"),
    )
    outputs = tuple(Delivered(f"/out/{name}", f"{tmp_path}/{name}") for name in ("result", "said", "why"))
    end = await run(real_world, contained("a", steps=steps, outputs=outputs, is_last=is_last))
    assert (end.exit_code, end.reason, end.message) == (9, "", "step 1 of 2 ended with exit code 9")
    assert end.container is not None
    (step,) = end.container.steps
    assert (step.exit_code, step.stdout, step.stderr) == (9, "said\n", "why\n")
    result = {"result": "partial\n"} if is_last else {}
    assert [file.path for file in end.container.outputs] == [
        *(f"/out/{name}" for name in result),
        "/out/said",
        "/out/why",
    ]
    found = {
        path.name: path.read_text() for path in tmp_path.iterdir() if path.name in ("result", "said", "why")
    }
    assert found == {**result, "said": "said\n", "why": "why\n"}


async def test_an_output_of_a_failed_task_that_cannot_come_back_is_a_warning(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """The failure of its own stays the reason, and the outputs after that one come."""
    (tmp_path / "file").touch()
    outputs = tuple(Delivered(f"/out/{to[-1]}", f"{tmp_path}/{to}") for to in ("a", "file/b", "c"))
    end = await run(real_world, contained("a", "echo | tee /out/a /out/b /out/c; exit 3", outputs=outputs))
    assert (end.exit_code, end.reason) == (3, "")
    assert end.message.startswith("not all outputs came back: cannot deliver: ")
    assert f"{tmp_path}/file" in end.message
    assert end.container is not None
    assert [file.path for file in end.container.outputs] == ["/out/a", "/out/c"]


async def test_a_program_that_is_not_there(real_world: RealWorld) -> None:
    """127, and the report says it too."""
    end = await run(real_world, contained("a", steps=(Step(("no-such-program",)),)))
    assert (end.exit_code, end.reason) == (127, "StartFailed")
    assert "'no-such-program'" in end.message
    assert end.container is not None
    assert [step.exit_code for step in end.container.steps] == [127]


async def test_what_a_step_says_cannot_be_written(real_world: RealWorld) -> None:
    """A full disk: the step is not held up, and the attempt fails for it."""
    steps = (sh("echo lost; echo on >&2", stdout="/dev/full"),)
    end = await run(real_world, contained("a", steps=steps))
    assert (end.exit_code, end.reason) == (0, "OutputFailed")
    assert end.message == "cannot write what the step said: No space left on device"
    assert log(real_world, "stderr") == "on\n"


def test_a_child_that_refuses_before_it_is_told_to_go(tmp_path: Path) -> None:
    """Its reason is heard; that nobody listens for the go any more is no error of the runner's."""

    class Refusing(Task):
        def settle(self) -> None:
            raise Refused("Because", "of the test")

        def forked(self) -> None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    (tmp_path / "work").mkdir()
    order: dict[str, object] = {
        "name": "a",
        "timeout_ms": 0,
        "env": {"PATH": "/usr/bin:/bin"},
        "argv": ["true"],
        "mark": 1 << 60,
    }
    task = Refusing(str(tmp_path), order, lambda _: None)
    with pytest.raises(Refused, match="of the test"):
        task.start()
    os.waitpid(task.pid, 0)


async def test_streams_are_files_and_logs(real_world: RealWorld, tmp_path: Path) -> None:
    """Standard output is added to its file by each step, and is in the attempt's log; input comes from a file."""
    placed = (Placed("/in/words", content="words\n"),)
    steps = (
        sh("cat", stdin="/in/words", stdout="/o/out"),
        sh("echo more; echo wrong >&2", stdout="/o/out", stderr="/o/out"),
        sh("echo unnamed"),
    )
    outputs = (Delivered("/o/out", f"{tmp_path}/out"),)
    end = await run(real_world, contained("a", steps=steps, inputs=placed, outputs=outputs))
    assert end.exit_code == 0
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["more", "words", "wrong"]
    assert (log(real_world), log(real_world, "stderr")) == ("words\nmore\nunnamed\n", "wrong\n")
    assert end.container is not None
    assert [(s.stdout, s.stderr) for s in end.container.steps] == [
        ("words\n", ""),
        ("more\n", "wrong\n"),
        ("unnamed\n", ""),
    ]


async def test_an_attempt_empties_the_file_of_a_stream_when_its_first_step_opens_it(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """What an earlier attempt wrote there is not this one's; what an earlier step wrote is."""
    said = tmp_path / "said"
    said.write_text("of an attempt before\n")
    outputs = (Delivered(str(said), str(said)),)
    steps = (sh("echo one", stdout=str(said)), sh("echo two >&2", stderr=str(said)))
    end = await run(real_world, contained("a", steps=steps, outputs=outputs))
    assert (end.exit_code, said.read_text()) == (0, "one\ntwo\n")


async def test_four_runs_of_one_folder_leave_the_lines_of_one(real_world: RealWorld, tmp_path: Path) -> None:
    """Cromwell sends a call again whose id it has lost: its script tees into the files that are asked of us each time."""
    said = tmp_path / "stdout"
    script = f"i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done | tee '{said}'"
    outputs = (Delivered(str(said), str(said)),)
    counts = []
    for name in ("a1", "a2", "a3", "a4"):
        end = await run(real_world, contained(name, steps=(sh(script, stdout=str(said)),), outputs=outputs))
        counts.append((end.exit_code, len(said.read_text().splitlines())))
    assert counts == [(0, 1000)] * 4


def test_a_file_that_its_program_empties_and_fills_again_has_each_byte_once(tmp_path: Path) -> None:
    """It is as long as before when we look again, so its size tells nothing."""
    path = tmp_path / "f"
    ours = Appended(str(path), fresh=True)
    ours.write(b"before the tee\n")
    with open(path, "wb") as program:
        program.write(b"line 1 of it\nline 2\n")
    ours.write(b"line 1 of it\nline 2\nline 3\n")
    ours.close()
    assert path.read_bytes() == b"line 1 of it\nline 2\nline 3\n"


async def test_a_program_that_tees_into_the_file_that_is_asked_of_us(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """As Cromwell's script does: the file has everything once, though it is written twice and truncated between."""
    said = tmp_path / "stdout"
    said.write_text("of an earlier attempt, longer than what comes\n" * 3)
    script = f"for i in 1 2 3 4 5; do echo line $i; sleep 0.02; done | tee '{said}'"
    outputs = (Delivered(str(said), str(said)),)
    end = await run(real_world, contained("a", steps=(sh(script, stdout=str(said)),), outputs=outputs))
    assert end.exit_code == 0
    assert said.read_text() == "line 1\nline 2\nline 3\nline 4\nline 5\n"
    assert log(real_world) == "line 1\nline 2\nline 3\nline 4\nline 5\n"


async def test_a_program_that_adds_to_the_file_that_is_asked_of_us(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """Nothing of either is lost or overwritten."""
    script = "for i in 1 2 3; do echo said $i; echo own $i >> /o/f; sleep 0.05; done"
    outputs = (Delivered("/o/f", f"{tmp_path}/f"),)
    await run(real_world, contained("a", steps=(sh(script, stdout="/o/f"),), outputs=outputs))
    lines = (tmp_path / "f").read_text().splitlines()
    assert sorted(lines) == ["own 1", "own 2", "own 3", "said 1", "said 2", "said 3"]


async def test_much_output(real_world: RealWorld, tmp_path: Path) -> None:
    """Eight megabytes come through whole; of the report there are the last ten KiB, of whatever bytes."""
    script = "import sys; sys.stdout.buffer.write(b'x' * (8 << 20) + b'\\xff\\xfe end')"
    outputs = (Delivered("/o/f", f"{tmp_path}/f"),)
    end = await run(
        real_world,
        contained("a", steps=(Step((sys.executable, "-c", script), stdout="/o/f"),), outputs=outputs),
    )
    assert (tmp_path / "f").stat().st_size == (8 << 20) + 6
    assert end.container is not None
    said = end.container.steps[0].stdout
    assert (len(said), said[-6:]) == (10 << 10, "\ufffd\ufffd end")


async def test_the_environment_and_folder_of_a_step(real_world: RealWorld) -> None:
    """The task's variables, over them the step's; the folder is made; nothing in a command is rewritten."""
    steps = (
        sh(
            'echo "$A $B $PWD $(pwd)"; echo "$1" "$2"',
            "sh",
            "$(HOME)",
            "a 'b\" c\n$d",
            env={"B": "of the step"},
            workdir="/w d/x",
        ),
        sh('echo "$A $B"; pwd'),
    )
    end = await run(real_world, contained("a", steps=steps, env={"A": "of the task", "B": "b"}))
    assert end.exit_code == 0
    work = real_world.attempt("a") / "work"
    assert log(real_world) == (
        f"of the task of the step /w d/x /w d/x\n$(HOME) a 'b\" c\n$d\nof the task b\n{work}\n"
    )


async def test_no_variable_of_a_step_is_left_on_the_disk(real_world: RealWorld, tmp_path: Path) -> None:
    """As with any task: they may be secrets."""
    steps = (sh("exit 1", env={"TOKEN": "canary-4471"}),)
    await run(real_world, contained("a", steps=steps, outputs=(Delivered("/o/f", f"{tmp_path}/f"),)))
    files = [
        path
        for path in real_world.attempt("a").rglob("*")
        if path.is_file() and "container" not in path.parts
    ]
    assert not [path for path in files if b"canary-4471" in path.read_bytes()]


async def test_wildcards_take_what_fits(real_world: RealWorld, tmp_path: Path) -> None:
    """Each match to the uri and its path without the prefix; hidden files, and what the host has there, do not fit."""
    script = (
        "mkdir -p /out/s/d /out/t; for f in s/1.txt s/2.dat t/3.txt s/.4.txt s/d/5.txt; do echo $f > /out/$f; done; "
        "echo > /etc/mine.conf"
    )
    outputs = (
        Delivered("/out/*/?.txt", f"{tmp_path}/r", path_prefix="/out"),
        Delivered("/out/[s]/*.dat", f"{tmp_path}/q/", path_prefix="/out/s"),
        Delivered("/etc/*.conf", f"{tmp_path}/etc", path_prefix="/etc"),
        Delivered("/out/none*", f"{tmp_path}/none", path_prefix="/out"),
    )
    end = await run(real_world, contained("a", script, outputs=outputs))
    assert (end.exit_code, end.message) == (0, "")
    assert tree(tmp_path / "r") == {"s/1.txt": "s/1.txt\n", "t/3.txt": "t/3.txt\n"}
    assert tree(tmp_path / "q") == {"2.dat": "s/2.dat\n"}
    assert tree(tmp_path / "etc") == {"mine.conf": "\n"}
    assert not (tmp_path / "none").exists()


async def test_wildcards_as_engines_send_them(real_world: RealWorld, tmp_path: Path) -> None:
    """Braces choose, `**` goes through folders and takes files alone; each file comes once."""
    script = (
        "mkdir -p d/e .h; for f in a.bam a.bai a.txt d/b.txt d/e/c.txt d/.c.txt .h/d.txt f1 f2 f3; do echo $f > $f; done; "
        "ln -s . d/loop; echo 'x{1,2}' > 'x{1,2}'; echo > /work/x1"
    )
    outputs = (
        Delivered("/work/*.{bam,bai,bam}", f"{tmp_path}/braces", path_prefix="/work"),
        Delivered("/work/**.txt", f"{tmp_path}/all", path_prefix="/work"),
        Delivered("/work/d/**/*.txt", f"{tmp_path}/below", path_prefix="/work"),
        Delivered("/work/f[12]", f"{tmp_path}/class", path_prefix="/work"),
        Delivered("/work/x{1,2}", f"{tmp_path}/literal"),
    )
    end = await run(real_world, contained("a", steps=(sh(script, workdir="/work"),), outputs=outputs))
    assert (end.exit_code, end.message) == (0, "")
    assert sorted(tree(tmp_path / "braces")) == ["a.bai", "a.bam"]
    assert sorted(tree(tmp_path / "all")) == ["a.txt", "d/b.txt", "d/e/c.txt"]
    assert sorted(tree(tmp_path / "below")) == ["d/b.txt", "d/e/c.txt"]
    assert sorted(tree(tmp_path / "class")) == ["f1", "f2"]
    assert (tmp_path / "literal").read_text() == "x{1,2}\n"


async def test_a_program_makes_the_folders_of_its_outputs_in_its_workdir(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """As Nextflow's scripts do; a folder elsewhere is there from the start."""
    script = "mkdir out deep deep/er && echo x > out/x && echo y > deep/er/y && echo z > /elsewhere/z"
    outputs = (
        Delivered("/work/out/*", f"{tmp_path}/r", path_prefix="/work"),
        Delivered("/work/deep", f"{tmp_path}/deep", directory=True),
        Delivered("/elsewhere/z", f"{tmp_path}/z"),
    )
    end = await run(real_world, contained("a", steps=(sh(script, workdir="/work"),), outputs=outputs))
    assert (end.exit_code, log(real_world, "stderr")) == (0, "")
    assert tree(tmp_path / "r") == {"out/x": "x\n"}
    assert tree(tmp_path / "deep") == {"er/y": "y\n"}
    assert (tmp_path / "z").read_text() == "z\n"


async def test_folders_come_and_go(real_world: RealWorld, tmp_path: Path) -> None:
    """A folder output is there from the start, arrives whole with links followed, and each file is listed."""
    script = (
        "mkdir -p /out/a/empty; echo 1 > /out/a/1; ln -s 1 /out/a/link; ln -s /out/a /out/b; ln -s .. /out/a/up; "
        "ln -s /nowhere /out/dangling; ln -s circle /out/circle; mkfifo /out/pipe; cat /in/hosts > /out/in"
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in/hosts").write_text("h\n")
    placed = (Placed("/in", source=f"{tmp_path}/in", directory=True),)
    outputs = (
        Delivered("/out/", f"{tmp_path}/r/", directory=True),
        Delivered("/in", f"{tmp_path}/copied", directory=True),
    )
    end = await run(real_world, contained("a", script, inputs=placed, outputs=outputs))
    assert (end.exit_code, end.message) == (0, "")
    assert tree(tmp_path / "r") == {"a/1": "1\n", "a/link": "1\n", "b/1": "1\n", "b/link": "1\n", "in": "h\n"}
    assert (tmp_path / "r/a/empty").is_dir()
    assert tree(tmp_path / "copied") == {"hosts": "h\n"}
    assert end.container is not None
    listed = [
        (file.path, file.uri.removeprefix(str(tmp_path)), file.size_bytes) for file in end.container.outputs
    ]
    assert listed[:2] == [("/out/a/1", "/r/a/1", 2), ("/out/a/link", "/r/a/link", 2)]
    assert len(listed) == 6


async def test_a_folder_goes_into_one_that_is_there(real_world: RealWorld, tmp_path: Path) -> None:
    """File by file; what else is there stays."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r/old").write_text("old")
    (tmp_path / "r/new").write_text("stale")
    outputs = (Delivered("/out", f"{tmp_path}/r", directory=True),)
    await run(real_world, contained("a", "echo fresh > /out/new", outputs=outputs))
    assert tree(tmp_path / "r") == {"new": "fresh\n", "old": "old"}


async def test_one_file_to_two_places_is_two_files(real_world: RealWorld, tmp_path: Path) -> None:
    """Who changes one does not change the other, nor an input that the task linked."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_text("input")
    mounts = (Mount(f"{tmp_path}/in", "/in"),)
    script = "echo x > /out/x; ln /in/x /in/y"
    outputs = (
        Delivered("/out/x", f"{tmp_path}/1"),
        Delivered("/out/x", f"{tmp_path}/2"),
        Delivered("/in/y", f"{tmp_path}/3"),
    )
    end = await run(real_world, contained("a", script, outputs=outputs, mounts=mounts))
    assert end.exit_code == 0
    files = [tmp_path / "1", tmp_path / "2", tmp_path / "3", tmp_path / "in/x"]
    assert [file.read_text() for file in files] == ["x\n", "x\n", "input", "input"]
    assert len({file.stat().st_ino for file in files}) == 4


async def test_an_output_that_was_not_written_is_no_error(real_world: RealWorld, tmp_path: Path) -> None:
    """Also where this machine happens to have something at its path: that is never delivered."""
    outputs = (Delivered("/out/x", f"{tmp_path}/x"), Delivered("/etc/hostname", f"{tmp_path}/hostname"))
    end = await run(
        real_world,
        contained("a", "ls /etc/hostname", "true", outputs=outputs, steps=(sh("ls /etc/hostname; true"),)),
    )
    assert (end.exit_code, end.reason) == (0, "")
    assert end.container is not None
    assert end.container.outputs == ()
    assert not list(tmp_path.glob("*hostname"))
    assert "No such file" in log(real_world, "stderr")


async def test_an_output_that_cannot_be_delivered(real_world: RealWorld, tmp_path: Path) -> None:
    """The attempt fails, and says where."""
    (tmp_path / "file").write_text("")
    end = await run(
        real_world, contained("a", "echo > /out/x", outputs=(Delivered("/out/x", f"{tmp_path}/file/x"),))
    )
    assert (end.exit_code, end.reason) == (0, "OutputFailed")
    assert f"{tmp_path}/file" in end.message


async def test_an_input_that_is_not_there(real_world: RealWorld, tmp_path: Path) -> None:
    """No step runs; the reason names the path and the uri."""
    placed = (Placed("/in/x", source=f"{tmp_path}/no/such"),)
    end = await run(real_world, contained("a", "echo ran", inputs=placed))
    assert (end.exit_code, end.reason) == (126, "InputMissing")
    assert f"{tmp_path}/no/such, an input for /in/x, is not there" in end.message
    printed = real_world.attempt("a") / "stdout"
    assert (
        not printed.exists() or printed.read_text() == ""
    )  # an empty log is there until the attempt is packed


async def test_the_same_paths_inside_and_outside_need_no_namespace(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """Cromwell with root == dockerRoot: everything is used and written in place."""
    call = tmp_path / "call-x" / "execution"
    call.mkdir(parents=True)
    (call / "script").write_text(f"readlink /proc/self/ns/mnt; echo 0 > {call}/rc")
    placed = (Placed(f"{call}/script", source=f"{call}/script"),)
    outputs = tuple(
        Delivered(f"{call}/{name}", f"{call}/{name}") for name in ("rc", "stdout", "stderr", "script", "gone")
    )
    steps = (Step(("/bin/sh", f"{call}/script"), stdout=f"{call}/stdout", stderr=f"{call}/stderr"),)
    end = await run(real_world, contained("a", steps=steps, inputs=placed, outputs=outputs))
    assert (end.exit_code, end.reason) == (0, "")
    assert (call / "stdout").read_text() == os.readlink("/proc/self/ns/mnt") + "\n"
    assert (call / "rc").read_text() == "0\n"
    assert not (real_world.attempt("a") / "container").exists()
    assert end.container is not None
    assert [file.path.rpartition("/")[2] for file in end.container.outputs] == [
        "rc",
        "stdout",
        "stderr",
        "script",
    ]


#: As Cromwell's TES backend writes it, shortened: streams are teed into the files that are asked of us, rc comes by a rename.
CROMWELL_SCRIPT = """#!/bin/bash
cd {call}/execution
tmpDir=$(mkdir -p "{call}/tmp.1" && echo "{call}/tmp.1")
outx="$tmpDir/out.$$" errx="$tmpDir/err.$$"
mkfifo "$outx" "$errx"
trap 'rm "$outx" "$errx"' EXIT
touch {call}/execution/stdout {call}/execution/stderr
tee '{call}/execution/stdout' < "$outx" &
tee '{call}/execution/stderr' < "$errx" >&2 &
(
cat {call}/inputs/data/reads.txt; echo oops >&2; echo 1 > part.1; echo 2 > part.2
) > "$outx" 2> "$errx"
echo $? > {call}/execution/rc.tmp
mkdir {call}/execution/glob-0 2> /dev/null
ln -L part.* {call}/execution/glob-0
ls -1 {call}/execution/glob-0 > {call}/execution/glob-0.list
wait
mv {call}/execution/rc.tmp {call}/execution/rc
"""


async def test_a_call_of_cromwell_with_a_docker_root_of_its_own(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """Everything is where Cromwell looks for it once the end is told, and each stream is there once."""
    (tmp_path / "reads.txt").write_text("".join(f"read {number}\n" for number in range(5000)))
    host, call = tmp_path / "wf/call-x/execution", "/cromwell-executions/wf/call-x"
    host.mkdir(parents=True)
    (host / "script").write_text(CROMWELL_SCRIPT.format(call=call))
    placed = (
        Placed(f"{call}/execution/script", source=f"{host}/script"),
        Placed(f"{call}/inputs/data/reads.txt", source=f"{tmp_path}/reads.txt"),
    )
    names = ("rc", "stdout", "stderr", "script", "glob-0.list", "absent")
    outputs = (
        *(Delivered(f"{call}/execution/{name}", f"{host}/{name}") for name in names),
        Delivered(f"{call}/execution/glob-0/", f"{host}/glob-0/", directory=True),
    )
    command = ("/bin/bash", f"{call}/execution/script")
    steps = (Step(command, stdout=f"{call}/execution/stdout", stderr=f"{call}/execution/stderr"),)
    end = await run(real_world, contained("a", steps=steps, inputs=placed, outputs=outputs))
    assert (end.exit_code, end.reason) == (0, "")
    found = tree(host)
    assert found.pop("script").startswith("#!/bin/bash")
    assert found.pop("stdout") == (tmp_path / "reads.txt").read_text() == log(real_world)
    assert found == {
        "rc": "0\n",
        "stderr": "oops\n",
        "glob-0.list": "part.1\npart.2\n",
        "glob-0/part.1": "1\n",
        "glob-0/part.2": "2\n",
    }


async def test_an_input_from_elsewhere_beside_files_in_place(real_world: RealWorld, tmp_path: Path) -> None:
    """The call's folder gets one more entry that only the task sees; what is in place stays in place."""
    call = tmp_path / "call"
    (call / "execution").mkdir(parents=True)
    (tmp_path / "ref").write_text("ref\n")
    placed = (Placed(f"{call}/inputs/ref", source=f"{tmp_path}/ref"),)
    outputs = (Delivered(f"{call}/execution/rc", f"{call}/execution/rc"),)
    script = f"cat {call}/inputs/ref > {call}/execution/rc; mkdir {call}/tmp.1"
    end = await run(real_world, contained("a", script, inputs=placed, outputs=outputs))
    assert end.exit_code == 0
    assert tree(call) == {"execution/rc": "ref\n"}
    assert os.listdir(call) == ["execution"]


async def test_what_the_host_loses_meanwhile(real_world: RealWorld, tmp_path: Path) -> None:
    """Others remove and replace files beside the task's own while it runs: its next step starts all the same."""
    call = tmp_path / "call"
    for name in ("kept", "gone", "replaced"):
        (call / name).mkdir(parents=True)
    steps = (
        sh(f"while ! test -e {call}/kept/go; do sleep 0.01; done"),
        sh(f"ls {call} {call}/gone {call}/replaced; cat {call}/inputs/x; echo on"),
    )
    placed = (Placed(f"{call}/inputs/x", content="x\n"),)
    cluster, ear, _ = await real_world.open()
    await cluster.launch([contained("a", steps=steps, inputs=placed)])
    await ear.started("a")
    (call / "gone").rmdir()
    (call / "replaced").rmdir()
    (call / "replaced").write_text("a file")
    (call / "kept/go").touch()
    end = await ear.ended("a")
    assert (end.exit_code, end.message) == (0, "")
    assert log(real_world).endswith("x\non\n")


async def test_an_output_in_a_folder_that_is_an_input(real_world: RealWorld, tmp_path: Path) -> None:
    """The folder takes new files, which are the task's own; what it was given stays as it is, outside too."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/given").write_text("given\n")
    placed = (Placed("/data", source=f"{tmp_path}/in", directory=True),)
    outputs = (Delivered("/data/new", f"{tmp_path}/new"),)
    end = await run(
        real_world,
        contained("a", "cat /data/given > /data/new; : > /data/given", inputs=placed, outputs=outputs),
    )
    assert end.exit_code != 0
    assert tree(tmp_path / "in") == {"given": "given\n"}
    script = "cat /data/given > /data/new; ls /data"
    end = await run(real_world, contained("b", script, inputs=placed, outputs=outputs, index=1))
    assert (end.exit_code, log(real_world, name="b")) == (0, "given\nnew\n")
    assert ((tmp_path / "new").read_text(), os.listdir(tmp_path / "in")) == ("given\n", ["given"])


async def test_mounts_and_volumes(real_world: RealWorld, tmp_path: Path) -> None:
    """A folder at another path, written in place or read-only; an empty folder that the steps share."""
    (tmp_path / "rw/sub").mkdir(parents=True)
    (tmp_path / "ro").mkdir()
    mounts = (Mount(f"{tmp_path}/rw", "/call"), Mount(f"{tmp_path}/ro", "/ref", read_only=True))
    steps = (
        sh(
            "echo a > /vol/a; echo 1 > /call/sub/x; ls /usr/games; echo no > /ref/x || echo refused",
            workdir="/call/sub",
        ),
        sh("cat /vol/a; pwd", workdir="/call/new", stdout="/call/logs/out"),
    )
    end = await run(real_world, contained("a", steps=steps, mounts=mounts, volumes=("/vol", "/usr/games")))
    assert (end.exit_code, log(real_world)) == (0, "refused\na\n/call/new\n")
    assert tree(tmp_path / "rw") == {"logs/out": "a\n/call/new\n", "sub/x": "1\n"}
    assert tree(tmp_path / "ro") == {}


async def test_three_hundred_inputs(real_world: RealWorld, tmp_path: Path) -> None:
    """In a folder that takes outputs too."""
    (tmp_path / "in").mkdir()
    for number in range(300):
        (tmp_path / f"in/{number}").write_text(f"{number}\n")
    placed = tuple(Placed(f"/work dir/in/{n}", source=f"{tmp_path}/in/{n}") for n in range(300))
    outputs = (Delivered("/work dir/in/sum", f"{tmp_path}/sum"),)
    script = "cat '/work dir/in'/* | awk '{s += $1} END {print s, NR}' > /sum; mv /sum '/work dir/in/sum'"
    end = await run(real_world, contained("a", script, inputs=placed, outputs=outputs))
    assert (end.exit_code, (tmp_path / "sum").read_text()) == (0, "44850 300\n")


async def test_what_is_left_though_nothing_ran(real_world: RealWorld, tmp_path: Path) -> None:
    """Who waits for the file outside is not left waiting because an input is missing."""
    mounts, leave = (Mount(str(tmp_path), "/call"),), (Left("/call/rc", "79\n"), Left("/o/rc", "1\n"))
    placed, outputs = (Placed("/in/x", source="/no/such"),), (Delivered("/o/rc", f"{tmp_path}/delivered"),)
    end = await run(
        real_world, contained("a", "true", mounts=mounts, leave=leave, inputs=placed, outputs=outputs)
    )
    assert (end.reason, end.container) == ("InputMissing", ContainerReport())
    assert [(tmp_path / name).read_text() for name in ("rc", "delivered")] == ["79\n", "1\n"]


async def test_devices_are_devices(real_world: RealWorld, tmp_path: Path) -> None:
    """Output to /dev/null is gone, and /dev/null stays what it is."""
    outputs = (Delivered("/dev/null", f"{tmp_path}/null"), Delivered("/o/x", f"{tmp_path}/x"))
    steps = (
        sh("echo lost", stdout="/dev/null"),
        sh("cat /dev/null; test -c /dev/null && echo device > /o/x"),
    )
    end = await run(real_world, contained("a", steps=steps, outputs=outputs))
    assert (end.exit_code, tree(tmp_path).get("x"), (tmp_path / "null").exists()) == (0, "device\n", False)


@pytest.mark.parametrize(
    ("script", "changes", "reason"),
    [
        ("true", {}, ""),
        ("exit 7", {}, ""),
        ("sleep 60", {"timeout_ms": 3_000}, "Timeout"),  # a step may take a second to begin
        (
            "exec python3 -c 'x = bytearray(200 << 20); import time; time.sleep(60)'",
            {"memory_bytes": 64 << 20},
            "OOMKilled",
        ),
    ],
)
async def test_what_is_left_after_any_end(
    real_world: RealWorld, tmp_path: Path, script: str, changes: dict[str, Any], reason: str
) -> None:
    """The file is there once the end is told, where a mount shows it or an output puts it; nothing takes its place."""
    mounts = (Mount(str(tmp_path), "/call"),)
    leave = (Left("/call/rc", "79\n"), Left("/call/mine", "no\n"), Left("/o/rc", "79\n"))
    outputs = (Delivered("/o/rc", f"{tmp_path}/delivered"),)
    script = f"echo yes > /call/mine; {script}"
    end = await run(
        real_world, contained("a", script, mounts=mounts, leave=leave, outputs=outputs, **changes)
    )
    assert end.reason == reason
    found = [(tmp_path / name).read_text() for name in ("rc", "mine", "delivered")]
    assert found == ["79\n", "yes\n", "79\n"]


@pytest.mark.parametrize(
    ("script", "changes", "line"),
    [
        ("echo mine >&2; exit 7", {}, "mine\n"),
        (
            "echo mine >&2; sleep 60",
            {"timeout_ms": 3_000},
            "mine\nflowsched: Timeout: it ran longer than its timeout of 3 s\n",
        ),
        (
            "echo mine >&2; exec python3 -c 'x = bytearray(200 << 20); import time; time.sleep(60)'",
            {"memory_bytes": 64 << 20},
            r"mine\nflowsched: OOMKilled: it used \d+ MiB of memory and may use 64 MiB\n",
        ),
    ],
)
@pytest.mark.parametrize("named", [True, False])
async def test_the_standard_error_says_what_ended_a_step(
    real_world: RealWorld, tmp_path: Path, script: str, changes: dict[str, Any], line: str, named: bool
) -> None:
    """Its file, which Cromwell shows, and the attempt's log; a step that ended by itself has said all."""
    mounts = (Mount(str(tmp_path), "/call"),)
    step = sh(script, stderr="/call/stderr" if named else None)
    await run(real_world, contained("a", steps=(step,), mounts=mounts, **changes))
    assert re.fullmatch(line, (real_world.attempt("a") / "stderr").read_text())
    assert not named or re.fullmatch(line, (tmp_path / "stderr").read_text())


async def test_a_task_that_is_refused_says_so_in_its_file_for_standard_error(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """No step of it has begun: an input is not there, or its program."""
    mounts = (Mount(str(tmp_path), "/call"),)
    placed = (Placed("/in/x", str(tmp_path / "nothing")),)
    steps = (sh("true", stderr="/call/stderr"),)
    await run(real_world, contained("a", steps=steps, mounts=mounts, inputs=placed))
    assert (tmp_path / "stderr").read_text().startswith("flowsched: InputMissing: ")
    steps = (Step(("no-such-program",), stderr="/call/other"),)
    await run(real_world, contained("b", steps=steps, mounts=mounts))
    assert (
        (tmp_path / "other").read_text().startswith("flowsched: StartFailed: cannot start 'no-such-program'")
    )


async def test_nothing_is_left_by_what_was_cancelled(real_world: RealWorld, tmp_path: Path) -> None:
    """Who cancels a task waits for no file of it."""
    cluster, ear, _ = await real_world.open()
    mounts, leave = (Mount(str(tmp_path), "/call"),), (Left("/call/rc", "79\n"),)
    await cluster.launch([contained("a", "sleep 60", mounts=mounts, leave=leave)])
    await ear.started("a")
    await cluster.release(["a"], 1000)
    assert (await ear.ended("a")).reason == "Released"
    assert not (tmp_path / "rc").exists()


@pytest.mark.parametrize(
    ("steps", "reason", "delivered"),
    [
        (("trap '' TERM; echo up; sleep 1; echo x > /o/said",), "", True),
        (("true", "trap '' TERM; echo up; sleep 1; echo x > /o/said"), "", True),
        (("trap '' TERM; echo up; sleep 1; echo x > /o/said", "true"), "Released", False),
        (("trap '' TERM; echo up; sleep 1; exit 3",), "Released", False),
    ],
)
async def test_a_container_task_whose_last_step_ends_well_within_its_grace_is_done(
    real_world: RealWorld, tmp_path: Path, steps: tuple[str, ...], reason: str, delivered: bool
) -> None:
    """What it made is delivered. A step that was to follow is not begun."""
    cluster, ear, _ = await real_world.open()
    outputs = (Delivered("/o/said", f"{tmp_path}/said"),)
    await cluster.launch([contained("a", *steps, outputs=outputs)])
    await ear.started("a")
    await eventually(lambda: said(cluster, "a"))
    await cluster.release(["a"], 60_000)
    assert (await ear.ended("a")).reason == reason
    assert (tmp_path / "said").exists() == delivered


@pytest.mark.parametrize("is_fitted", [False, True])
async def test_a_step_that_uses_too_much_memory(
    real_world: RealWorld, tmp_path: Path, is_fitted: bool
) -> None:
    """Exit code 137, and the report has the steps before it and what it had said. Its files are delivered, unless the next attempt
    gets all that was asked for and writes them.
    """
    script = "import time; print('growing', flush=True); x = bytearray(200 << 20); time.sleep(60)"
    steps = (sh("echo first > /o/x; echo first"), Step((sys.executable, "-c", script), stdout="/o/said"))
    outputs = (Delivered("/o/said", f"{tmp_path}/said"), Delivered("/o/x", f"{tmp_path}/x"))
    more: dict[str, Any] = {"memory_bytes": 64 << 20, "is_fitted": is_fitted}
    end = await run(real_world, contained("a", steps=steps, outputs=outputs, **more))
    assert (tmp_path / "x").exists() is not is_fitted
    assert (end.exit_code, end.reason) == (137, "OOMKilled")
    assert end.container is not None
    assert [(s.exit_code, s.stdout) for s in end.container.steps] == [(0, "first\n"), (137, "growing\n")]
    assert (tmp_path / "said").read_text() == "growing\n"


async def test_what_a_step_leaves_running_ends_with_it(real_world: RealWorld) -> None:
    """As in a container of its own: the next step does not find it."""
    steps = (sh("(setsid sleep 61 &) ; sleep 0.1"), sh("pgrep -f 'sleep 6[1]' || echo gone"))
    end = await run(real_world, contained("a", steps=steps))
    assert (end.exit_code, log(real_world)) == (0, "gone\n")


async def test_a_service_that_dies_and_a_runner_that_dies(real_world: RealWorld, tmp_path: Path) -> None:
    """A runner goes on without its service; without its runner nothing of a container task lives."""
    from tests.cluster.test_crashes import living, until

    outputs = (Delivered("/o/x", f"{tmp_path}/x"),)
    pods = [
        contained("a", "sleep 0.5", "echo late > /o/x", outputs=outputs),
        contained("b", "sleep 60", outputs=outputs, index=1),
    ]
    cluster, ear, _ = await real_world.open()
    await cluster.launch(pods)
    await ear.started("a")
    await ear.started("b")
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    os.kill(lives.runner_of(real_world.attempt("b")) or 0, signal.SIGKILL)
    await cluster.adopt(pods)
    gone = await ear.gone("b")
    end = await ear.ended("a")
    assert (gone.reason, gone.started) == ("RunnerLost", True)
    await until(lambda: not living(real_world, "b"), "the end of b's processes")
    assert (end.exit_code, (tmp_path / "x").read_text()) == (0, "late\n")


async def test_folders_of_a_container_are_forgotten(real_world: RealWorld, tmp_path: Path) -> None:
    """With the working folder; this machine's own files, which were shown in them, are as they were."""
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/kept").write_text("kept")
    mounts = (Mount(f"{tmp_path}/mounted", "/m"),)
    cluster, ear, _ = await real_world.open()
    await cluster.launch([contained("a", "echo > /o/x", mounts=mounts, volumes=("/o",))])
    await ear.ended("a")
    assert (real_world.attempt("a") / "container/o/x").exists()
    await cluster.forget(["a"])
    assert not (real_world.attempt("a") / "container").exists()
    assert tree(tmp_path / "mounted") == {"kept": "kept"}


def as_another(folder: Path, *unshare: str, first: str = "true") -> dict[str, Any]:
    """What `steps_driver` says when it runs in a namespace of users; skips where there can be none."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", *unshare, "true"], check=False).returncode
    ):
        pytest.skip(f"this system does not permit: unshare {' '.join(unshare)}")
    script = f"{first} && exec {shlex.quote(sys.executable)} -m tests.cluster.steps_driver {shlex.quote(str(folder))}"
    repository = Path(__file__).parents[2]
    done = subprocess.run(
        ["unshare", *unshare, "/bin/sh", "-c", script],
        cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_somebody_who_is_not_root(tmp_path: Path) -> None:
    """A namespace of users does: same paths, read-only inputs, and the task is who its owner is."""
    said = as_another(tmp_path, "--user", "--map-user=1000", "--map-group=1000")
    assert (said["code"], said["reason"], said["message"]) == (2, "", "")
    ((code, stdout, stderr),) = said["steps"]
    assert (code, stdout) == (2, "1000\nhost\n")
    assert "Read-only file system" in stderr
    assert (tmp_path / "outside.txt").read_text() == "outside"


def test_a_system_without_private_mounts(tmp_path: Path) -> None:
    """A task that needs them is refused, and is told what to do."""
    deny = "echo 0 > /proc/sys/user/max_mnt_namespaces"
    said = as_another(tmp_path, "--user", "--map-root-user", first=deny)
    assert (said["code"], said["reason"], said["steps"]) == (126, "ContainerPathsRefused", [])
    assert "which need private mounts" in said["message"]
    assert "sysctl kernel.unprivileged_userns_clone=1" in said["message"]
