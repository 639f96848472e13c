"""Variables of the environment that flowsched does not know are told of; those that it knows are not."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from flowsched.cli.app import app
from flowsched.variables import unclaimed


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name in [name for name in os.environ if name.startswith("FLOWSCHED_")]:
        monkeypatch.delenv(name)
    return CliRunner()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DATABSE", "did you mean FLOWSCHED_DATABASE?"),
        ("SRVER", "did you mean FLOWSCHED_SERVER?"),
        ("NAMESPACS", "did you mean FLOWSCHED_NAMESPACE?"),
        ("PORT", "there is only the option --port"),
        ("XYLOPHONE", "docs/reference/settings.md lists those that there are"),
    ],
)
def test_an_unknown_variable_is_told_of(told: CliRunner, name: str, hint: str) -> None:
    ended = told.invoke(app, ["version"], env={f"FLOWSCHED_{name}": "x"})
    assert ended.exit_code == 0
    assert (
        ended.stderr
        == f"warning: flowsched knows no variable FLOWSCHED_{name}, and does not use it: {hint}\n"
    )
    assert "warning" not in ended.stdout


def test_known_variables_are_not_told_of(told: CliRunner) -> None:
    """Of options, of Kubernetes, of tasks, of tests, and what Kubernetes says of a Service with our name."""
    known = {
        "DATABASE": "x.db",
        "NODE": "n",
        "GPU_DRIVER": "gpu.nvidia.com",
        "FOLDER": "/f",
        "INPUT_READS": "/r",
        "REQUIRE_KUBE": "1",
        "PORT": "tcp://10.0.0.7:8470",
        "PORT_8470_TCP_ADDR": "10.0.0.7",
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT_HTTP": "8470",
        "EXTENDER_SERVICE_PORT": "8470",
    }
    assert (
        told.invoke(
            app, ["version"], env={f"FLOWSCHED_{name}": value for name, value in known.items()}
        ).stderr
        == ""
    )


def test_only_names_of_ours_are_looked_at() -> None:
    assert unclaimed({"PATH": "/bin", "MY_FLOWSCHED_X": "1", "FLOWSCHED_X": "1"}) == ["FLOWSCHED_X"]
