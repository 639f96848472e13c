"""What a refused command says: the option that is wrong, and a next step that helps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import tomllib
from pathlib import Path

import pytest
from far_server import Far
from typer.testing import CliRunner

from flowsched import tokens
from flowsched.app import Settings, cautions, left_behind
from flowsched.cli import following
from flowsched.cli.app import app
from flowsched.cli.doctor import EXTRAS
from flowsched.client import Client
from flowsched.cluster.kubernetes.settings import KubernetesSettings
from flowsched.cluster.node.folder_lock import lock_folder
from flowsched.errors import ConfigurationError
from flowsched.scheduling.reasons import quantity
from flowsched.values import replace
from flowsched.workflow.views import ExplanationView, SuggestionView, WaitingView


@pytest.mark.parametrize("option", ["--cpu", "--memory", "--disk-rate", "--nic-rate", "--max-live-bytes"])
def test_a_quantity_that_is_none_is_told_with_its_option(tmp_path: Path, option: str) -> None:
    """And no announcement of the refused service stays."""
    root = ["--root", str(tmp_path / "root"), "--port", "0", "--no-supervise"]
    ended = CliRunner().invoke(app, ["serve", *root, option, "abc"])
    assert ended.exit_code == 2
    assert f"error: {option}: 'abc' is no quantity" in ended.stderr
    assert [
        each for each in tokens.servers_folder().glob("*.json") if str(tmp_path) in each.read_text()
    ] == []


def test_the_agent_refuses_a_log_level_that_there_is_not(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["agent", "--node", "n", "--log-level", "loud"])
    assert ended.exit_code == 2
    assert "--log-level" in ended.stderr
    assert "'loud'" in ended.stderr


def test_db_speaks_of_the_database_and_of_no_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    pytest.importorskip("psycopg", reason="the extra postgresql is not installed")
    ended = CliRunner().invoke(app, ["db", "check", "--db", f"postgresql://x@127.0.0.1:{port}/x"])
    assert ended.exit_code == 3
    assert "next: start the database, or correct what it refuses: --db URL" in ended.stderr
    assert "the service runs" not in ended.stderr


def test_doctor_names_a_service_that_has_another_database(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        path = tokens.announce(port.getsockname()[1], "t0", tmp_path)
        ended = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path), "-o", "jsonl"])
        path.unlink()
    line = next(line for line in ended.stdout.splitlines() if '"database"' in line)
    assert "a service runs on" in line
    assert "--db URL, or FLOWSCHED_DATABASE" in line


def test_an_announcement_goes_with_its_service_alone(tmp_path: Path) -> None:
    """One that another service has written since stays."""
    path = tokens.announce(1, "t0", tmp_path)
    first = path.stat().st_ino
    holding = path.open()  # no other file gets this inode meanwhile
    tokens.announce(1, "t1", tmp_path)
    tokens.withdraw(path, first)
    assert "t1" in path.read_text()
    tokens.withdraw(path, path.stat().st_ino)
    assert not path.exists()
    tokens.withdraw(path, first)
    holding.close()


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (500, "0.5 CPU"),
        (4000, "4 CPU"),
        (100_500, "100.5 CPU"),
        (100_000_500, "100000.5 CPU"),
        (200_025, "200.025 CPU"),
    ],
)
def test_large_amounts_are_written_in_whole_units(amount: int, text: str) -> None:
    assert quantity("cpu", amount) == text


def test_a_short_token_and_an_open_address_are_warned_of(tmp_path: Path) -> None:
    made = Settings(root=tmp_path, token="0" * 32)
    assert cautions(made, "127.0.0.1") == cautions(made, "::1") == []
    (open_address,) = cautions(made, "0.0.0.0")
    assert open_address.endswith("docs/owner.md#tls-and-other-machines")
    assert cautions(replace(made, kubernetes=KubernetesSettings()), "0.0.0.0") == []
    (short,) = cautions(replace(made, token="abc"), "127.0.0.1")
    assert short.startswith("the token has 3 characters")


def test_another_database_than_the_roots_own_is_said(tmp_path: Path) -> None:
    """With workflows that have not ended it is refused: nobody would know their tasks."""
    elsewhere = Settings(root=tmp_path, database="postgresql://flowsched@db/flowsched")
    assert left_behind(elsewhere) == ""
    with contextlib.closing(sqlite3.connect(tmp_path / "flowsched.db")) as made:
        made.execute("CREATE TABLE workflows (id TEXT, ended_ms INTEGER)")
        assert left_behind(elsewhere) == ""
        made.execute("INSERT INTO workflows VALUES ('w1', 5)")
        made.commit()
        assert "has 1 workflows that db/flowsched does not have" in left_behind(elsewhere)
        made.execute("INSERT INTO workflows VALUES ('w2', NULL)")
        made.commit()
    with pytest.raises(ConfigurationError, match=r"1 of the 2 workflows in .* have not ended"):
        left_behind(elsewhere)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "moved.db")) as moved,
        contextlib.closing(sqlite3.connect(tmp_path / "flowsched.db")) as made,
    ):
        made.backup(moved)
        moved.execute("CREATE TABLE identity (name TEXT, value TEXT)")
        moved.execute("INSERT INTO identity VALUES ('moved_to', 'postgresql://db/flowsched')")
        moved.commit()
        mine = tmp_path / "moved"
        mine.mkdir()
        (tmp_path / "moved.db").rename(mine / "flowsched.db")
    assert left_behind(replace(elsewhere, root=mine)) == ""
    assert left_behind(Settings(root=tmp_path)) == ""
    assert left_behind(replace(elsewhere, database=f"sqlite:///{tmp_path / 'flowsched.db'}")) == ""


@pytest.mark.parametrize("option", ["--cpu", "--memory"])
def test_nodes_of_nothing_are_refused(tmp_path: Path, option: str) -> None:
    """No task could ever start on them."""
    root = ["--root", str(tmp_path / "root"), "--port", "0", "--no-supervise"]
    ended = CliRunner().invoke(app, ["serve", *root, option, "0"])
    assert ended.exit_code == 2
    assert f"error: {option} 0: a node needs more than that" in ended.stderr


def test_who_serves_a_root_is_said_where_its_port_is_another(tmp_path: Path) -> None:
    """Advice to start a service there would be refused; `token` says why none is kept."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"

    def port() -> dict[str, str]:
        ended = CliRunner().invoke(app, ["--server", url, "doctor", "--root", str(tmp_path), "-o", "json"])
        return next(each for each in json.loads(ended.stdout) if each["name"] == "port")

    lock = asyncio.run(lock_folder(tmp_path, 0, str))
    try:
        check = port()
        assert check["mark"] == "warn"
        assert f"process {os.getpid()} serves {tmp_path} at another address" in check["found"]
        ended = CliRunner().invoke(app, ["token", "--root", str(tmp_path)])
        assert ended.exit_code == 2
        assert f"process {os.getpid()} serves it" in ended.stderr
        with socket.create_server(("127.0.0.1", 0)) as served:
            path = tokens.announce(served.getsockname()[1], "t0", tmp_path)
            there = f"http://127.0.0.1:{served.getsockname()[1]}"
            assert (there in port()["found"], port()["next"].startswith(f"name it: --server {there}")) == (
                True,
                True,
            )
            path.unlink()
    finally:
        os.close(lock)
    assert (port()["mark"], port()["next"]) == ("ok", "flowsched serve")
    ended = CliRunner().invoke(app, ["token", "--root", str(tmp_path)])
    assert "keeps none" in ended.stderr


def test_a_second_service_on_a_root_is_told_of_the_root_with_the_port(tmp_path: Path) -> None:
    """Another port alone would be refused next."""
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        path = tokens.announce(port, "t0", tmp_path)
        ended = CliRunner().invoke(
            app, ["serve", "--root", str(tmp_path), "--port", str(port), "--no-supervise"]
        )
        path.unlink()
    assert ended.exit_code == 2
    assert f"the service at http://127.0.0.1:{port} has {tmp_path}: give --server" in ended.stderr
    assert "or take another --root, too" in ended.stderr


def test_every_extra_for_users_is_in_the_readme_and_in_the_doctor() -> None:
    """Of those that pyproject.toml declares; `dev` and its like are for those who work on flowsched."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    for extra in EXTRAS:
        assert f"`{extra}`" in text, extra
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])
    assert "otel" in EXTRAS


def test_a_run_that_is_larger_than_its_queue_is_told_of_the_cap(
    far: Far, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of nodes: more of them would not help. The reason of the cancel says the same."""
    monkeypatch.setattr(following, "GIVE_UP_S", 0.1)
    message = "queue batch may never have more than 2 CPU, and this needs 3 CPU"
    waiting = WaitingView(
        stage="wide", tasks=1, state="QUEUED", code="LargerThanQueue", message=message, permanent=True
    )
    far.service.add("wide", waiting=waiting)

    async def given_up() -> int:
        async with Client(far.url) as client:
            return await following.give_up(client, "wf1")

    assert asyncio.run(given_up()) == 1
    said = capsys.readouterr().err
    assert (
        "error: stage wide asks for more than the cap of its queue allows, so wf1 was cancelled: queue batch"
        in said
    )
    assert "or --wait-for-nodes, if the cap of its queue will be raised" in said
    assert far.service.commands == [
        ("wf1", "cancel", {"reason": "wide asks for more than the cap of its queue allows"})
    ]


def test_what_a_user_can_do_alone_comes_before_more_nodes(
    far: Far, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the service thinks cheaper."""
    monkeypatch.setattr(following, "GIVE_UP_S", 0.1)
    waiting = WaitingView(
        stage="wide", tasks=1, state="QUEUED", code="LargerThanNode", message="too large", permanent=True
    )
    far.service.add("wide", waiting=waiting)
    suggestions = [SuggestionView(kind=kind, message=f"by {kind}") for kind in ("node", "request")]

    async def explain(client: Client, workflow: str, stage: str) -> list[ExplanationView]:
        return [
            ExplanationView(
                stage=stage, tasks=1, state="QUEUED", code="LargerThanNode", message="too large",
                suggestions=suggestions,
            )
        ]  # fmt: skip

    monkeypatch.setattr(Client, "explain", explain)

    async def given_up() -> int:
        async with Client(far.url) as client:
            return await following.give_up(client, "wf1")

    assert asyncio.run(given_up()) == 1
    assert (
        "next: by request; or by node; or --wait-for-nodes, if such a node will come"
        in capsys.readouterr().err
    )
