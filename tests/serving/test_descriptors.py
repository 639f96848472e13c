"""A service that may open few files, and clients that hold more connections than that with half of a request each."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.serving.processes import START_S, Served, gone, served

pytestmark = pytest.mark.slow
#: What the service may open, and how many connections its clients hold.
OPEN_FILES, HELD = 256, 356
HALF = b"POST /api/v1/workflows HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le"
#: What the log says of a fault: the flood is said once, and nothing fails for it.
FAULTS = ("Traceback", "Errno 24", "Too many open files", "cannot be accepted")


def begin(port: int) -> socket.socket:
    """A connection with half of a request's head."""
    client = socket.create_connection(("127.0.0.1", port), START_S)
    client.sendall(HALF)
    return client


def works(service: Served) -> None:
    """Each question of a client that behaves well comes over a new connection; the workflow succeeds."""
    with urlopen(f"{service.url}/livez", timeout=START_S) as answer:
        assert answer.status == 200
    document = {"name": "w", "stages": [{"name": "a", "command": ["true"]}]}
    ident = service.get("/api/v1/workflows", document)["id"]
    end = time.monotonic() + START_S
    while (state := service.get(f"/api/v1/workflows/{ident}")["state"]) != "SUCCEEDED":
        assert state in ("PENDING", "QUEUED", "STARTING", "RUNNING"), service.told()
        assert time.monotonic() < end, service.told()
        time.sleep(0.1)


def log_is_quiet(service: Served) -> None:
    """One line says what was found and what to do; no line says that something failed."""
    text = service.log.read_text(errors="replace")
    assert not [fault for fault in FAULTS if fault in text], text[-4000:]
    told = [line for line in text.splitlines() if "too many connections" in line]
    assert len(told) == 1, text[-4000:]
    assert "most=128" in told[0]
    assert "ulimit -Hn" in told[0]


def test_half_sent_requests_take_no_descriptor_that_work_needs(tmp_path: Path) -> None:
    """The connections come one by one and stay: others are served meanwhile and after."""
    with served(tmp_path / "root", open_files=OPEN_FILES) as service, ExitStack() as held:
        killed = service.ready()
        for _ in range(HELD):
            held.enter_context(begin(service.port))
        works(service)
        held.close()
        works(service)
        assert service.service == killed
        log_is_quiet(service)


def test_half_sent_requests_that_come_all_at_once_take_none_either(tmp_path: Path) -> None:
    """They are in the kernel's queue when the service looks: more than it may open files."""
    with served(tmp_path / "root", open_files=OPEN_FILES) as service, ExitStack() as held:
        stopped = service.ready()
        os.kill(stopped, signal.SIGSTOP)
        for _ in range(HELD):
            held.enter_context(begin(service.port))
        os.kill(stopped, signal.SIGCONT)
        works(service)
        held.close()
        works(service)
        log_is_quiet(service)


def test_a_service_is_started_again_while_half_sent_requests_wait(tmp_path: Path) -> None:
    """The next life finds them in the queue, serves others, and takes over the task that runs."""
    with served(tmp_path / "root", open_files=OPEN_FILES) as service, ExitStack() as held:
        killed = service.ready()
        os.kill(service.process.pid, signal.SIGSTOP)  # the next life begins when the test says so
        os.kill(killed, signal.SIGKILL)
        assert gone(killed)
        for _ in range(HELD):
            held.enter_context(begin(service.port))
        os.kill(service.process.pid, signal.SIGCONT)
        assert service.ready(other_than=killed) != killed
        works(service)
        held.close()
        works(service)
        log_is_quiet(service)
