"""What the tests of plans share: a plan of a source in memory, and what is looked at of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("WDL", reason="needs miniwdl: pip install 'flowsched[wdl]'")

from flowsched.cli.plan import planned
from flowsched.workflow.formats.wdl.plan import plan_wdl
from flowsched.workflow.formats.wdl.sources import sources
from flowsched.workflow.plan import NodePlan, Plan, Until

WDLS = Path(__file__).parents[2] / "workflows" / "wdl"

#: Tasks that the small workflows call.
TASKS = """
task One { input { File f  Int n = 1 } command {} output { File o = "o"  Int k = 1  Boolean b = true  Array[File] fs = [] } }
task Two { input { Array[File] fs } command {} output { File o = "o" } }
"""


def plan_of(body: str, inputs: dict[str, Any] | None = None, **given: Any) -> Plan:
    """The plan of `workflow w` with this body."""
    source = f"version 1.0\nworkflow w {{\n{body}\n}}\n{TASKS}"
    return plan_wdl(sources(source, given.pop("imports", {})), inputs, **given)


def example(name: str) -> Plan:
    """The plan of one of the repository's workflows, with its inputs."""
    return planned(WDLS / f"{name}.wdl", WDLS / f"{name}.inputs.json")


def nodes(plan: Plan) -> dict[str, NodePlan]:
    return {node.path.partition(".")[2]: node for node in plan.nodes}


def edges(plan: Plan) -> list[tuple[str, str, str]]:
    """Parent, child, kind; without the workflow's name."""
    cut = len(plan.name) + 1
    return [(edge.parent[cut:], edge.child[cut:], edge.kind) for edge in plan.edges]


def told(until: tuple[Until, ...]) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in until]


def inputs_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WDLS / f"{name}.inputs.json").read_text())
    return found
