"""How the page comes into a wheel, without a browser and without Node."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

import flowsched

ROOT = Path(flowsched.__file__).parents[1]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """hatch_build.py, over a clone that has no page; `built` counts builds."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "DIST", tmp_path)
    module.built = []
    monkeypatch.setattr(module, "build", lambda: module.built.append(1))
    monkeypatch.delenv("FLOWSCHED_BUILD_UI", raising=False)
    return module


def initialize(hook: ModuleType, version: str) -> None:
    """As hatchling calls it; the hook reads nothing of its own object."""
    hook.CustomBuildHook.initialize(object(), version, {})


def test_a_wheel_builds_the_page_once_and_an_editable_install_never(hook: ModuleType, tmp_path: Path) -> None:
    """`make demo` stays quick; a wheel from an sdist, which has the page, needs no Node."""
    initialize(hook, "editable")
    assert hook.built == []
    initialize(hook, "standard")
    assert hook.built == [1]
    (tmp_path / "index.html").write_text("there")
    initialize(hook, "standard")
    assert hook.built == [1]


def test_an_editable_install_compiles_the_modules(hook: ModuleType, tmp_path: Path) -> None:
    """Where PYTHONDONTWRITEBYTECODE is set, each command would compile them again."""
    (tmp_path / "flowsched").mkdir()
    (tmp_path / "flowsched" / "module.py").write_text("x = 1\n")
    initialize(hook, "editable")
    compiled = Path(importlib.util.cache_from_source(str(tmp_path / "flowsched" / "module.py")))
    assert compiled.exists()


def test_who_wants_no_build_gets_none_or_is_told_what_to_do(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`never` makes a wheel without the page; `prebuilt` and a typing error end the build in words."""
    monkeypatch.setenv("FLOWSCHED_BUILD_UI", "never")
    initialize(hook, "standard")
    monkeypatch.setenv("FLOWSCHED_BUILD_UI", "prebuilt")
    with pytest.raises(SystemExit, match="make ui"):
        initialize(hook, "standard")
    monkeypatch.setenv("FLOWSCHED_BUILD_UI", "yes")
    with pytest.raises(SystemExit, match="auto, prebuilt or never"):
        initialize(hook, "standard")
    assert hook.built == []


def test_a_build_that_fails_ends_the_build_of_the_wheel(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says why, and how to go on without the page."""

    def fails() -> None:
        raise hook.CannotBuild("npm did not install the packages")

    monkeypatch.setattr(hook, "build", fails)
    with pytest.raises(
        SystemExit, match=r"npm did not install the packages\nOr set FLOWSCHED_BUILD_UI=never"
    ):
        initialize(hook, "standard")


def test_the_lock_file_names_no_registry_but_npms() -> None:
    """What is fetched is named by its hash; where from is not written, or is the public registry."""
    packages = json.loads((ROOT / "flowsched/web/ui/package-lock.json").read_text(encoding="utf-8"))[
        "packages"
    ]
    fetched = {name: found for name, found in packages.items() if name}
    assert len(fetched) > 5
    for name, found in fetched.items():
        assert found["integrity"].startswith("sha512-"), name
        assert found.get("resolved", "https://registry.npmjs.org/").startswith(
            "https://registry.npmjs.org/"
        ), name
