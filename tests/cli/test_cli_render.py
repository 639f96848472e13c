"""How things look, and that nothing from elsewhere reaches a terminal as a command."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from fake_service import BEGIN, stage_view, task_view, workflow_view
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console, RenderableType
from rich.text import Text

from flowsched.cli.printing import output, render, terminal_text
from flowsched.cli.printing.columns import PIPED_WIDTH, Column, Columns, wrapped
from flowsched.workflow.views import (
    CacheView,
    ExplanationView,
    FittedMemoryView,
    NodeView,
    QueueUserView,
    QueueView,
    WaitingView,
    WorkflowView,
)


def drawn(renderable: RenderableType, width: int = 120) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False
    )
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_progress_has_a_line_per_stage() -> None:
    """Bar, done of all, what the rest does, bytes."""
    stages = [
        stage_view(0, "align", width=10, counts={"SUCCEEDED": 5, "RUNNING": 2, "STAGING": 1, "QUEUED": 2}),
        stage_view(1, "call", state="PENDING", width=4, counts={"PENDING": 4}, bytes_local=0, bytes_moved=0),
    ]
    lines = drawn(render.progress(stages)).splitlines()
    assert lines == [
        "STAGE                            DONE  NOW                               LOCAL    MOVED",
        "align  ████████████▓▓▓▓▒▒░░░░    5/10  2 running, 1 staging, 2 queued  3.0 GiB  1.0 MiB",
        "call                              0/4                                      0 B      0 B",
    ]


def test_a_narrow_terminal_cuts_no_number() -> None:
    """A live line ends early; a table cuts its names, never its states and counts."""
    stages = [
        stage_view(n, "a-very-long-name-of-a-stage-that-goes-on-and-on", width=1_000_000) for n in range(2)
    ]
    _, *lines = drawn(render.progress(stages), width=70).splitlines()
    assert max(map(len, lines)) <= 70
    assert "a-very-long…" in lines[0]
    assert "1/1000000" in lines[0]
    table = drawn(render.stage_table([stage_view(0, "x" * 60, state="SUCCEEDED")]), width=80)
    assert table.splitlines() == [
        "STAGE              STATE      DONE  NOW                    RAN    LOCAL    MOVED",
        "xxxxxxxxxxxxxxxx…  SUCCEEDED   1/3  1 running, 1 queued  1m01s  3.0 GiB  1.0 MiB",
    ]


def test_a_failed_stage_accounts_for_all_its_tasks() -> None:
    """Those that were not started since another one failed are in no other column."""
    counts = {"SUCCEEDED": 6, "FAILED": 1, "CANCELLED": 1}
    failed = stage_view(0, "trial", state="FAILED", counts=counts)
    assert "1 cancelled" in drawn(render.stage_table([failed]))


def test_a_stage_says_what_memory_that_fits_has_saved() -> None:
    """Below its row, after why it failed; attempts that ran out of memory may have cost more than others saved."""
    saved = FittedMemoryView(
        attempts=210, asked_bytes=32 << 30, given_bytes=7946 << 20, saved_gib_hours=1945.6
    )
    lost = FittedMemoryView(attempts=1, asked_bytes=1 << 30, given_bytes=180 << 20, saved_gib_hours=-0.0123)
    stages = [
        stage_view(0, "align", state="SUCCEEDED", fitted_memory=saved),
        stage_view(1, "call", state="FAILED", reason="exit code 1", fitted_memory=lost),
    ]
    lines = drawn(render.stage_table(stages), width=80).splitlines()
    assert [lines[2], *lines[4:]] == [
        "  memory: asked 32 GiB, given 7.8 GiB (210 attempts); 1,945.60 GiB-hours saved",
        "  exit code 1",
        "  memory: asked 1 GiB, given 180 MiB (1 attempt); 0.0123 GiB-hours lost",
    ]


def test_of_many_stages_those_are_shown_where_something_happens() -> None:
    """In the document's order, and the rest in one line."""
    stages = [stage_view(n, f"s{n}", state="SUCCEEDED" if n < 50 else "PENDING") for n in range(100)]
    stages[70] = stage_view(70, "failing", state="FAILED")
    text = drawn(render.progress(stages, rows=5))
    assert len(text.splitlines()) == 6
    assert "failing" in text
    assert "100 stages in all, 50 of them done" in text


def test_a_bar_shows_every_group_that_is_there() -> None:
    """One failed task of a million has a cell; the bar never overflows."""
    assert "█" in render.bar({"FAILED": 1, "SUCCEEDED": 0}, 1_000_000).plain
    for counts in (
        {},
        {"SUCCEEDED": 3},
        {"SUCCEEDED": 2, "FAILED": 2, "RUNNING": 2, "QUEUED": 2, "SKIPPED": 2},
    ):
        assert len(render.bar(counts, 3).plain) == render.BAR_WIDTH


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 60, "1024.0 PiB"),
    ],
)
def test_bytes_for_people(number: int, shown: str) -> None:
    assert render.size(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0.0s"), (9.94, "9.9s"), (59.4, "59s"), (59.6, "1m00s"), (3725, "1h02m"), (90000, "1d01h")],
)
def test_spans_for_people(number: float, shown: str) -> None:
    assert render.seconds(number) == shown


def test_tables_hold_what_the_views_say() -> None:
    """Nodes, queues, reasons."""
    node = NodeView(
        name="n1",
        ready=False,
        state="NOT_READY",
        allocatable={"cpu": 8000, "gpu": 2000},
        used={"cpu": 500, "gpu": 1000},
    )
    assert "not ready" in drawn(render.node_table([node]))
    assert "0.5/8" in drawn(render.node_table([node]))
    assert "1/2" in drawn(render.node_table([node]))
    queue = QueueView(
        name="lab", weight=2, dominant_share=0.25, cap={"cpu": 1500, "memory": 1 << 30, "x/y": 3}
    )
    assert "25%" in drawn(render.queue_panel([queue]))
    assert "cpu 1.5, memory 1.0 GiB, x/y 3" in drawn(render.queue_panel([queue]))
    shared = QueueView(
        name="lab", weight=1, order="fifo", deserved={"cpu": 4000}, pending={"cpu": 9000}, recent={"cpu": 500},
        users=[QueueUserView(user="ann", used={"cpu": 2000}), QueueUserView(user="", recent={"cpu": 7000})],
        warnings=["too much"],
    )  # fmt: skip
    lines = [line.split() for line in drawn(render.queue_panel([shared])).splitlines()]
    assert lines[1:5] == [
        ["lab", "1", "0%", "0", "0", "0", "fifo"],
        ["deserved", "cpu", "4"],
        ["pending", "cpu", "9"],
        ["recent", "cpu", "0.5"],
    ]
    assert lines[7:] == [
        ["lab", "ann", "cpu", "2"],
        ["lab", "-", "cpu", "7"],
        ["queue", "lab:", "too", "much"],
    ]
    reason = ExplanationView(
        stage="align", shards=[1, 2], others=38, tasks=40, state="QUEUED", code="no_room", message="m",
        start_at=datetime(2026, 3, 1, 12, 5, tzinfo=UTC),
    )  # fmt: skip
    text = drawn(render.explain_panel([reason], now=BEGIN))
    assert "40 tasks QUEUED  no_room" in text
    assert "shards 1, 2 and 38 others" in text
    named = drawn(
        render.explain_panel([msgspec.structs.replace(reason, items=["S1", "S2"], others=1)], now=BEGIN)
    )
    assert "\n  S1, S2 and 1 other\n" in named
    sure = msgspec.structs.replace(
        reason, start_low_at=reason.start_at, start_high_at=reason.start_at, numbers={"fit": 0}
    )
    assert drawn(render.explain_panel([sure], now=BEGIN)) == text
    assert "in 5m00s" in text
    late = drawn(render.explain_panel([reason], now=datetime(2026, 3, 1, 12, 6, tzinfo=UTC)))
    assert ": any moment" in late
    reason.estimate = "runtime unknown, counted as 1h; 3 MB/s disk bandwidth are counted for it"
    text = drawn(render.explain_panel([reason], now=BEGIN))
    assert "in 5m00s; tasks of unknown runtime count as 1h\n" in text
    assert "Nothing waits" in drawn(render.explain_panel([]))
    sure = msgspec.structs.replace(reason, start_low_at=reason.start_at, start_high_at=reason.start_at)
    assert "eight of ten" not in drawn(render.explain_panel([sure], now=BEGIN))


def test_qos_classes_are_told_where_they_differ() -> None:
    """Most runs have one alone: a column of `Burstable` says nothing."""
    burstable, guaranteed = task_view("a", 0, qos="Burstable"), task_view("a", 1, qos="Guaranteed")
    assert "QOS" not in drawn(render.task_table([burstable, burstable]))
    assert "QOS" in drawn(render.task_table([burstable, guaranteed]))


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egpj\r\n[red]x[/red]\x9b31m\x00\x7f"


def test_what_tasks_returned_stands_beside_the_state() -> None:
    """Of many codes only how many tasks."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    base = {
        "name": "w",
        "queue": "q",
        "priority": 0,
        "labels": {},
        "state": "SUCCEEDED",
        "created_at": at,
        "stages": 1,
    }
    views = [
        WorkflowView(id=ident, tasks=40, returned=returned, **base)
        for ident, returned in (
            ("a", {"3": 1}),
            ("b", {"1": 12, "137": 2}),
            ("c", {"1": 1, "2": 1, "3": 2}),
            ("d", {}),
        )
    ]
    heads = [render.workflow_head(view).plain for view in views]
    assert heads == [
        "w a SUCCEEDED (1× exit 3)",
        "w b SUCCEEDED (12× exit 1, 2× exit 137)",
        "w c SUCCEEDED (4× exit not 0)",
        "w d SUCCEEDED",
    ]


def test_fault_46c_names_cannot_command_a_terminal() -> None:
    """Escapes, control characters, overrides and markup in every text of every table are shown, not obeyed."""
    for renderable in (
        render.workflow_table(
            [workflow_view(1, HOSTILE, id=HOSTILE, queue=HOSTILE, state=HOSTILE, reason=HOSTILE)], BEGIN
        ),
        render.workflow_head(workflow_view(1, HOSTILE, reason=HOSTILE)),
        render.stage_table([stage_view(0, HOSTILE, reason=HOSTILE)]),
        render.progress([stage_view(0, HOSTILE)]),
        render.task_table([task_view(HOSTILE, 0, item=HOSTILE, node=HOSTILE, reason=HOSTILE, role=HOSTILE)]),
        render.queue_panel(
            [
                QueueView(
                    name=HOSTILE,
                    weight=1,
                    parent=HOSTILE,
                    cap={HOSTILE: 1},
                    warnings=[HOSTILE],
                    users=[QueueUserView(user=HOSTILE, used={HOSTILE: 1})],
                )
            ]
        ),
        render.node_table([NodeView(name=HOSTILE, ready=True, rack=HOSTILE)]),
        render.explain_panel(
            [
                ExplanationView(
                    stage=HOSTILE, tasks=1, state=HOSTILE, code=HOSTILE, message=HOSTILE, numbers={HOSTILE: 1}
                )
            ]
        ),
    ):
        text = drawn(renderable, width=2000)
        assert not set("\x1b\x07\x9b\x00\x7f\u202e\r") & set(text)
        assert r"\x1b]0;owned\x07\x1b[2J" in text


def test_lists_name_the_users_where_there_are_several() -> None:
    """In `ls` as a column, in `show` beside the state; a list of one user has no column."""
    ada, bob = workflow_view(1, "a", user="ada"), workflow_view(2, "b", user="bob")
    head, first, second = (
        line.split() for line in drawn(render.workflow_table([ada, bob], BEGIN), 140).splitlines()
    )
    at = head.index("USER") + 2  # NOW has two words more: 1 running, 3 queued
    assert (first[at + 1], second[at + 1]) == ("ada", "bob")
    assert "USER" not in drawn(render.workflow_table([ada], BEGIN), 140)
    assert render.workflow_head(ada).plain == "a wf1 RUNNING of user ada"
    assert render.workflow_head(workflow_view(1, "a")).plain == "a wf1 RUNNING"


@given(st.binary(), st.integers(0, 8))
def test_a_log_on_a_terminal_is_the_same_wherever_it_is_cut(raw: bytes, cut: int) -> None:
    """And holds no control characters but line ends and tabs."""
    whole, parts = terminal_text.LogText(), terminal_text.LogText()
    text = whole.feed(raw, final=True)
    cut_text = parts.feed(raw[:cut]) + parts.feed(raw[cut:]) + parts.feed(b"", final=True)
    assert cut_text == text
    assert all(letter in "\n\t" or letter >= " " for letter in text)


@given(st.text())
def test_json_for_a_terminal_is_still_the_same_json(text: str) -> None:
    """Escaped, not changed."""
    shown = terminal_text.json_text(json.dumps({"a": text}, ensure_ascii=False))
    assert json.loads(shown) == {"a": text}
    assert not set("\x1b\x7f\x9b\u202e") & set(shown)


def test_json_views_keep_their_fields() -> None:
    """Times as ISO 8601, names as they are."""
    found = json.loads(output.to_json(workflow_view(1, HOSTILE)))
    assert (found["name"], found["created_at"]) == (HOSTILE, "2026-03-01T12:01:00Z")


WAITING = WaitingView(
    stage="align", tasks=3, state="QUEUED", code="Insufficient", permanent=False,
    message="no node has room; task needs 64 CPU and 128 GiB memory; the best node, node-0, has 8 CPU free of 96 CPU",
)  # fmt: skip
LISTED = [
    workflow_view(
        3, "germline-of-a-whole-cohort", id="w1m84mz5ky8e2nd63yv8jt", state="QUEUED", counts={"QUEUED": 4}, waiting=WAITING
    ),
    workflow_view(2, id="w1m84mz4rwrz8p2pvt44ae", counts={"RUNNING": 1, "BINDING": 2, "STAGING": 3, "QUEUED": 40}, tasks=46),
    workflow_view(
        1, "qc", id="w1m84mz42d0x8w91ba0qx3", state="FAILED", counts={"FAILED": 1, "SUCCEEDED": 3},
        reason="align: task 0 failed: exit code 3", ended_at=BEGIN + timedelta(minutes=9),
    ),
]  # fmt: skip


def test_a_list_has_the_first_sentence_of_a_reason() -> None:
    """`show` has all of it: what a container engine said may have eight lines."""
    reason = "a: task 0 failed: ImageRefused (no engine runs the image 'x'. Found: docker: it is not in PATH)"
    view = workflow_view(1, state="FAILED", reason=reason)
    listed = drawn(render.workflow_table([view], BEGIN), PIPED_WIDTH)
    assert "ImageRefused (no engine runs the image 'x'. …\n" in listed
    assert "Found" not in listed
    assert "Found: docker" in drawn(render.workflow_head(view), PIPED_WIDTH)


def test_a_list_of_workflows_at_three_widths() -> None:
    """Names first; the reason stands below; what matters least goes first; nothing is wider than the terminal."""
    now = BEGIN + timedelta(minutes=10)
    assert drawn(render.workflow_table(LISTED, now), 80).splitlines() == [
        "NAME                        ID          STATE    DONE  FAILED   TIME  QUEUE",
        "germline-of-a-whole-cohort  w1m84mz5ky  QUEUED    0/4       0  7m00s  default",
        "  align: no node has room; task needs 64 CPU and 128 GiB memory; the best node,",
        "  node-0, has 8 CPU free of 96 CPU",
        "germline                    w1m84mz4rw  RUNNING  0/46       0  8m00s  default",
        "qc                          w1m84mz42d  FAILED    3/4       1  8m00s  default",
        "  align: task 0 failed: exit code 3",
    ]
    assert drawn(render.workflow_table(LISTED, now), 100).splitlines()[:2] == [
        "NAME           ID          STATE    DONE  FAILED  NOW                                           TIME",
        "germline-of-…  w1m84mz5ky  QUEUED    0/4       0  4 queued                                     7m00s",
    ]
    wide = drawn(render.workflow_table(LISTED, now), 140).splitlines()
    assert wide[0].split() == ["NAME", "ID", "STATE", "DONE", "FAILED", "NOW", "TIME", "QUEUE", "CREATED"]
    assert wide[3].split()[4:13] == ["0", "1", "running,", "2", "starting,", "3", "staging,", "40", "queued"]
    for width in (80, 100, 140):
        assert max(map(len, drawn(render.workflow_table(LISTED, now), width).splitlines())) <= width


def test_a_list_says_when_what_waits_will_start() -> None:
    """The interval of eight starts of ten, from now on, before the reason: it needs no column."""
    low, high = (BEGIN + timedelta(minutes=minutes) for minutes in (13, 15))
    waiting = structs.replace(WAITING, start_low_at=low, start_high_at=high)
    view = structs.replace(LISTED[0], waiting=waiting)
    assert drawn(render.workflow_table([view], BEGIN + timedelta(minutes=10)), 80).splitlines()[2] == (
        "  align: starts in 3-5 min; no node has room; task needs 64 CPU and 128 GiB"
    )


def test_a_pipe_gets_everything_on_one_line() -> None:
    """Whole ids, every column, the reason last."""
    lines = [line.plain for line in render.workflow_table(LISTED, BEGIN, brief=False).lines(PIPED_WIDTH)]
    assert len(lines) == 1 + len(LISTED)
    assert lines[0].split() == [
        "NAME",
        "ID",
        "STATE",
        "DONE",
        "FAILED",
        "NOW",
        "TIME",
        "QUEUE",
        "CREATED",
        "REASON",
    ]
    assert "w1m84mz5ky8e2nd63yv8jt" in lines[1]
    assert lines[1].endswith(f"align: {WAITING.message}")


def test_ids_are_as_short_as_they_may_be() -> None:
    """Ten characters, or as many as tell them apart."""
    assert render.short_ids(["w1m84mz5ky8e2nd63", "w1m84mz4rwrz8p2pv"]) == {
        "w1m84mz5ky8e2nd63": "w1m84mz5ky",
        "w1m84mz4rwrz8p2pv": "w1m84mz4rw",
    }
    assert list(render.short_ids(["w1m84mz5ky8e2", "w1m84mz5ky8f3", "x"]).values()) == [
        "w1m84mz5ky8e",
        "w1m84mz5ky8f",
        "x",
    ]


def test_ids_of_engines_are_cut_later() -> None:
    """A part of a list has a date or an engine's name in common with what is not in it."""
    now = datetime.now(UTC)
    views = [
        workflow_view(1, "calling", id="20261124_023011_variant_calling-a1f168c0", source="miniwdl"),
        workflow_view(2, "snakemake", id="snakemake-0123456789abcdef", source="snakemake"),
        workflow_view(3, "calling.join", id="w1m85p7qk0jwg5578zqfjz", run="20261124_023011"),
        workflow_view(4, "own", id="w1m85p7qk1jwg5578zqfjz"),
    ]
    told = {line.plain.split()[1] for line in render.workflow_table(views, now).lines(80)}
    assert told == {"ID", "20261124_023011_", "snakemake-012345", "w1m85p7qk0jwg557", "w1m85p7qk1"}


@given(
    st.lists(
        st.tuples(st.text("ab", max_size=40), st.text("xyz ", max_size=9), st.text("n", max_size=60)),
        max_size=5,
    ),
    st.integers(40, 200),
)
def test_a_table_is_never_wider_than_its_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    """Whatever is in it, while the columns that are never cut fit by themselves."""
    table = Columns(
        rows,
        Column("NAME", lambda row: row[0], cut=True),
        Column("STATE", lambda row: row[1]),
        Column("MORE", lambda row: row[1], rank=2),
        Column("LESS", lambda row: row[0], rank=1),
        note=lambda row: render.text(row[2]),
    )
    assert all(len(line.plain) <= width for line in table.lines(width))


def test_of_a_long_item_the_end_is_shown() -> None:
    """At a width that has too little room; a pipe gets it whole."""
    items = ["/data/cohort-2026/fastq/S1.fastq.gz", "/data/cohort-2026/fastq/S12.fastq.gz"]
    table = render.task_table([task_view("trial", at, item=item) for at, item in enumerate(items)])
    cut = [line.plain for line in table.lines(68)]
    assert ("…026/fastq/S1.fastq.gz" in cut[1], "…26/fastq/S12.fastq.gz" in cut[2]) == (True, True)
    assert all(item in line.plain for item, line in zip(items, [*table.lines(10_000)][1:], strict=True))


def test_the_run_of_a_result_has_its_whole_id() -> None:
    """At 80 columns other columns are cut before it: it is copied into the next command."""
    ident = "w1m851hmq1yfg2r9vwhm1p"
    shards = [f"sample-{at}" for at in range(8)]
    stage = "trim-and-filter-reads"
    found = [
        CacheView(stage=stage, shards=8, first=0, which=shards, source=f"{ident}/{stage}", ran=False),
        CacheView(stage=stage, shards=1, first=8, which=["sample-8"], why="it has not succeeded before"),
    ]
    lines = [line.plain for line in render.cache_table(found).lines(80)]
    assert f"{ident}/" in lines[1]
    assert max(map(len, lines)) <= 80


def test_queues_at_80_columns_break_no_word() -> None:
    """What has no room in one line stands below its queue; a wide terminal has one line a queue."""
    queue = QueueView(
        name="default", weight=1, dominant_share=0.75, waiting=26, starting=2, running=3,
        used={"cpu": 3000, "memory": 768 << 20}, deserved={"cpu": 4000, "memory": 4 << 30},
        pending={"cpu": 26000, "memory": 6 << 30}, cap={"cpu": 8000, "memory": 8 << 30},
    )  # fmt: skip
    assert drawn(render.queue_panel([queue]), 80).splitlines() == [
        "QUEUE    WEIGHT  SHARE  WAITING  STARTING  RUNNING",
        "default       1    75%       26         2        3",
        "  used       cpu 3, memory 768.0 MiB",
        "  deserved   cpu 4, memory 4.0 GiB",
        "  pending    cpu 26, memory 6.0 GiB",
        "  cap        cpu 8, memory 8.0 GiB",
    ]
    piped = drawn(render.queue_panel([queue]), PIPED_WIDTH).splitlines()
    assert len(piped) == 2
    assert "pending    cpu 26, memory 6.0 GiB; cap" in piped[1]


def test_a_reason_is_broken_between_words() -> None:
    """Its numbers stand near its end."""
    message = "one pod is larger than any node; task needs 500 CPU and 4 TiB memory; the best node, node-0, has 2 CPU free of 2"
    lines = [line.plain for line in wrapped(Text(message), 60)]
    assert " ".join(line.strip() for line in lines) == message
    assert all(line.startswith("  ") and len(line) <= 60 for line in lines)
    cut = [line.plain for line in wrapped(Text(message), 30)]
    assert len(cut) == 3
    assert [line.plain for line in wrapped(Text("x" * 100), 20)] == ["  " + "x" * 17 + "…"]


def test_the_known_facts_of_an_engines_task_fit_80_columns() -> None:
    """The text of `docs/explain.md`, broken between words."""
    estimate = (
        "runs for 4m, learned from 12 sort tasks; eight of ten between 3m31s and 4m40s; "
        "reads 2.9 GiB, 2.7 GiB of it on n2; follows align"
    )
    view = ExplanationView(
        stage="sort", tasks=1, state="QUEUED", code="NoRoom", message="", estimate=estimate
    )
    lines = [line.rstrip() for line in drawn(render.explain_panel([view]), width=80).splitlines()]
    assert lines[1:] == [
        "  runs for 4m, learned from 12 sort tasks; eight of ten between 3m31s and 4m40s;",
        "  reads 2.9 GiB, 2.7 GiB of it on n2; follows align",
    ]
