"""docs/reference is what the code says, and nothing is missing there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched import client
from flowsched.variables import FAMILIES, OF_TESTS
from tests.house import blocking
from tests.house.reference import CODE, FOLDER, OF_ATTEMPTS, OF_EVENTS, PAGES, commands, text

ROOT = CODE.parent
#: Calls whose texts are reasons of attempts, and keys whose values are.
REFUSING = {
    "Refused", "Refusal", "refuse", "_refused", "_gone", "gone", "ended", "failed", "write_void", "_absent", "_no_room",
    "fail_waiting", "PodGone", "PodEnded", "_adopt_existing", "Waiting", "Transient",
}  # fmt: skip
WORD = re.compile(r"OOMKilled|Timeout|Released|(?:[A-Z][a-z]+){2,}")
#: Found there, and no reason of an attempt.
OTHER = {"KeyError", "RequestTimeout", "NotFound", "AlreadyExists"}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    """What the code says now."""
    assert (FOLDER / name).read_text(encoding="utf-8") == text(name), "run: python -m tests.house.reference"


def test_the_signatures_of_the_client_that_waits_are_current() -> None:
    """What `Client` says now, without the waiting."""
    assert blocking.PLACE.read_text(encoding="utf-8") == blocking.text(), (
        "run: python -m tests.house.blocking"
    )


def test_every_page_is_drawn() -> None:
    """No page stays that nothing writes any more."""
    assert sorted(path.name for path in FOLDER.glob("*.md")) == sorted(PAGES)


def variables(folder: Path) -> set[str]:
    """The variables of flowsched that Python files below a folder name."""
    found = {
        name
        for path in folder.rglob("*.py")
        for name in re.findall(r"(?<!_)FLOWSCHED_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8"))
    }
    return {name for name in found if not name.startswith(FAMILIES)}


def test_every_variable_is_explained() -> None:
    """The product's in the reference; those that only tests and benches read in CONTRIBUTING.md."""
    page = (FOLDER / "settings.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(FLOWSCHED_\w+)`", page, re.MULTILINE))
    prefixes = {prefix.rstrip("_") for prefix in FAMILIES}
    ours = {name for name in variables(CODE) if name not in prefixes}
    ours -= OF_TESTS
    assert ours - told == set(), "add them to flowsched/variables.py"
    assert len(ours) > 45
    contributing = set(
        re.findall(r"`(FLOWSCHED_\w+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    )
    assert contributing - told == OF_TESTS, "bring OF_TESTS of flowsched/variables.py up to date"
    tests = {name for name in variables(ROOT / "tests") | variables(ROOT / "bench") if name not in prefixes}
    assert tests - ours - told - contributing - {"FLOWSCHED_X"} == set(), "add them to CONTRIBUTING.md"


def reasons() -> Iterator[str]:
    """Texts that look like a reason, where the code refuses or ends an attempt."""
    for path in [
        *CODE.glob("cluster/**/*.py"),
        *CODE.glob("engine/**/*.py"),
        *CODE.glob("workflow/run/*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found: list[ast.expr] = []
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                found = list(node.args) if called in REFUSING else []
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found = [
                    value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "reason"
                ]
            for each in found:
                if (
                    isinstance(each, ast.Constant)
                    and isinstance(each.value, str)
                    and WORD.fullmatch(each.value)
                ):
                    yield each.value


def test_every_reason_of_an_attempt_is_explained() -> None:
    """A user who reads one finds it."""
    found = set(reasons())
    assert len(found) > 15
    assert found - set(OF_ATTEMPTS) - OTHER == set(), "add them to OF_ATTEMPTS in tests/house/reference.py"


def test_the_cli_page_has_every_command() -> None:
    """As many as there are, with each option."""
    page = (FOLDER / "cli.md").read_text(encoding="utf-8")
    for path, command in commands():
        section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        assert section, path
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert all(f"`{name}`" in section for name in option.opts), f"{path} {option.opts}"


def test_the_sdk_page_has_every_class() -> None:
    """And its public methods."""
    page = (FOLDER / "sdk.md").read_text(encoding="utf-8")
    for name in client.__all__:
        assert f"\n## {name}\n" in page
        methods = [each for each in vars(getattr(client, name)) if not each.startswith("_")]
        assert [
            each
            for each in methods
            if callable(getattr(getattr(client, name), each)) and f"### {name}.{each}\n" not in page
        ] == []


def test_every_kind_of_event_is_explained() -> None:
    """With each key that the code puts into its body, and none that it does not."""
    found: dict[str, set[str]] = {}
    for path in [*CODE.glob("workflow/run/*.py"), *CODE.glob("engine/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "event"
            ):
                kind = ast.literal_eval(node.args[0])
                found.setdefault(kind, set()).update(str(each.arg) for each in node.keywords)
            elif isinstance(node, ast.Constant) and node.value in ("gang.placed", "tasks.placed"):
                found[node.value] = {"group", "first", "tasks", "nodes"}
    told = {kind: {key for key in keys.split(", ") if key} for kind, (keys, _) in OF_EVENTS.items()}
    assert found == told, "bring OF_EVENTS in tests/house/reference.py up to date"
