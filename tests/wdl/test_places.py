"""Where a task stands in a run, from what miniwdl calls it and where its folder is."""

from __future__ import annotations

import pytest

from flowsched.miniwdl.places import Known, after, place

TOP = "/runs/20260301_120000_germline"


def test_a_call_of_a_sub_workflow_in_a_scatter() -> None:
    """Names without indices make the node, so that all shards are one; the folder of the run is the outermost."""
    found = place(
        ["germline", "call-each-1-NA12878", "call-align"],
        f"{TOP}/call-each-1-NA12878/call-align",
        {TOP: Known("germline", {"each": 1}), f"{TOP}/call-each-1-NA12878": Known("sub", {"align": 0})},
    )
    assert (found.top, found.run_name, found.node) == (TOP, "germline", "each.align")
    assert (found.indices, found.shard) == ((1,), 1)
    assert found.name == "align"


@pytest.mark.parametrize(
    ("ident", "depth", "indices"),
    [
        ("call-sum", 0, ()),
        ("call-sum-07", 1, (7,)),
        ("call-sum-0-10", 1, (0,)),
        ("call-sum-0-10", 2, (0, 10)),
        ("call-sum-0-10-2-3", 2, (0, 2)),
        ("call-sum-0-ten-2", 2, (0, 2)),
        ("call-sum-0-2-three", 2, (0, 2)),
        ("call-sum-1-x-2-y", None, (1, 2)),
    ],
)
def test_tags_that_are_numbers_are_no_indices(
    ident: str, depth: int | None, indices: tuple[int, ...]
) -> None:
    """Whether "0-10" is one scatter with a tag or two scatters, only the WDL knows."""
    depths = {} if depth is None else {TOP: Known("w", {"sum": depth})}
    assert place(["w", ident], f"{TOP}/{ident}", depths).indices == indices


def test_shards_of_scatters_in_scatters_are_one_number() -> None:
    """100,000 apart, so that none is like another."""
    assert place(["w", "call-t-2-7"], f"{TOP}/call-t-2-7", {TOP: Known("w", {"t": 2})}).shard == 200007
    assert (
        place(["w", "call-t-1-2-3-4"], f"{TOP}/call-t-1-2-3-4", {TOP: Known("w", {"t": 4})}).shard
        == 1000020000300004
    )


def test_a_task_that_runs_alone_is_its_own_run() -> None:
    """`miniwdl run --task`."""
    found = place(["align"], "/runs/20260301_120000_align", {})
    assert (found.top, found.run_name, found.node, found.shard) == (
        "/runs/20260301_120000_align",
        "align",
        "align",
        None,
    )


def test_a_download_belongs_to_the_run_it_is_for() -> None:
    """Which only its folder says: miniwdl starts it like a task of its own."""
    found = place(["download-aria2c"], f"{TOP}/download/0", {TOP: Known("germline", {})})
    assert (found.top, found.run_name, found.node) == (TOP, "germline", "download-aria2c")
    alone = place(["download-aria2c"], f"{TOP}/download/0", {})
    assert (alone.top, alone.run_name) == (f"{TOP}/download/0", "download-aria2c")


def test_inputs_that_lie_below_other_calls_say_what_a_task_reads() -> None:
    """Shards of a call are one node; files from outside are no node; one that lies in the run's own folder neither."""
    sources = [
        f"{TOP}/call-align-0/work/a.bam",
        f"{TOP}/call-align-1/work/a.bam",
        f"{TOP}/call-each-0-x/call-sort/out/bam/a.bam",
        f"{TOP}/write_/x.tsv",
        "/data/ref.fa",
        f"{TOP}_other/call-no/work/x",
    ]
    assert after(TOP, sources) == ("align", "each.sort")
