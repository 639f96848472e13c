"""Posts documents that ask for far too much to a real service, and measures how they slow everything else.

`python bench/poison.py` starts two services (`flowsched serve`, each on a root of its own): one gets the documents, the other one
stays idle as the control. A third process asks both for `/livez` every 20 ms, so that a busy machine shows in both. The bench

1. posts `--count` documents of each kind of `--kinds`, one after the other;
2. lists all workflows;
3. kills the service (SIGKILL), starts it again, and takes the time until its port answers and until it has recovered;
4. cancels all live workflows by `flowsched cancel`, and waits for their ends;
5. compares memory with the memory before.

Figures: the longest answer of `/livez` in each phase beside the control's, how long each request took, and the service's memory
(PSS).
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PROBE_S = 0.02
PATIENCE_S = 300.0
#: No node has so much, so the tasks wait: waiting tasks cost memory.
TOO_MUCH = {"cpu": "900", "memory": "1Gi"}


def scatter(number: int) -> bytes:
    """Five stages of a million tasks each, in 373 bytes."""
    stages = [
        {"name": f"s{stage}", "scatter": {"count": 1_000_000}, "command": ["true"]} for stage in range(5)
    ]
    return json.dumps({"name": f"scatter-{number}", "stages": stages}).encode()


def small(number: int) -> bytes:
    """One task that waits."""
    stage = {"name": "s", "command": ["true"], "resources": TOO_MUCH}
    return json.dumps({"name": f"small-{number}", "stages": [stage]}).encode()


def waiting(number: int) -> bytes:
    """Five stages of a million tasks each that no node can take."""
    stages = [
        {"name": f"s{stage}", "scatter": {"count": 1_000_000}, "command": ["true"], "resources": TOO_MUCH}
        for stage in range(5)
    ]
    return json.dumps({"name": f"waiting-{number}", "stages": stages}).encode()


def stages(number: int) -> bytes:
    """Ten thousand stages in a chain, 8.6 MiB."""
    padding = "x" * 840
    many = [
        {"name": f"s{stage}", "command": ["echo", padding], "needs": [f"s{stage - 1}"] if stage else []}
        for stage in range(10_000)
    ]
    return json.dumps({"name": f"stages-{number}", "stages": many}).encode()


def items(number: int) -> bytes:
    """970,000 items, 9.3 MiB."""
    texts = [f"{each:06d}" for each in range(970_000)]
    stage = {"name": "s", "scatter": {"items": texts}, "command": ["echo"], "resources": TOO_MUCH}
    return json.dumps({"name": f"items-{number}", "stages": [stage]}).encode()


def container(number: int) -> bytes:
    """A million tasks with a container's paths of their own."""
    stage = {
        "name": "s",
        "scatter": {"count": 1_000_000},
        "steps": [{"image": "alpine", "command": ["true"]}],
        "resources": TOO_MUCH,
    }
    return json.dumps({"name": f"container-{number}", "stages": [stage]}).encode()


def shards(number: int) -> bytes:
    """A million shards that read a million others' outputs, one each."""
    first = {
        "name": "a",
        "scatter": {"count": 1_000_000},
        "command": ["touch", "o"],
        "resources": TOO_MUCH,
        "outputs": [{"name": "o", "path": "o"}],
    }
    second = {
        "name": "b",
        "scatter": {"count": 1_000_000},
        "command": ["true"],
        "inputs": [{"name": "o", "from": "a.o", "match": "index"}],
    }
    return json.dumps({"name": f"shards-{number}", "stages": [first, second]}).encode()


def keys(number: int) -> bytes:
    """A million keys that no document has, 13.9 MB. The service refuses it."""
    return json.dumps({f"k{each}": number for each in range(1_000_000)}).encode()


KINDS = {each.__name__: each for each in (small, scatter, waiting, stages, items, container, shards, keys)}


class Service:
    """`flowsched serve` on a root and a port of its own."""

    def __init__(self, root: Path, options: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = root.with_suffix(".log")
        self._command = [
            sys.executable, "-m", "flowsched", "serve", "--root", str(root), "--port", str(self.port),
            "--cpu", "2", "--memory", "2Gi", "--no-supervise", "--no-token", *options,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, stdout=log, start_new_session=True)
        self.began = time.monotonic()

    def ready(self) -> float:
        """Wait until it has recovered; the seconds since its start."""
        return self._until("/readyz")

    def answers(self) -> float:
        """Wait until its port answers; the seconds since its start."""
        return self._until("/livez")

    def _until(self, path: str) -> float:
        while time.monotonic() - self.began < PATIENCE_S:
            with suppress(OSError, http.client.HTTPException):
                if self.ask("GET", path, timeout=30)[0] == 200:
                    return time.monotonic() - self.began
            if self.process.poll() is not None:
                return float("nan")
            time.sleep(0.02)
        return float("inf")

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 120) -> tuple[int, Any]:
        """One request; returns the status and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(said)
        except ValueError:
            return answer.status, said.decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the service alone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 60 s."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def memory(self) -> int:
        """Its memory in bytes: the proportional set size, so that pages which it shares with runners count once."""
        try:
            text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        except OSError:
            return 0
        return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def probe(ports: list[int], pipe: Connection) -> None:
    """Ask each port for /livez for ever; on request send (moment, port, seconds, status or 0 for no answer) of each."""
    found: list[tuple[float, int, float, int]] = []
    while True:
        for port in ports:
            begun = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request("GET", "/livez")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            finally:
                connection.close()
            found.append((begun, port, time.monotonic() - begun, status))
        if pipe.poll(PROBE_S):
            if pipe.recv() == "stop":
                return
            pipe.send(found)
            found = []


class Prober:
    """The process that asks, and its figures for each phase."""

    def __init__(self, service: Service, control: Service) -> None:
        self._service, self._control = service, control
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(
            target=probe, args=([service.port, control.port], theirs), daemon=True
        )
        self._process.start()

    def phase(self, name: str) -> dict[str, Any]:
        """The figures since the last phase."""
        self._ours.send("found")
        found = self._ours.recv()
        ours = sorted(each[2] for each in found if each[1] == self._service.port and each[3])
        control = sorted(each[2] for each in found if each[1] == self._control.port and each[3])
        silent = sum(1 for each in found if each[1] == self._service.port and not each[3])
        bad = Counter(each[3] for each in found if each[1] == self._service.port and each[3] not in (0, 200))
        over = sum(1 for each in ours if each > 0.2)
        figures = {
            "phase": name, "probes": len(ours), "no_answer": silent, "not_200": dict(bad), "over_200ms": over,
            "max_ms": _ms(ours, 1), "p999_ms": _ms(ours, 0.999), "p50_ms": _ms(ours, 0.5),
            "control_max_ms": _ms(control, 1), "control_p999_ms": _ms(control, 0.999),
        }  # fmt: skip
        print(" ".join(f"{key}={value}" for key, value in figures.items()), flush=True)
        return figures

    def stop(self) -> None:
        """End the process."""
        self._ours.send("stop")
        self._process.join(5)


def _ms(seconds: list[float], quantile: float) -> float:
    return round(1000 * seconds[min(len(seconds) - 1, int(quantile * len(seconds)))], 1) if seconds else 0.0


def post(service: Service, kinds: list[str], count: int) -> list[str]:
    """Post `count` documents of each kind, one after the other; returns the ids of the accepted ones."""
    accepted, answers, times = [], Counter[str](), []
    said: dict[str, Any] = {}
    for kind in kinds:
        for number in range(count):
            begun = time.monotonic()
            try:
                status, answer = service.ask("POST", "/api/v1/workflows", KINDS[kind](number))
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, repr(error)
            times.append(time.monotonic() - begun)
            answers[f"{kind}: {status}"] += 1
            said.setdefault(f"{kind}: {status}", answer)
            if status in (200, 201, 202):
                accepted.append(answer["id"])
    print("answers", dict(answers), "slowest_s", round(max(times), 2), flush=True)
    for key, answer in said.items():
        print("  ", key, json.dumps(answer)[:400])
    return accepted


def listed(service: Service) -> dict[str, str]:
    """All workflows with their states."""
    begun = time.monotonic()
    found: dict[str, str] = {}
    token = ""
    while True:
        status, page = service.ask(
            "GET", f"/api/v1/workflows?limit=1000{'&page_token=' + token if token else ''}"
        )
        if status != 200:
            print("list", status, page)
            return found
        found |= {each["id"]: each["state"] for each in page["workflows"]}
        token = page.get("next_page_token") or ""
        if not token:
            print(
                "listed",
                len(found),
                "in_s",
                round(time.monotonic() - begun, 3),
                dict(Counter(found.values())),
            )
            return found


def cancel(service: Service, control: Service, workflows: list[str]) -> None:
    """Cancel each by `flowsched cancel`, and measure the same command against the control beside it."""
    times, alone, failed = [], [], []
    for workflow in workflows:
        command = [sys.executable, "-m", "flowsched", "cancel", workflow, "--server"]
        begun = time.monotonic()
        subprocess.run([*command, control.url], capture_output=True, check=False)
        alone.append(time.monotonic() - begun)
        begun = time.monotonic()
        command.append(service.url)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.monotonic() - begun)
        if done.returncode:
            failed.append((workflow, done.stderr.strip()[-300:]))
    if times:
        print(
            "cancelled", len(times) - len(failed), "slowest_s", round(max(times), 2),
            "same_command_to_the_control_s", round(max(alone), 2), "failed", failed[:3],
        )  # fmt: skip


def ended(service: Service) -> float:
    """Wait until no workflow lives; the seconds."""
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE_S:
        status, page = service.ask("GET", "/api/v1/workflows?limit=1000")
        if status == 200 and all(
            each["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for each in page["workflows"]
        ):
            return time.monotonic() - begun
        time.sleep(0.2)
    return float("inf")


def measure(root: Path, options: argparse.Namespace) -> int:
    """Measure; returns the number of answers over 200 ms, and one more if memory grew by more than a fifth."""
    more = ["--db", options.db] if options.db else []
    service, control = Service(root / "poisoned", more), Service(root / "control", [])
    print("ready_s", round(service.ready(), 2), "control", round(control.ready(), 2))
    prober = Prober(service, control)
    phases = []
    try:
        post(service, ["small"], 1)  # the imports of the first submission are no growth
        cancel(service, control, list(listed(service)))
        ended(service)
        time.sleep(3)
        before = service.memory()
        phases.append(prober.phase("idle"))
        accepted = post(service, options.kinds, options.count)
        phases.append(prober.phase("posting"))
        time.sleep(options.settle)
        phases.append(prober.phase("under way"))
        listed(service)
        most = service.memory()
        if not options.no_kill:
            service.kill()
            prober.phase("(before the kill)")
            service.start()
            print("port_answers_s", round(service.answers(), 2), flush=True)
            time.sleep(0.3)
            prober.phase("(process starts)")
            print("recovered_s", round(service.ready(), 2), flush=True)
            phases.append(prober.phase("recovering"))
        alive = [
            name
            for name, state in listed(service).items()
            if state not in ("CANCELLED", "FAILED", "SUCCEEDED")
        ]
        cancel(service, control, alive)
        phases.append(prober.phase("cancelling"))
        print("all_ended_s", round(ended(service), 2))
        phases.append(prober.phase("ending"))
        time.sleep(15)  # the service gives memory back 10 s after the last large workflow has left
        after = service.memory()
        listed(service)
        phases.append(prober.phase("after"))
        over = sum(phase["over_200ms"] for phase in phases)
        print(
            f"memory_before_mib={before >> 20} most_mib={most >> 20} after_mib={after >> 20} "
            f"growth={after / before - 1:+.0%} accepted={len(accepted)} exit={service.process.poll()} over_200ms={over}"
        )
        return over + (after > 1.2 * before)
    finally:
        prober.stop()
        service.stop()
        control.stop()


def main() -> int:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=["scatter"], choices=KINDS)
    parser.add_argument("--count", type=int, default=20, help="documents of each kind")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds between posting and killing")
    parser.add_argument("--db", default="", help="postgresql://… instead of SQLite, an empty database")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder to keep roots and logs in")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="poison-"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        return 1 if measure(root, options) else 0
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
