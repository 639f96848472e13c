"""`flowsched cromwell` against a service that answers as it is told."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flowsched.cli import cromwell
from tests.cromwell.desk import Desk
from tests.cromwell.values import HOSTILE
from tests.forks import ran

MADE = (202, {"id": "w1", "created": True, "url": "/api/v1/workflows/w1"})
MISSING = (404, {"title": "Not found", "status": 404, "detail": "there is no workflow w1"})
BUSY = (503, {"title": "Unavailable", "status": 503, "detail": "no leader"})
ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("--name=n", "--cwd=/w", "--script=/w/s")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own settings; waits of milliseconds."""
    for name in ("FLOWSCHED_SERVER", "FLOWSCHED_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cromwell, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(cromwell, "LONGEST_WAIT_S", 0.02)


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody listens."""
    return "http://127.0.0.1:9"


# ------------------------------------------------------------------------------------------ submit


def test_a_submission_says_the_id_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard output; nothing on standard error."""
    with Desk(MADE) as desk:
        code = cromwell.main(["submit", *NEEDED, "--server", desk.url, "--token=secret"])
    assert code == 0
    assert capsys.readouterr() == ("flowsched-job w1\n", "")
    (asked,) = desk.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/workflows")
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["idempotency-key"].startswith("cromwell-")
    assert asked.json()["stages"][0]["files"] == {"mounts": [{"source": "/w", "path": "/w"}]}


@pytest.mark.parametrize("hostile", HOSTILE, ids=[ascii(text)[:24] for text in HOSTILE])
@pytest.mark.parametrize("encoded", [False, True], ids=["as it is", "encoded"])
def test_any_text_reaches_the_service_as_it_is(hostile: str, encoded: bool) -> None:
    """Every option takes every text, dashes and line ends included."""
    given = f"/{hostile}"
    pairs = {
        "name": hostile,
        "cwd": given,
        "docker-cwd": given,
        "script": given,
        "shell": hostile,
        "image": hostile,
        "queue": hostile,
        "gpu-type": hostile,
        "stdout": "/out",
        "env": f"A={hostile}",
    }
    spell = quote if encoded else str
    options = [f"--{name}={spell(text)}" for name, text in pairs.items()] + ["--encoded"] * encoded
    with Desk(MADE) as desk:
        assert cromwell.main(["submit", *options, "--server", desk.url]) == 0
    document: Any = desk.asked[0].json()
    stage = document["stages"][0]
    assert document["name"] == hostile[:128]
    assert document["queue"] == hostile
    assert stage["selector"] == {"nvidia.com/gpu.product": hostile}
    assert stage["files"]["mounts"] == [{"source": given, "path": given}]
    assert stage["steps"] == [
        {"command": [hostile, given], "image": hostile, "env": {"A": hostile}, "stdout": "/out"}
    ]


def test_a_service_that_is_away_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """503 and 429 are tried again, with the same key and the same bytes; what is said meanwhile goes to standard error."""
    with Desk(BUSY, (429, {}), BUSY, MADE) as desk:
        assert cromwell.main(["submit", *NEEDED, "--server", desk.url]) == 0
    assert len(desk.asked) == 4
    assert len({(asked.headers["idempotency-key"], asked.body) for asked in desk.asked}) == 1
    said = capsys.readouterr()
    assert said.out == "flowsched-job w1\n"
    assert said.err.count("will try again in") == 3
    assert "503 no leader" in said.err


def test_waiting_has_an_end(nowhere: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After --retry-for the exit code is 3, and nothing is on standard output."""
    assert cromwell.main(["submit", *NEEDED, "--server", nowhere, "--retry-for=0.1"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: gave up to submit" in said.err
    assert "Connection refused" in said.err


@pytest.mark.parametrize("status", [400, 401, 403, 409, 413, 422])
def test_a_refusal_is_final(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked once; exit code 2; every fault is told."""
    fault = {"path": "$.queue", "found": '"x y"', "expected": "a name"}
    refused = {"title": "No", "status": status, "detail": "the document has 1 fault", "faults": [fault]}
    with Desk((status, refused)) as desk:
        assert cromwell.main(["submit", *NEEDED, "--server", desk.url]) == 2
    assert len(desk.asked) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"the job was refused: {status} the document has 1 fault" in said.err
    assert '$.queue: found "x y", expected a name' in said.err


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"id": 7}', b'{"id": ""}'])
def test_something_else_at_the_address_is_no_id(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """A proxy's friendly page must not become a job."""
    with Desk((200, answer)) as desk:
        assert cromwell.main(["submit", *NEEDED, "--server", desk.url]) == 2
    assert "is no flowsched" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--queue=a%00b", "--queue: found 'a%00b', expected %XX behind every %, and no %00"),
        ("--gpu-type=50%", "--gpu-type: found '50%', expected %XX behind every %, and no %00"),
        ("--env=A=%zz", "--env: found 'A=%zz', expected %XX behind every %, and no %00"),
        ("--priority=high", "--priority: found 'high', expected a whole number"),
        ("--env=NAME", "--env: found 'NAME', expected NAME=VALUE"),
        ("--mount=/a", "--mount: found '/a', expected /FOLDER:/PATH"),
        ("--cpu=two", "--cpu: found 'two', expected a number such as 4 or 0.5"),
        ("--idempotency-key=ä", "--idempotency-key: found 'ä', expected 1 to 255 printable ASCII characters"),
        ("--server=localhost", "--server: 'localhost' has no scheme: write http://localhost"),
        ("--server=http://h:99999", "--server: 'http://h:99999' is no URL such as http://127.0.0.1:8470"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    nowhere: str, option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option, what was found and what was expected; exit code 2 at once."""
    assert cromwell.main(["submit", *NEEDED, f"--server={nowhere}", "--encoded", option]) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")


@pytest.mark.parametrize(
    ("options", "mounts"),
    [
        ([], [("/w", "/w")]),
        (["--docker-cwd=/c"], [("/w", "/c")]),
        (["--mount=/w:/c"], [("/w", "/c")]),
        (["--mount=/a:b:/c"], [("/a:b", "/c")]),
        (["--mount=/a:/b:/c"], [("/a:/b", "/c")]),
        (["--docker-cwd=/c", "--mount=/ref:/ref"], [("/w", "/c"), ("/ref", "/ref")]),
    ],
)
def test_mounts(options: list[str], mounts: list[tuple[str, str]]) -> None:
    """The call's folder at its own path unless said otherwise; a source may hold colons, even before a slash."""
    with Desk(MADE) as desk:
        assert cromwell.main(["submit", *NEEDED, "--server", desk.url, *options]) == 0
    found = desk.asked[0].json()["stages"][0]["files"]["mounts"]
    assert [(mount["source"], mount["path"]) for mount in found] == mounts


# ------------------------------------------------------------------------------------------ alive


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((200, {"state": "PENDING"}), 0),
        ((200, {"state": "RUNNING"}), 0),
        ((200, {"state": "PAUSED"}), 0),
        ((200, {"state": "CANCELLING"}), 0),
        ((200, {"state": "A_STATE_OF_NEXT_YEAR"}), 0),
        ((200, {"state": "SUCCEEDED"}), 1),
        ((200, {"state": "FAILED"}), 1),
        ((200, {"state": "CANCELLED"}), 1),
        (MISSING, 1),
        ((404, b"<html>no such page</html>"), 0),
        (BUSY, 0),
        ((500, b""), 0),
        ((401, {"status": 401, "detail": "no token"}), 0),
        ((200, b"<html>"), 0),
        ((200, {}), 0),
    ],
)
def test_only_a_job_that_is_known_to_be_over_is_dead(
    answer: tuple[int, Any], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 where the service says so itself; in doubt a job lives, for Cromwell would give it up for good."""
    with Desk(answer) as desk:
        assert cromwell.main(["alive", "w1", "--server", desk.url]) == code
    assert desk.asked[0].path == "/api/v1/workflows/w1"
    assert capsys.readouterr().out == ""


def test_a_job_that_is_over_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, which Cromwell keeps as `stderr.check`."""
    with Desk((200, {"state": "FAILED", "reason": "call: task 0 failed: Quarantined"})) as desk:
        assert cromwell.main(["alive", "w1", "--server", desk.url]) == 1
    assert capsys.readouterr().err == "FAILED: call: task 0 failed: Quarantined\n"


def test_a_service_that_is_away_leaves_jobs_alive(nowhere: str) -> None:
    """As cromwell#5400 asks of every check-alive."""
    assert cromwell.main(["alive", "w1", "--server", nowhere]) == 0


# ------------------------------------------------------------------------------------------ kill


@pytest.mark.parametrize("answer", [(200, {"state": "CANCELLING"}), MISSING, (409, {"status": 409})])
def test_a_job_that_is_not_there_needs_no_killing(answer: tuple[int, Any]) -> None:
    """0 for one that runs, one that is over and one that never was."""
    with Desk(answer) as desk:
        assert cromwell.main(["kill", "w1", "--server", desk.url]) == 0
    assert [(asked.method, asked.path) for asked in desk.asked] == [("POST", "/api/v1/workflows/w1/cancel")]


def test_a_kill_waits_for_the_service(nowhere: str) -> None:
    """It is tried again for a while; then the exit code is 3."""
    with Desk(BUSY, (200, {"state": "CANCELLED"})) as desk:
        assert cromwell.main(["kill", "w1", "--server", desk.url]) == 0
    assert len(desk.asked) == 2
    assert cromwell.main(["kill", "w1", "--server", nowhere, "--retry-for=0.05"]) == 3


def test_a_kill_without_rights_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """401 will not go away by waiting."""
    with Desk((401, {"status": 401, "detail": "give a token"})) as desk:
        assert cromwell.main(["kill", "w1", "--server", desk.url]) == 2
    assert "401 give a token" in capsys.readouterr().err


def test_an_id_is_one_part_of_a_path() -> None:
    """Whatever it holds."""
    with Desk(MISSING) as desk:
        assert cromwell.main(["alive", "../queues?x=/#", "--server", desk.url]) == 1
    assert desk.asked[0].path == "/api/v1/workflows/..%2Fqueues%3Fx%3D%2F%23"


# ------------------------------------------------------------------------------------------ as a program


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`flowsched …` in a process of its own."""
    return ran(arguments, env={**os.environ, **environment})


def test_the_environment_names_the_server_and_the_token() -> None:
    """FLOWSCHED_SERVER and FLOWSCHED_TOKEN, as for every command."""
    with Desk((200, {"state": "RUNNING"})) as desk:
        done = program("cromwell", "alive", "w1", FLOWSCHED_SERVER=desk.url, FLOWSCHED_TOKEN="t0p")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "RUNNING\n")
    assert desk.asked[0].headers["authorization"] == "Bearer t0p"


def test_global_options_may_stand_in_front() -> None:
    """As they may for every command; the slower way, through all commands."""
    with Desk((200, {"state": "FAILED"})) as desk:
        done = program("--server", desk.url, "--token", "t0p", "cromwell", "alive", "w1")
    assert (done.returncode, done.stderr) == (1, "FAILED\n")
    assert desk.asked[0].headers["authorization"] == "Bearer t0p"


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        (
            (202, b'{"id":"w1","created":true,"url":"/api/v1/workflows/w1"}'),
            ["submit", *NEEDED, "--encoded", "--cpu=4"],
        ),
        (BUSY, ["alive", "w1"]),
    ],
    ids=["submit", "alive"],
)
def test_it_starts_light(answer: tuple[int, Any], command: list[str]) -> None:
    """Cromwell starts one for each job: what is slow to load is not loaded, and for a submission hardly anything is."""
    with Desk(answer) as desk:
        code = (
            "import os, sys; before = set(sys.modules)\n"
            "def leave(code): raise SystemExit(code)\n"
            "os._exit = leave\n"
            f"sys.argv = ['flowsched', 'cromwell', *{command!r}, '--server={desk.url}', '--token=t']\n"
            "from flowsched.__main__ import main\n"
            "try: main()\n"
            "except SystemExit as end: assert end.code == 0\n"
            "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {[str(ROOT)]!r}\n{code}"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stderr.splitlines()[-1]))
    assert not loaded & {
        "aiohttp",
        "asyncio",
        "typer",
        "click",
        "rich",
        "msgspec",
        "numpy",
        "dataclasses",
        "sqlalchemy",
    }
    if command[0] == "submit":
        assert not loaded & {
            "argparse",
            "enum",
            "hashlib",
            "http",
            "json",
            "pathlib",
            "re",
            "socket",
            "typing",
            "urllib",
        }


@pytest.mark.parametrize(
    "options",
    [
        ["submit", *NEEDED],
        [
            "submit",
            "--encoded",
            "--name",
            "n",
            "--cwd=/w=1",
            "--script=",
            "--env=A=1",
            "--env",
            "B=2",
            "--retry-for=3",
        ],
        ["submit", *NEEDED, "--mount=/a:/b", "--cpu=1", "--cpu=2", "--server=http://h", "--token=t"],
        ["alive", "w1", "--encoded"],
        ["kill", "--retry-for", "2.5", "w1"],
    ],
)
def test_options_are_read_alike_with_and_without_argparse(options: list[str]) -> None:
    """The quick reader and the parser behind --help share their table."""
    quick = cromwell._parsed(options)
    assert quick is not None
    assert vars(quick) == vars(cromwell._parser().parse_args(options)) | (
        {"retry_for": 0.0} if options[0] == "alive" else {}
    )


@pytest.mark.parametrize(
    "options",
    [
        [], ["--help"], ["submit", "--help"], ["submit"], ["submit", *NEEDED, "more"], ["submit", *NEEDED, "--cpu"],
        ["submit", *NEEDED, "--cpu", "--gpu=1"], ["submit", *NEEDED, "--memory_mb=1"], ["submit", *NEEDED, "--no-such=1"],
        ["submit", *NEEDED, "--encoded=1"], ["submit", *NEEDED, "--retry-for=soon"], ["submit", *NEEDED, "--command=x"],
        ["submit", *NEEDED, "--id=x"], ["alive"], ["alive", "a", "b"], ["alive", "a", "--retry-for=1"], ["alive", "a", "--name=n"],
        ["kill", "-h"], ["kill", "a", "--"], ["stop"],
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_argparse(options: list[str]) -> None:
    """It says what is wrong, or helps."""
    assert cromwell._parsed(options) is None


def test_help_names_every_option() -> None:
    """What the manual promises is there."""
    text = program("cromwell", "submit", "--help").stdout
    wished = (
        "--name --cwd --mount --image --cpu --memory-mb --disk-gb --queue --gpu --priority --gpu-type --env --stdout --stderr "
        "--rc-file --script --shell --docker-cwd --idempotency-key --retry-for --encoded --server --token"
    )
    assert [name for name in wished.split() if name not in text] == []
    assert "cromwell" in program("--help").stdout


def test_a_lost_answer_makes_no_second_job() -> None:
    """The connection breaks after the request arrived: it is asked again under the same key."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        for reply in (b"", b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"id": "w1"}'):
            connection, _ = listener.accept()
            with connection:
                data = b""
                while b"\r\n\r\n" not in data or not data.endswith(b"}"):
                    data += connection.recv(65536)
                seen.append(data)
                connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert cromwell.main(["submit", *NEEDED, "--server", url]) == 0
    thread.join(60)
    listener.close()
    keys = [line for data in seen for line in data.split(b"\r\n") if line.startswith(b"Idempotency-Key")]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert json.loads(seen[0].partition(b"\r\n\r\n")[2]) == json.loads(seen[1].partition(b"\r\n\r\n")[2])
