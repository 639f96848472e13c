"""The judge of a black-box run: it turns the evidence of clients, tasks and probes into a list of violations. Pure.

It knows nothing of the service's inside. `Evidence` is plain data in a JSON file beside the journal. To judge it again:
`python -m bench.blackbox.judge FOLDER`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: The kinds of violations, in the order of the table.
KINDS = {
    "lost id": "an id that was answered with 2xx is not there",
    "lost output": "succeeded, and its output cannot be read or has other bytes",
    "doubled": "a task ran twice at the same time, or again after it had succeeded",
    "leaked": "something lives or is held after its workflow has ended",
    "stuck": "a workflow does not end though all faults are over",
    "slow": "/livez later than the idle control by more than the limit",
    "wrong end": "ended in a state that nothing explains",
    "changed end": "ended twice, or otherwise than was answered",
    "late start": "a task started after the answer to its cancel, or after its end",
    "died": "the service ended by itself, or did not come up",
    "server error": "a 5xx other than 503",
    "memory": "more memory than before and a fifth, after poison documents",
    "harness": "the harness itself failed: what it did not do proves nothing",
}
SLOW_MS = 200.0
#: One of a thousand probes may be slow.
SLOW_SHARE = 0.001
#: A runner that is starting its task at the moment of the cancel takes so long to see the cancel.
LATE_S = 5.0
TERMINAL = {"SUCCEEDED", "FAILED", "CANCELLED", "COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"}
GOOD = {"SUCCEEDED", "COMPLETE"}


@dataclass(slots=True)
class Story:
    """One workflow as its client saw it. Times are seconds of the machine's monotonic clock (`/proc/uptime`).

    Args:
        label: Its name; keys of its tasks begin with it.
        kind: Its family.
        id: The id in the service's answer; empty without one.
        expected: States it may end in.
        states: Each new state in the service's answers, with its moment.
        missing: Moments of a 404 after the service had accepted it.
        cancelled_s: The moment of a 2xx for its cancel.
        retried_s: The moment of a 2xx for its retry; earlier ends do not count.
        ended_s: The moment at which the client first saw its end.
        outputs: Each output: name, expected, found (a hash, or the answer in its place).
        attempts: Key of a task -> its attempts in the service's answer: attempt, exit_code, reason.
        excuse: Why it may have failed (a full disk while it ran), if it may.
        reason: The service's own reason.
    """

    label: str
    kind: str
    id: str = ""
    expected: list[str] = field(default_factory=list)
    states: list[tuple[float, str]] = field(default_factory=list)
    missing: list[float] = field(default_factory=list)
    cancelled_s: float | None = None
    retried_s: float | None = None
    ended_s: float | None = None
    outputs: list[dict[str, str]] = field(default_factory=list)
    attempts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    excuse: str = ""
    reason: str = ""


@dataclass(slots=True)
class Evidence:
    """The evidence of one run.

    Args:
        stories: One for each workflow.
        journal: The tasks' lines.
        probes: (sent, answer of the service in ms or None, its status, answer of the control in ms).
        absences: Times in which the service was dead or stopped on purpose, until it answered again.
        strangers: Ids that the service lists and never answered to a submission, with their names.
        leaks, deaths, errors: One line for each.
        failures: The harness's own.
        memory: (before, after) bytes of poison documents.
    """

    stories: list[Story] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    probes: list[tuple[float, float | None, str, float | None]] = field(default_factory=list)
    absences: list[tuple[float, float]] = field(default_factory=list)
    strangers: list[tuple[str, str]] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: its kind, its subject, and the lines that show it."""

    kind: str
    subject: str
    shown_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the journal."""

    what: str
    key: str
    attempt: str
    pid: str
    at_s: float
    more: str
    text: str

    @property
    def label(self) -> str:
        """The workflow's name."""
        return self.key.partition(".")[0]


def read_journal(lines: list[str]) -> list[Line]:
    """The journal's lines in the order in which the kernel wrote them. Any other line is a fault of the harness."""
    found = []
    for text in lines:
        parts = text.rstrip("\n").split("\t")
        if len(parts) != 6 or parts[0] not in ("START", "END"):
            raise ValueError(f"journal: found {text!r}, expected START or END and five more fields")
        found.append(
            Line(parts[0], parts[1], parts[2], parts[3], float(parts[4]), parts[5], text.rstrip("\n"))
        )
    return found


def judge(evidence: Evidence) -> list[Violation]:
    """All violations in the evidence."""
    by_key: dict[str, list[Line]] = defaultdict(list)
    for line in read_journal(evidence.journal):
        by_key[line.key].append(line)
    by_label: dict[str, list[Line]] = defaultdict(list)
    for key, lines in by_key.items():
        by_label[key.partition(".")[0]] += lines
    found: list[Violation] = []
    for story in evidence.stories:
        found += _of_story(story, by_label.get(story.label, []))
    stories = {story.label: story for story in evidence.stories}
    for key, lines in by_key.items():
        found += _of_task(key, lines, stories.get(key.partition(".")[0]))
    found += [
        Violation("doubled", name, (f"{ident} is listed, and no submission was answered with it",))
        for ident, name in evidence.strangers
    ]
    found += [Violation("leaked", text.split(":")[0], (text,)) for text in evidence.leaks]
    found += [Violation("died", "the service", (text,)) for text in evidence.deaths]
    found += [Violation("server error", text.split(" -> ")[0], (text,)) for text in evidence.errors]
    found += [Violation("harness", "a fault", (text,)) for text in evidence.failures]
    found += [
        Violation("memory", "the service", (f"{before >> 20} MiB before, {after >> 20} MiB after",))
        for before, after in evidence.memory
        if after > before * 1.2
    ]
    return found + _of_probes(evidence)


def _of_story(story: Story, lines: list[Line]) -> list[Violation]:
    """The violations that one client saw."""
    found = []
    if not story.id:
        return [Violation("stuck", story.label, ("its submission was never answered",))]
    who = f"{story.label} ({story.id})"
    if story.missing:
        found.append(Violation("lost id", who, tuple(f"404 at {at:.2f}" for at in story.missing[:3])))
    final = story.states[-1][1] if story.states else ""
    seen = tuple(f"{state} at {at:.2f}" for at, state in story.states[-6:])
    if final not in TERMINAL:
        if not story.missing:
            found.append(Violation("stuck", who, (*seen, story.reason, *(line.text for line in lines[-4:]))))
    elif final not in story.expected and not (story.excuse and final not in GOOD):
        shown = (*seen, f"reason: {story.reason}", *_attempts(story), *(line.text for line in lines[-6:]))
        found.append(Violation("wrong end", who, (f"expected {' or '.join(story.expected)}", *shown)))
    ends = [state for at, state in story.states if at > (story.retried_s or 0.0)]
    first = next((number for number, state in enumerate(ends) if state in TERMINAL), None)
    if first is not None and any(state != ends[first] for state in ends[first:]):
        found.append(Violation("changed end", who, seen))
    if final in GOOD:
        found += [
            Violation(
                "lost output", who, (f"{each['name']}: found {each['found']}, expected {each['expected']}",)
            )
            for each in story.outputs
            if each["found"] != each["expected"]
        ]
    return found


def _attempts(story: Story) -> tuple[str, ...]:
    """The last attempts in the service's answers."""
    return tuple(
        f"{key}: {json.dumps(each)}" for key, tried in story.attempts.items() for each in tried[-2:]
    )[-6:]


def _of_task(key: str, lines: list[Line], story: Story | None) -> list[Violation]:
    """The violations in one task's journal, compared with the service's list of attempts."""
    found = []
    tried = {str(each["attempt"]): each for each in (story.attempts.get(key, []) if story else [])}
    open_pid: Line | None = None
    starts: dict[str, Line] = {}
    succeeded: Line | None = None
    for line in lines:
        if line.what == "START":
            if line.more != "alone":
                shown = tuple(each.text for each in lines if each.at_s <= line.at_s + 60)[-6:]
                found.append(Violation("doubled", key, ("it started beside another one:", *shown)))
            elif line.attempt != "0" and line.attempt in starts:
                found.append(
                    Violation(
                        "doubled", key, ("one attempt started twice:", starts[line.attempt].text, line.text)
                    )
                )
            elif succeeded is not None:
                found.append(Violation("doubled", key, ("it had succeeded:", succeeded.text, line.text)))
            found += _late(key, line, story)
            starts[line.attempt] = line
            open_pid = line
        else:
            if open_pid is not None and open_pid.pid != line.pid:
                shown = tuple(each.text for each in lines if each.pid in (line.pid, open_pid.pid))
                found.append(Violation("doubled", key, ("two ran at once:", *shown)))
            attempt = tried.get(line.attempt)
            good = attempt is not None and attempt["exit_code"] == 0 and not attempt["reason"]
            if line.more == "0" and good and (story is None or story.kind != "gang"):
                succeeded = line
            open_pid = None if open_pid is not None and open_pid.pid == line.pid else open_pid
    return found


def _late(key: str, line: Line, story: Story | None) -> list[Violation]:
    """A start that comes after the answer to a cancel, or after the end."""
    if story is None:
        return [Violation("late start", key, ("no client knows it:", line.text))]
    if story.cancelled_s is not None and line.at_s > story.cancelled_s + LATE_S:
        return [Violation("late start", key, (f"cancelled at {story.cancelled_s:.2f}", line.text))]
    if story.ended_s is not None and line.at_s > story.ended_s + 0.02:
        return [Violation("late start", key, (f"its end was seen at {story.ended_s:.2f}", line.text))]
    return []


def counted_probes(evidence: Evidence) -> list[tuple[float, float, str]]:
    """(moment, ms later than the control, status) of each probe. A probe that overlaps an absence does not count."""
    counted = []
    for at_s, service_ms, status, control_ms in evidence.probes:
        end_s = at_s + (service_ms if service_ms is not None else 0.0) / 1000
        if control_ms is None or any(at_s <= until and end_s >= since for since, until in evidence.absences):
            continue
        late = float("inf") if service_ms is None or status != "200" else service_ms - control_ms
        counted.append((at_s, late, status))
    return counted


def _of_probes(evidence: Evidence) -> list[Violation]:
    counted = counted_probes(evidence)
    slow = [probe for probe in counted if probe[1] > SLOW_MS]
    if len(slow) <= len(counted) * SLOW_SHARE and not (evidence.probes and not counted):
        return []
    shown = tuple(
        f"at {at:.2f}: {late:.0f} ms later than the control, status {status}"
        for at, late, status in slow[:20]
    )
    return [Violation("slow", f"{len(slow)} of {len(counted)} probes", shown or ("no probe counted",))]


def table(evidence: Evidence, violations: list[Violation]) -> str:
    """The summary that a run prints at its end."""
    lines = read_journal(evidence.journal)
    counted = sorted(probe[1] for probe in counted_probes(evidence))
    part = {0.5: "median", 0.99: "99 %", 0.999: "99.9 %"}
    late = ", ".join(
        f"{name} {counted[int(len(counted) * share)]:.0f}" for share, name in part.items() if counted
    )
    text = [
        f"workflows {len(evidence.stories)}, ended {sum(story.ended_s is not None for story in evidence.stories)}, "
        f"excused by a full disk {sum(bool(s.excuse) and s.states[-1][1] not in s.expected for s in evidence.stories if s.states)}",
        f"task starts {sum(line.what == 'START' for line in lines)}, outputs checked "
        f"{sum(len(story.outputs) for story in evidence.stories)}",
        f"probes of /livez {len(counted)} counted of {len(evidence.probes)}; ms over the control: {late or 'none'}",
        "",
    ]
    for kind, about in KINDS.items():
        text.append(f"{sum(each.kind == kind for each in violations):6}  {kind:13} {about}")
    for each in violations[:60]:
        text += ["", f"{each.kind}: {each.subject}", *(f"    {line}" for line in each.shown_by)]
    return "\n".join(text)


def save(evidence: Evidence, path: Path) -> None:
    """Write the evidence as JSON."""
    path.write_text(json.dumps(asdict(evidence), indent=0), encoding="utf-8")


def load(path: Path) -> Evidence:
    """Read the evidence that `save` wrote."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    stories = [
        Story(**{**each, "states": [tuple(pair) for pair in each["states"]]}) for each in raw.pop("stories")
    ]
    pairs = {
        name: [tuple(each) for each in raw.pop(name)]
        for name in ("probes", "absences", "strangers", "memory")
    }
    return Evidence(stories=stories, **pairs, **raw)


if __name__ == "__main__":
    kept = load(Path(sys.argv[1]) / "evidence.json")
    verdict = judge(kept)
    print(table(kept, verdict))
    sys.exit(1 if verdict else 0)
