"""`flowsched secret`: values go in and never come out."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from flowsched.cli.app import app


def test_secrets_on_the_command_line(tmp_path: Path) -> None:
    """Set from standard input without the line's end, listed by name, removed."""
    root = ["--root", str(tmp_path)]
    runner = CliRunner()
    done = runner.invoke(app, ["secret", "set", "lab-key", *root], input="canary\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "secrets" / "lab-key").read_bytes() == b"canary"
    listed = runner.invoke(app, ["secret", "ls", *root])
    assert listed.stdout.split() == ["SECRET", "lab-key"]
    assert runner.invoke(app, ["secret", "rm", "lab-key", *root]).exit_code == 0
    assert runner.invoke(app, ["secret", "rm", "lab-key", *root]).exit_code == 2
    assert runner.invoke(app, ["secret", "set", "../x", *root], input="v").exit_code == 2
