"""schemathesis reads our own OpenAPI document and tries everything it allows, and much that it does not."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from flowsched.api.table import ROUTES
from tests.contract.serving import served

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Per operation and phase, see `make test`: the seed is fixed, so a red run is about the change.
EXAMPLES, SEED = "10", "1"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_service_does_what_its_description_says(tmp_path: Path) -> None:
    """All checks, all operations, in every phase: statuses, media types, schemas of answers, refusal of what is wrong."""
    async with served(tmp_path) as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")),
            *("run", str(server.make_url("/api/v1/openapi.json")), "--checks", "all"),
            *("--max-examples", EXAMPLES, "--seed", SEED, "--generation-database", "none"),
            *("--request-timeout", "10", "--continue-on-failure", "--no-color"),
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.contract.hooks", "PYTHONPATH": str(ROOT)}
        tool = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        told = (await tool.communicate())[0].decode(errors="replace")
    assert tool.returncode == 0, told[-20_000:]
    assert f"Tested: {len(ROUTES)}\n" in told, told[-2000:]
