"""schemathesis reads our own OpenAPI document and tries everything it allows, and much that it does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from flowsched.api.openapi import openapi
from flowsched.api.table import ROUTES
from tests.contract.serving import schemathesis, served
from tests.soak import SOAK

RULES = Path(__file__).parent / "schemathesis.toml"


@pytest.mark.slow
@pytest.mark.soak
async def test_the_service_does_what_its_description_says(tmp_path: Path) -> None:
    """All checks, all operations: statuses, media types, schemas of answers, refusal of what is wrong.

    In every phase, but for each key of a workflow with each kind of value: see schemathesis.toml.
    """
    description = tmp_path / "openapi.json"  # read over HTTP, its own path would be left out
    description.write_bytes(openapi(ROUTES))
    rules = RULES
    if SOAK:  # with the half that is left out of make test
        rules = tmp_path / "rules.toml"
        rules.write_text(RULES.read_text().replace("phases.coverage.enabled = false\n", ""))
    async with served(tmp_path) as server:
        code, told = await schemathesis(
            tmp_path,
            *(str(description), "--url", str(server.make_url("/")), "--checks", "all"),
            *("--max-response-time", "110"),  # 10 s is too little for the largest document on a busy machine
            hooks="tests.contract.hooks",
            rules=rules,
        )
    assert code == 0, told[-20_000:]
    described = sum(
        len(methods) for methods in msgspec.json.decode(description.read_bytes())["paths"].values()
    )
    assert f"Tested: {described}\n" in told, told[-2000:]
