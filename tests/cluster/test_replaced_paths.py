"""Tasks that replace what they may write to: their folders, their logs, their results, and the way that these go.

Real runners run them. None of them makes flowsched move, remove, change or show a file of somebody else, nor wait for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.local.runner import outputs
from flowsched.cluster.local.runner.outputs import Refused
from flowsched.cluster.node.cache import Cache
from flowsched.executor.protocol import OutputFile, Pod, PodEnded, PodGone
from flowsched.values import replace
from flowsched.workflow.spec import Delivered, Mount, Step
from tests.cluster.conftest import RealWorld
from tests.cluster.test_tasks import cached, linux
from tests.executors.executor_contract import contained, shell

SECRET = "precious\n"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder of a user, with what an attempt has in its own one too."""
    folder = tmp_path / "user"
    for name in ("deep", "work", "tmp"):
        (folder / name).mkdir(parents=True)
    for name in ("result", "stdout", "release", "x.cid", "deep/result", "work/result"):
        (folder / name).write_text(SECRET)
    (folder / "runner.log").touch()
    return folder


def inventory(folder: Path) -> dict[str, str]:
    """What is in a folder: modes, and the texts of files."""
    return {
        str(
            path.relative_to(folder)
        ): f"{path.lstat().st_mode:o} {path.read_text() if path.is_file() else ''}"
        for path in sorted(folder.rglob("*"))
    }


async def run(
    world: RealWorld, what: Pod
) -> tuple[PodEnded | PodGone, tuple[bytes, bool], tuple[bytes, bool]]:
    """How it ended and what its logs say, after all that the service does with an attempt that has ended."""
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    end = await asyncio.wait_for(ear.final("a"), 60)
    logs = [await asyncio.wait_for(cluster.logs("a", stream, 0, 1000), 10) for stream in ("stdout", "stderr")]
    await asyncio.wait_for(cluster.settle(["a"]), 10)
    await asyncio.wait_for(cluster.forget(["a"]), 10)
    await asyncio.wait_for(cluster.expire(_all_have_expired), 10)
    await world.drop()
    return end, logs[0], logs[1]


async def _all_have_expired(workflows: Collection[str]) -> Collection[str]:
    return workflows


def out(path: str = "result", **kind: bool) -> OutputFile:
    return OutputFile("out", path, "flowsched:a/out", **kind)


#: What a task does in its working folder, where $U is the user's, and the words that its end has.
FOLDERS = {
    "a link": ("cd ..; mv work w; ln -s $U work", "is a link to {user} now"),
    "a link after a removal": ("cd ..; rm -r work; ln -s $U work", "is a link to {user} now"),
    "a folder of its own": ("cd ..; mv work w; mkdir work; echo 1 > work/result", "is another folder now"),
    "nothing": ("cd ..; rm -r work", "is no longer there now"),
    "a file": ("cd ..; rm -r work; echo 1 > work", "is a file now"),
    "a pipe": ("cd ..; rm -r work; mkfifo work", "is a named pipe now"),
    "a link above": ("cd ../..; mv a b; ln -s $U a", "is another folder now"),
}


@linux
@pytest.mark.parametrize("value", [False, True], ids=["file", "value"])
@pytest.mark.parametrize("attack", FOLDERS)
async def test_no_output_comes_from_a_folder_that_took_the_place_of_the_working_folder(
    real_world: RealWorld, user: Path, attack: str, value: bool
) -> None:
    """The task has failed, its end says what was found, and what the user has is as it was."""
    before = inventory(user)
    script, words = FOLDERS[attack]
    end, _, _ = await run(real_world, shell("a", script, outputs=(out(value=value),), env={"U": str(user)}))
    assert isinstance(end, PodEnded), end
    assert (end.exit_code, end.reason, end.outputs) == (0, "OutputRefused", ())
    assert words.format(user=user) in end.message
    assert inventory(user) == before


RESULTS = {
    "a link on the way": ("rmdir d; ln -s $U d", "d/result", "leads out of the folder, to {user}"),
    "a link to the folder": ("ln -s $U result", "result", "leads out of the folder, to {user}"),
    "a relative link": ("ln -s ../../../../../../user/result result", "result", "leads out of the folder"),
    "a socket": ('cd "$PWD"; python -c "import socket; socket.socket(1).bind(\'result\')"', "result", "is a socket"),
    "a pipe": ("mkfifo result", "result", "is a named pipe"),
    "a folder of pipes": ("mkdir result; mkfifo result/a result/b", "result", "is a named pipe"),
    "a folder with a link out": ("mkdir result; ln -s $U result/x", "result", "leads out of it, to {user}"),
    "a folder too deep": (
        'python -c "import os\nfor _ in range(300): os.mkdir(\'result\'); os.chdir(\'result\')"',
        "result",
        "more than 200 folders in each other",
    ),
}  # fmt: skip


@linux
@pytest.mark.parametrize("value", [False, True], ids=["file", "value"])
@pytest.mark.parametrize("attack", RESULTS)
async def test_a_result_that_is_none_fails_the_task(
    real_world: RealWorld, user: Path, attack: str, value: bool
) -> None:
    """Whatever the task has put there, nobody waits for it, and the end says what it is."""
    before = inventory(user)
    script, path, words = RESULTS[attack]
    what = shell("a", script, outputs=(out(path, value=value),), env={"U": str(user)})
    end, _, _ = await run(real_world, what)
    assert isinstance(end, PodEnded), end
    assert (end.reason, end.outputs) == ("OutputRefused", ())
    assert words.format(user=user) in end.message
    assert inventory(user) == before


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
async def test_a_device_is_no_result(real_world: RealWorld) -> None:
    """A disk, say, or /dev/zero, which never ends."""
    end, _, _ = await run(real_world, shell("a", "mknod result c 1 5", outputs=(out(value=True),)))
    assert isinstance(end, PodEnded)
    assert (end.reason, "is a device" in end.message) == ("OutputRefused", True)


@linux
async def test_a_result_that_is_a_file_of_a_user_too_is_copied(real_world: RealWorld, user: Path) -> None:
    """A hard link: the user keeps the file with its mode, and writing to it does not change the result."""
    before = inventory(user)
    script = "mkdir d; ln $U/result d/one; ln $U/deep/result result"
    outputs_ = (out(), OutputFile("d", "d", "flowsched:a/d"))
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", script, outputs=outputs_, env={"U": str(user)})])
    end = await ear.ended("a")
    assert [(each.name, each.size_bytes) for each in end.outputs] == [("out", 9), ("d", 9)]
    assert inventory(user) == before
    (user / "deep/result").write_text("other")
    assert cached(real_world, "flowsched:a/out").read_text() == SECRET
    assert cached(real_world, "flowsched:a/d").joinpath("one").read_text() == SECRET


@linux
@pytest.mark.parametrize("kind", ["file", "folder"])
async def test_a_result_may_have_the_name_of_the_caches_own_record(real_world: RealWorld, kind: str) -> None:
    """Both are there: the record says what the result is."""
    script = "echo 1 > meta.json" if kind == "file" else "mkdir meta.json; echo 1 > meta.json/x"
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", script, outputs=(out("meta.json"),))])
    end = await ear.ended("a")
    assert [(each.name, each.size_bytes) for each in end.outputs] == [("out", 2)]
    found = cached(real_world, "flowsched:a/out")
    assert (found if kind == "file" else found / "x").read_text() == "1\n"


@linux
@pytest.mark.parametrize("record", ["pipe", "folder", "link", "link to a device", "a name elsewhere"])
async def test_a_record_that_is_none_makes_the_dataset_none(tmp_path: Path, user: Path, record: str) -> None:
    """A task can write to the cache, too. The next service starts, and removes what has no record of its own."""
    before = inventory(user)
    cache = Cache(tmp_path / "cache")
    home = cache.home("flowsched:a/out")
    home.mkdir(parents=True)
    (home / "out").write_text("own")
    told = {"uri": "flowsched:a/out", "size": 9, "name": "out", "directory": False}
    match record:
        case "pipe":
            os.mkfifo(home / "meta.json")
        case "folder":
            (home / "meta.json").mkdir()
        case "link":
            (home / "meta.json").symlink_to(user / "result")
        case "link to a device":
            (home / "meta.json").symlink_to("/dev/zero")
        case _:
            (home / "meta.json").write_text(json.dumps({**told, "name": f"{user}/result"}))
    cache.scan()
    assert (cache.entries, os.listdir(cache.folder)) == ({}, [])
    assert inventory(user) == before


@linux
@pytest.mark.parametrize("kind", ["pipe", "link"])
async def test_a_dataset_that_was_replaced_is_not_there(real_world: RealWorld, user: Path, kind: str) -> None:
    """A task does so in the cache: a client that asks for the dataset waits for nobody, and sees nothing of the user's."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "echo 1 > result", outputs=(out(),))])
    await ear.ended("a")
    payload = cached(real_world, "flowsched:a/out")
    payload.unlink()
    os.mkfifo(payload) if kind == "pipe" else payload.symlink_to(user / "result")
    assert await asyncio.wait_for(cluster.open_dataset("flowsched:a/out", ["node-0"]), 10) is None
    await real_world.drop()


LOGS = {
    "a pipe": ("rm $L; mkfifo $L", "is a named pipe now"),
    "a folder": ("rm $L; mkdir $L; echo 1 > $L/x", "is a folder now"),
    "a link": ("ln -sf $U/result $L", "is a link to {user}/result now"),
    "a link to a device": ("ln -sf /dev/zero $L", "is a link to /dev/zero now"),
    "a link to a secret": ("ln -sf ../../../../token $L", "is a link to ../../../../token now"),
}  # fmt: skip


@linux
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("attack", LOGS)
async def test_a_task_that_replaces_its_log_has_failed(
    real_world: RealWorld, user: Path, attack: str, stream: str
) -> None:
    """Its end and its log say so; the log shows nothing else, adds to nothing, and lets nobody wait."""
    before = inventory(user)
    script, words = LOGS[attack]
    (real_world.root / "token").parent.mkdir(parents=True, exist_ok=True)
    (real_world.root / "token").write_text(SECRET)
    # What goes on after the end makes the runner add a line to the log.
    script = f"{script}; mkfifo p; (cat p | sleep 60) & true"
    what = shell("a", script, env={"U": str(user), "L": f"../{stream}"}, outputs=(out(optional=True),))
    end, *logs = await run(real_world, what)
    assert isinstance(end, PodEnded), end
    assert (end.exit_code, end.reason) == (0, "OutputRefused")
    assert f"the task has replaced its {stream}: " in end.message
    assert words.format(user=user) in end.message
    told, more = logs[stream == "stderr"]
    assert told.startswith(b"flowsched: what the task said is lost")
    assert not more
    assert SECRET.encode() not in logs[0][0] + logs[1][0]
    assert inventory(user) == before


@linux
async def test_the_log_shows_no_file_that_has_another_name(real_world: RealWorld, user: Path) -> None:
    """A hard link to a secret is no log."""
    _, (told, _), _ = await run(real_world, shell("a", "ln -f $U/result ../stdout", env={"U": str(user)}))
    assert told.startswith(b"flowsched: what the task said is lost")
    assert SECRET.encode() not in told


@linux
@pytest.mark.parametrize("script", ["cd ../..; mv a b; ln -s $U a", "cd ../..; rm -r a; ln -s $U a"])
async def test_a_link_in_the_place_of_an_attempt_loses_no_file_and_shows_none(
    real_world: RealWorld, user: Path, script: str
) -> None:
    """The service clears up what attempts leave: release, empty logs, working folders. The user has such files too."""
    before = inventory(user)
    _, (told, _), _ = await run(real_world, shell("a", script, env={"U": str(user)}))
    assert SECRET.encode() not in told
    assert inventory(user) == before
    assert not os.path.lexists(real_world.attempt("a"))


RELEASES = {
    "a pipe": "rm -f $R; mkfifo $R",
    "a folder": "rm -f $R; mkdir $R; echo 1 > $R/x",
    "a link": "ln -sf $U/result $R",
    "a link to a device": "ln -sf /dev/zero $R",
}


@linux
@pytest.mark.parametrize("name", ["release", "release.tmp"])
@pytest.mark.parametrize("attack", RELEASES)
async def test_a_task_cannot_hinder_its_own_end_nor_others(
    real_world: RealWorld, user: Path, attack: str, name: str
) -> None:
    """Whatever lies where the service asks for an end: it is asked for, the user keeps the file, other tasks run."""
    before = inventory(user)
    script = f"{RELEASES[attack]}; echo > ready; sleep 60"
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", script, env={"U": str(user), "R": f"../{name}"})])
    while not (real_world.attempt("a") / "work" / "ready").exists():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # the runner looks at it meanwhile
    await cluster.launch([shell("other", "true")])
    assert (await asyncio.wait_for(ear.ended("other"), 30)).exit_code == 0
    await asyncio.wait_for(cluster.release(["a"], 0), 10)
    end = await asyncio.wait_for(ear.final("a"), 30)
    assert end.reason == "Released"
    assert inventory(user) == before


# --- while it is looked at ------------------------------------------------------------------------------------


EXCHANGES = {
    "link": lambda path, user: os.symlink(user / "result", path),
    "folder": lambda path, user: os.symlink(user, path),
    "hard link": lambda path, user: os.link(user / "result", path),
    "pipe": lambda path, user: os.mkfifo(path),
    "socket": lambda path, user: _socket(path),
}


def _socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


@linux
@pytest.mark.parametrize("kind", EXCHANGES)
@pytest.mark.parametrize("way", ["file", "d/file", "d"])
def test_a_result_that_is_exchanged_after_it_was_looked_at_is_refused(
    tmp_path: Path, user: Path, way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has escaped acts between the look and the move: nothing of the user's is touched, nothing is published."""
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    before = inventory(user)
    (tmp_path / "cache").mkdir()
    (tmp_path / "w" / "d").mkdir(parents=True)
    for name in ("w/file", "w/d/file"):
        (tmp_path / name).write_text("own")
    work = os.open(tmp_path / "w", os.O_RDONLY)
    (found,) = outputs.find_outputs(
        work, [{"name": "o", "path": way, "uri": "u", "optional": False, "value": False}]
    )
    first = way.split("/", maxsplit=1)[0] if kind == "folder" else way
    os.rename(f"w/{first}", "w/away")
    EXCHANGES[kind](f"w/{first}", user)
    with pytest.raises(Refused) as refused:
        outputs.publish(f"{tmp_path}/cache/entry", work, found)
    os.close(work)
    assert refused.value.args[0] == "OutputRefused"
    assert inventory(user) == before
    assert os.listdir(tmp_path / "cache") == []


# --- container tasks ------------------------------------------------------------------------------------------


def sh(script: str, **more: Any) -> Step:
    return Step(("/bin/sh", "-c", script), **more)


@linux
@pytest.mark.parametrize("place", ["target", "target/deep"])
@pytest.mark.parametrize("directory", [False, True], ids=["file", "folder"])
async def test_a_target_that_the_task_makes_a_link_gets_nothing(
    real_world: RealWorld, tmp_path: Path, user: Path, place: str, directory: bool
) -> None:
    """The task writes where its results go. What the target was when it began is where they go, or nowhere."""
    before = inventory(user)
    (tmp_path / "target" / "deep").mkdir(parents=True)
    link = f"rm -rf {tmp_path}/{place}; ln -s {user} {tmp_path}/{place}"
    made = "mkdir /out/d; echo new > /out/d/result" if directory else "echo new > /out/result"
    output = (
        Delivered("/out/d", f"{tmp_path}/target/deep/d", directory=True)
        if directory
        else Delivered("/out/result", f"{tmp_path}/target/deep/result")
    )
    what = contained("a", f"{link}; {made}", outputs=(output,), mounts=(Mount(str(tmp_path), str(tmp_path)),))
    end, _, _ = await run(real_world, what)
    assert isinstance(end, PodEnded), end
    assert (end.exit_code, end.reason) == (0, "OutputFailed")
    assert f"is a link to {user}" in end.message
    assert inventory(user) == before


@linux
async def test_a_target_behind_a_link_of_the_users_own_is_followed(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """Links that are there before the task begins are the user's: to another disk, say."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to("disk")
    output = Delivered("/out/x", f"{tmp_path}/results/new/x")
    end, _, _ = await run(real_world, contained("a", "echo 1 > /out/x", outputs=(output,)))
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert [(each.uri, each.size_bytes) for each in end.container.outputs] == [
        (f"{tmp_path}/results/new/x", 2)
    ]
    assert (tmp_path / "disk/new/x").read_text() == "1\n"


@linux
@pytest.mark.parametrize(
    ("script", "words"),
    [("mkfifo /out/x", "is a named pipe"), ("python3 -c \"import socket; socket.socket(1).bind('/out/x')\"", "is a socket")],
)  # fmt: skip
async def test_a_pipe_is_not_delivered(
    real_world: RealWorld, tmp_path: Path, script: str, words: str
) -> None:
    """It is no result, and the task hears of it."""
    what = contained("a", script, outputs=(Delivered("/out/x", f"{tmp_path}/x"),))
    end, _, _ = await run(real_world, what)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (0, "OutputRefused")
    assert words in end.message
    assert not (tmp_path / "x").exists()


@linux
@pytest.mark.parametrize("attack", ["pipe", "folder", "link"])
async def test_a_return_code_is_a_file_or_none(
    real_world: RealWorld, tmp_path: Path, user: Path, attack: str
) -> None:
    """Cromwell's file `rc`: a pipe in its place lets nobody wait."""
    script = {"pipe": "mkfifo /out/rc", "folder": "mkdir /out/rc", "link": "ln -s /dev/zero /out/rc"}[attack]
    what = contained("a", script, outputs=(Delivered("/out/x", f"{tmp_path}/x"),))
    what = replace(what, container=replace(what.container, return_code="/out/rc"))
    end, _, _ = await run(real_world, what)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (0, "")
    assert end.container is not None
    assert end.container.returned is None


@linux
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("attack", ["pipe", "link"])
async def test_a_step_that_replaces_a_log_of_the_attempt_fails_it(
    real_world: RealWorld, user: Path, stream: str, attack: str
) -> None:
    """The runner opens the log for each step: a pipe there lets it wait for nobody, and a link leads nowhere."""
    before = inventory(user)
    log = f"{real_world.attempt('a')}/{stream}"
    script = f"rm {log}; mkfifo {log}" if attack == "pipe" else f"ln -sf {user}/result {log}"
    steps = (sh(script), sh("echo hello; echo hello >&2"))
    end, *_ = await run(real_world, contained("a", steps=steps))
    assert isinstance(end, PodEnded), end
    assert end.reason == "StartFailed"
    assert f"the task has replaced its {stream}: " in end.message
    assert inventory(user) == before


@linux
async def test_a_mount_that_an_earlier_step_has_replaced_is_not_shown(
    real_world: RealWorld, tmp_path: Path, user: Path
) -> None:
    """A folder in a folder that the task may write to, mounted twice: a link in its place leads the next step nowhere."""
    before = inventory(user)
    (tmp_path / "p" / "inner").mkdir(parents=True)
    mounts = (Mount(f"{tmp_path}/p", "/outer"), Mount(f"{tmp_path}/p/inner", "/inner"))
    steps = (
        sh(f"mv /outer/inner /outer/i; ln -s {user} /outer/inner"),
        sh("cat /inner/result; echo 1 > /inner/x"),
    )
    end, (told, _), _ = await run(real_world, contained("a", steps=steps, mounts=mounts))
    assert isinstance(end, PodEnded)
    assert end.reason == "ContainerPathsRefused"
    assert f"is a link to {user} now" in end.message
    assert SECRET.encode() not in told
    assert inventory(user) == before
