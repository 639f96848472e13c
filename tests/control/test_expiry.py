"""What ended long ago is removed: rows, logs and datasets; what is young or alive stays."""

from __future__ import annotations

import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowsched.app import Running, Settings, assembled, now_ms, running
from flowsched.cli.app import app as cli
from flowsched.clock import ServiceClock
from flowsched.control.leading import retention
from flowsched.control.leading.retention import Expiry
from flowsched.control.wes import RunRequest
from flowsched.errors import OutcomeUnknown, StorageBusy
from flowsched.values import replace

DOCUMENT = json.dumps(
    {
        "name": "one",
        "stages": [
            {
                "name": "write",
                "command": ["sh", "-c", "echo said; echo kept > out.txt"],
                "outputs": [{"name": "out", "path": "out.txt"}],
            }
        ],
    }
).encode()


async def ended(service: object, ident: str) -> None:
    async for _ in service.events(ident, 0):  # type: ignore[attr-defined]
        pass


async def test_an_old_workflow_leaves_nothing_and_a_young_one_stays(tmp_path: Path) -> None:
    """With a clock forty days ahead of the first workflow's end and just ahead of the second's."""
    settings = Settings(port=0, root=tmp_path, log_level="error", keep_days=0)
    async with running(settings) as up:
        service = up.service
        old = (await service.submit(DOCUMENT)).id
        await ended(service, old)
        between = now_ms() + 1
        young = (await service.submit(DOCUMENT)).id
        await ended(service, young)
        days = 30 * 86_400_000
        expiry = Expiry(
            service._database,
            service._leader.dispatcher,
            up.executor,
            keep_days=30,
            clock=lambda: between + days,
        )
        assert await expiry.once() == 1
        left = [view.id for view in (await service.list_workflows()).workflows]
        assert left == [young]
        logs, _ = await service.logs(young, "write", 0)
        assert logs == b"said\n"
        said = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"kept\n"]
        assert len(said) == 1
        assert await expiry.once() == 0


def program(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Nextflow that does what the script says."""
    path = folder / "bin" / "nextflow"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def everything(up: Running) -> Expiry:
    """Expiry of all that has ended."""
    service, root, clock = up.service, up.service.wes._root, lambda: now_ms() + 1
    dispatcher = service._leader.dispatcher
    return Expiry(service._database, dispatcher, up.executor, root=root, keep_days=0, clock=clock)


NEXTFLOW = RunRequest(workflow_type="NFL", workflow_url="main.nf")


async def test_the_folder_of_a_wes_run_goes_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose workflow this database has not removed stays, and so does one that names none."""
    program(tmp_path, "touch result", monkeypatch)
    async with running(Settings(port=0, root=tmp_path / "root", log_level="error")) as up:
        runs = [await up.service.wes.begin(NEXTFLOW, {"main.nf": b""}, up.url, None) for _ in range(2)]
        folders = [tmp_path / "root" / "wes" / run for run in runs]
        for run, folder in zip(runs, folders, strict=True):
            await up.service.ended(run)
            assert (folder / "work" / "result").exists()
        known = (folders[0] / "workflow").read_text()
        above = folders[0].parent
        stay = [
            above / f"{name}-0123456789abcdef"
            for name in ("file", "fifo", "dir", "link", "odd", "other", "none")
        ]
        for name in stay[1:]:
            name.mkdir()
        stay[0].write_text(known)
        os.mkfifo(stay[1] / "workflow")
        (stay[2] / "workflow").mkdir()
        (stay[3] / "workflow").symlink_to(folders[0] / "workflow")
        (stay[4] / "workflow").write_bytes(b"\0\xff")
        (stay[5] / "workflow").write_text("w0123456789abcdef")
        linked = above / "linked-0123456789abcdef"
        linked.symlink_to(folders[0])
        for odd in (b"\xff\xfe", b"a-0123456789abcdef\n"):
            stay.append(Path(os.fsdecode(os.fsencode(above) + b"/" + odd)))
            stay[-1].mkdir()
            (stay[-1] / "workflow").write_text(known)
        leader = up.service._leader
        assert await leader._expiry(leader.dispatcher).once() == 0
        assert all(folder.exists() for folder in folders)
        assert await everything(up).once() == 2
        assert sorted(above.iterdir()) == sorted([*stay, linked])


async def test_a_run_that_a_client_names_as_a_workflow_or_a_folder_removes_neither(tmp_path: Path) -> None:
    """The ids of runs are a client's own words. Later both expire as usual."""
    waits = {"name": "wait", "command": ["sleep", "600"], "needs": ["write"]}
    document = json.loads(DOCUMENT)
    live = json.dumps({**document, "stages": [*document["stages"], waits]}).encode()
    folder = tmp_path / "wes" / "other-0123456789abcdef"
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        service = up.service
        named = (await service.submit(live)).id
        while (await service.workflow(named)).counts != {"SUCCEEDED": 1, "RUNNING": 1}:
            await asyncio.sleep(0.01)
        (folder / "work").mkdir(parents=True)
        for run in (named, folder.name, "..", "../nodes"):
            call = {"run": run, "run_name": "r", "source": "x", "node": "n"}
            await ended(service, (await service.submit(json.dumps({**document, "call": call}).encode())).id)
        assert await everything(up).once() == 4
        assert (await service.logs(named, "write", 0))[0] == b"said\n"
        said = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"kept\n"]
        assert len(said) == 1
        assert folder.exists()
        await service.command(named, "cancel")
        await ended(service, named)
        assert await everything(up).once() == 1


@pytest.mark.parametrize(("error", "stays"), [(OutcomeUnknown("lost"), True), (StorageBusy("full"), False)])
async def test_the_folder_of_a_run_that_is_perhaps_accepted_stays(
    error: Exception, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine may be about to start there."""
    program(tmp_path, "true", monkeypatch)

    async def submit(document: bytes) -> None:
        raise error

    async with running(Settings(port=0, root=tmp_path / "root", log_level="error")) as up:
        monkeypatch.setattr(up.service.wes, "_submit", submit)
        with pytest.raises(StorageBusy):
            await up.service.wes.begin(NEXTFLOW, {"main.nf": b""}, up.url, None)
    assert [(folder / "work" / "main.nf").exists() for folder in tmp_path.glob("root/wes/*")] == [
        True
    ] * stays


async def test_a_clean_up_that_fails_in_any_way_comes_again_in_the_same_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task waits for it: what it stumbles over must not end the leader's loops, for ever again."""
    monkeypatch.setattr(retention, "FIRST_S", 0.0)
    monkeypatch.setattr(retention, "PERIOD_S", 0.01)
    tries: list[None] = []
    async with running(Settings(port=0, root=tmp_path, log_level="error", keep_days=0)) as up:
        expiry = everything(up)

        async def once() -> int:
            tries.append(None)
            if len(tries) == 1:
                raise ValueError("odd")
            raise asyncio.CancelledError

        monkeypatch.setattr(expiry, "once", once)
        monkeypatch.setattr(expiry, "_keep_ms", 1)
        with pytest.raises(asyncio.CancelledError):
            await expiry.run()
    assert len(tries) == 2


async def test_a_service_that_starts_under_a_wrong_clock_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine boots twenty years ahead, and sets its clock a moment later: the service goes on in 2046, results stay."""
    settings = Settings(port=0, root=tmp_path, log_level="error")
    async with running(settings) as up:
        done = (await up.service.submit(DOCUMENT)).id
        await ended(up.service, done)
    ahead_ns = 20 * 365 * 86_400 * 10**9
    wrong = partial(ServiceClock, wall_ns=lambda: time.time_ns() + ahead_ns)
    monkeypatch.setattr("flowsched.app.ServiceClock", wrong)
    async with running(settings) as up:
        leader = up.service._leader
        assert leader._clock() > now_ms() + ahead_ns // 2_000_000
        assert await leader._expiry(leader.dispatcher).once() == 0
        assert (await up.service.workflow(done)).state == "SUCCEEDED"


async def test_db_expire_says_when_the_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows go at once; logs and results go at the first clean-up after the next start."""
    settings = Settings(port=0, root=tmp_path, log_level="error")
    async with running(settings) as up:
        await ended(up.service, (await up.service.submit(DOCUMENT)).id)

    def kept() -> list[Path]:
        """The logs and results that are there, in the order of their names."""
        return sorted((*tmp_path.rglob("out.txt"), *tmp_path.rglob("stdout")), key=lambda path: path.name)

    command = ["db", "expire", "--root", str(tmp_path), "--days", "0"]
    done = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert done.stdout == "1 workflows removed from the database\n"
    assert "the service removes them 2 minutes after its next start" in done.stderr
    assert [path.read_text() for path in kept()] == ["kept\n", "said\n"]
    again = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert (again.stdout, again.stderr) == ("0 workflows removed from the database\n", "")
    monkeypatch.setattr("flowsched.control.leading.retention.FIRST_S", 0.0)
    async with running(settings), asyncio.timeout(60):
        while kept():
            await asyncio.sleep(0.05)


async def test_a_start_is_given_time_to_set_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first clean-up comes two minutes after the start."""
    seen: list[object] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 3:
            raise asyncio.CancelledError

    async def once(_: Expiry) -> int:
        seen.append("clean-up")
        return 0

    monkeypatch.setattr("flowsched.control.leading.retention.asyncio.sleep", sleep)
    monkeypatch.setattr(Expiry, "once", once)
    with pytest.raises(asyncio.CancelledError):
        await Expiry(None, None, None, keep_days=30, clock=now_ms).run()  # type: ignore[arg-type]
    assert seen == [120.0, "clean-up", 600.0]


async def test_nothing_leads_before_it_is_asked_to(tmp_path: Path) -> None:
    """Assembling a service opens its database and starts no loop."""
    async with assembled(Settings(root=tmp_path, log_level="error")) as (service, leader, _, _):
        assert service.ready() == (False, "leader: waiting for the lease")
        assert leader.dispatcher is None


async def test_a_workflow_that_lives_longer_than_is_kept_loses_no_log(tmp_path: Path) -> None:
    """Its first stage ended forty days ago, its second one still runs: whose logs go is a question of the workflow."""
    document = {
        "name": "long",
        "stages": [
            {"name": "first", "command": ["sh", "-c", "echo said"]},
            {"name": "second", "needs": ["first"], "command": ["sh", "-c", f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done"]},
        ],
    }  # fmt: skip
    days = 40 * 86_400_000
    async with running(Settings(port=0, root=tmp_path / "root", log_level="error", keep_days=0)) as up:
        service = up.service
        lives = (await service.submit(json.dumps(document).encode())).id
        while {view.name: view.counts for view in await service.stages(lives)}["second"].get("RUNNING") != 1:
            await asyncio.sleep(0.02)
        expiry = Expiry(
            service._database,
            service._leader.dispatcher,
            up.executor,
            keep_days=30,
            clock=lambda: now_ms() + days,
        )
        await expiry.once()
        assert await service.logs(lives, "first", 0) == (b"said\n", False)
        (tmp_path / "gate").touch()
        await ended(service, lives)
        assert await expiry.once() == 1
        assert list((tmp_path / "root").glob("nodes/*/attempts/*")) == []


async def clean_up(up: Running, *, days: int = 0) -> int:
    """Expire what ended before now, by a clock that is so many days ahead."""
    expiry = Expiry(
        up.service._database,
        up.service._leader.dispatcher,
        up.executor,
        keep_days=30,
        clock=lambda: now_ms() + days * 86_400_000,
    )
    return await expiry.once()


async def results(up: Running, ident: str) -> tuple[bytes, bytes]:
    """The log of a workflow's only task, and its output."""
    log, _ = await up.service.logs(ident, "write", 0)
    data = await up.service.output(ident, "write", 0, "out")
    return log, b"".join([chunk async for chunk in data.chunks])


async def done(up: Running) -> str:
    """A workflow that has ended."""
    ident = (await up.service.submit(DOCUMENT)).id
    await ended(up.service, ident)
    return str(ident)


async def test_a_database_removes_no_files_of_another_databases_workflows(tmp_path: Path) -> None:
    """Both have used one root by turns: each expiry, however late, removes what its own database had, and nothing else."""
    first = Settings(port=0, root=tmp_path, log_level="error", keep_days=0)
    second = replace(first, database=str(tmp_path / "other.db"))
    async with running(first) as up:
        one = await done(up)
    async with running(second) as up:
        two = await done(up)
        assert await clean_up(up) == 0
        assert await results(up, two) == (b"said\n", b"kept\n")
    async with running(first) as up:
        assert await results(up, one) == (b"said\n", b"kept\n")
        assert await clean_up(up, days=40) == 1
    async with running(second) as up:
        assert await results(up, two) == (b"said\n", b"kept\n")
        assert await clean_up(up, days=40) == 1
    assert list(tmp_path.glob("nodes/*/attempts/*")) == []
    assert [path for path in tmp_path.glob("nodes/*/cache/**/*") if path.name == "out.txt"] == []


async def test_a_backup_that_is_restored_costs_no_file_of_later_workflows(tmp_path: Path) -> None:
    """The older database does not know the second workflow. The newer one, put back after a clean-up, finds its files."""
    settings = Settings(port=0, root=tmp_path, log_level="error", keep_days=0)
    file = tmp_path / "flowsched.db"
    async with running(settings) as up:
        await done(up)
    backup = file.read_bytes()
    async with running(settings) as up:
        later = await done(up)
    newer = file.read_bytes()
    for path in tmp_path.glob("flowsched.db-*"):
        path.unlink()
    file.write_bytes(backup)
    async with running(settings) as up:
        assert await clean_up(up) == 0
    for path in tmp_path.glob("flowsched.db-*"):
        path.unlink()
    file.write_bytes(newer)
    async with running(settings) as up:
        assert await results(up, later) == (b"said\n", b"kept\n")
