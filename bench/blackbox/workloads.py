"""The workloads of a black-box run: documents, with the hashes of the outputs that their tasks must write."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

#: A killed runner, a full disk, a service that dies while it launches: each costs one attempt at most.
ATTEMPTS = 30


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a run. None is in the service's own root.

    Args:
        tools: The folder with `task.sh`.
        journal: The file to which tasks append.
        marks: Locks, and marks of tasks that fail once.
        data: The users' own files.
    """

    tools: Path
    journal: Path
    marks: Path
    data: Path


@dataclass(frozen=True, slots=True)
class Work:
    """One workflow or TES task to submit.

    Args:
        kind: Its family.
        label: Its unique name; every task's key begins with it.
        api: `workflow` or `tes`.
        document: The submitted document.
        expected: States it may end in.
        outputs: (stage, index, output) -> the hash of the output that HTTP must give after its success.
        files: Path -> the hash of the file that a TES client must find after the task's end.
        cancel_s: Seconds from the acceptance to the user's cancel.
        gate: The task fails until this file is there. The user makes it and asks for a retry.
        pause: Whether the user pauses it for a moment.
        again: Another TES task, which writes to the same folder once this one has ended.
    """

    kind: str
    label: str
    api: str
    document: dict[str, Any]
    expected: tuple[str, ...] = ("SUCCEEDED",)
    outputs: dict[tuple[str, int, str], str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    cancel_s: float | None = None
    gate: str = ""
    pause: bool = False
    again: Work | None = None


class Mix:
    """Workloads of all families, by a seed.

    Args:
        folders: The folders of the run.
        seed: The same seed gives the same documents in the same order.
        only: Families to choose from; all if empty.
    """

    def __init__(self, folders: Folders, seed: int, only: tuple[str, ...] = ()) -> None:
        self._at = folders
        self._only = only
        self._random = random.Random(seed)
        self._count = 0

    def next(self) -> Work:
        """Another workload."""
        self._count += 1
        families: list[tuple[int, Callable[[str], Work]]] = [
            (5, self.chain), (2, self.gang), (3, self.cancelled), (1, self.failing), (1, self.timeout),
            (1, self.patient), (2, self.detached), (1, self.gated), (3, self.tes), (2, self.tee), (2, self.echo),
            (1, self.tes_cancelled), (1, self.tes_failing),
        ]  # fmt: skip
        if self._only:
            families = [each for each in families if each[1].__name__.replace("_", "-") in self._only]
        weights = [weight for weight, _ in families]
        make = self._random.choices([family for _, family in families], weights)[0]
        return make(f"{make.__name__.replace('_', '-')}-{self._count}")

    # ---------------------------------------------------------------------------------------- workflow documents

    def chain(self, label: str) -> Work:
        """One task, a scatter, index edges, a barrier; each output holds the hash of the task's inputs."""
        width, lines = self._random.choice([2, 3, 5]), self._random.choice([1, 40, 2000])
        split = _content("split", 0, b"", lines)
        align = [_content("align", i, split, lines) for i in range(width)]
        sort = [_content("sort", i, align[i], lines) for i in range(width)]
        stages = [
            self._stage(label, "split", lines),
            self._stage(
                label, "align", lines, "file:SPLIT", kind="flaky", width=width, of="split", match="all"
            ),
            self._stage(label, "sort", lines, "file:ALIGN", width=width, of="align", match="index"),
            self._stage(label, "join", lines, "list:SORT", of="sort", match="all"),
        ]
        outputs = {("join", 0, "out"): _hash(_content("join", 0, b"".join(sort), lines))}
        return Work(
            "chain", label, "workflow", {"name": label, "stages": stages}, outputs=outputs,
            pause=self._random.random() < 0.15,
        )  # fmt: skip

    def gang(self, label: str) -> Work:
        """A server, which the service releases once its two workers are done; its priority takes other tasks' room."""
        asks = {"cpu": 1, "memory": "64Mi"}
        roles = {
            "ps": {"completes": False, "command": self._command("work", label, "900", 1), "resources": asks},
            "worker": {
                "replicas": 2,
                "command": self._command("work", label, self._seconds(), 1),
                "resources": asks,
            },
        }
        stage = {
            "name": "train", "gang": True, "roles": roles, "retry": {"attempts": ATTEMPTS},
            "outputs": [{"name": "out", "path": "out", "role": "worker"}],
        }  # fmt: skip
        outputs = {("train", 1, "out"): _hash(_content("train", 0, b"", 1))}  # task 0 is the server
        document = {"name": label, "priority": 5, "stages": [stage]}
        return Work("gang", label, "workflow", document, outputs=outputs)

    def cancelled(self, label: str) -> Work:
        """Short, endless and waiting tasks, some with detached children. The user cancels them in the middle."""
        endless = self._stage(label, "endless", 1, kind="child", width=2)
        endless["command"] = self._command("child", label, "900", 1)
        stages = [
            self._stage(label, "short", 1, width=6),
            endless,
            self._stage(label, "after", 1, "file:SHORT", width=6, of="short", match="index"),
        ]
        return Work(
            "cancelled", label, "workflow", {"name": label, "priority": -1, "stages": stages}, ("CANCELLED",),
            cancel_s=self._random.choice([0.0, self._random.uniform(0, 15)]),
        )  # fmt: skip

    def failing(self, label: str) -> Work:
        """A stage that fails in both of its attempts; the stage that needs it never runs."""
        stages = [
            self._stage(label, "bad", 1, kind="fail", width=2) | {"retry": {"attempts": 2}},
            self._stage(label, "never", 1, "list:BAD", of="bad", match="all"),
        ]
        return Work("failing", label, "workflow", {"name": label, "stages": stages}, ("FAILED",))

    def timeout(self, label: str) -> Work:
        """A task that runs too long and leaves a detached child."""
        stage = self._stage(label, "long", 1, kind="child") | {"timeout": "3s", "retry": {"attempts": 1}}
        stage["command"] = self._command("child", label, "900", 1)
        return Work("timeout", label, "workflow", {"name": label, "stages": [stage]}, ("FAILED",))

    def patient(self, label: str) -> Work:
        """A task with half an hour of time that needs some seconds: no clock jump ends it."""
        stage = self._stage(label, "slow", 1) | {"timeout": "30m"}
        stage["command"] = self._command("work", label, f"{self._random.uniform(8, 25):.1f}", 1)
        outputs = {("slow", 0, "out"): _hash(_content("slow", 0, b"", 1))}
        return Work("patient", label, "workflow", {"name": label, "stages": [stage]}, outputs=outputs)

    def detached(self, label: str) -> Work:
        """Tasks that succeed and leave a child without environment, streams or session."""
        stages = [self._stage(label, "spawn", 1, kind="child", width=2)]
        outputs = {("spawn", i, "out"): _hash(_content("spawn", i, b"", 1)) for i in range(2)}
        return Work("detached", label, "workflow", {"name": label, "stages": stages}, outputs=outputs)

    def gated(self, label: str) -> Work:
        """A task that fails until its user opens the gate and asks for a retry."""
        stage = self._stage(label, "gate", 3, kind="gate") | {"retry": {"attempts": 1}}
        outputs = {("gate", 0, "out"): _hash(_content("gate", 0, b"", 3))}
        gate = str(self._at.marks / f"{label}.open")
        return Work(
            "gated", label, "workflow", {"name": label, "stages": [stage]}, outputs=outputs, gate=gate
        )

    # ------------------------------------------------------------------------------------------------ TES tasks

    def tes(self, label: str) -> Work:
        """Two executors, an input with content, an output and 1,000 lines of standard output; the user often sends another."""
        first = self._tes_lines(label, label)
        if self._random.random() < 0.4:
            return first
        return Work(**{**_fields(first), "again": self._tes_lines(f"{label}-again", label)})

    def _tes_lines(self, label: str, folder: str) -> Work:
        given = f"input of {folder}\n"
        digest = _hash(given.encode())
        shell = ["/bin/sh", str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        executors = [
            {"image": "debian", "command": [*shell, "stdout", label, self._seconds(), "1000", "path:/bb/in.txt"],
             "stdout": "/bb/stdout"},
            {"image": "debian", "command": ["/bin/cp", "/bb/in.txt", "/bb/copy.txt"]},
        ]  # fmt: skip
        files = {"stdout": f"{digest}\n" * 1000, "copy.txt": given}
        return self._tes_work(
            "tes", label, folder, executors, files, [{"path": "/bb/in.txt", "content": given}]
        )

    def tee(self, label: str) -> Work:
        """Cromwell's form of a script: `tee` in the background, and the shell does not wait for it."""
        shell = ["/bin/sh", str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        command = [*shell, "tee", label, self._seconds(), "1000", "/bb/stdout"]
        executors = [{"image": "debian", "command": command, "stdout": "/bb/stdout"}]
        return self._tes_work(
            "tee", label, label, executors, {"stdout": "".join(f"line {i}\n" for i in range(1000))}
        )

    def echo(self, label: str) -> Work:
        """A background child that holds the standard output writes half of it after the main process has ended."""
        shell = ["/bin/sh", str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        command = [*shell, "echo", label, f"{self._random.uniform(0.05, 0.3):.2f}", "500"]
        executors = [{"image": "debian", "command": command, "stdout": "/bb/stdout"}]
        return self._tes_work("echo", label, label, executors, {"stdout": "early\n" * 500 + "late\n" * 500})

    def tes_cancelled(self, label: str) -> Work:
        """A task of a quarter of an hour with a detached child. The user cancels it."""
        shell = ["/bin/sh", str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        executors = [{"image": "debian", "command": [*shell, "child", label, "900", "1"]}]
        work = self._tes_work("tes-cancelled", label, label, executors, {})
        cancel_s = self._random.uniform(0, 8)
        return Work(**{**_fields(work), "expected": ("CANCELED",), "cancel_s": cancel_s})

    def tes_failing(self, label: str) -> Work:
        """A first executor that fails; the second never runs."""
        shell = ["/bin/sh", str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        executors = [{"image": "debian", "command": [*shell, "fail", label, self._seconds(), "1"]}]
        work = self._tes_work("tes-failing", label, label, executors, {})
        work.document["backend_parameters"] = {"attempts": "1"}
        return Work(**{**_fields(work), "expected": ("EXECUTOR_ERROR", "SYSTEM_ERROR")})

    def _tes_work(
        self, kind: str, label: str, folder: str, executors: list[Any], files: dict[str, str],
        inputs: list[dict[str, str]] | None = None,
    ) -> Work:  # fmt: skip
        place = self._at.data / folder
        document = {
            "name": label, "description": label, "tags": {"blackbox": label}, "executors": executors,
            "inputs": inputs or [], "outputs": [{"path": f"/bb/{name}", "url": f"{place}/{name}"} for name in files],
            "resources": {"cpu_cores": 1, "ram_gb": 0.125}, "backend_parameters": {"attempts": str(ATTEMPTS)},
        }  # fmt: skip
        hashes = {f"{place}/{name}": _hash(text.encode()) for name, text in files.items()}
        return Work(kind, label, "tes", document, ("COMPLETE",), files=hashes)

    # ------------------------------------------------------------------------------------------------ parts

    def _stage(
        self, label: str, name: str, lines: int, reads: str = "", *, kind: str = "work", width: int = 1,
        of: str = "", match: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        stage: dict[str, Any] = {
            "name": name,
            "command": self._command(kind, label, self._seconds(), lines, *filter(None, [reads])),
            "resources": {"cpu": 1, "memory": "64Mi"},
            "outputs": [{"name": "out", "path": "out"}],
            "retry": {"attempts": ATTEMPTS},
        }
        if of:
            stage["inputs"] = [{"name": of, "from": f"{of}.out", "match": match}]
        return stage | ({"scatter": {"count": width}} if width > 1 else {})

    def _seconds(self) -> str:
        return f"{min(20.0, self._random.expovariate(1.2)):.2f}"

    def _command(self, kind: str, label: str, seconds: str, lines: int, *reads: str) -> list[str]:
        script = [str(self._at.tools / "task.sh"), str(self._at.journal), str(self._at.marks)]
        return ["/bin/sh", *script, kind, label, seconds, str(lines), *reads]


def _content(stage: str, index: int, read: bytes, lines: int) -> bytes:
    """The bytes that `task.sh` writes for a task with these inputs."""
    return f"{stage}.{index} {_hash(read)}\n".encode() * lines


def _hash(text: bytes) -> str:
    return sha256(text).hexdigest()


def _fields(work: Work) -> dict[str, Any]:
    return {name: getattr(work, name) for name in Work.__slots__}
