"""Real WDL, run by the real miniwdl on a real service: what comes out is what WDL says."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.wdl.engine import DOCUMENTS, Engine, Run

NAMES = sorted(path.name.removesuffix(".expected.json") for path in DOCUMENTS.glob("*.expected.json"))


@pytest.fixture(scope="module")
def runs(engine: Engine) -> dict[str, Run]:
    """All of them, a few at a time: they share one service."""

    def run(name: str) -> Run:
        started = engine.run(name)
        started.end()
        return started

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(NAMES, pool.map(run, NAMES), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_gives_what_wdl_says(name: str, runs: dict[str, Run]) -> None:
    """Outputs as committed beside the document, files by their text."""
    assert runs[name].result() == json.loads((DOCUMENTS / f"{name}.expected.json").read_text())
