"""What `flowsched demo` says of an installation without the extras."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
from fake_service import workflow_view
from rich.console import Console

from flowsched.cli import demo


def test_without_pysam_the_demo_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ran variant calling all the same, which failed without a word."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not demo.VIRTUAL_NODES.has_genomics
    assert demo.Cluster(arguments=("--cluster", "kubernetes")).has_genomics  # its images have it
    console = Console(file=io.StringIO(), width=200)
    demo.introduce(console, tmp_path, "virtual", genomics=False)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "variant calling and" not in said
    assert "Left out: real variant calling, which needs pysam: pip install 'flowsched[genomics]'" in said
    assert demo.next_steps(tmp_path)[0].endswith("fan-out.json")


def test_progress_without_a_terminal_has_what_changed_and_fits_80_columns() -> None:
    """Six workflows took 140 columns in each line."""
    console = Console(file=io.StringIO(), width=80)
    views = [workflow_view(at, f"training-{at}", counts={"SUCCEEDED": 0}) for at in range(6)]
    told = demo.plain_progress(console, views, ())
    views[3] = workflow_view(3, "training-3", counts={"SUCCEEDED": 2})
    assert demo.plain_progress(console, views, told) == [
        f"training-{at}: {2 if at == 3 else 0}/4" for at in range(6)
    ]
    *first, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert last == "training-3: 2/4"
    assert " ".join(first).split() == "  ".join(told).split()
    assert max(map(len, first)) <= 80
