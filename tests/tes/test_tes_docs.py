"""docs/tes.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from flowsched.api.table import ROUTES
from flowsched.workflow.formats.tes.answers import STATES
from flowsched.workflow.formats.tes.document import PARAMETERS
from flowsched.workflow.formats.tes.engines import NODE_TAGS, RUN_TAGS

TEXT = (Path(__file__).parents[2] / "docs" / "tes.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def first_column(name: str) -> list[str]:
    return re.findall(r"^\| `(\w+)`", section(name), re.MULTILINE)


def test_every_parameter_is_described() -> None:
    """Those, and no others."""
    assert first_column("backend_parameters") == list(PARAMETERS.values())


def test_every_state_is_described() -> None:
    """Those that are ever answered, and no others."""
    assert first_column("States") == list(STATES)


def test_every_tag_that_names_a_run_or_a_node_is_described() -> None:
    """In the table of runs."""
    assert all(f"`{tag}`" in section("Runs") for tag in (*RUN_TAGS, *NODE_TAGS))


def test_every_route_is_described() -> None:
    """Each path and method of TES."""
    routes = [f"{r.method} {r.path.removeprefix('/ga4gh/tes/v1')}" for r in ROUTES if r.tag == "tes"]
    assert len(routes) == 6
    for route in routes:
        assert f"`{route.replace('{id}', 'ID')}" in TEXT, route
