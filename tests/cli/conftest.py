"""The command line, run in this process against the real API over a service in memory on a real socket."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "api")]

from far_server import Far  # noqa: E402

from flowsched.cli.app import app  # noqa: E402
from flowsched.client import session  # noqa: E402


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the developer's own settings; retries wait milliseconds."""
    for name in ("FLOWSCHED_SERVER", "FLOWSCHED_TOKEN", "FLOWSCHED_ROOT", "FLOWSCHED_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(session, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(session, "LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(session, "START_S", 0.0)


@pytest.fixture
def far() -> Iterator[Far]:
    with Far() as running:
        yield running


@pytest.fixture
def flowsched(far: Far) -> Callable[..., Any]:
    """Run a command against that server."""

    def run(*args: str, **settings: Any) -> Any:
        return CliRunner().invoke(app, [*args, "--server", far.url], **settings)

    return run
