"""`flowsched profile`, `snapshot` and `replay`: what they print and how they exit."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "scheduling"))

from scheduling_cases import bag, cluster

from flowsched.cli.app import app
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import recorded
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A snapshot of two nodes and a bag of two pods."""
    given: Any = (cluster(4, 4), Catalogue(), QueueTree(), [bag(7, 2)], Profile(), 50, None)
    file = tmp_path / "cycle.zip"
    file.write_bytes(recorded(cycle(*given), *given).packed())
    return file


def local(*arguments: str, **more: Any) -> Any:
    return CliRunner().invoke(app, list(arguments), **more)


def test_a_snapshot_is_replayed_to_the_same_bytes(taken: Path) -> None:
    """Exit code 0, and what was decided in a line."""
    result = local("replay", str(taken))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "the plan is the same, byte for byte",
        "  recorded: 2 pods of 1 groups placed, 0 reserved; who waits: nobody",
        "  replayed: 2 pods of 1 groups placed, 0 reserved; who waits: nobody",
    ]


def test_a_plan_that_differs_is_told_in_words(taken: Path) -> None:
    """Exit code 1: as if another version had decided otherwise."""
    other = taken.with_name("other.zip")
    with zipfile.ZipFile(taken) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            raw = old.read(name)
            new.writestr(name, raw.replace(b'"nodes":[[0,0]]', b'"nodes":[[1,0]]'))
    result = local("replay", str(other), "-o", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["same"]) == (1, False)
    (line,) = told["differences"]
    assert line.startswith("placements of g7 (group 7): ")
    assert line.endswith("on n0 n0")
    assert "on n1 n0 -> " in line


def test_another_policy_is_tried_on_a_snapshot(taken: Path, tmp_path: Path) -> None:
    """Exit code 0, since it was asked for."""
    profile = tmp_path / "wide.yaml"
    profile.write_text("name: wide\npacking: spread\n")
    result = local("replay", str(taken), "--profile", str(profile))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "the plan differs, wide decides"
    assert result.stdout.splitlines()[3].endswith("on n0 n1")


def test_what_is_no_snapshot_is_said_to_be_none(tmp_path: Path) -> None:
    """Exit code 2."""
    file = tmp_path / "x.zip"
    result = local("replay", str(file))
    assert (result.exit_code, result.stderr) == (2, f"error: {file}: No such file or directory\n")
    file.write_bytes(b"PK")
    result = local("replay", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: this is no snapshot that flowsched 0.1.0 can read: BadZipFile")


def test_a_profile_is_checked_without_a_server() -> None:
    """Good, or every fault; from a file or standard input."""
    result = local("profile", "check", "-", input="{default: a, profiles: {a: {}, b: {}}, queues: {q: b}}")
    assert (result.exit_code, result.stdout) == (0, "good: default a; queues q: b\n")
    result = local("profile", "check", "-", input="{name: a, gang: 1, windo: 2}")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: the document has 2 faults",
        "  $.gang: found 1, expected true or false",
        "  $.windo: found the key \"windo\"; did you mean 'window'?",
    ]


def test_the_fields_are_listed_with_their_defaults() -> None:
    """For people and for programs."""
    found = {each["name"]: each for each in json.loads(local("profile", "fields", "-o", "json").stdout)}
    assert (found["packing"]["default"], found["packing"]["per_queue"]) == ("binpack", True)
    assert "promote_ms" in local("profile", "fields").stdout


def test_a_service_is_asked_and_told(flowsched: Callable[..., Any], tmp_path: Path) -> None:
    """show, apply, plugins, snapshot."""
    assert flowsched("profile", "show").stdout.startswith(
        "flowsched, from the API, since 2026-03-01 12:00:00 UTC"
    )
    document = tmp_path / "lab.json"
    document.write_text('{"name": "lab"}')
    applied = flowsched("profile", "apply", str(document))
    assert applied.stdout.startswith("lab, from the API")
    assert applied.stderr == "until the service stops; one that is started with --profile FILE keeps it\n"
    assert flowsched("profile", "plugins").stdout.splitlines()[1].split() == [
        "only-ssd", "filter", "lab", "1.0", "flowsched", "0",
    ]  # fmt: skip
    file = tmp_path / "now.zip"
    assert flowsched("snapshot", str(file)).exit_code == 0
    assert file.read_bytes() == b"PK snapshot"
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["lab.json", "now.zip"]


def test_plugins_of_this_machine_are_listed_without_a_server() -> None:
    """None are installed beside flowsched itself."""
    result = local("profile", "plugins", "--local")
    assert (result.exit_code, result.stdout) == (
        0, "no plugins are installed; docs/plugins.md shows how one is written\n",
    )  # fmt: skip
