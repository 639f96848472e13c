"""What `flowsched demo` says of an installation without the extras."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
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
