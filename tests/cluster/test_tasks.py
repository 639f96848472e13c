"""What a real task finds, may leave, and cannot escape."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.runner import kin as running
from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.cluster.node.cache import Cache
from flowsched.errors import Unavailable
from flowsched.executor.protocol import GangSeat, InputFile, OutputFile, PodEnded, Roster, Transfer
from flowsched.workflow.spec import Container, Left, Mount, Step
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import living, until
from tests.executors.executor_contract import pod, shell

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' /proc and prctl")


async def run(world: RealWorld, what: object) -> PodEnded:
    cluster, ear, _ = await world.open()
    await cluster.launch([what])
    end = await ear.ended("a")
    await world.drop()
    return end


def out(name: str, path: str | None = None, **kind: bool) -> OutputFile:
    return OutputFile(name, path or name, f"flowsched:a/{name}", **kind)


def cached(world: RealWorld, uri: str, node: str = "node-0") -> Path:
    cache = Cache(world.root / "nodes" / node / "cache")
    cache.scan()
    entry = cache.find(uri)
    assert entry is not None
    return cache.payload(entry)


async def test_the_environment_of_a_task(real_world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a clean one, in a working folder of its own, with this interpreter as `python`."""
    script = "import os, sys; print(sys.prefix); print(os.getcwd()); print(sorted(os.environ))"
    monkeypatch.setenv("CANARY", "a secret of the service")
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "python", "-c", script, env={"MINE": "1"})])
    await ear.ended("a")
    log, _ = await cluster.logs("a", "stdout", 0, 10_000)
    prefix, folder, names = log.decode().splitlines()
    assert prefix == sys.prefix
    assert Path(folder) == real_world.attempt("a") / "work"
    assert "CANARY" not in names
    assert "MINE" in names


async def test_no_environment_is_left_on_the_disk(real_world: RealWorld) -> None:
    """Secrets come by environment: no file of the attempt holds it once the task runs."""
    await run(real_world, pod("a", "true", env={"TOKEN": "canary-7391"}))
    files = [path for path in real_world.attempt("a").rglob("*") if path.is_file()]
    assert not [path for path in files if b"canary-7391" in path.read_bytes()]
    assert not (real_world.attempt("a") / "order").exists()


async def test_inputs_are_links_and_manifests(real_world: RealWorld) -> None:
    """One uri is a link under its own name; many are lines of a file, in order."""
    cluster, ear, _ = await real_world.open()
    await cluster.transfer([Transfer(real_world.outside, 7, "node-0")])
    await ear.transferred()
    await cluster.launch([shell("first", "echo 1 > x.txt", outputs=(out("x", "x.txt"),))])
    await ear.ended("first")
    uris = ("flowsched:a/x", real_world.outside)
    inputs = (InputFile("one", (real_world.outside,)), InputFile("all.of", uris, manifest=True))
    script = (
        "echo $FLOWSCHED_INPUT_ONE; cat $FLOWSCHED_INPUT_ONE; echo;"
        'for f in $(cat "$FLOWSCHED_INPUT_ALL_OF"); do cat $f; done'
    )
    await cluster.launch([shell("a", script, inputs=inputs)])
    await ear.ended("a")
    log, _ = await cluster.logs("a", "stdout", 0, 10_000)
    work = real_world.attempt("a") / "work"
    assert log.decode().splitlines() == [f"{work}/inputs/one/outside.txt", "outside", "1", "outside"]


async def test_a_gang_member_knows_its_hosts(real_world: RealWorld) -> None:
    """The hostfile is there, without the launcher."""
    seat = GangSeat("launcher", 0, 0, 2, Roster((("launcher", 2, 1), ("worker", 3, 1))), "t0ken")
    await run(real_world, shell("a", 'cat "$FLOWSCHED_HOSTFILE"', gang=seat, cpu_millicores=1500))
    log = (real_world.attempt("a") / "stdout").read_text()
    assert log == "127.64.0.3 slots=2\n"


async def test_members_of_a_gang_have_files_that_list_them(real_world: RealWorld) -> None:
    """Each its own, in its working folder."""
    runs = (("w", 0, 3),)
    seats = [GangSeat("w", n, n, n, Roster(runs), "t0ken") for n in range(3)]
    script = 'cat "$FLOWSCHED_CLUSTER_FILE"; rm hostfile'
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell(name, script, gang=seat) for name, seat in zip("abc", seats, strict=True)])
    for name in "abc":
        assert (await ear.ended(name)).exit_code == 0
    hosts = '["127.64.0.0:29500", "127.64.0.1:29500", "127.64.0.2:29500"]'
    for name in "abc":
        assert (real_world.attempt(name) / "stdout").read_text() == f'{{"w": {hosts}}}'


async def test_a_program_that_does_not_exist(real_world: RealWorld) -> None:
    """127, and where it was looked for."""
    end = await run(real_world, pod("a", "no-such-program"))
    assert (end.exit_code, end.reason) == (127, "StartFailed")
    assert "'no-such-program'" in end.message
    assert "PATH" in end.message


async def test_a_program_that_may_not_be_run(real_world: RealWorld) -> None:
    """126, as in a shell."""
    end = await run(real_world, pod("a", real_world.outside.removeprefix("file://")))
    assert (end.exit_code, end.reason) == (126, "StartFailed")


async def test_usage_is_measured(real_world: RealWorld) -> None:
    """CPU time, memory and bytes of the task and its children."""
    script = "x = bytearray(60 << 20); open('f', 'wb').write(x[:5 << 20]); open('f', 'rb').read(); sum(range(3 * 10**6))"
    end = await run(real_world, shell("a", f'python -c "{script}"; true'))
    assert end.usage.cpu_ms >= 20
    assert end.usage.max_rss_bytes >= 60 << 20
    assert end.usage.written_bytes >= 5 << 20
    assert end.usage.read_bytes >= 5 << 20


def test_what_the_runner_itself_had_mapped_is_not_taken_off_what_the_task_read() -> None:
    """A runner that mapped 9 kB of its libraries from the disk and read 2 kB: the task's 5 kB from memory are 5 kB."""
    before = {"rchar": 2_000, "wchar": 100, "read_bytes": 9_000, "write_bytes": 0}
    after = {"rchar": 7_000, "wchar": 500, "read_bytes": 9_000, "write_bytes": 600}
    assert running.io_since(before, after) == (5_000, 600, 600)


@linux
async def test_more_memory_than_asked_for(real_world: RealWorld) -> None:
    """The pod's request is its limit: 137 and the reason."""
    script = "import time; x = bytearray(200 << 20); time.sleep(60)"
    end = await run(real_world, pod("a", "python", "-c", script, memory_bytes=100 << 20))
    assert (end.exit_code, end.reason) == (137, "OOMKilled")
    assert end.message.endswith("may use 100 MiB")


@linux
async def test_shared_memory_counts_once(real_world: RealWorld) -> None:
    """Ten children that share 40 MB with their parent are no reason to be killed at 150 MB."""
    script = "\n".join(
        [
            "import os, time",
            "x = bytearray(b'1') * (40 << 20)",
            "for _ in range(9):",
            "    pid = os.fork()",
            "    if pid == 0:",
            "        sum(x[::4096]); time.sleep(0.7); os._exit(0)",
            "time.sleep(0.9)",
        ]
    )
    end = await run(real_world, pod("a", "python", "-c", script, memory_bytes=150 << 20))
    assert (end.exit_code, end.reason) == (0, "")


# --- outputs -------------------------------------------------------------------------------------------------


async def test_outputs_move_into_the_cache(real_world: RealWorld) -> None:
    """By rename, under their own name, read-only; folders too, with the sum of their files."""
    script = (
        "mkdir -p tree/deep; echo 1 > tree/a; echo 22 > tree/deep/b; ln -s a tree/link;"
        "echo bam > bam.txt; chmod +x bam.txt"
    )
    end = await run(real_world, shell("a", script, outputs=(out("bam", "bam.txt"), out("tree"))))
    assert [(o.name, o.size_bytes) for o in end.outputs] == [("bam", 4), ("tree", 5)]
    file = cached(real_world, "flowsched:a/bam")
    assert (file.name, file.read_text(), oct(file.stat().st_mode & 0o777)) == ("bam.txt", "bam\n", "0o555")
    tree = cached(real_world, "flowsched:a/tree")
    assert (tree / "deep" / "b").read_text() == "22\n"
    assert not (real_world.attempt("a") / "work" / "bam.txt").exists()


async def test_a_missing_output_is_told_with_its_place(real_world: RealWorld) -> None:
    """And with what is there instead."""
    end = await run(real_world, shell("a", "echo 1 > sorted.ban", outputs=(out("bam", "sorted.bam"),)))
    assert (end.exit_code, end.reason) == (0, "OutputMissing")
    assert str(real_world.attempt("a") / "work" / "sorted.bam") in end.message
    assert "sorted.ban" in end.message


async def test_optional_outputs_and_values(real_world: RealWorld) -> None:
    """An optional output may be missing; the text of a value is recorded."""
    outputs = (out("report", optional=True), out("count", value=True))
    end = await run(real_world, shell("a", "echo 42 > count", outputs=outputs))
    assert [(o.name, o.value) for o in end.outputs] == [("count", "42\n")]


async def test_a_value_that_is_too_long(real_world: RealWorld) -> None:
    """4 KiB at most, and nothing is published."""
    end = await run(
        real_world, shell("a", "head -c 4097 /dev/zero > count", outputs=(out("count", value=True),))
    )
    assert (end.reason, end.outputs) == ("OutputRefused", ())
    assert "4096" in end.message


@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("ln -s /etc/passwd leak", "leak"),
        ("rm -r leak; ln -s /etc leak", "leak/passwd"),
        ("true", "../../../../../../etc/passwd"),
        ("true", "/etc/passwd"),
        ("mkdir d; ln -s /etc/passwd d/leak", "d"),
        ("mkdir d; ln -s ../../.. d/leak", "d"),
        ("ln -s .. leak", "leak"),
        ("mkfifo pipe", "pipe"),
        ("mkdir d; mkfifo d/pipe", "d"),
    ],
)
async def test_an_output_that_leads_out_is_refused(real_world: RealWorld, script: str, path: str) -> None:
    """Nothing outside of the working folder is ever published (row 45d)."""
    end = await run(real_world, shell("a", script, outputs=(out("leak", path),)))
    assert (end.reason, end.outputs) == ("OutputRefused", ())


async def test_outputs_are_bytes_of_their_own(real_world: RealWorld) -> None:
    """A hard link to an input becomes a copy: writing to one never changes the other."""
    cluster, ear, _ = await real_world.open()
    await cluster.transfer([Transfer(real_world.outside, 7, "node-0")])
    await ear.transferred()
    script = 'ln "$(readlink -f "$FLOWSCHED_INPUT_DATA")" copy'
    inputs = (InputFile("data", (real_world.outside,)),)
    await cluster.launch([shell("a", script, inputs=inputs, outputs=(out("copy"),))])
    await ear.ended("a")
    source = cached(real_world, real_world.outside).stat()
    copy = cached(real_world, "flowsched:a/copy").stat()
    assert copy.st_nlink == 1
    assert copy.st_ino != source.st_ino


async def test_outputs_inside_of_each_other(real_world: RealWorld) -> None:
    """A folder and a file in it, and one file under two names, are all published."""
    outputs = (out("tree"), out("file", "tree/a"), out("again", "tree/a"))
    end = await run(real_world, shell("a", "echo 1 > tree/a", outputs=outputs))
    assert [(o.name, o.size_bytes) for o in end.outputs] == [("tree", 2), ("file", 2), ("again", 2)]
    for name in ("file", "again"):
        assert cached(real_world, f"flowsched:a/{name}").read_text() == "1\n"
    assert (cached(real_world, "flowsched:a/tree") / "a").read_text() == "1\n"


# --- ends ----------------------------------------------------------------------------------------------------

FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "60"])                                           # closes the lock
subprocess.Popen(["setsid", "sleep", "60"], env={})                         # leaves session, environment and lock
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)                                                             # a daemon: its parent is gone
open("pids", "w").write("x")
"""


#: Seconds that nobody else sleeps: this process may be one of several that run these tests.
_LONG = f"60.{os.getpid()}"


def sleepers() -> set[str]:
    """Processes named `sleep 60` without environment, and all others of that name."""
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"sleep\0{_LONG}\0".encode()):
                    found.add(pid)
            except OSError:
                pass
    return found


@linux
@pytest.mark.parametrize("end", ["exit", "release", "timeout"])
async def test_nothing_survives_the_end_of_an_attempt(real_world: RealWorld, end: str) -> None:
    """Children, grandchildren, daemons and what left the session all die (P5)."""
    script = FAMILY.replace('"60"', f'"{_LONG}"') + ("" if end == "exit" else "time.sleep(60)\n")
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "python", "-c", script, timeout_ms=6_000 if end == "timeout" else None)])
    await until((real_world.attempt("a") / "work" / "pids").exists)
    if end == "release":
        await until(lambda: len(sleepers()) == 2)
        await cluster.release(["a"], 1000)
    final = await ear.ended("a")
    assert final.reason == {"exit": "", "release": "Released", "timeout": "Timeout"}[end]
    assert sleepers() == set()
    assert living(real_world) == []


async def test_a_task_may_clean_up_in_its_grace(real_world: RealWorld) -> None:
    """SIGTERM first: what it does then is still done."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait")])
    await until(
        lambda: (
            (real_world.attempt("a") / "stdout").read_text()
            if (real_world.attempt("a") / "stdout").exists()
            else ""
        )
    )
    await cluster.release(["a"], 10_000)
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (7, "Released")
    assert (await cluster.logs("a", "stdout", 0, 100))[0] == b"up\nbye\n"


async def test_a_task_that_ignores_the_signal(real_world: RealWorld) -> None:
    """SIGKILL after the grace; a second release may shorten it."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "trap '' TERM; echo up; while :; do sleep 0.1; done")])
    await until(
        lambda: (
            (real_world.attempt("a") / "stdout").exists() and (real_world.attempt("a") / "stdout").read_text()
        )
    )
    await cluster.release(["a"], 60_000)
    await asyncio.sleep(0.1)
    await cluster.release(["a"], 200)
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (137, "Released")


async def test_a_timeout_while_the_service_is_down(real_world: RealWorld) -> None:
    """The runner itself watches the clock."""
    cluster, ear, _ = await real_world.open()
    late = pod("a", "sleep", "60", timeout_ms=400)
    await cluster.launch([late])
    await ear.started("a")
    await real_world.drop()
    await until(lambda: lives.has_ended(real_world.attempt("a")))
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([late])
    assert (await ear.ended("a")).reason == "Timeout"


async def test_a_hundred_pods_do_not_stall_the_loop(real_world: RealWorld) -> None:
    """Launching works in threads: a coroutine that wants to run every millisecond is never kept long."""
    cluster, ear, _ = await real_world.open()
    lags = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - before)

    ticking = asyncio.create_task(tick())
    names = [f"p{number}" for number in range(100)]
    await cluster.launch([pod(name, "true", index=number) for number, name in enumerate(names)])
    for name in names:
        assert (await ear.ended(name)).exit_code == 0
    ticking.cancel()
    assert len(lags) > 50  # not one stall of the whole time it took, whatever else this machine does


# --- what is left --------------------------------------------------------------------------------------------


async def test_logs_are_read_in_pieces(real_world: RealWorld) -> None:
    """From an offset, and with the answer whether more may come."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "printf abcdef; printf error >&2; sleep 60")])
    await until(
        lambda: (
            (real_world.attempt("a") / "stderr").exists() and (real_world.attempt("a") / "stderr").read_text()
        )
    )
    assert await cluster.logs("a", "stdout", 2, 3) == (b"cde", True)
    assert await cluster.logs("a", "stdout", 6, 3) == (b"", True)
    assert await cluster.logs("a", "stderr", 0, 100) == (b"error", True)
    await cluster.release(["a"], 1000)
    await ear.ended("a")
    assert await cluster.logs("a", "stdout", 0, 3) == (b"abc", True)
    assert await cluster.logs("a", "stdout", 3, 100) == (b"def", False)
    assert await cluster.logs("a", "../pod.json", 0, 100) == (b"", False)


async def test_a_cluster_answers_no_request_before_its_start_and_after_its_stop(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """The service answers clients then, too. Which attempts have ended, and where datasets are, is not known."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch(
        [
            shell("a", "echo up; sleep 60"),
            shell("b", "echo x > o", outputs=(OutputFile("o", "o", "flowsched:b/o"),)),
        ]
    )
    await ear.ended("b")
    await real_world.drop()
    again = LocalCluster(real_world.root, virtual_nodes(2))

    async def refuses() -> None:
        assert not again.knows_log_sizes
        for request in (
            again.logs("a", "stdout", 0, 10),
            again.log_size("a", "stdout"),
            again.open_dataset("flowsched:b/o", ()),
        ):
            with pytest.raises(Unavailable, match="starts or stops its local cluster"):
                await request

    await refuses()
    left = Container(
        (Step(("true",)),), mounts=(Mount(str(tmp_path), "/out"),), leave=(Left("/out/left", "cancelled"),)
    )
    await again.leave([left])
    assert (tmp_path / "left").read_text() == "cancelled"
    await again.start()
    assert again.knows_log_sizes
    assert (await again.logs("a", "stdout", 0, 10))[1]
    assert (opened := await again.open_dataset("flowsched:b/o", ())) is not None
    assert b"".join([chunk async for chunk in opened.chunks]) == b"x\n"
    await again.stop()
    await refuses()
    with pytest.raises(Unavailable, match="starts or stops"):
        await again.leave([left])


async def all_expired(workflows: Collection[str]) -> Collection[str]:
    return workflows


async def none_expired(_workflows: Collection[str]) -> Collection[str]:
    return ()


async def test_orphans_are_found_and_forgotten(real_world: RealWorld) -> None:
    """What lives and nobody asked for is named; after its release its folder shrinks, then vanishes (P5)."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "echo hello; echo 1 > file; sleep 60"), pod("b", "true")])
    await ear.started("a")
    await ear.ended("b")
    await until((real_world.attempt("a") / "work" / "file").exists)
    assert await cluster.orphans() == []
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    assert await cluster.orphans() == ["a"]
    await cluster.forget(["a"])
    assert (real_world.attempt("a") / "work" / "file").exists()
    await cluster.release(["a"], 1000)
    await ear.ended("a")
    await cluster.forget(["a", "b", "nobody"])
    assert not (real_world.attempt("a") / "work").exists()
    assert await cluster.logs("a", "stdout", 0, 100) == (b"hello\n", False)
    assert await cluster.expire(none_expired) == 0
    assert await cluster.expire(all_expired) == 2
    assert not real_world.attempt("a").exists()


# --- what the runner knows -----------------------------------------------------------------------------------


@linux
def test_descendants_are_found_both_ways() -> None:
    """By the kernel's lists of children, and by each process' parent where there are no such lists."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60; :"], start_new_session=True) as child:

        def ours(found: Iterable[int]) -> list[int]:
            """Of this child: processes of other tests may end between two looks."""
            return sorted(pid for pid in found if _group(pid) == child.pid)

        while len(ours(running.descendants())) < 3:
            time.sleep(0.01)
        by_lists, by_parents = ours(running.descendants()), ours(running._descendants_by_parent())
        os.killpg(child.pid, signal.SIGKILL)
    assert child.pid in by_lists
    assert len(by_lists) == 3
    assert by_lists == by_parents


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def test_a_command_that_cannot_be_one(real_world: RealWorld) -> None:
    """Nothing, or a zero byte: the task fails, and is not tried for ever as if the machine had failed."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", env={"X": "a\0b"}), shell("b", "true", command=())])
    assert (await ear.ended("a")).reason == "StartFailed"
    assert (await ear.ended("b")).reason == "StartFailed"


async def test_a_folder_that_cannot_be_laid_out(real_world: RealWorld) -> None:
    """The same: an output's parent is another output's file, say."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([shell("a", "true", outputs=(out("x", "a" * 300 + "/x"),))])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (126, "StartFailed")
    assert "too long" in end.message


async def test_a_restart_leaves_a_publishing_runner_alone(real_world: RealWorld) -> None:
    """What a live runner has half made in the cache stays; what a dead one left goes."""
    await real_world.open()
    await real_world.drop()
    cache = real_world.root / "nodes" / "node-0" / "cache"
    live, dead = cache / f".out-abc-{os.getpid()}", cache / ".out-abc-99999999"
    live.mkdir()
    dead.mkdir()
    await real_world.open()
    assert (live.exists(), dead.exists()) == (True, False)
