"""A restart does not end a client's run: the port outlives the service."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.serving.processes import START_S, Served, gone, served

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")

pytestmark = pytest.mark.slow


def test_a_client_that_never_retries_outlives_kill_9(tmp_path: Path) -> None:
    """Polls that come while the service is dead wait, and are answered by the next one. No connection is refused."""
    with served(tmp_path / "root") as service:
        for _ in range(2):
            killed = service.ready()
            os.kill(killed, signal.SIGKILL)
            assert gone(killed)
            with urlopen(f"{service.url}/livez", timeout=120) as answer:  # raises if it is refused or reset
                assert answer.status == 200
            assert service.ready(other_than=killed) != killed


def test_requests_that_queue_while_the_service_is_down_are_all_answered(tmp_path: Path) -> None:
    """Forty clients connect and send while no service lives; each gets its own answer."""
    with served(tmp_path / "root") as service:
        killed = service.ready()
        os.kill(service.process.pid, signal.SIGSTOP)  # the next service begins when the test says so
        os.kill(killed, signal.SIGKILL)
        assert gone(killed)
        waiting = [socket.create_connection(("127.0.0.1", service.port), 120) for _ in range(40)]
        for number, client in enumerate(waiting):
            body = json.dumps({"name": f"w{number}", "stages": [{"name": "a", "command": ["true"]}]})
            head = f"POST /api/v1/workflows HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())
        os.kill(service.process.pid, signal.SIGCONT)
        answers = [b"".join(iter(lambda c=client: c.recv(65536), b"")) for client in waiting]
        assert [answer[:12] for answer in answers] == [b"HTTP/1.1 202"] * 40
        names = {each["name"] for each in service.get("/api/v1/workflows?limit=100")["workflows"]}
        assert names == {f"w{number}" for number in range(40)}


def test_an_answer_that_is_cut_by_a_kill_is_seen_as_cut(tmp_path: Path) -> None:
    """A client with half an answer gets an error, never a short answer that looks whole."""
    with served(tmp_path / "root") as service:
        killed = service.ready()
        made = {"name": "big", "command": ["sh", "-c", "head -c 300000000 /dev/zero > f"]}
        ident = service.get(
            "/api/v1/workflows", {"name": "w", "stages": [made | {"outputs": [{"name": "f", "path": "f"}]}]}
        )["id"]
        while service.get(f"/api/v1/workflows/{ident}")["state"] != "SUCCEEDED":
            time.sleep(0.1)
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
        connection.request("GET", f"/api/v1/workflows/{ident}/tasks/big/0/outputs/f")
        answer = connection.getresponse()
        assert (answer.status, len(answer.read(1000))) == (200, 1000)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()


def test_a_task_that_runs_is_adopted_by_the_next_life(tmp_path: Path) -> None:
    """It started once, and its attempt is the one that succeeds."""
    with served(tmp_path / "root") as service:
        killed = service.ready()
        command = f"echo x >> {tmp_path}/starts; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        stage = {"name": "a", "command": ["sh", "-c", command]}
        ident = service.get("/api/v1/workflows", {"name": "w", "stages": [stage]})["id"]
        while not (tmp_path / "starts").exists():
            time.sleep(0.05)
        os.kill(killed, signal.SIGKILL)
        service.ready(other_than=killed)
        (tmp_path / "go").touch()
        while (state := service.get(f"/api/v1/workflows/{ident}")["state"]) not in ENDED:
            time.sleep(0.05)
        assert (state, (tmp_path / "starts").read_text()) == ("SUCCEEDED", "x\n")


def test_kill_9_of_the_process_that_the_user_started_ends_the_service(tmp_path: Path) -> None:
    """As without a supervisor; the next start has the port and the root at once."""
    with served(tmp_path / "root") as service:
        first = service.ready()
        assert first != service.process.pid
        status = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        assert resident < 20 * 1024  # the standard library alone: a fifth of the service
        service.process.kill()
        service.process.wait(30)
        assert gone(first)
        with served(tmp_path / "root", port=service.port) as again:
            assert again.ready() != first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_stops_the_service_in_order(tmp_path: Path, number: int) -> None:
    """Both end, with exit code 0."""
    with served(tmp_path / "root") as service:
        pid = service.ready()
        service.process.send_signal(number)
        assert service.process.wait(60) == 0
        assert gone(pid)


#: `flowsched serve`, whose parent becomes the supervisor only when a file is there.
LATE = """
import os, sys, time
go, *sys.argv[1:] = sys.argv[1:]
execv = os.execv
def late(*given):
    while not os.path.exists(go):
        time.sleep(0.01)
    execv(*given)
os.execv = late
from flowsched.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_supervisor_has_begun_stops_the_service_in_order(
    tmp_path: Path, number: int
) -> None:
    """On a busy machine the service is ready before the program that supervises it runs: the signal waits for it."""
    with served(tmp_path / "root", python=("-c", LATE, str(tmp_path / "go"))) as service:
        pid = service.ready()
        service.process.send_signal(number)
        (tmp_path / "go").touch()
        assert service.process.wait(60) == 0, service.told()
        assert gone(pid)


def test_a_kill_while_the_database_is_away_at_the_first_start_is_followed_by_another_life(
    tmp_path: Path,
) -> None:
    """An outage is waited for, also by the life after the next; only an error that the service reports ends the first start."""
    pytest.importorskip("psycopg")
    nowhere = "postgresql://flowsched@127.0.0.1:1/none"
    with served(tmp_path / "root", "--db", nowhere) as service:
        for number in range(2):
            wait_for(lambda: live(service), service)
            killed = child_of(service)
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda n=number: service.told().count("was killed by SIGKILL") > n, service)
            assert gone(killed)
        wait_for(lambda: live(service), service)


def test_a_life_that_may_never_begin_ends_the_supervisor_also_after_a_kill(tmp_path: Path) -> None:
    """The first life is killed before its configuration is accepted, the second finds that it cannot run: that is told, once."""
    end = supervised(tmp_path, first="kill -9 $$", later="exit 2")
    assert (end.returncode, end.stderr.count("is started again")) == (2, 1)


def test_a_life_that_is_stopped_before_it_can_listen_to_signals_is_not_started_again(tmp_path: Path) -> None:
    """It ends by SIGTERM itself: it was asked to stop."""
    end = supervised(tmp_path, first="kill -9 $$", later="kill -TERM $$")
    assert (end.returncode, end.stderr.count("is started again")) == (-signal.SIGTERM, 1)


def supervised(folder: Path, first: str, later: str) -> subprocess.CompletedProcess[str]:
    """The end of a supervisor, whose lives are shell scripts that never accept their configuration."""
    order = {"command": ["/bin/sh", "-c", later], "log_json": False}
    program = (
        "import os, sys; sys.argv = ['s']; from flowsched import supervisor as s\n"
        "r, w = os.pipe(); os.close(w)\n"
        f"pid = os.posix_spawn('/bin/sh', ['sh', '-c', {first!r}], {{}})\n"
        f"s.supervise({order!r} | {{'sockets': [], 'pid': pid, 'accepted_fd': r, 'credentials_fd': os.open('/dev/null', 0)}})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=folder
    )


def live(service: Served) -> bool:
    with contextlib.suppress(OSError), urlopen(f"{service.url}/livez", timeout=START_S) as answer:
        return bool(answer.status == 200)
    return False


def child_of(service: Served) -> int:
    """The service, by the process that supervises it: it has not locked its root yet."""
    (pid,) = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    return int(pid)


def wait_for(holds: Callable[[], bool], service: Served) -> None:
    """Wait until something holds, as long as the process that the user started lives."""
    end = time.monotonic() + START_S
    while not holds():
        assert service.process.poll() is None, service.told()
        assert time.monotonic() < end, service.told()
        time.sleep(0.05)


def test_a_service_that_is_stopped_by_itself_stays_stopped(tmp_path: Path) -> None:
    """SIGTERM to the service's own pid is a stop, not a crash."""
    with served(tmp_path / "root") as service:
        os.kill(service.ready(), signal.SIGTERM)
        assert service.process.wait(60) == 0


def test_a_start_that_cannot_work_ends_with_its_exit_code(tmp_path: Path) -> None:
    """A second service on a root says who has it, and is not tried again."""
    with served(tmp_path / "root") as service:
        pid = service.ready()
        with served(tmp_path / "root") as second:
            assert second.process.wait(120) == 2
            assert f"process {pid}" in " ".join(service.log.read_text().split())
        with served(tmp_path / "other", port=service.port) as third:
            assert third.process.wait(120) == 2
            assert f"cannot listen on 127.0.0.1:{service.port}" in third.told()


def test_a_crash_in_the_first_recovery_is_followed_by_another_life(tmp_path: Path) -> None:
    """The port is open and the configuration accepted: what dies in recovery is started again, not the supervisor ended."""
    stage = {"name": "a", "command": ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"]}
    with served(tmp_path / "root") as service:
        service.ready()
        service.get("/api/v1/workflows", {"name": "w", "stages": [stage]})
    armed = {"FLOWSCHED_FAILPOINTS": "recover.slice=kill@1"}
    with served(tmp_path / "root", port=service.port, env=armed) as service:
        end = time.monotonic() + 120
        while service.told().count("is started again") < 2 and time.monotonic() < end:
            assert service.process.poll() is None, service.told()
            time.sleep(0.05)
        assert service.told().count("was killed by SIGKILL") >= 2
    with served(tmp_path / "root", port=service.port) as service:
        service.ready()
        (tmp_path / "go").touch()
        while (state := service.get("/api/v1/workflows")["workflows"][0]["state"]) not in ENDED:
            time.sleep(0.05)
        assert state == "SUCCEEDED"


def test_a_crash_loop_waits_longer_each_time(tmp_path: Path) -> None:
    """The waits double; what is said names the signal, and each wait."""
    with served(tmp_path / "root") as service:
        killed = 0
        for _ in range(3):
            killed = service.ready(other_than=killed)
            os.kill(killed, signal.SIGKILL)
        service.ready(other_than=killed)
        said = [line for line in service.told().splitlines() if "is started again" in line]
        assert ["0.1 s" in said[0], "0.2 s" in said[1], "0.4 s" in said[2]] == [True, True, True]
        assert all("was killed by SIGKILL" in line for line in said)


def test_a_stop_is_heard_while_a_crashed_service_waits_for_its_next_life(tmp_path: Path) -> None:
    """SIGTERM between two lives ends the supervisor at once."""
    order = {"command": ["/bin/false"], "log_json": True}
    program = (
        "import json, os, sys; sys.argv = ['s']; from flowsched import supervisor as s\n"
        "s.FIRST_WAIT_S = 1000.0\n"
        "r, w = os.pipe(); os.write(w, b'1'); os.close(w); pid = os.posix_spawn('/bin/false', ['false'], {})\n"
        f"s.supervise({order!r} | {{'sockets': [], 'pid': pid, 'accepted_fd': r, 'credentials_fd': os.open('/dev/null', 0)}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    told = json.loads(process.stderr.readline())
    assert (told["how"], told["wait_s"]) == ("ended with exit code 1", 1000.0)
    assert abs(datetime.fromisoformat(told["timestamp"]).timestamp() - time.time()) < 600
    process.terminate()
    assert process.wait(60) == 0
    process.stderr.close()


def test_a_socket_of_systemd_is_taken_and_nothing_is_supervised(tmp_path: Path) -> None:
    """LISTEN_FDS as sd_listen_fds(3) says; requests that came before the service was there are answered."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    early = threading.Thread(
        target=lambda: seen.append(urlopen(f"http://127.0.0.1:{port}/livez", timeout=120).status)
    )
    seen: list[int] = []
    early.start()
    script = 'exec 3<&$0 4<&-; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    fd = listener.fileno()
    os.set_inheritable(fd, True)
    command = [sys.executable, "-m", "flowsched", "serve", "--root", str(tmp_path / "root"), "--cpu", "1"]
    process = subprocess.Popen(["bash", "-c", script.replace("$0", str(fd)), "-", *command], pass_fds=[fd])
    try:
        early.join(120)
        assert seen == [200]
        while (
            urlopen(f"http://127.0.0.1:{port}/livez", timeout=120) and not (tmp_path / "root/in-use").exists()
        ):
            time.sleep(0.05)
        assert int((tmp_path / "root" / "in-use").read_text()) == process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0
        listener.close()


def test_a_descriptor_that_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    """What was found, and what systemd's unit should say."""
    command = [sys.executable, "-m", "flowsched", "serve", "--root", str(tmp_path / "root")]
    script = 'exec 3</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    done = subprocess.run(["bash", "-c", script, "-", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "LISTEN_FDS hands over descriptor 3, which is no socket" in done.stderr
