"""schemathesis reads the official TES 1.1 document and tries what it allows: no bug shows, and whole tasks look as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.serving import schemathesis, served

_NAME = "tes-1.1.0.offline-refs.openapi.yaml"
#: Beside the checkout, or beside its worktrees' folder.
_PLACES = [folder / "shared" / "specs" / _NAME for folder in Path(__file__).parents[3:5]]
SPECIFICATION = next((place for place in _PLACES if place.exists()), _PLACES[0])


@pytest.mark.slow
async def test_tasks_are_as_the_official_document_has_them(tmp_path: Path) -> None:
    """No answer is a 5xx; tasks in BASIC and FULL, lists and the service-info have the shapes of the specification.

    Which statuses there are is not checked: it names 200 only. Nor is it that all its bodies are taken: a task without
    executors is valid there.
    """
    if not SPECIFICATION.exists():
        pytest.skip(f"the official TES document is not there: {SPECIFICATION}")
    async with served(tmp_path) as server:
        code, told = await schemathesis(
            tmp_path,
            *(str(SPECIFICATION), "--url", str(server.make_url("/ga4gh/tes/v1"))),
            *("--checks", "not_a_server_error,response_schema_conformance"),
            hooks="tests.contract.tes_hooks",
        )
    assert code == 0, told[-20_000:]
    assert "Tested: 5\n" in told, told[-2000:]
