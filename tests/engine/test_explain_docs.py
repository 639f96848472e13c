"""docs/explain.md lists what there is: codes, kinds of suggestions, causes."""

from __future__ import annotations

import re
from pathlib import Path

import flowsched
from flowsched.scheduling.explain.idle import Cause
from flowsched.scheduling.explain.remedies import Kind
from flowsched.scheduling.plan import ReasonCode

TEXT = (Path(flowsched.__file__).parents[1] / "docs" / "explain.md").read_text(encoding="utf-8")


def first_column(head: str) -> list[str]:
    """The names in the first column of the table with this head."""
    table = TEXT.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `([A-Za-z_]+)` \|", table, re.M)


def test_every_code_kind_and_cause_has_its_row_and_no_other_has_one() -> None:
    """In the order of the code."""
    assert first_column("code") == [code.value for code in ReasonCode]
    assert first_column("kind") == [kind.value for kind in Kind]
    assert first_column("cause") == [cause.name.lower() for cause in Cause]
