"""What the crash tests submit, and what must come of it: documents beside the contents their outputs must have."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TASK = Path(__file__).with_name("task.sh")


@dataclass(frozen=True)
class Workload:
    """One workflow to submit.

    Args:
        kind: Its family.
        document: As submitted.
        expected: The state it must end in.
        outputs: stage -> what each shard's output must contain.
        cancel: Whether it is cancelled in the middle.
    """

    kind: str
    document: Mapping[str, Any]
    expected: str = "SUCCEEDED"
    outputs: Mapping[str, list[str]] = field(default_factory=dict)
    cancel: bool = False


class Mix:
    """Workloads of all families in turn, with uneven durations.

    Args:
        marks: Folder for what tasks write down.
        outside: A file that tasks read as an input from outside.
    """

    def __init__(self, marks: Path, outside: Path, seed: int) -> None:
        self._marks, self._outside = marks, outside
        self._random = random.Random(seed)
        self._count = 0

    def next(self, kind: str | None = None) -> Workload:
        """Another workload, of the next family or of the one asked for."""
        families: dict[str, Callable[[], Workload]] = {
            "fan": self.fan,
            "gang": self.gang,
            "cancelled": self.cancelled,
            "failing": self.failing,
        }
        turn = ("fan", "gang", "cancelled", "fan", "failing")[self._count % 5]
        self._count += 1
        return families[kind or turn]()

    def lasting(self) -> Workload:
        """One task that runs until `let_go`: each life of the service has to adopt it. Nothing takes its room."""
        stage = self._stage("last", [], kind="last")
        return Workload(
            "lasting", {"name": "lasting", "priority": 9, "stages": [stage]}, outputs={"last": ["last.0.()"]}
        )

    def let_go(self) -> None:
        """Let the task of `lasting` end."""
        (self._marks / "go").touch()

    def fan(self) -> Workload:
        """Scatter, index edges, chunks, a barrier; some tasks fail once; an input from outside."""
        outside = self._outside.read_text()
        width = self._random.choice([2, 4, 6])
        half = width // 2
        split = f"split.0.({outside})"
        align = [f"align.{i}.({split})" for i in range(width)]
        sort = [f"sort.{i}.({align[i]})" for i in range(width)]
        merge = [f"merge.{i}.({sort[2 * i]},{sort[2 * i + 1]})" for i in range(half)]
        call = f"call.0.({','.join(merge)})"
        stages = [
            self._stage("split", [{"name": "raw", "uri": self._outside.as_uri()}], "file:RAW"),
            self._stage("align", [_from("split", "all")], "file:SPLIT", "flaky", count=width),
            self._stage("sort", [_from("align", "index")], "file:ALIGN", count=width),
            self._stage("merge", [_from("sort", "chunk")], "list:SORT", count=half),
            self._stage("call", [_from("merge", "all")], "list:MERGE"),
        ]
        if (
            half == 1
        ):  # one shard is no chunk of two but all of them, and one input is a file and no list of files
            stages[3]["inputs"] = [_from("sort", "all")]
            stages[4]["command"][-1] = "file:MERGE"
        outputs = {"split": [split], "align": align, "sort": sort, "merge": merge, "call": [call]}
        return Workload("fan", {"name": "fan", "stages": stages}, outputs=outputs)

    def gang(self) -> Workload:
        """Two gangs with a server that is released when its workers are done, then a stage that reads from them."""
        serve = {
            "replicas": 1,
            "completes": False,
            "command": self._command("serve", "300"),
            "resources": _ask(),
        }
        work = {"replicas": 2, "command": self._command("work", self._seconds()), "resources": _ask()}
        stages: list[dict[str, Any]] = [
            {
                "name": "train",
                "gang": True,
                "scatter": {"count": 2},
                "roles": {"ps": serve, "worker": work},
                "outputs": [{"name": "out", "path": "out", "role": "worker", "value": True}],
                "retry": {"attempts": 3},
            },
            self._stage("test", [_from("train", "index")], "file:TRAIN", count=2),
        ]
        # It takes the room of others: kills fall between that decision and its every consequence too.
        return Workload("gang", {"name": "gang", "priority": 5, "stages": stages})

    def cancelled(self) -> Workload:
        """Tasks of very different lengths, and some that wait for them: cancelled in the middle."""
        first = self._stage("long", [], count=8)
        first["command"] = self._command("work", "0.4")
        endless = self._stage("endless", [], count=2)
        endless["command"] = self._command("work", "300")
        stages = [first, endless, self._stage("after", [_from("long", "index")], "file:LONG", count=8)]
        return Workload(
            "cancelled", {"name": "cancelled", "priority": -1, "stages": stages}, "CANCELLED", cancel=True
        )

    def failing(self) -> Workload:
        """A stage that always fails, tried twice; what needs it never runs."""
        stages = [
            self._stage("bad", [], "", "fail", count=2) | {"retry": {"attempts": 2}},
            self._stage("never", [_from("bad", "all")], "list:BAD"),
        ]
        return Workload("failing", {"name": "failing", "stages": stages}, "FAILED")

    def _stage(
        self, name: str, inputs: list[dict[str, Any]], reads: str = "", kind: str = "work", count: int = 1
    ) -> dict[str, Any]:
        stage: dict[str, Any] = {
            "name": name,
            "command": self._command(kind, self._seconds(), *filter(None, [reads])),
            "resources": _ask(),
            "inputs": inputs,
            "outputs": [{"name": "out", "path": "out", "value": True}],
            "retry": {"attempts": 3},
        }
        return stage | ({"scatter": {"count": count}} if count > 1 else {})

    def _seconds(self) -> str:
        return f"{self._random.uniform(0.01, 0.15):.3f}"

    def _command(self, kind: str, seconds: str, *reads: str) -> list[str]:
        return ["/bin/sh", str(TASK), str(self._marks), kind, seconds, *reads]


def _from(stage: str, match: str) -> dict[str, Any]:
    return {"name": stage, "from": f"{stage}.out", "match": match}


def _ask() -> dict[str, Any]:
    return {"cpu": 1, "memory": "64Mi"}
