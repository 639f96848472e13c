"""The file system of the root is full, of bytes or of inodes: nothing new starts, all else works, and it goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowsched import Client
from flowsched.errors import Unavailable
from flowsched.workflow.views import ExplanationView, TaskView
from tests.crash.harness import impatient_clients
from tests.postgres import fresh_postgres, postgres_server  # noqa: F401
from tests.service.serving import Service, end_users_of
from tests.serving.processes import served
from tests.soak import SOAK

pytestmark = pytest.mark.slow

#: What one small attempt, and the service itself, need many times over.
SIZE, INODES = "64m", 2_000


@pytest.fixture(autouse=True)
def _impatient() -> Iterator[None]:
    """A client that is refused work says so in a second, not in ten."""
    with impatient_clients():
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},nr_inodes={INODES}", "small", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here (root can): {made.stderr.strip()}")
    yield folder
    end_users_of(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Words of the command line: SQLite on the full file system, or PostgreSQL elsewhere."""
    if request.param == "sqlite":
        return ()
    return ("--db", str(request.getfixturevalue("fresh_postgres")()))


def fill_bytes(folder: Path) -> Callable[[], None]:
    """Leave no byte; returns what gives the room back."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\1" * 4096)
    return path.unlink


def fill_inodes(folder: Path) -> Callable[[], None]:
    """Leave no inode; returns what gives them back."""
    files: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            path = folder / f"filler-{len(files)}"
            path.touch()
            files.append(path)

    def free() -> None:
        for path in files:
            path.unlink()

    return free


#: Each kind of fullness with each form and with each database; `make soak` takes all eight together.
CASES = [
    ("sqlite", "bytes", "plain"), ("sqlite", "inodes", "container"),
    ("postgresql", "bytes", "container"), ("postgresql", "inodes", "plain"),
]  # fmt: skip
if SOAK:
    CASES = list(itertools.product(("sqlite", "postgresql"), ("bytes", "inodes"), ("plain", "container")))


FILLERS = {"bytes": fill_bytes, "inodes": fill_inodes}


def stage(form: str, script: str) -> dict[str, Any]:
    """A stage in the plain form, or in that of a container with steps."""
    command = ["sh", "-c", script]
    return (
        {"name": "work", "steps": [{"command": command}]}
        if form == "container"
        else {"name": "work", "command": command}
    )


def asked(url: str, act: Callable[[Client], Any]) -> Any:
    async def ask() -> Any:
        async with Client(url) as client:
            return await act(client)

    return asyncio.run(ask())


def submit(service: Service, form: str, script: str) -> str:
    document = {"name": "w", "stages": [stage(form, script)]}
    return str(asked(service.url, lambda client: client.submit(document)).id)


def state(service: Service, workflow: str) -> str:
    return str(json.loads(service.get(f"/api/v1/workflows/{workflow}")[1])["state"])


def cancel(service: Service, workflow: str) -> str:
    return str(asked(service.url, lambda client: client.cancel(workflow)).state)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("database", "kind", "form"),
    [pytest.param(*case, marks=pytest.mark.postgresql if case[0] == "postgresql" else ()) for case in CASES],
    indirect=["database"],
)
def test_a_full_file_system_is_named_and_all_goes_on_when_there_is_room(
    tmp_path: Path, disk: Path, database: tuple[str, ...], kind: str, form: str
) -> None:
    """What runs ends well, what waits is explained, one workflow is cancelled, a restart opens its port; then the rest runs."""
    marks, root, log = tmp_path / "marks", disk / "root", tmp_path / "log"
    go = tmp_path / "go"
    with Service(root, log, *database) as service:
        service.ready()
        running = submit(
            service,
            form,
            f"echo START >> {marks}; until [ -e {go} ]; do sleep 0.1; done; echo END >> {marks}",
        )
        victim = submit(service, form, "sleep 600")
        later = asked(
            service.url,
            lambda client: client.submit(
                {
                    "name": "later",
                    "stages": [
                        {"name": "first", "command": ["sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done"]},
                        {
                            "name": "second",
                            "needs": ["first"],
                            "command": ["sh", "-c", f"echo LATER >> {marks}"],
                        },
                    ],
                }
            ),
        ).id
        service.until(lambda: marks.exists() and state(service, victim) == "RUNNING", "started")
        free = FILLERS[kind](disk)
        said = service.waits_for("is full")
        assert str(disk) in said
        assert service.alive()
        if database:  # it lies elsewhere: work is accepted, and waits
            accepted = [submit(service, form, f"echo ACCEPTED >> {marks}")]
        else:
            accepted = []
            with pytest.raises(Unavailable, match=r"no new work is accepted now: .* is full"):
                submit(service, form, "true")
        assert cancel(service, victim) in ("CANCELLED", "CANCELLING")
        service.until(lambda: state(service, victim) == "CANCELLED", "cancelled")
        go.touch()
        service.until(lambda: state(service, running) == "SUCCEEDED", "ended well")

        def explained() -> list[ExplanationView]:
            found = asked(service.url, lambda client: client.explain(later))
            return [each for each in found if each.code == "NoNodes" and str(disk) in each.message]

        service.until(explained, "explained")
        service.process.kill()
        service.process.wait()
        with Service(root, log, *database) as again:
            assert str(disk) in again.waits_for("is full")
            assert state(again, running) == "SUCCEEDED"
            free()
            again.ready()
            again.until(lambda: state(again, later) == "SUCCEEDED", "done later")
            for each in accepted:
                again.until(lambda each=each: state(again, each) == "SUCCEEDED", "done what was accepted")
            assert sorted(marks.read_text().split()) == ["ACCEPTED"] * len(accepted) + [
                "END",
                "LATER",
                "START",
            ]
            assert again.stop() == 0


@pytest.mark.parametrize("form", ["plain", "container"])
def test_a_task_whose_own_output_fills_the_disk_is_told_so_by_name(
    tmp_path: Path, disk: Path, form: str
) -> None:
    """The attempt's message names the file system; the service lives, and works when the task's files are gone."""
    with Service(disk / "root", tmp_path / "log") as service:
        service.ready()
        workflow = submit(service, form, 'head -c 100000000 /dev/zero > "$TMPDIR/big"')
        service.until(lambda: state(service, workflow) == "FAILED", "failed")
        task: TaskView = asked(service.url, lambda client: client.task(workflow, "work", 0))
        assert "is full" in task.attempts[0].message
        assert str(disk) in task.attempts[0].message
        assert service.alive()


def explained(service: Service, workflow: str, words: str) -> ExplanationView | None:
    """What `explain` says of a workflow with some words in it."""
    found = asked(service.url, lambda client: client.explain(workflow))
    return next((each for each in found if words in each.message), None)


def test_an_input_that_finds_no_room_waits_with_a_reason_and_disturbs_no_other(
    tmp_path: Path, disk: Path
) -> None:
    """It is not even begun, so that the disk is never full of a half copy; others start, and it comes whole when there is room.

    The node copies, and its cache has a size of its own: as a part of this disk, it would be too small for the input as soon as it
    is measured again.
    """
    big, filler = tmp_path / "big", disk / "filler"
    big.write_bytes(b"\1" * (30 << 20))
    with Service(disk / "root", tmp_path / "log", "--nic-rate", "10G", "--cache", "48M") as service:
        service.ready()
        filler.write_bytes(b"\1" * (40 << 20))
        inputs = [{"name": "big", "uri": str(big)}]
        document = {
            "name": "w",
            "stages": [stage("plain", f'cmp "$FLOWSCHED_INPUT_BIG" {big}') | {"inputs": inputs}],
        }
        workflow = asked(service.url, lambda client: client.submit(document)).id
        told = service.until(lambda: explained(service, workflow, "tried again at"), "explained")
        assert f"the file system {disk} has" in told.message
        assert "30 MiB are needed" in told.message
        small = submit(service, "plain", "true")
        service.until(lambda: state(service, small) == "SUCCEEDED", "another one done")
        assert "is full" not in service.log.read_text()
        filler.unlink()
        service.until(lambda: state(service, workflow) == "SUCCEEDED", "copied")


def delivering(form: str, target: Path, log: Path) -> dict[str, Any]:
    """A task that notes its run and makes 10 MB, which are delivered to a path outside of the root: as a document, or TES's."""
    command = ["sh", "-c", f"echo x >> {log}; head -c 10000000 /dev/zero > /made/f"]
    if form == "tes":
        return {"executors": [{"image": "i", "command": command, "workdir": "/made"}],
                "outputs": [{"path": "/made/f", "url": f"file://{target}"}]}  # fmt: skip
    files = {"outputs": [{"path": "/made/f", "uri": str(target)}]}
    steps = [{"command": command, "workdir": "/made"}]
    return {"name": "w", "stages": [{"name": "work", "steps": steps, "files": files}]}


def sent(service: Service, form: str, document: dict[str, Any]) -> str:
    path = "/ga4gh/tes/v1/tasks" if form == "tes" else "/api/v1/workflows"
    body = json.dumps(document).encode()
    request = urllib.request.Request(service.url + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["id"])


@pytest.mark.parametrize("form", ["document", "tes"])
def test_results_wait_for_room_where_they_are_delivered(tmp_path: Path, disk: Path, form: str) -> None:
    """The task is not run again and has lost nothing: it says what it waits for, and its file is whole when it has succeeded."""
    target, runs, filler = disk / "out" / "f", tmp_path / "runs", disk / "filler"
    with Service(tmp_path / "root", tmp_path / "log") as service:
        service.ready()
        filler.write_bytes(b"\1" * (60 << 20))
        ident = sent(service, form, delivering(form, target, runs))
        told = service.until(lambda: explained(service, ident, "finds no room"), "explained")
        assert (told.code, told.state) == ("OutputNoRoom", "RUNNING")
        assert str(target) in told.message
        assert not target.exists()
        if form == "tes":
            view = json.loads(service.get(f"/ga4gh/tes/v1/tasks/{ident}?view=FULL")[1])
            assert view["state"] == "RUNNING"
            assert [line for line in view["logs"][-1]["system_logs"] if "finds no room" in line]
        filler.unlink()
        service.until(lambda: state(service, ident) == "SUCCEEDED", "delivered")
        assert target.stat().st_size == 10_000_000
        assert os.listdir(target.parent) == ["f"]
        assert runs.read_text() == "x\n"


def test_a_task_whose_results_wait_for_room_can_be_cancelled(tmp_path: Path, disk: Path) -> None:
    """Nothing of a half file is left where it should have been delivered; a restart of the service meanwhile changes nothing."""
    target, runs = disk / "out" / "f", tmp_path / "runs"
    (disk / "filler").write_bytes(b"\1" * (60 << 20))
    root, log = tmp_path / "root", tmp_path / "log"
    with Service(root, log) as service:
        service.ready()
        ident = sent(service, "document", delivering("document", target, runs))
        service.until(lambda: explained(service, ident, "finds no room"), "explained")
        service.process.kill()
        service.process.wait()
        with Service(root, log) as again:
            again.ready()
            again.until(lambda: explained(again, ident, "finds no room"), "explained after the restart")
            cancel(again, ident)
            again.until(lambda: state(again, ident) == "CANCELLED", "cancelled")
            assert os.listdir(disk / "out") == []
            assert runs.read_text() == "x\n"


@pytest.mark.parametrize("kind", ["bytes", "inodes"])
def test_results_wait_for_room_in_the_cache(tmp_path: Path, disk: Path, kind: str) -> None:
    """The root is full when a task ends: its output is published when there is room, and what read it reads it whole."""
    root, go, made = disk / "root", tmp_path / "go", tmp_path / "made"
    first = stage(
        "plain", f"seq 100000 > f; until [ -e {go} ]; do sleep 0.1; done; echo $$ > {made}"
    ) | {"name": "first", "outputs": [{"name": "f", "path": "f"}]}  # fmt: skip
    second = stage("plain", 'test "$(wc -l < "$FLOWSCHED_INPUT_F")" = 100000') | {
        "name": "second",
        "inputs": [{"name": "f", "from": "first.f", "match": "index"}],
    }
    with Service(root, tmp_path / "log") as service:
        service.ready()
        document = {"name": "w", "stages": [first, second]}
        workflow = asked(service.url, lambda client: client.submit(document)).id
        service.until(lambda: list(root.glob("nodes/*/attempts/*/work/f")), "begun")
        service.until(
            lambda: next(root.glob("nodes/*/attempts/*/work/f")).stat().st_size == 588895, "written"
        )
        free = FILLERS[kind](disk)
        service.waits_for("is full")
        go.touch()
        service.until(lambda: made.exists() and made.read_text(), "made")
        service.until(lambda: not Path(f"/proc/{made.read_text().strip()}").exists(), "ended")
        free()
        service.until(lambda: state(service, workflow) in ("SUCCEEDED", "FAILED"), "done")
        assert state(service, workflow) == "SUCCEEDED"


def test_a_database_on_a_full_disk_of_its_own_is_treated_like_the_root(tmp_path: Path, disk: Path) -> None:
    """The root has room: nothing starts nor is accepted all the same, so that cancels and ends can be written; then all goes on."""
    root, log, go = tmp_path / "root", tmp_path / "log", tmp_path / "go"
    database = ("--db", f"sqlite:///{disk}/its.db")
    with Service(root, log, *database) as service:
        service.ready()
        running = submit(service, "plain", f"until [ -e {go} ]; do sleep 0.1; done")
        victim = submit(service, "plain", "sleep 600")
        service.until(lambda: state(service, victim) == "RUNNING", "started")
        free = fill_bytes(disk)
        assert f"the file system {disk} with {disk} is full" in service.waits_for("is full")
        with pytest.raises(Unavailable, match=r"no new work is accepted now: .* is full"):
            submit(service, "plain", "true")
        assert cancel(service, victim) in ("CANCELLED", "CANCELLING")
        service.until(lambda: state(service, victim) == "CANCELLED", "cancelled")
        go.touch()
        service.until(lambda: state(service, running) == "SUCCEEDED", "ended well")
        free()
        service.ready()
        after = submit(service, "plain", "true")
        service.until(lambda: state(service, after) == "SUCCEEDED", "done later")
        assert service.stop() == 0


def test_an_ended_attempt_keeps_one_inode_and_its_log(tmp_path: Path) -> None:
    """A folder, whose name stays taken; a log in it where the task wrote one."""
    with Service(tmp_path / "root", tmp_path / "log") as service:
        service.ready()
        document = {"name": "w", "stages": [{"name": "work", "scatter": {"count": 3}, "command": ["true"]},
                                            {"name": "says", "command": ["echo", "hello"]}]}  # fmt: skip
        workflow = asked(service.url, lambda client: client.submit(document)).id
        service.until(lambda: state(service, workflow) == "SUCCEEDED", "done")
        folders = tmp_path / "root" / "nodes" / "node-0" / "attempts"

        def kept() -> dict[str, list[str]]:
            return {each.name: sorted(os.listdir(each)) for each in sorted(folders.iterdir())}

        expected = {
            f"fs-{workflow}-says-0-0": ["stdout"],
            **{f"fs-{workflow}-work-{number}-0": [] for number in range(3)},
        }
        service.until(lambda: kept() == expected, f"packed: {kept()}")
        assert service.get(f"/api/v1/workflows/{workflow}/tasks/says/0/logs")[1] == "hello\n"


@pytest.mark.parametrize("kind", ["bytes", "inodes"])
def test_a_service_that_was_stopped_in_order_starts_on_a_full_disk(
    tmp_path: Path, disk: Path, kind: str
) -> None:
    """There is not one free block, or inode: it opens its port, says so, and answers reads; then it goes on by itself."""
    root, log = disk / "root", tmp_path / "log"
    with Service(root, log) as service:
        service.ready()
        before = submit(service, "plain", "echo hello")
        service.until(lambda: state(service, before) == "SUCCEEDED", "done")
        assert service.stop() == 0
    free = FILLERS[kind](disk)
    with Service(root, log) as again:
        assert str(disk) in again.waits_for("is full")
        assert again.alive()
        assert state(again, before) == "SUCCEEDED"
        assert again.get(f"/api/v1/workflows/{before}/tasks/work/0/logs")[1] == "hello\n"
        free()
        again.ready()
        after = submit(again, "plain", "true")
        again.until(lambda: state(again, after) == "SUCCEEDED", "done later")
        assert again.stop() == 0


def test_a_start_on_a_full_disk_drops_no_data_and_makes_nothing_again(tmp_path: Path, disk: Path) -> None:
    """A cache may hold a part of its disk. On a disk that others have filled, that part is not what little is free now."""
    root, go, runs = disk / "root", tmp_path / "go", tmp_path / "runs"

    def work(name: str, script: str, **more: object) -> dict[str, Any]:
        return {
            **stage("plain", f"echo {name} >> {runs}; {script}"),
            "name": name,
            "outputs": [{"name": "f", "path": "f"}],
            **more,
        }

    def reads(of: str, match: str = "index") -> dict[str, Any]:
        return {"inputs": [{"name": "f", "from": f"{of}.f", "match": match}]}

    stages = [
        work("split", "head -c 1000000 /dev/zero > f"),
        work("align", "cat $FLOWSCHED_INPUT_F > f", scatter={"count": 4}, **reads("split", "all")),
        work("sort", f"cat $FLOWSCHED_INPUT_F > f; until [ -e {go} ]; do sleep 0.1; done",
             scatter={"count": 4}, **reads("align")),
        work("join", "cat $FLOWSCHED_INPUT_F > f", **reads("sort", "all")),
    ]  # fmt: skip

    def caches(service: Service) -> tuple[int, int]:
        """Bytes that the caches hold, and that they may hold."""
        nodes = asked(service.url, lambda client: client.nodes())
        return sum(node.cache_bytes for node in nodes), sum(node.cache_limit_bytes for node in nodes)

    with Service(root, tmp_path / "log", "--nodes", "3") as service:
        service.ready()
        workflow = asked(service.url, lambda client: client.submit({"name": "w", "stages": stages})).id
        service.until(lambda: runs.exists() and runs.read_text().count("sort") == 4, "read")
        held, _ = caches(service)
        service.process.kill()
        service.process.wait()
    free = fill_bytes(disk)
    with Service(root, tmp_path / "log", "--nodes", "3") as again:
        again.waits_for("is full")
        assert caches(again)[0] >= held  # tasks that end write more
        free()
        go.touch()
        again.ready()
        again.until(lambda: caches(again)[1] > 20 * 1000 * 1000, "measured on the disk with room")
        again.until(lambda: state(again, workflow) in ("SUCCEEDED", "FAILED"), "done")
        assert state(again, workflow) == "SUCCEEDED"
        assert again.stop() == 0
    assert sorted(runs.read_text().split()) == ["align"] * 4 + ["join"] + ["sort"] * 4 + ["split"]


@pytest.mark.parametrize("kind", ["bytes", "inodes"])
def test_a_first_start_on_a_full_disk_waits_with_its_port_open(tmp_path: Path, disk: Path, kind: str) -> None:
    """Not even its root can be made: it says so, with the file system, and begins when there is room."""
    free = FILLERS[kind](disk)
    with Service(disk / "below" / "root", tmp_path / "log") as service:
        assert f"the file system {disk} " in service.waits_for("the root cannot be made yet")
        assert service.alive()
        assert service.get("/api/v1/workflows")[0] == 503
        free()
        service.ready()
        workflow = submit(service, "plain", "true")
        service.until(lambda: state(service, workflow) == "SUCCEEDED", "done")
        assert service.stop() == 0


def test_a_first_start_on_a_full_disk_makes_a_whole_token_later(tmp_path: Path, disk: Path) -> None:
    """The root's folder is there, and no byte for the token: it waits, and no half token is taken for one when there is room."""
    root, state_home = disk / "root", tmp_path / "state"
    root.mkdir()
    (disk / "root.log").symlink_to(tmp_path / "log")  # where `served` writes
    free = fill_bytes(disk)
    with served(root, token=True, env={"XDG_STATE_HOME": str(state_home)}) as service:
        end = time.monotonic() + 90
        while "the root cannot be made yet" not in service.told():
            assert time.monotonic() < end, service.told()
            time.sleep(0.1)
        assert not (root / "token").exists() or not (root / "token").read_text()
        free()
        service.ready()
        token = (root / "token").read_text().strip()
        assert len(token) == 32
        assert service.get("/api/v1/workflows", token=token)["workflows"] == []
        (announced,) = state_home.rglob("*.json")
        assert json.loads(announced.read_text()) == {"token": token, "root": str(root)}


def test_free_pages_that_were_used_up_are_made_again_while_the_service_runs(tmp_path: Path) -> None:
    """Another connection takes all that the file keeps for a full disk; a few seconds later there is as much again."""
    root = tmp_path / "root"
    with Service(root, tmp_path / "log") as service:
        service.ready()
        with contextlib.closing(sqlite3.connect(root / "flowsched.db", timeout=60)) as database:

            def pages() -> int:
                return int(database.execute("PRAGMA freelist_count").fetchone()[0])

            service.until(lambda: pages() >= 384, "kept from the start")
            database.execute("CREATE TABLE eater (bytes BLOB)")
            database.execute("INSERT INTO eater VALUES (zeroblob(?))", (4096 * (pages() + 1000),))
            assert pages() == 0
            database.commit()
            service.until(lambda: pages() >= 384, "made again")
