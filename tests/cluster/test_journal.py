"""The journal of a runner: what is read of it, wherever a crash has cut it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.cluster.local.journals import JournalReader
from flowsched.cluster.local.runner import journal
from flowsched.cluster.local.runner.journal import Journal, line_of
from flowsched.cluster.local.runners import Runner
from flowsched.executor.protocol import PodEnded, PodGone

STARTED = {"kind": "started", "at_ms": 5}
RUNNING = {"kind": "running", "pid": 7}
WAITS = {"kind": "waits", "why": "no room"}
LOST = {"kind": "lost"}
ENDED = {
    "kind": "ended", "started_ms": 5, "at_ms": 9, "exit_code": 1, "reason": "", "message": "é\n", "outputs": [], "usage": {},
    "container": None, "images": (),
}  # fmt: skip
VOID = {"kind": "void", "reason": "Released", "started": False, "at_ms": 3, "lost_inputs": []}
#: Every way through an attempt's life.
LIVES: tuple[list[dict[str, Any]], ...] = (
    [VOID],
    [STARTED, RUNNING, ENDED],
    [STARTED, RUNNING, WAITS, {**WAITS, "why": ""}, ENDED],
    [STARTED, LOST],
    [ENDED],
)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some attempts' records, mixed, each attempt's own in order."""
    queues = [
        [{**record, "name": f"fs-w-a-{number}-0"} for record in draw(st.sampled_from(LIVES))]
        for number in range(draw(st.integers(0, 4)))
    ]
    mixed = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(draw(st.sampled_from(queues)).pop(0))
    return mixed


def told(records: list[dict[str, Any]]) -> dict[str, tuple[object, ...]]:
    """What a reader is to say after some records."""
    said: dict[str, list[Any]] = {}
    for record in records:
        one = said.setdefault(record["name"], [None, "", False, None])
        match record["kind"]:
            case "started":
                one[0] = 5
            case "waits":
                one[1] = record["why"]
            case "lost":
                one[2] = True
            case "ended":
                one[0], one[3] = 5, PodEnded
            case "void":
                one[3] = PodGone
    return {name: tuple(one) for name, one in said.items()}


def seen(reader: JournalReader) -> dict[str, tuple[object, ...]]:
    return {
        name: (life.started_ms, life.waits, life.is_lost, type(life.end) if life.end else None)
        for name, life in reader.lives.items()
    }


@settings(max_examples=30, deadline=None)
@given(histories(), st.booleans())
def test_a_journal_cut_at_any_byte_says_what_its_whole_lines_say(
    records: list[dict[str, Any]], zeros: bool
) -> None:
    """Behind the cut are nothing, or room that was not written yet. What follows later is read on from there."""
    lines = [line_of(record) for record in records]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    for cut in range(len(whole) + 1):
        reader = JournalReader()
        complete = max(number for number, end in enumerate(ends) if end <= cut)
        at, names = reader.read(whole[:cut] + bytes(64 if zeros else 0))
        assert (at, names) == (ends[complete], [record["name"] for record in records[:complete]])
        assert seen(reader) == told(records[:complete])
        rest, _ = reader.read(whole[at:])
        assert at + rest == len(whole)
        assert seen(reader) == told(records)


def test_a_damaged_line_ends_what_is_read() -> None:
    """A bit that has changed on the disk is no record."""
    first, second = (line_of({**VOID, "name": name}) for name in ("a", "b"))
    for at in range(len(second) - 1):
        damaged = bytearray(first + second)
        damaged[len(first) + at] ^= 1
        reader = JournalReader()
        assert reader.read(bytes(damaged))[0] == len(first)
        assert set(reader.lives) == {"a"}


def test_a_long_journal_goes_on_in_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader follows; a segment whose attempts are settled is put away, but never the one that is written."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 300)
    (tmp_path / "lock").touch()
    writing, reading = Journal(str(tmp_path)), Runner(tmp_path)
    for number in range(7):
        writing.reserve(1)
        writing.add({**VOID, "name": f"n{number}"})
        assert reading.read() == []
        writing.flush()
        assert reading.read() == [f"n{number}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002", "000003", "lock"]
    assert (tmp_path / "000001").stat().st_size < 1000  # the room that was not needed is given back
    reading.settle([f"n{number}" for number in range(7)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "000001.done",
        "000002.done",
        "000003",
        "lock",
    ]
    again = Runner(tmp_path)
    assert again.read() == ["n6"]
    assert again.find_dead()


def test_a_line_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    """A container task may have delivered ten thousand files."""
    writing, reading = Journal(str(tmp_path)), Runner(tmp_path)
    for name, length in (("a", 10), ("b", 3 << 20), ("c", 20_000)):
        writing.add({**ENDED, "name": name, "message": "x" * length})
        writing.flush()
    assert reading.read() == ["a", "b", "c"]
    assert len(reading.reader.lives["b"].end.message) == 3 << 20  # type: ignore[union-attr]
    assert reading.read() == []


def test_an_end_is_written_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its room was taken before the attempt began. What found none is kept, and written later."""
    writing = Journal(str(tmp_path))
    writing.reserve(3)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        writing.add({**ENDED, "name": "a", "message": "x" * 10_000})
        writing.flush()
        with pytest.raises(OSError, match="full"):
            writing.reserve(10_000)
        patch.setattr(os, "pwrite", full)
        writing.add({**VOID, "name": "b"})
        with pytest.raises(OSError, match="full"):
            writing.flush()
    assert not writing.is_flushed
    assert Runner(tmp_path).read() == ["a"]
    writing.flush()
    assert Runner(tmp_path).read() == ["a", "b"]


def test_who_may_still_start() -> None:
    """Of a runner of ours what it was ordered; of an earlier one everything, until it has said that no more orders come."""
    ours, earlier = Runner(Path("/r/2"), is_ours=True), Runner(Path("/r/1"))
    ours.ordered.add("a")
    assert [ours.may_start(name) for name in ("a", "b")] == [True, False]
    assert earlier.may_start("b")
    closed = {"kind": "closed", "pending": ["c"]}
    for runner in (ours, earlier):
        runner.reader.read(line_of(closed))  # type: ignore[arg-type]
        assert [runner.may_start(name) for name in ("a", "b")] == [False, False]
    assert earlier.may_start("c")
    earlier.is_dead = True
    assert not earlier.may_start("c")
