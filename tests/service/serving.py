"""A real process of `flowsched serve`, for tests of what takes a whole process down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flowsched
from tests.forks import Forked
from tests.programs import free_ports

ROOT = Path(flowsched.__file__).parents[1]
#: Generous: a busy machine breaks no test.
PATIENCE_S = 90.0


def end_users_of(folder: Path) -> None:
    """Kill every process that has a file below a folder open, or works there: what a test left of its service's tasks."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            used = [process / "cwd", *(process / "fd").iterdir()]
            if any(_target(link).startswith(f"{folder}/") for link in used):
                os.kill(int(process.name), signal.SIGKILL)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


class Service:
    """One `flowsched serve` on a root of its own.

    Args:
        root: Its root folder.
        log: Where its log goes.
        more: Further words of the command line.
        constants: What constants of modules are in it, see `Forked`.
    """

    def __init__(
        self, root: Path, log: Path, *more: str, constants: Mapping[str, float] | None = None
    ) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        words = ["serve", "--no-supervise", "--no-token", "--port", str(port), "--root", str(root)]
        words += ["--cpu", "4", *more]
        with log.open("ab") as errors:
            self.process = Forked(words, stderr=errors, constants=constants)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer; 0 if no process answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, urllib.error.URLError) as error:
            return 0, str(error)

    def until(self, fits: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Wait until something is so; fails with the log if the process ends, or it never comes to be so."""
        end = time.monotonic() + within_s
        while not (found := fits()):
            assert self.process.poll() is None, f"exit {self.process.poll()} before {what}: {self.tail()}"
            assert time.monotonic() < end, f"never {what}: {self.get('/readyz')} {self.tail()}"
            time.sleep(0.1)
        return found

    def ready(self) -> None:
        """Wait until it is ready."""
        self.until(lambda: self.get("/readyz")[0] == 200, "ready")

    def waits_for(self, words: str) -> str:
        """Wait until it says that it is not ready, with some words."""

        def found() -> str:
            status, text = self.get("/readyz")
            return text if status == 503 and words in text else ""

        return str(self.until(found, f"waiting for {words!r}"))

    def alive(self) -> bool:
        """Whether its process lives and answers that its loops move."""
        return self.process.poll() is None and self.get("/livez")[0] == 200

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
